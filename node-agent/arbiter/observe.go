package arbiter

import (
	"fmt"
	"slices"
	"strings"
)

// observe takes one measurement in. What was begun before a GPU's phase began says nothing about that phase.
func (s *State) observe(e Observed) {
	s.endAbandoned(e)
	for _, reading := range e.GPUs {
		g := s.GPU(reading.UUID)
		if g == nil || e.AtMs <= g.SinceMs {
			continue
		}
		s.passSelfTest(g, reading)
		s.adopt(g, reading)
		s.stopUngranted(g, reading)
		s.nameForeign(g, reading)
		s.settle(g, reading, e)
	}
}

// endAbandoned ends grants of pods of which nothing is left, and forgets pods that have gone.
func (s *State) endAbandoned(e Observed) {
	if e.Pods.Problem != "" {
		return
	}
	for _, uid := range sortedKeys(s.Pods) {
		pod := s.Pods[uid]
		s.loseSuspended(pod, e)
		if len(e.Pods.ByPod[uid]) > 0 {
			continue
		}
		if grant := s.GrantOf(uid); grant != nil && e.AtMs > grant.AtMs {
			s.end(grant)
		}
		if pod.NoVolume && !pod.Gone && e.AtMs > pod.joinedMs {
			s.leave(uid)
		}
		if pod.Gone && !s.leftTraces(uid, e) {
			delete(s.Pods, uid)
			s.durable = true
		}
	}
}

// leftTraces: a GPU still names the pod as its former holder, or has a process of it.
func (s *State) leftTraces(uid PodUID, e Observed) bool {
	for _, g := range s.GPUs {
		if g.Former != nil && g.Former.Pod == uid {
			return true
		}
	}
	for _, r := range e.GPUs {
		if slices.ContainsFunc(seenOn(r), func(p Process) bool { return p.Pod == uid }) {
			return true
		}
	}
	return false
}

// seenOn is every process that a reading shows on the GPU, each once.
func seenOn(r Reading) []Process {
	var all []Process
	known := map[processKey]bool{}
	for _, list := range []ProcessesReading{r.Openers, r.Listed} {
		if list.Problem != "" {
			continue
		}
		for _, p := range list.Processes {
			if !known[p.key()] {
				known[p.key()] = true
				all = append(all, p)
			}
		}
	}
	return all
}

// passSelfTest: a process that the kernel shows on the device is in the driver's list too, so that list can be believed.
func (s *State) passSelfTest(g *GPU, r Reading) {
	if g.SelfTested || r.Listed.Problem != "" || r.Openers.Problem != "" {
		return
	}
	for _, listed := range r.Listed.Processes {
		for _, opener := range r.Openers.Processes {
			if listed.key() == opener.key() {
				g.SelfTested = true
				return
			}
		}
	}
}

// adopt gives a device that exactly one Firepool pod uses to that pod, once, after the agent's file was lost. Until the kubelet
// has published its volume again, the pod is a stranger and the GPU quarantined for it.
func (s *State) adopt(g *GPU, r Reading) {
	if !g.adopting || r.Openers.Problem != "" || r.Listed.Problem != "" {
		return
	}
	var users []PodUID
	sinceMs := s.NowMs // of the first process on the device: what the pod started before, its runner, is not its job
	for _, p := range seenOn(r) {
		if !s.ours(p) {
			continue
		}
		sinceMs = min(sinceMs, p.StartMs)
		if !slices.Contains(users, p.Pod) {
			users = append(users, p.Pod)
		}
	}
	if len(users) == 0 {
		return
	}
	g.adopting = false
	if len(users) > 1 || g.Phase == Held || g.Quarantine != nil && g.Quarantine.ByOperator {
		return
	}
	pod := s.Pods[users[0]]
	grant := s.GrantOf(pod.UID)
	if grant == nil {
		s.SeatEpoch++
		grant = &Grant{SeatEpoch: s.SeatEpoch, Pod: pod.UID, Tenant: pod.Tenant, LeaseEpoch: pod.LeaseEpoch, AtMs: sinceMs, Adopted: true}
		s.Grants[grant.SeatEpoch] = grant
	}
	grant.AtMs = min(grant.AtMs, sinceMs)
	grant.UUIDs = append(grant.UUIDs, g.UUID)
	g.enter(Held, s.NowMs)
	g.SeatEpoch = grant.SeatEpoch
	s.durable = true
	s.emit(Report{Kind: "adopted", UUID: g.UUID, Pod: pod.UID, Detail: "the pod uses it, and the agent's file was lost"})
}

// stopUngranted kills processes of Firepool pods that are on a GPU which is not theirs, and bans their pods.
func (s *State) stopUngranted(g *GPU, r Reading) {
	for _, p := range seenOn(r) {
		if !s.ours(p) || s.mayBeOn(g, p.Pod) {
			continue
		}
		if pod := s.Pods[p.Pod]; pod.Banned == "" && !pod.Gone {
			pod.Banned = fmt.Sprintf("process %d (%s) used GPU %s without a grant", p.Pid, p.Name, g.UUID)
			s.durable = true
			s.drop(p.Pod, Problem{UngrantedUse, pod.Banned, "delete the pod; only a fresh one is granted a seat"})
			s.emit(Report{Kind: "ungranted", UUID: g.UUID, Pod: p.Pod, Detail: pod.Banned})
		}
		s.suspect(g, s.Grants[g.SeatEpoch])
		s.kill(g, p, "it uses a GPU without a grant")
	}
}

