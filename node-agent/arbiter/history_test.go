package arbiter

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

var (
	histories = flag.Int("histories", 200, "random histories to run")
	seedFlag  = flag.Uint64("seed", 0, "run the one history of this seed")
)

// truth is one process as it really is, whatever is measured.
type truth struct {
	Process
	on      string // the GPU it has open
	openMs  int64
	bytes   uint64
	granted uint64 // the seat epoch under which it was started; 0 for rogues and strangers
	stuck   bool   // in the driver: a SIGKILL does not end it yet
}

// world is a node with faults: processes that stay, memory that stays, drivers that do not answer or answer with
// nothing, measurements that come late, an agent that dies between its file and its answers.
type world struct {
	t       *testing.T
	random  *rand.Rand
	s       *State
	nowMs   int64
	pid     int
	live    []*truth
	left    map[string]map[PodUID]uint64 // memory on a GPU that outlived its process, by the pod that it was granted to; "" for rogues
	leftMs  map[string]int64             // when a rogue did last
	holder  map[string]PodUID            // to whom it was granted last
	holds   map[PodUID]*Grant            // what pods believe they hold
	late    []Observed
	lastMs  map[string]int64 // when the newest measurement that was delivered was begun
	unclear map[string]bool  // what it said of the GPU was a problem
	granted int
	epoch   uint64
	history []string
}

var worldPods = []PodUID{"a", "b", "c", "d", "e", "f"}

// noVolume pods nobody reports as gone.
func noVolume(pod PodUID) bool { return pod >= "e" }

const worldGPUs = 4

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), nowMs: 5_000_000, pid: 1000,
		left: map[string]map[PodUID]uint64{}, holder: map[string]PodUID{}, leftMs: map[string]int64{}, holds: map[PodUID]*Grant{}, lastMs: map[string]int64{}, unclear: map[string]bool{}}
	w.s = New(worldDevices(), 0, w.nowMs, false)
	for _, pod := range worldPods {
		w.join(pod)
	}
	return w
}

func (w *world) join(pod PodUID) {
	w.live = append(w.live, &truth{Process: Process{Pid: w.nextPid(), StartMs: w.nowMs - 10, Pod: pod, Name: "runner"}})
	w.step(PodJoined{UID: pod, Tenant: string(pod), NoVolume: noVolume(pod)})
}

// lives: something of the pod does.
func (w *world) lives(pod PodUID) bool {
	return slices.ContainsFunc(w.live, func(p *truth) bool { return p.Pod == pod })
}

func worldDevices() []Device {
	var devices []Device
	for i := range worldGPUs {
		devices = append(devices, Device{UUID: gpuName(i), Minor: i})
	}
	return devices
}

func (w *world) nextPid() int { w.pid++; return w.pid }

func (w *world) chance(percent int) bool { return w.random.IntN(100) < percent }

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.history[max(0, len(w.history)-15):] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

func (w *world) step(event Event) {
	w.t.Helper()
	result := w.s.Step(event, w.nowMs)
	shown := fmt.Sprintf("%+v", event)
	if observed, ok := event.(Observed); ok {
		shown = fmt.Sprintf("begun at %d: %+v", observed.AtMs, observed.GPUs)
	}
	w.history = append(w.history, fmt.Sprintf("%d %T %s -> %+v", w.nowMs, event, shown, result.Effects))
	if err := w.s.Check(); err != nil {
		w.fail("%v", err)
	}
	if result.Durable && w.chance(3) {
		w.restart(w.s.Durable()) // it died with its file written, and nobody was told
		return
	}
	for _, effect := range result.Effects {
		w.carryOut(effect)
	}
}

// restart with what the file says. Clients ask what they hold.
func (w *world) restart(d Durable) {
	text, err := json.Marshal(d)
	if err != nil {
		w.fail("%v", err)
	}
	var read Durable
	if err := json.Unmarshal(text, &read); err != nil {
		w.fail("%v", err)
	}
	if w.s, err = Restore(read, worldDevices(), true, w.nowMs); err != nil {
		w.fail("%v", err)
	}
	if err := w.s.Check(); err != nil {
		w.fail("after a restart: %v", err)
	}
	w.late = nil
	w.history = append(w.history, fmt.Sprintf("%d restarted", w.nowMs))
	for _, pod := range worldPods {
		grant := w.s.GrantOf(pod)
		if grant != nil {
			for _, uuid := range grant.UUIDs {
				w.holder[uuid] = pod // perhaps nobody was told
			}
		}
		if grant == nil || !w.lives(pod) {
			delete(w.holds, pod)
		} else if known := w.holds[pod]; known == nil || known.SeatEpoch != grant.SeatEpoch {
			copied := grant.copied()
			w.holds[pod] = &copied
			w.epoch = max(w.epoch, grant.SeatEpoch)
		}
	}
}

