package agent

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"firepool/node-agent/arbiter"
)

// Status is a copy of what people and monitoring may see.
type Status struct {
	V                int              `json:"v"`
	GPUs             []GPUStatus      `json:"gpus"`
	Waiting          int              `json:"waiting"`
	Pods             int              `json:"pods"`
	SeatEpoch        uint64           `json:"seatEpoch"`
	SeatMs           map[string]int64 `json:"seatMsByTenant"`
	InfrastructureMs int64            `json:"infrastructureMs"`
	// SuspendedBytes of the host's memory that suspended jobs have from their GPUs, by tenant.
	SuspendedBytes map[string]uint64 `json:"suspendedBytesByTenant"`
	Condemned      []Condemned       `json:"condemned"`
	Reports        []Report          `json:"reports"`
	Counts         map[string]int    `json:"counts"`
}

// Condemned is a pod that is to be deleted: its use of the node has ended, and only a fresh one can go on.
type Condemned struct {
	UID       arbiter.PodUID `json:"uid"`
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Reason    string         `json:"reason"` // UngrantedUse | PodLost
	Detail    string         `json:"detail"`
}

func condemned(pods map[arbiter.PodUID]*arbiter.Pod) []Condemned {
	found := []Condemned{}
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		pod := pods[uid]
		one := Condemned{UID: uid, Namespace: pod.Namespace, Name: pod.Name}
		switch {
		case pod.Gone:
			continue
		case pod.Banned != "":
			one.Reason, one.Detail = "UngrantedUse", pod.Banned
		case pod.Lost != "":
			one.Reason, one.Detail = "PodLost", pod.Lost
		default:
			continue
		}
		found = append(found, one)
	}
	return found
}

// GPUStatus of one GPU.
type GPUStatus struct {
	UUID       string              `json:"uuid"`
	Minor      int                 `json:"minor"`
	Phase      arbiter.Phase       `json:"phase"`
	ForMs      int64               `json:"forMs"`
	Pod        arbiter.PodUID      `json:"pod,omitempty"`
	Tenant     string              `json:"tenant,omitempty"`
	SeatEpoch  uint64              `json:"seatEpoch,omitempty"`
	Verdict    string              `json:"verdict,omitempty"`
	Why        string              `json:"why,omitempty"`
	Quarantine *arbiter.Quarantine `json:"quarantine,omitempty"`
	SelfTested bool                `json:"selfTested"`
}

// statusTimeout: a loop that does not answer in this time is not healthy.
const statusTimeout = 5 * time.Second

// Status of the node; false when the agent does not answer.
func (a *Agent) Status() (Status, bool) {
	found := make(chan Status, 1)
	timeout := time.NewTimer(statusTimeout)
	defer timeout.Stop()
	select {
	case a.inputs <- func() { found <- a.status() }:
	case <-a.stopped:
		return Status{}, false
	case <-timeout.C:
		return Status{}, false
	}
	select {
	case status := <-found:
		return status, true
	case <-a.stopped:
		return Status{}, false
	}
}

func (a *Agent) status() Status {
	s := a.state
	status := Status{
		V: 1, Waiting: len(s.Queue), Pods: len(s.Pods), SeatEpoch: s.SeatEpoch, InfrastructureMs: s.InfrastructureMs,
		SeatMs: map[string]int64{}, SuspendedBytes: map[string]uint64{}, Counts: map[string]int{}, Reports: slices.Clone(a.reports), Condemned: condemned(s.Pods),
	}
	for tenant, ms := range s.SeatMs {
		status.SeatMs[tenant] = ms
	}
	for _, pod := range s.Pods {
		if pod.Suspended != nil {
			status.SuspendedBytes[cmp.Or(pod.Suspended.Tenant, pod.Tenant)] += pod.Suspended.HostBytes
		}
	}
	for kind, count := range a.counts {
		status.Counts[kind] = count
	}
	for _, g := range s.GPUs {
		shown := GPUStatus{UUID: g.UUID, Minor: g.Minor, Phase: g.Phase, ForMs: s.NowMs - g.SinceMs, SelfTested: g.SelfTested}
		if grant := s.Grants[g.SeatEpoch]; grant != nil {
			shown.Pod, shown.Tenant, shown.SeatEpoch = grant.Pod, grant.Tenant, grant.SeatEpoch
		}
		if verdict, ok := g.Verdict(); ok {
			shown.Verdict, shown.Why = string(verdict.Kind), verdict.Why
		}
		if g.Quarantine != nil {
			quarantine := *g.Quarantine
			shown.Quarantine = &quarantine
		}
		status.GPUs = append(status.GPUs, shown)
	}
	return status
}
