package arbiter

import "fmt"

// DurableVersion of the file's shape.
const DurableVersion = 1

// Durable is what must survive the agent. The queue does not: its clients see their connection break and ask again.
type Durable struct {
	V                int              `json:"v"`
	AtMs             int64            `json:"atMs"` // since boot; accounts are up to here
	SeatEpoch        uint64           `json:"seatEpoch"`
	GPUs             []DurableGPU     `json:"gpus"`
	Pods             []Pod            `json:"pods"`
	Grants           []Grant          `json:"grants"`
	SeatMs           map[string]int64 `json:"seatMs"`
	InfrastructureMs int64            `json:"infrastructureMs"`
}

// DurableGPU is what is remembered about one GPU. Whether it is free is measured again.
type DurableGPU struct {
	UUID          string      `json:"uuid"`
	BaselineBytes *uint64     `json:"baselineBytes,omitempty"`
	Former        *Former     `json:"former,omitempty"`
	Quarantine    *Quarantine `json:"quarantine,omitempty"`
	AfterHolder   *Quarantine `json:"afterHolder,omitempty"`
}

// Durable copies what has to be in the agent's file.
func (s *State) Durable() Durable {
	d := Durable{
		V: DurableVersion, AtMs: s.NowMs, SeatEpoch: s.SeatEpoch, SeatMs: map[string]int64{}, InfrastructureMs: s.InfrastructureMs,
		GPUs: []DurableGPU{}, Pods: []Pod{}, Grants: []Grant{},
	}
	for _, g := range s.GPUs {
		d.GPUs = append(d.GPUs, DurableGPU{g.UUID, copied(g.BaselineBytes), copied(g.Former), copied(g.Quarantine), copied(g.AfterHolder)})
	}
	for _, uid := range sortedKeys(s.Pods) {
		pod := *s.Pods[uid]
		pod.Suspended = copied(pod.Suspended)
		d.Pods = append(d.Pods, pod)
	}
	for _, epoch := range sortedKeys(s.Grants) {
		d.Grants = append(d.Grants, s.Grants[epoch].copied())
	}
	for tenant, ms := range s.SeatMs {
		d.SeatMs[tenant] = ms
	}
	return d
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// Restore is the state of a node whose agent has started again. Within the same boot, holders go on; after a
// reboot no process is left, so neither holders nor quarantines nor baselines are, only epochs and accounts.
func Restore(d Durable, devices []Device, sameBoot bool, nowMs int64) (*State, error) {
	if d.V != DurableVersion {
		return nil, fmt.Errorf("the file has version %d, this agent knows %d: run the agent that wrote it, or move the file away while no job runs", d.V, DurableVersion)
	}
	s := New(devices, d.SeatEpoch, nowMs, false)
	s.InfrastructureMs = d.InfrastructureMs
	for tenant, ms := range d.SeatMs {
		s.SeatMs[tenant] = ms
	}
	if !sameBoot {
		return s, nil
	}
	for i := range d.Pods {
		pod := d.Pods[i]
		s.Pods[pod.UID] = &pod
	}
	for _, known := range d.GPUs {
		s.restoreGPU(known)
	}
	for i := range d.Grants {
		s.restoreGrant(d.Grants[i])
	}
	s.NowMs = min(d.AtMs, nowMs) // the first step charges the time without an agent: holders went on
	return s, nil
}

func (s *State) restoreGPU(known DurableGPU) {
	g := s.GPU(known.UUID)
	if g == nil {
		return
	}
	g.BaselineBytes, g.Former, g.AfterHolder = known.BaselineBytes, known.Former, known.AfterHolder
	if known.Quarantine != nil && g.Phase != Quarantined {
		g.Phase, g.Quarantine = Quarantined, known.Quarantine
	}
}

// restoreGrant leaves a grant as it was. One whose GPU the node has no more is ended: its job is lost.
func (s *State) restoreGrant(grant Grant) {
	s.SeatEpoch = max(s.SeatEpoch, grant.SeatEpoch)
	s.Grants[grant.SeatEpoch] = &grant
	whole := s.Pods[grant.Pod] != nil
	for _, uuid := range grant.UUIDs {
		g := s.GPU(uuid)
		if g == nil || g.Phase == Quarantined {
			whole = false
			continue
		}
		g.enter(Held, s.NowMs)
		g.SeatEpoch = grant.SeatEpoch
	}
	if !whole {
		s.end(s.Grants[grant.SeatEpoch])
	}
}
