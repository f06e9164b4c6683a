package agent

import (
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
	Reports          []Report         `json:"reports"`
	Counts           map[string]int   `json:"counts"`
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
		SeatMs: map[string]int64{}, Counts: map[string]int{}, Reports: append([]Report{}, a.reports...),
	}
	for tenant, ms := range s.SeatMs {
		status.SeatMs[tenant] = ms
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