func (w *world) carryOut(effect Effect) {
	switch e := effect.(type) {
	case Granted:
		w.checkGrant(e.Grant)
		if w.lives(e.Grant.Pod) {
			w.holds[e.Grant.Pod] = &e.Grant
		}
	case Kill:
		for _, p := range slices.Clone(w.live) {
			if p.key() == e.Process.key() && !p.stuck {
				if p.Pod == "" || p.granted != 0 && p.granted == w.s.GPU(e.UUID).SeatEpoch {
					w.fail("killed %+v: %s", p, e.Why)
				}
				w.end(p)
			}
		}
	case StartSelfTest:
		for _, p := range w.live {
			if p.on == e.UUID && p.openMs < w.lastMs[e.UUID] {
				w.fail("a self-test on %s, where %+v is", e.UUID, p)
			}
		}
		w.step(SelfTested{UUID: e.UUID, Seen: w.chance(90), Problem: "not listed"})
	}
}

// checkGrant compares a grant with what is really on the GPUs.
func (w *world) checkGrant(grant Grant) {
	w.t.Helper()
	if known := w.holds[grant.Pod]; known != nil && known.SeatEpoch == grant.SeatEpoch {
		return // answered again
	}
	if grant.SeatEpoch <= w.epoch {
		w.fail("seat epoch %d after %d", grant.SeatEpoch, w.epoch)
	}
	w.epoch = grant.SeatEpoch
	w.granted++
	for _, uuid := range grant.UUIDs {
		for pod, held := range w.holds {
			if pod != grant.Pod && slices.Contains(held.UUIDs, uuid) {
				w.fail("%s was granted to %s, and %s believes to hold it", uuid, grant.Pod, pod)
			}
		}
		if w.unclear[uuid] {
			w.fail("%s was granted, and the last measurement did not know", uuid)
		}
		for _, p := range w.live {
			if p.on == uuid && (p.granted != 0 || p.openMs < w.lastMs[uuid]) {
				w.fail("%s was granted to %s, and %+v is on it", uuid, grant.Pod, p)
			}
		}
		// Nobody can know what a rogue left that came and went since the measurement began, and the pod that had it last is not
		// kept waiting for memory at all.
		unseen := w.holder[uuid] == grant.Pod || w.leftMs[uuid] >= w.lastMs[uuid]
		w.holder[uuid] = grant.Pod
		for pod, bytes := range w.left[uuid] {
			if pod != grant.Pod && bytes > MemorySlackBytes && !(pod == "" && unseen) {
				w.fail("%s was granted to %s with %d bytes of %s in it", uuid, grant.Pod, bytes, pod)
			}
		}
	}
}

func (w *world) end(p *truth) {
	w.live = slices.DeleteFunc(w.live, func(q *truth) bool { return q == p })
	if !w.lives(p.Pod) {
		delete(w.holds, p.Pod) // there is nobody to believe anything
	}
	if p.on != "" && w.chance(30) {
		if w.left[p.on] == nil {
			w.left[p.on] = map[PodUID]uint64{}
		}
		owner := p.Pod
		if p.granted == 0 {
			owner, w.leftMs[p.on] = "", w.nowMs
		}
		w.left[p.on][owner] += p.bytes
	}
}

// look measures the node as it is, with faults.
func (w *world) look() Observed {
	observed := Observed{AtMs: w.nowMs, Pods: PodsReading{ByPod: map[PodUID][]Process{}}}
	for _, p := range w.live {
		observed.Pods.ByPod[p.Pod] = append(observed.Pods.ByPod[p.Pod], p.Process)
	}
	if w.chance(2) {
		observed.Pods = PodsReading{Problem: "EIO"}
	}
	for i := range worldGPUs {
		r := Reading{UUID: gpuName(i), Used: BytesReading{Bytes: emptyBytes}}
		for _, p := range w.live {
			if p.on == r.UUID {
				r.Openers.Processes = append(r.Openers.Processes, p.Process)
				r.Listed.Processes = append(r.Listed.Processes, p.Process)
				r.Used.Bytes += p.bytes
			}
		}
		for _, bytes := range w.left[r.UUID] {
			r.Used.Bytes += bytes
		}
		switch w.random.IntN(40) {
		case 0:
			r.Listed = ProcessesReading{Problem: "GPU_IS_LOST"}
		case 1:
			r.Used = BytesReading{Problem: "N/A"}
		case 2:
			r.Openers = ProcessesReading{Problem: "EACCES"}
		case 3, 4:
			r.Listed = ProcessesReading{} // the false zero
		}
		observed.GPUs = append(observed.GPUs, r)
	}
	return observed
}

