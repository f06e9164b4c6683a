// Package arbiter decides which pod may use which GPU of one node. It is pure: no clock, no I/O, no randomness.
// Time comes in as milliseconds since boot, which is also how the kernel tells when a process started.
//
// Step is the only door. It changes the state in place and returns effects, in the order in which they are to
// be carried out; when the result is Durable, the state must be in the agent's file before the first of them.
package arbiter

// PodUID is the pod's UID as the kubelet writes it, with dashes.
type PodUID string

// Phase of a GPU. Only Free GPUs are granted, and Verifying ones to the pod that had them last.
type Phase string

const (
	// Verifying: nobody has it; it was not yet measured empty since its last holder, or since the agent started.
	Verifying Phase = "verifying"
	// Free: measured empty by all four signs.
	Free Phase = "free"
	// Held by a grant.
	Held Phase = "held"
	// Quarantined: not granted, and shown with its reason.
	Quarantined Phase = "quarantined"
)

// Process is one process of the node. Pid and StartMs together name it: a pid alone is used again.
type Process struct {
	Pid     int    `json:"pid"`
	StartMs int64  `json:"startMs"`
	Pod     PodUID `json:"pod,omitempty"`  // by its cgroup; empty when it belongs to no pod
	Name    string `json:"name,omitempty"` // for messages only: a process chooses its own name
}

type processKey struct {
	pid     int
	startMs int64
}

func (p Process) key() processKey { return processKey{p.Pid, p.StartMs} }

// GPU is one physical device, one seat.
type GPU struct {
	UUID          string
	Minor         int
	Phase         Phase
	SinceMs       int64
	SeatEpoch     uint64  // of the grant that holds it
	Former        *Former // whose release is being verified, or that left it dirty
	BaselineBytes *uint64 // least memory that was measured in use while it was empty
	Quarantine    *Quarantine
	AfterHolder   *Quarantine // applies when its present holder ends

	// What only this run of the agent knows.
	SelfTested    bool // its process list has shown a process that was known to be there
	selfTestDueMs int64
	adopting      bool
	seen          *sight
	killedMs      map[processKey]int64
}

// sight is the last measurement since the GPU's phase began.
type sight struct {
	atMs    int64
	verdict Verdict
}

// Former is the last holder of a GPU that was not yet measured empty.
type Former struct {
	Pod        PodUID `json:"pod"`
	Tenant     string `json:"tenant"`
	GrantedMs  int64  `json:"grantedMs"`
	ReleasedMs int64  `json:"releasedMs"`
	Suspect    bool   `json:"suspect,omitempty"` // a contained memory error: even the same pod waits for all four signs
	// Suspended: its processes live on, off the device. They are judged by signs B, C and D alone.
	Suspended bool `json:"suspended,omitempty"`
}

// Quarantine says why a GPU is not granted, and what lifts that.
type Quarantine struct {
	Reason string `json:"reason"` // dirty | unknown | foreign | xid | reset | unsupported
	Detail string `json:"detail"`
	// ByOperator: only an operator (or a reboot) lifts it. Otherwise a measurement of all four signs does.
	ByOperator bool  `json:"byOperator,omitempty"`
	Xid        int   `json:"xid,omitempty"`
	AtMs       int64 `json:"atMs"`
}