// mayBeOn: the holder's own processes, and those of the former holder, which have their two seconds to leave.
func (s *State) mayBeOn(g *GPU, pod PodUID) bool {
	if g.Phase == Held {
		return s.Grants[g.SeatEpoch].Pod == pod
	}
	return g.Former != nil && g.Former.Pod == pod
}

// nameForeign: nobody touches a process that is not ours; the GPU is not granted beside it.
func (s *State) nameForeign(g *GPU, r Reading) {
	var names []string
	for _, p := range seenOn(r) {
		if !s.ours(p) {
			names = append(names, fmt.Sprintf("process %d (%s)", p.Pid, p.Name))
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	found := Quarantine{Reason: "foreign", Detail: strings.Join(names, ", ") + " uses it"}
	switch g.Phase {
	case Quarantined:
	case Held:
		if g.AfterHolder == nil {
			g.AfterHolder = &found
			s.durable = true
			s.emit(Report{Kind: "foreign", UUID: g.UUID, Pod: s.Grants[g.SeatEpoch].Pod, Detail: found.Detail})
		}
	default:
		s.emit(Report{Kind: "foreign", UUID: g.UUID, Detail: found.Detail})
		s.quarantine(g, found)
	}
}

func hasForeign(s *State, r Reading) bool {
	return slices.ContainsFunc(seenOn(r), func(p Process) bool { return !s.ours(p) })
}

// settle moves a GPU that nobody holds by what was measured.
func (s *State) settle(g *GPU, r Reading, e Observed) {
	if g.Phase == Held {
		return
	}
	verdict := s.judge(g, r, e.Pods)
	if s.learn(g, r, verdict) {
		verdict = s.judge(g, r, e.Pods)
	}
	if hasForeign(s, r) && verdict.Kind == RELEASED {
		verdict.Kind, verdict.Why = HELD, "a process that is not Firepool's is on it"
	}
	if e.AtMs <= g.SinceMs {
		return // what was just found has changed its phase
	}
	g.seen = &sight{atMs: e.AtMs, verdict: verdict}
	s.killSurvivors(g, r, e)
	s.askSelfTest(g, r)
	released := verdict.Kind == RELEASED
	switch g.Phase {
	case Free:
		if !released {
			g.enter(Verifying, s.NowMs)
		}
	case Verifying:
		if released {
			s.free(g, e.AtMs, verdict)
		}
	case Quarantined:
		if released && !g.Quarantine.ByOperator {
			s.lift(g, "measured empty")
			s.free(g, e.AtMs, verdict)
		}
	}
}

func (s *State) free(g *GPU, atMs int64, verdict Verdict) {
	if g.Former != nil || g.Quarantine != nil {
		s.durable = true // they are forgotten now
	}
	g.enter(Free, s.NowMs)
	g.adopting = false
	g.seen = &sight{atMs: atMs, verdict: verdict}
}

// killSurvivors ends what the former holder left, two seconds after its release.
func (s *State) killSurvivors(g *GPU, r Reading, e Observed) {
	if g.Former == nil || s.NowMs-g.Former.ReleasedMs < KillAfterMs {
		return
	}
	for _, p := range seenOn(r) {
		if p.Pod == g.Former.Pod {
			s.kill(g, p, "its grant has ended and it is still on the GPU")
		}
	}
	if e.Pods.Problem != "" || g.Former.Suspended {
		return
	}
	for _, p := range e.Pods.ByPod[g.Former.Pod] {
		if g.Former.bore(p) {
			s.kill(g, p, "its grant has ended and it still lives")
		}
	}
}

func (s *State) kill(g *GPU, p Process, why string) {
	if last, done := g.killedMs[p.key()]; done && s.NowMs-last < KillAgainMs {
		return
	}
	if g.killedMs == nil {
		g.killedMs = map[processKey]int64{}
	}
	g.killedMs[p.key()] = s.NowMs
	s.emit(Kill{p, g.UUID, why})
}

// askSelfTest, but only where nothing is on the device: the test is a context of our own on it.
func (s *State) askSelfTest(g *GPU, r Reading) {
	if g.SelfTested || s.NowMs < g.selfTestDueMs || r.Listed.Problem != "" || r.Openers.Problem != "" || len(seenOn(r)) > 0 {
		return
	}
	if g.Phase == Quarantined && g.Quarantine.ByOperator {
		return
	}
	g.selfTestDueMs = s.NowMs + SelfTestAgainMs
	s.emit(StartSelfTest{g.UUID})
}

func (s *State) selfTested(e SelfTested) {
	g := s.GPU(e.UUID)
	if g == nil {
		return
	}
	if g.Phase != Held {
		// The test itself was on the device: what was measured meanwhile says nothing about an empty one.
		g.SinceMs, g.seen = s.NowMs, nil
		if g.Phase == Free {
			g.enter(Verifying, s.NowMs)
		}
	}
	if e.Seen {
		g.SelfTested = true
		return
	}
	s.emit(Report{Kind: "selfTest", UUID: g.UUID, Detail: "an empty process list cannot be believed: " + e.Problem})
}
