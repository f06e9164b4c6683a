package arbiter

import (
	"fmt"
	"slices"
)

// Result of a step. When Durable, the state is to be in the agent's file before the first effect is carried out.
type Result struct {
	Effects []Effect
	Durable bool
}

// Step takes one event in, at nowMs since boot. Time never goes back: an earlier nowMs counts as the last one.
//
//  1. account the time that has passed to whoever had the GPUs
//  2. the event itself
//  3. what is overdue: survivors, sick seats, requests
//  4. grants, in the one order
func (s *State) Step(event Event, nowMs int64) Result {
	s.effects, s.durable = nil, false
	s.account(max(nowMs, s.NowMs))
	s.take(event)
	s.overdue()
	s.schedule()
	return Result{Effects: s.effects, Durable: s.durable}
}

func (s *State) emit(effect Effect) { s.effects = append(s.effects, effect) }

func (s *State) take(event Event) {
	switch e := event.(type) {
	case PodJoined:
		s.join(e)
	case PodGone:
		s.leave(e.UID)
	case Requested:
		s.request(e)
	case Cancelled:
		s.cancel(e)
	case Released:
		s.release(e)
	case Suspending:
		s.suspending(e)
	case Resumed:
		s.resumed(e)
	case Observed:
		s.observe(e)
	case SelfTested:
		s.selfTested(e)
	case XidReported:
		s.xid(e)
	case Cleared:
		s.clear(e)
	case Ticked:
	default:
		panic(fmt.Sprintf("arbiter: no such event %T", event))
	}
}

func (s *State) join(e PodJoined) {
	if pod := s.Pods[e.UID]; pod != nil {
		noVolume := e.NoVolume && (pod.NoVolume || pod.Gone)
		s.durable = s.durable || pod.Gone || pod.NoVolume != noVolume
		pod.Gone, pod.NoVolume, pod.joinedMs = false, noVolume, s.NowMs
		return
	}
	if len(s.Pods) >= MaxPods {
		s.emit(Report{Kind: "podLost", Pod: e.UID, Detail: "the node has too many pods with seats"})
		return
	}
	s.Pods[e.UID] = &Pod{UID: e.UID, Namespace: e.Namespace, Name: e.Name, Tenant: e.Tenant, NoVolume: e.NoVolume, joinedMs: s.NowMs}
	s.durable = true
}

// leave ends what the pod has. It stays known while it has processes: they are still ours, not a stranger's.
func (s *State) leave(uid PodUID) {
	pod := s.Pods[uid]
	if pod == nil {
		return
	}
	pod.Gone = true
	s.durable = true
	s.drop(uid, Problem{UnknownPod, "the pod has ended", "nothing is left to do"})
	if grant := s.GrantOf(uid); grant != nil {
		s.end(grant)
	}
}

// drop refuses what the pod waits for.
func (s *State) drop(uid PodUID, problem Problem) {
	s.Queue = slices.DeleteFunc(s.Queue, func(r *Request) bool {
		if r.Pod == uid {
			s.emit(Refused{r.ID, problem})
		}
		return r.Pod == uid
	})
}

// request admits or refuses. The same request again is answered again.
func (s *State) request(e Requested) {
	refuse := func(code Code, message, remedy string) {
		s.emit(Refused{e.ID, Problem{code, message, remedy}})
	}
	pod := s.Pods[e.Pod]
	switch {
	case pod == nil || pod.Gone:
		refuse(UnknownPod, "this pod has no volume of the node agent", "give the pod the inline CSI volume")
		return
	case e.Count < 1 || e.Count > MaxSeats || e.ID == "" || e.Priority < 0 || e.Priority > MaxPriority:
		refuse(InvalidRequest, fmt.Sprintf("%d GPUs at priority %d", e.Count, e.Priority),
			fmt.Sprintf("ask for 1 to %d GPUs at priority 0 to %d, with a request id", MaxSeats, MaxPriority))
		return
	case pod.Banned != "":
		refuse(UngrantedUse, pod.Banned, "delete the pod; only a fresh one is granted a seat")
		return
	case e.LeaseEpoch < pod.LeaseEpoch:
		refuse(StaleLease, fmt.Sprintf("lease epoch %d is over, the pod is at %d", e.LeaseEpoch, pod.LeaseEpoch),
			"acquire the lease again")
		return
	}
	if held := s.GrantOf(e.Pod); held != nil {
		if held.RequestID == e.ID && held.LeaseEpoch == e.LeaseEpoch {
			s.emit(Granted{e.ID, held.copied()})
			return
		}
		refuse(HoldAndWait, fmt.Sprintf("the pod holds seat epoch %d", held.SeatEpoch),
			"release it first, then ask for all GPUs of the next job at once")
		return
	}
	if job := pod.Suspended; job != nil {
		e.Visible = slices.DeleteFunc(slices.Clone(e.Visible), func(uuid string) bool { return !slices.Contains(job.UUIDs, uuid) })
		if e.Count != len(job.UUIDs) {
			refuse(InvalidRequest, fmt.Sprintf("%d GPUs for a suspended job that had %d", e.Count, len(job.UUIDs)), "ask for as many as it had, then resume it")
			return
		}
	}
	s.admit(pod, e)
}