func (w *world) deliver(observed Observed) {
	for _, r := range observed.GPUs {
		if g := w.s.GPU(r.UUID); observed.AtMs > g.SinceMs {
			w.lastMs[r.UUID] = observed.AtMs
			w.unclear[r.UUID] = r.Listed.Problem != "" || r.Openers.Problem != ""
		}
	}
	w.step(observed)
}

func (w *world) act() {
	pod := worldPods[w.random.IntN(len(worldPods))]
	held := w.holds[pod]
	switch w.random.IntN(14) {
	case 0:
		w.nowMs += int64(w.random.IntN(4000))
		w.step(Ticked{})
	case 1, 2:
		w.late = append(w.late, w.look())
	case 3, 4, 5, 6:
		for _, observed := range w.late {
			w.deliver(observed)
		}
		w.late = nil
		w.nowMs += int64(1 + w.random.IntN(40))
		w.deliver(w.look())
	case 7:
		if held == nil {
			w.ask(pod)
		}
	case 8:
		if held != nil && len(w.live) < 60 {
			w.start(pod, held)
		}
	case 9:
		switch {
		case held == nil:
		case w.chance(30):
			w.suspendOrResume(pod, held)
		default:
			w.giveBack(pod, held)
		}
	case 10:
		w.endOne()
	case 11:
		clear(w.left[gpuName(w.random.IntN(worldGPUs))])
	case 12:
		w.disturb(pod)
	case 13:
		w.operate(pod)
	}
}

func (w *world) ask(pod PodUID) {
	if known := w.s.Pods[pod]; known == nil || known.Gone || !w.lives(pod) {
		w.join(pod)
	}
	visible := []string{gpuName(0), gpuName(1), gpuName(2), gpuName(3)}
	if w.chance(30) {
		visible = visible[w.random.IntN(3):]
	}
	count := 1 + w.random.IntN(len(visible))
	if job := w.s.Pods[pod].Suspended; job != nil {
		count = len(job.UUIDs)
	}
	w.step(Requested{ID: fmt.Sprint("r", w.nextPid()), Pod: pod, LeaseEpoch: 1, Count: count,
		Priority: w.random.IntN(3), Visible: visible, DeadlineMs: w.nowMs + int64(w.random.IntN(60_000))})
}

func (w *world) start(pod PodUID, held *Grant) {
	uuid := held.UUIDs[w.random.IntN(len(held.UUIDs))]
	w.live = append(w.live, &truth{Process: Process{Pid: w.nextPid(), StartMs: w.nowMs, Pod: pod, Name: "job"},
		on: uuid, openMs: w.nowMs, bytes: uint64(w.random.IntN(1 << 30)), granted: held.SeatEpoch, stuck: w.chance(5)})
}

// giveBack releases, as a runner does after its job, but perhaps with processes that stay.
func (w *world) giveBack(pod PodUID, held *Grant) {
	for _, p := range slices.Clone(w.live) {
		if p.granted == held.SeatEpoch && p.Pod == pod && !w.chance(25) {
			w.end(p)
		}
	}
	delete(w.holds, pod)
	w.step(Released{ID: "x", Pod: pod, SeatEpoch: held.SeatEpoch})
}

// suspendOrResume takes what runs under the grant off its GPUs and gives them back, or puts what was taken off back on them; perhaps not
// everything, and perhaps the agent dies in between.
func (w *world) suspendOrResume(pod PodUID, held *Grant) {
	job := w.s.Pods[pod].Suspended
	if job != nil && job.SeatEpoch != held.SeatEpoch {
		for _, p := range w.live {
			if p.Pod == pod && p.granted == job.SeatEpoch && !w.chance(5) {
				p.on, p.openMs, p.granted, p.bytes = held.UUIDs[0], w.nowMs, held.SeatEpoch, 1<<28
			}
		}
		w.step(Resumed{ID: "x", Pod: pod, SeatEpoch: held.SeatEpoch})
		return
	}
	var processes []Process
	for _, p := range w.live {
		if p.Pod == pod && p.granted == held.SeatEpoch {
			processes = append(processes, p.Process)
		}
	}
	w.step(Suspending{ID: "x", Pod: pod, SeatEpoch: held.SeatEpoch, Processes: processes})
	for _, p := range w.live {
		if p.Pod == pod && p.granted == held.SeatEpoch && !w.chance(5) {
			p.on, p.bytes = "", 0
		}
	}
	delete(w.holds, pod)
	w.step(Released{ID: "x", Pod: pod, SeatEpoch: held.SeatEpoch, Suspended: true})
}

