package arbiter

import "fmt"

// Sign is one of the four signs of a released GPU. Unknown is never taken for yes.
type Sign string

const (
	Yes     Sign = "yes"
	No      Sign = "no"
	Unknown Sign = "unknown"
)

// Kind of a verdict.
type Kind string

const (
	// RELEASED: all four signs are yes.
	RELEASED Kind = "RELEASED"
	// HELD: at least one sign is no.
	HELD Kind = "HELD"
	// UNKNOWN: no sign is no, and at least one could not be read.
	UNKNOWN Kind = "UNKNOWN"
)

// Verdict on one measurement of a GPU.
type Verdict struct {
	Kind Kind
	// A: the former job's processes are gone. B: no Firepool process has the device open. C: the driver lists none.
	// D: the memory in use is the empty device's.
	A, B, C, D Sign
	Why        string // the first sign that is not yes
}

// ForSamePod says whether the pod that had the GPU last may take it again at once: what memory is left there
// is its own, so D is not asked.
func (v Verdict) ForSamePod() bool { return v.A == Yes && v.B == Yes && v.C == Yes }

// judge applies the four signs. It changes nothing.
func (s *State) judge(g *GPU, r Reading, pods PodsReading) Verdict {
	var v Verdict
	var whyA, whyB, whyC, whyD string
	v.A, whyA = s.jobGone(g, pods)
	v.B, whyB = s.noneOpen(r)
	v.C, whyC = s.noneListed(g, r, v.B)
	v.D, whyD = memoryEmpty(g, r)
	v.Kind = RELEASED
	signs := []struct {
		sign Sign
		why  string
	}{{v.A, whyA}, {v.B, whyB}, {v.C, whyC}, {v.D, whyD}}
	for _, wanted := range []struct {
		sign Sign
		kind Kind
	}{{No, HELD}, {Unknown, UNKNOWN}} {
		for _, one := range signs {
			if one.sign == wanted.sign {
				v.Kind, v.Why = wanted.kind, one.why
				return v
			}
		}
	}
	return v
}

// jobGone is sign A. A job's processes are those of its pod that were born under its grant, whoever their parent is
// now. One born after the release counts by signs B and C alone: it may be of a job that needs no device.
func (s *State) jobGone(g *GPU, pods PodsReading) (Sign, string) {
	if g.Former == nil || g.Former.Suspended {
		return Yes, ""
	}
	if pods.Problem != "" {
		return Unknown, "the processes of the pods are not known: " + pods.Problem
	}
	for _, process := range pods.ByPod[g.Former.Pod] {
		if g.Former.bore(process) {
			return No, fmt.Sprintf("process %d (%s) of the former job lives", process.Pid, process.Name)
		}
	}
	return Yes, ""
}

func (f *Former) bore(p Process) bool {
	return p.StartMs >= f.GrantedMs-f.GrantedMs%StartGrainMs && p.StartMs <= f.ReleasedMs
}

// noneOpen is sign B.
func (s *State) noneOpen(r Reading) (Sign, string) {
	if r.Openers.Problem != "" {
		return Unknown, "who has the device open is not known: " + r.Openers.Problem
	}
	for _, process := range r.Openers.Processes {
		if s.ours(process) {
			return No, fmt.Sprintf("process %d (%s) has the device open", process.Pid, process.Name)
		}
	}
	return Yes, ""
}

// noneListed is sign C. An empty list is also what a driver says that cannot see the node's processes, so it counts only
// from an agent whose self-test has seen one, with B true. That D must be true as well is so by the verdict, which wants all
// four; ForSamePod waives it on purpose.
func (s *State) noneListed(g *GPU, r Reading, open Sign) (Sign, string) {
	if r.Listed.Problem != "" {
		return Unknown, "the driver's process list is not known: " + r.Listed.Problem
	}
	for _, process := range r.Listed.Processes {
		if s.ours(process) {
			return No, fmt.Sprintf("the driver lists process %d (%s)", process.Pid, process.Name)
		}
	}
	if !g.SelfTested {
		return Unknown, "the driver's list is empty, and no self-test has seen a process in it"
	}
	if open != Yes {
		return Unknown, "the driver's list is empty, but the device may be open"
	}
	return Yes, ""
}

// memoryEmpty is sign D.
func memoryEmpty(g *GPU, r Reading) (Sign, string) {
	if r.Used.Problem != "" {
		return Unknown, "the memory in use is not known: " + r.Used.Problem
	}
	if g.BaselineBytes == nil {
		return Unknown, fmt.Sprintf("the empty device's memory is not known yet, %d MiB are in use", r.Used.Bytes>>20)
	}
	if r.Used.Bytes > *g.BaselineBytes+MemorySlackBytes {
		return No, fmt.Sprintf("%d MiB are in use, %d MiB when it is empty", r.Used.Bytes>>20, *g.BaselineBytes>>20)
	}
	return Yes, ""
}

// ours: a process of a registered pod.
func (s *State) ours(p Process) bool { return p.Pod != "" && s.Pods[p.Pod] != nil }

// learn takes the memory of a device for its baseline when every other sign says that it is empty, and only
// ever lowers it: what is left behind must not become what is normal.
func (s *State) learn(g *GPU, r Reading, v Verdict) bool {
	if !v.ForSamePod() || r.Used.Problem != "" {
		return false
	}
	used := r.Used.Bytes
	if g.BaselineBytes == nil && used > FirstBaselineMaxBytes {
		return false
	}
	if g.BaselineBytes != nil && used >= *g.BaselineBytes {
		return false
	}
	g.BaselineBytes = &used
	s.durable = true
	return true
}
