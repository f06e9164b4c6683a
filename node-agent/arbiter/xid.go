package arbiter

import (
	"fmt"
	"slices"
)

// Fault says whose a device error is, and so what happens to the GPU.
type Fault string

const (
	JobFault       Fault = "job"       // the job's own: an exception, a page fault, a reset channel, preemptive clean-up
	ContainedFault Fault = "contained" // a contained memory error: the job is lost, the GPU is verified in full
	RemapFault     Fault = "remap"     // a row was remapped: the job may end, then the GPU is to be reset
	DeviceFault    Fault = "device"    // the GPU is lost to everybody until somebody has looked at it
)

// faults lists the codes that do not condemn the device. NVIDIA's XID catalogue names them; whatever is not here,
// also a code that is new, is a DeviceFault.
var faults = map[int]Fault{
	13: JobFault, 31: JobFault, 43: JobFault, 45: JobFault,
	94: ContainedFault,
	63: RemapFault,
}

// FaultOf an XID code.
func FaultOf(code int) Fault {
	if fault, known := faults[code]; known {
		return fault
	}
	return DeviceFault
}

func (s *State) xid(e XidReported) {
	g := s.GPU(e.UUID)
	if g == nil {
		return
	}
	grant := s.Grants[g.SeatEpoch]
	report := Report{Kind: "xid", UUID: g.UUID, Xid: e.Code, Detail: string(FaultOf(e.Code))}
	if grant != nil {
		report.Pod = grant.Pod
		if len(grant.Xids) < MaxXids && !slices.Contains(grant.Xids, e.Code) {
			grant.Xids = append(grant.Xids, e.Code)
			s.durable = true
		}
	}
	s.emit(report)
	switch FaultOf(e.Code) {
	case JobFault:
	case ContainedFault:
		s.suspect(g, grant)
	case RemapFault:
		s.afterHolder(g, grant, Quarantine{Reason: "reset", Detail: "a memory row was remapped; reset the GPU", ByOperator: true, Xid: e.Code})
	case DeviceFault:
		s.condemn(g, grant, Quarantine{Reason: "xid", Detail: fmt.Sprintf("XID %d", e.Code), ByOperator: true, Xid: e.Code})
	}
}

// suspect: a memory error or somebody else's memory may be left on the device, so even the pod that had it last
// takes it only when all four signs are measured.
func (s *State) suspect(g *GPU, grant *Grant) {
	if grant != nil {
		s.durable = s.durable || !grant.Suspect
		grant.Suspect = true
		return
	}
	if g.Former != nil {
		s.durable = s.durable || !g.Former.Suspect
		g.Former.Suspect = true
	}
	if g.Phase == Free {
		g.enter(Verifying, s.NowMs)
	}
}

func (s *State) afterHolder(g *GPU, grant *Grant, q Quarantine) {
	if grant == nil {
		s.quarantine(g, q)
		return
	}
	g.AfterHolder = &q
	s.durable = true
}

// condemn takes the GPU away from its holder: what runs there is lost, and the pod is told to be.
func (s *State) condemn(g *GPU, grant *Grant, q Quarantine) {
	if grant == nil {
		s.quarantine(g, q)
		return
	}
	g.AfterHolder = &q
	pod := s.Pods[grant.Pod]
	pod.Lost, pod.LostEpoch = fmt.Sprintf("GPU %s failed: %s", g.UUID, q.Detail), grant.SeatEpoch
	s.emit(Report{Kind: "podLost", UUID: g.UUID, Pod: grant.Pod, Xid: q.Xid, Detail: q.Detail})
	s.end(grant)
}