func (s *State) admit(pod *Pod, e Requested) {
	if e.LeaseEpoch > pod.LeaseEpoch {
		pod.LeaseEpoch = e.LeaseEpoch
		s.durable = true
	}
	seq := s.seq + 1
	arrivedMs := s.NowMs
	s.Queue = slices.DeleteFunc(s.Queue, func(r *Request) bool {
		same := r.Pod == e.Pod && r.ID == e.ID && r.LeaseEpoch == e.LeaseEpoch
		if same {
			seq, arrivedMs = r.seq, r.arrivedMs // asked again after a lost connection: it keeps its turn
		}
		return same
	})
	s.drop(e.Pod, Problem{Superseded, "the pod has asked again", "wait for the newer request's answer"})
	if len(s.Queue) >= MaxWaiting {
		s.emit(Refused{e.ID, Problem{QueueFull, fmt.Sprintf("%d requests wait", len(s.Queue)), "ask again later"}})
		return
	}
	s.seq = max(s.seq, seq)
	s.Queue = append(s.Queue, &Request{
		ID: e.ID, Pod: e.Pod, LeaseEpoch: e.LeaseEpoch, Count: e.Count, Priority: e.Priority, Tenant: e.Tenant,
		Visible: slices.Clone(e.Visible), DeadlineMs: min(e.DeadlineMs, s.NowMs+MaxWaitMs),
		arrivedMs: arrivedMs, seq: seq,
	})
}

func (s *State) cancel(e Cancelled) {
	s.Queue = slices.DeleteFunc(s.Queue, func(r *Request) bool { return r.Pod == e.Pod && r.ID == e.ID })
	if grant := s.GrantOf(e.Pod); grant != nil && grant.RequestID == e.ID {
		s.end(grant)
	}
}

func (s *State) release(e Released) {
	grant := s.Grants[e.SeatEpoch]
	suspended := e.Suspended && s.isSuspended(e.Pod, e.SeatEpoch)
	if !e.Suspended && s.isSuspended(e.Pod, e.SeatEpoch) {
		s.Pods[e.Pod].Suspended = nil // the job has ended, wherever it was
		s.durable = true
	}
	switch {
	case grant == nil && e.SeatEpoch <= s.SeatEpoch:
		done := Done{ID: e.ID} // it ended already: a repeated release changes nothing
		if pod := s.Pods[e.Pod]; pod != nil && pod.LostEpoch == e.SeatEpoch {
			done.Lost = pod.Lost
		}
		s.emit(done)
	case grant == nil:
		s.emit(Refused{e.ID, Problem{StaleSeat, fmt.Sprintf("no seat epoch %d was granted here", e.SeatEpoch), "ask what the pod holds"}})
	case grant.Pod != e.Pod:
		s.emit(Refused{e.ID, Problem{IdentityMismatch, fmt.Sprintf("seat epoch %d is another pod's", e.SeatEpoch), "release what this pod holds"}})
	default:
		s.end(grant)
		for _, uuid := range grant.UUIDs {
			if g := s.GPU(uuid); suspended && g != nil && g.Former != nil {
				g.Former.Suspended = true
			}
		}
		s.emit(Done{ID: e.ID, Xids: slices.Clone(grant.Xids)})
	}
}

// end takes the grant's GPUs back. None is free before it was measured.
func (s *State) end(grant *Grant) {
	delete(s.Grants, grant.SeatEpoch)
	s.durable = true
	for _, uuid := range grant.UUIDs {
		gpu := s.GPU(uuid)
		if gpu == nil || gpu.Phase != Held {
			continue
		}
		former := &Former{Pod: grant.Pod, Tenant: grant.Tenant, GrantedMs: grant.AtMs, ReleasedMs: s.NowMs, Suspect: grant.Suspect}
		after := gpu.AfterHolder
		gpu.AfterHolder = nil
		gpu.enter(Verifying, s.NowMs)
		gpu.Former = former
		if after != nil {
			s.quarantine(gpu, *after)
		}
	}
}

func (s *State) quarantine(g *GPU, q Quarantine) {
	q.AtMs = s.NowMs
	former := g.Former
	if former != nil {
		former.Suspect = true // what is left on it may be somebody else's by now
	}
	g.enter(Quarantined, s.NowMs)
	g.Former, g.Quarantine = former, &q
	s.durable = true
	s.emit(Report{Kind: "quarantined", UUID: g.UUID, Xid: q.Xid, Detail: q.Reason + ": " + q.Detail})
}

func (s *State) clear(e Cleared) {
	g := s.GPU(e.UUID)
	if g == nil {
		s.emit(Refused{e.ID, Problem{UnknownGPU, "this node has no GPU " + e.UUID, "name one that the status lists"}})
		return
	}
	g.AfterHolder = nil
	if g.Phase == Quarantined {
		s.lift(g, "by an operator")
		g.enter(Verifying, s.NowMs)
	}
	s.durable = true
	s.emit(Done{ID: e.ID})
}

func (s *State) lift(g *GPU, how string) {
	s.durable = true
	s.emit(Report{Kind: "lifted", UUID: g.UUID, Detail: g.Quarantine.Reason + ", " + how})
}

func (g Grant) copied() Grant {
	g.UUIDs, g.Xids = slices.Clone(g.UUIDs), slices.Clone(g.Xids)
	return g
}
