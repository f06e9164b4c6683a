package arbiter

import (
	"fmt"
	"slices"
)

// suspending is in the agent's file before the first process is touched: an agent that dies meanwhile knows which ones may be off their GPUs.
func (s *State) suspending(e Suspending) {
	grant := s.holding(e.ID, e.Pod, e.SeatEpoch)
	if grant == nil {
		return
	}
	pod := s.Pods[e.Pod]
	job := pod.Suspended
	if job == nil && len(e.Processes) == 0 {
		s.emit(Refused{e.ID, Problem{NotSuspended, "no process of the pod is on its GPUs", "release the seat"}})
		return
	}
	if job == nil {
		job = &Suspension{Tenant: grant.Tenant, SeatEpoch: e.SeatEpoch, GrantedMs: grant.AtMs, UUIDs: slices.Clone(grant.UUIDs), AtMs: s.NowMs}
		pod.Suspended = job
	}
	if job.SeatEpoch != e.SeatEpoch {
		// It has the seat that it was to be resumed on.
		s.emit(Refused{e.ID, Problem{NotSuspended, fmt.Sprintf("the job of seat epoch %d was not resumed yet", job.SeatEpoch), "resume it, or release the seat"}})
		return
	}
	for _, p := range e.Processes {
		if !slices.ContainsFunc(job.Processes, func(q Process) bool { return q.key() == p.key() }) {
			job.Processes = append(job.Processes, p)
		}
	}
	job.HostBytes = max(job.HostBytes, e.HostBytes)
	s.durable = true
	s.emit(Done{ID: e.ID})
}

func (s *State) resumed(e Resumed) {
	grant := s.holding(e.ID, e.Pod, e.SeatEpoch)
	if grant == nil {
		return
	}
	pod := s.Pods[e.Pod]
	if job := pod.Suspended; job != nil {
		// From now on what is left of the job when it ends is what was born under its first grant.
		grant.AtMs = min(grant.AtMs, job.GrantedMs)
		pod.Suspended = nil
		s.durable = true
	}
	s.emit(Done{ID: e.ID})
}

// holding is the grant, if it is the pod's; else who asks is refused.
func (s *State) holding(id string, pod PodUID, seatEpoch uint64) *Grant {
	grant := s.Grants[seatEpoch]
	if grant == nil || grant.Pod != pod {
		s.emit(Refused{id, Problem{StaleSeat, fmt.Sprintf("the pod does not hold seat epoch %d", seatEpoch), "ask what the pod holds"}})
		return nil
	}
	return grant
}

func (s *State) isSuspended(uid PodUID, seatEpoch uint64) bool {
	pod := s.Pods[uid]
	return pod != nil && pod.Suspended != nil && pod.Suspended.SeatEpoch == seatEpoch
}

// loseSuspended forgets a suspended job when none of its processes is left.
func (s *State) loseSuspended(pod *Pod, e Observed) {
	job := pod.Suspended
	if job == nil || e.AtMs <= job.AtMs || len(job.Processes) == 0 {
		return
	}
	for _, p := range job.Processes {
		if slices.ContainsFunc(e.Pods.ByPod[pod.UID], func(q Process) bool { return q.key() == p.key() }) {
			return
		}
	}
	pod.Suspended = nil
	s.durable = true
	s.emit(Report{Kind: "suspendedLost", Pod: pod.UID, Detail: fmt.Sprintf("no process of the job that was suspended under seat epoch %d is left", job.SeatEpoch)})
}