func (w *world) endOne() {
	p := w.live[w.random.IntN(len(w.live))]
	switch {
	case p.stuck:
		p.stuck = false
	case p.on != "" && w.chance(50) && len(w.live) < 60: // forks: the child has the device open too
		child := *p
		child.Pid, child.StartMs = w.nextPid(), w.nowMs
		w.live = append(w.live, &child)
	case p.Name != "runner":
		w.end(p)
	}
}

// disturb brings a process that has no grant: a rogue of a pod, or somebody else's.
func (w *world) disturb(pod PodUID) {
	if w.chance(70) {
		return
	}
	if w.chance(80) {
		pod = ""
	}
	if held := w.holds[pod]; held != nil || len(w.live) > 60 {
		return
	}
	w.live = append(w.live, &truth{Process: Process{Pid: w.nextPid(), StartMs: w.nowMs, Pod: pod, Name: "rogue"},
		on: gpuName(w.random.IntN(worldGPUs)), openMs: w.nowMs, bytes: 1 << 28})
}

func (w *world) operate(pod PodUID) {
	uuid := gpuName(w.random.IntN(worldGPUs))
	switch w.random.IntN(12) {
	case 0:
		codes := []int{13, 31, 94, 63, 79, 4242}
		code := codes[w.random.IntN(len(codes))]
		if grant := w.s.Grants[w.s.GPU(uuid).SeatEpoch]; grant != nil && FaultOf(code) == DeviceFault {
			delete(w.holds, grant.Pod) // the broker takes the pod for lost
		}
		w.step(XidReported{UUID: uuid, Code: code})
	case 1, 2, 3:
		w.step(Cleared{ID: "c", UUID: uuid})
	case 4:
		w.restart(w.s.Durable())
	case 5: // the pod is deleted and another of that name begins
		for _, p := range slices.Clone(w.live) {
			if p.Pod == pod && !p.stuck && p.Name != "runner" {
				w.end(p)
			}
		}
		delete(w.holds, pod)
		w.step(PodGone{UID: pod})
		w.step(PodJoined{UID: pod, Tenant: string(pod)})
	case 6: // the pod is deleted, and nobody says so
		if !noVolume(pod) {
			return
		}
		for _, p := range slices.Clone(w.live) {
			if p.Pod == pod && !p.stuck {
				w.end(p)
			}
		}
		delete(w.holds, pod)
	}
}

func TestRandomHistories(t *testing.T) {
	seeds := make([]uint64, *histories)
	for i := range seeds {
		seeds[i] = rand.Uint64()
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	granted := 0
	for _, seed := range seeds {
		ok := t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range 400 {
				w.act()
			}
			granted += w.granted
		})
		if !ok {
			t.Fatalf("run again with: go test ./arbiter -run TestRandomHistories -seed %d", seed)
		}
	}
	if len(seeds) >= 50 && granted < 2*len(seeds) { // about five each
		t.Fatalf("%d grants in %d histories: they test little", granted, len(seeds))
	}
}

// TestALargeRequestIsNotStarved: twenty pods take one GPU each as soon as they gave one back; between the arrival of a request
// for all eight and its grant, nobody is granted who came later, and it is granted once those before it have ended.
func TestALargeRequestIsNotStarved(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 2))
		b := newBench(t, 8)
		var parkers []PodUID
		for i := range 20 {
			parkers = append(parkers, PodUID(fmt.Sprintf("parker-%d", i)))
		}
		b.join(parkers...).join("large").ready()
		number, arrived, largeAt, grantedAt := 0, map[PodUID]int{}, 0, 0
		note := func(effects []Effect) {
			for _, granted := range of[Granted](effects) {
				if granted.Grant.Pod == "large" {
					grantedAt = number
				} else if largeAt > 0 && grantedAt == 0 && arrived[granted.Grant.Pod] > largeAt {
					t.Fatalf("seed %d: %s came after the large request and was served before it", seed, granted.Grant.Pod)
				}
			}
		}
		for round := 0; grantedAt == 0; round++ {
			if round > 500 {
				t.Fatalf("seed %d: the large request starves", seed)
			}
			for _, pod := range parkers {
				grant := b.s.GrantOf(pod)
				waits := slices.ContainsFunc(b.s.Queue, func(r *Request) bool { return r.Pod == pod })
				switch {
				case grant != nil && random.IntN(100) < 20:
					note(b.step(Released{ID: "x", Pod: pod, SeatEpoch: grant.SeatEpoch}))
				case grant == nil && !waits:
					number++
					arrived[pod] = number
					note(b.ask(Requested{ID: fmt.Sprint(number), Pod: pod, LeaseEpoch: 1, Count: 1}))
				}
			}
			if round == 5 {
				number++
				largeAt = number
				note(b.ask(Requested{ID: "large", Pod: "large", LeaseEpoch: 1, Count: 8}))
			}
			note(b.measure())
		}
	}
}
