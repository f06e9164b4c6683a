package arbiter

import (
	"fmt"
	"slices"
	"testing"
)

// bench is a node whose readings a test writes by hand. Its GPUs use 4 MiB when they are empty.
type bench struct {
	t        *testing.T
	s        *State
	nowMs    int64
	readings map[string]*Reading
	pods     PodsReading
	effects  []Effect // of the last step
}

const emptyBytes = 4 << 20

func newBench(t *testing.T, gpus int) *bench {
	b := &bench{t: t, nowMs: 1_000_000, readings: map[string]*Reading{}}
	var devices []Device
	for i := range gpus {
		devices = append(devices, Device{UUID: gpuName(i), Minor: i})
		b.readings[gpuName(i)] = &Reading{UUID: gpuName(i), Used: BytesReading{Bytes: emptyBytes}}
	}
	b.s = New(devices, 0, b.nowMs, false)
	b.pods.ByPod = map[PodUID][]Process{}
	return b
}

func gpuName(i int) string { return fmt.Sprintf("GPU-%d", i) }

func (b *bench) step(event Event) []Effect {
	b.t.Helper()
	epoch := b.s.SeatEpoch
	b.effects = b.s.Step(event, b.nowMs).Effects
	if err := b.s.Check(); err != nil {
		b.t.Fatalf("after %T: %v", event, err)
	}
	if b.s.SeatEpoch < epoch {
		b.t.Fatalf("the seat epoch went from %d to %d", epoch, b.s.SeatEpoch)
	}
	return b.effects
}

// measure delivers what the readings say now, a poll later.
func (b *bench) measure() []Effect {
	b.t.Helper()
	b.nowMs += 20
	observed := Observed{AtMs: b.nowMs, Pods: b.pods}
	for _, g := range b.s.GPUs {
		observed.GPUs = append(observed.GPUs, *b.readings[g.UUID])
	}
	return b.step(observed)
}

// ready measures, passes the self-tests that are asked for, and measures again: every GPU is free.
func (b *bench) ready() *bench {
	b.t.Helper()
	for _, effect := range b.measure() {
		if test, ok := effect.(StartSelfTest); ok {
			b.step(SelfTested{UUID: test.UUID, Seen: true})
		}
	}
	b.measure()
	for _, g := range b.s.GPUs {
		if g.Phase != Free {
			verdict, _ := g.Verdict()
			b.t.Fatalf("%s is %s: %+v", g.UUID, g.Phase, verdict)
		}
	}
	return b
}

func (b *bench) join(pods ...PodUID) *bench {
	for _, pod := range pods {
		b.step(PodJoined{UID: pod, Tenant: "tenant-of-" + string(pod)})
		b.pods.ByPod[pod] = []Process{{Pid: 10 + len(b.pods.ByPod), StartMs: 1, Pod: pod, Name: "runner"}}
	}
	return b
}

func (b *bench) request(pod PodUID, count int) []Effect {
	b.t.Helper()
	return b.ask(Requested{ID: "r-" + string(pod), Pod: pod, LeaseEpoch: 1, Count: count})
}

func (b *bench) ask(e Requested) []Effect {
	b.t.Helper()
	for _, g := range b.s.GPUs {
		e.Visible = append(e.Visible, g.UUID)
	}
	if e.DeadlineMs == 0 {
		e.DeadlineMs = b.nowMs + MaxWaitMs
	}
	return b.step(e)
}

// run starts a process of the pod that has the GPU open, is listed there, and uses memory.
func (b *bench) run(pod PodUID, pid int, uuid string) Process {
	p := Process{Pid: pid, StartMs: b.nowMs - b.nowMs%StartGrainMs, Pod: pod, Name: "job"}
	if pod != "" {
		b.pods.ByPod[pod] = append(b.pods.ByPod[pod], p)
	}
	r := b.readings[uuid]
	r.Openers.Processes = append(r.Openers.Processes, p)
	r.Listed.Processes = append(r.Listed.Processes, p)
	r.Used.Bytes += 1 << 30
	return p
}

// exit ends a process everywhere; its memory stays until free is called.
func (b *bench) exit(p Process) {
	same := func(q Process) bool { return q.Pid == p.Pid }
	b.pods.ByPod[p.Pod] = slices.DeleteFunc(b.pods.ByPod[p.Pod], same)
	for _, r := range b.readings {
		r.Openers.Processes = slices.DeleteFunc(r.Openers.Processes, same)
		r.Listed.Processes = slices.DeleteFunc(r.Listed.Processes, same)
	}
}

func (b *bench) freeMemory() {
	for _, r := range b.readings {
		r.Used.Bytes = emptyBytes
	}
}

func of[E Effect](effects []Effect) []E {
	var found []E
	for _, effect := range effects {
		if e, ok := effect.(E); ok {
			found = append(found, e)
		}
	}
	return found
}

func one[E Effect](b *bench, effects []Effect) E {
	b.t.Helper()
	found := of[E](effects)
	if len(found) != 1 {
		var none E
		b.t.Fatalf("wanted one %T, got %+v", none, effects)
	}
	return found[0]
}

func none[E Effect](b *bench, effects []Effect) {
	b.t.Helper()
	if found := of[E](effects); len(found) > 0 {
		b.t.Fatalf("wanted none of %+v", found)
	}
}

func (b *bench) phase(uuid string, want Phase) {
	b.t.Helper()
	if g := b.s.GPU(uuid); g.Phase != want {
		verdict, _ := g.Verdict()
		b.t.Fatalf("%s is %s, wanted %s; last verdict %+v, quarantine %+v", uuid, g.Phase, want, verdict, g.Quarantine)
	}
}