// Pod is a registered consumer of seats.
type Pod struct {
	UID        PodUID `json:"uid"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Tenant     string `json:"tenant"`           // the account that whoever made the pod has named: what it holds is charged to it
	LeaseEpoch uint64 `json:"leaseEpoch"`       // the greatest it has named; older ones are refused
	Banned     string `json:"banned,omitempty"` // it used a device without a grant
	Lost       string `json:"lost,omitempty"`   // a device failed under LostEpoch
	LostEpoch  uint64 `json:"lostEpoch,omitempty"`
	// Suspended is a job whose device memory is, or is being, moved to the host.
	Suspended *Suspension `json:"suspended,omitempty"`
	Gone      bool        `json:"gone,omitempty"` // forgotten when none of its processes is left
	NoVolume  bool        `json:"noVolume,omitempty"`
	joinedMs  int64       // of this run: a measurement that was begun before says nothing about the pod
}

// Grant is what a pod holds: all of its GPUs under one seat epoch.
type Grant struct {
	SeatEpoch  uint64   `json:"seatEpoch"`
	RequestID  string   `json:"requestId"`
	Pod        PodUID   `json:"pod"`
	Tenant     string   `json:"tenant"` // who is charged: the pod's account, or one of its tenants
	LeaseEpoch uint64   `json:"leaseEpoch"`
	UUIDs      []string `json:"uuids"`
	AtMs       int64    `json:"atMs"`
	Adopted    bool     `json:"adopted,omitempty"` // found after the agent's file was lost
	Xids       []int    `json:"xids,omitempty"`    // the job's own device errors
	Suspect    bool     `json:"suspect,omitempty"`
}

// Suspension of what ran under a grant.
type Suspension struct {
	Tenant    string    `json:"tenant,omitempty"` // of its grant
	SeatEpoch uint64    `json:"seatEpoch"`
	GrantedMs int64     `json:"grantedMs"`
	UUIDs     []string  `json:"uuids"`
	Processes []Process `json:"processes"` // that were on the GPUs
	HostBytes uint64    `json:"hostBytes"` // what the GPUs had in use for them, and the host now has
	AtMs      int64     `json:"atMs"`
}

// Request waits for GPUs.
type Request struct {
	ID         string
	Pod        PodUID
	LeaseEpoch uint64
	Count      int
	Priority   int
	Tenant     string
	Visible    []string // the GPUs whose device files the pod has: its seat set
	DeadlineMs int64
	arrivedMs  int64
	seq        uint64
}

// State of one node. It belongs to Step; everybody else reads copies.
type State struct {
	GPUs             []*GPU
	Pods             map[PodUID]*Pod
	Grants           map[uint64]*Grant
	Queue            []*Request
	SeatEpoch        uint64 // of the last grant; only grows
	SeatMs           map[string]int64
	InfrastructureMs int64
	NowMs            int64
	seq              uint64
	effects          []Effect
	durable          bool
}

// Device is a GPU that was found on the node.
type Device struct {
	UUID  string
	Minor int
	// Unsupported says why the device cannot be arbitrated (MIG mode, for one); empty when it can.
	Unsupported string
}

// New is the state of a node without any past. lostFile says that there may have been one: then a device that one
// Firepool pod uses is adopted as that pod's, since nobody can tell any more whether it was granted.
func New(devices []Device, firstEpoch uint64, nowMs int64, lostFile bool) *State {
	s := &State{
		Pods: map[PodUID]*Pod{}, Grants: map[uint64]*Grant{}, SeatMs: map[string]int64{},
		SeatEpoch: firstEpoch, NowMs: nowMs,
	}
	for _, device := range devices {
		gpu := &GPU{UUID: device.UUID, Minor: device.Minor, Phase: Verifying, SinceMs: nowMs, adopting: lostFile}
		if device.Unsupported != "" {
			gpu.Phase = Quarantined
			gpu.Quarantine = &Quarantine{Reason: "unsupported", Detail: device.Unsupported, ByOperator: true, AtMs: nowMs}
		}
		s.GPUs = append(s.GPUs, gpu)
	}
	return s
}

// GPU finds one by its UUID; nil when the node has none of that name.
func (s *State) GPU(uuid string) *GPU {
	for _, gpu := range s.GPUs {
		if gpu.UUID == uuid {
			return gpu
		}
	}
	return nil
}

// GrantOf is what the pod holds; nil when it holds nothing.
func (s *State) GrantOf(pod PodUID) *Grant {
	for _, grant := range s.Grants {
		if grant.Pod == pod {
			return grant
		}
	}
	return nil
}

// Verdict is the last one since the phase began; false when there is none.
func (g *GPU) Verdict() (Verdict, bool) {
	if g.seen == nil {
		return Verdict{}, false
	}
	return g.seen.verdict, true
}

func (g *GPU) enter(phase Phase, nowMs int64) {
	g.Phase, g.SinceMs, g.seen = phase, nowMs, nil
	if phase == Held || phase == Free {
		g.Former, g.killedMs = nil, nil
	}
	if phase != Held {
		g.SeatEpoch = 0
	}
	if phase != Quarantined {
		g.Quarantine = nil
	}
}
