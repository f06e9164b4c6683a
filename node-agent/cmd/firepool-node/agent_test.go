package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/failpoint"
	"firepool/node-agent/measure/fakenvml"
)

const holdDevice0 = "exec 3<DEVICE0; echo up; exec sleep 600"

func TestAHolderThatDoesNotLetGoIsKilledAndTheNextOneIsGrantedThen(t *testing.T) {
	w := newWorld(t, 1).start("")
	a, b := w.join(), w.join()
	first := a.seats("1", 1)
	a.job("( ( exec 3<DEVICE0; echo up; exec sleep 600 ) & ) ; exit 0") // a double-forked grandchild
	if got := a.stand(); got.ZeroVRAM != "no" || got.Held == nil || got.Held.SeatEpoch != first.SeatEpoch {
		t.Fatalf("%+v", got)
	}
	b.wantSeats("1", 1)
	if err := a.release(first.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	second := b.granted()
	if left := w.openers(0); len(left) > 0 {
		t.Fatalf("the GPU was granted with processes %v on it", left)
	}
	if second.SeatEpoch <= first.SeatEpoch || !w.reported("killed") {
		t.Fatalf("%+v after %+v", second, first)
	}
	if got := a.stand(); got.ZeroVRAM != "yes" || got.Held != nil || got.Banned != "" {
		t.Fatalf("%+v", got)
	}
}

func TestASeatThatStaysDirtyIsQuarantinedAndComesBackWhenItIsClean(t *testing.T) {
	w := newWorld(t, 1).start("")
	a := w.join()
	first := a.seats("1", 1)
	a.job(holdDevice0)
	w.describe(func(gpu *fakenvml.GPU) { gpu.Used.Bytes = 8 << 30 }) // memory that stays
	b := w.join()
	b.wantSeats("1", 1)
	if err := a.release(first.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	if err := b.hear(nil); err == nil || !strings.Contains(err.Error(), "dirty") {
		t.Fatal(err)
	}
	w.describe(func(gpu *fakenvml.GPU) { gpu.Used.Bytes = 4 << 20 })
	w.waitUntil("the quarantine is lifted", func() bool { return w.reported("lifted") })
	b.seats("2", 1)
}

func TestNothingIsGrantedWhileTheDriverDoesNotKnow(t *testing.T) {
	for name, change := range map[string]func(gpu *fakenvml.GPU){
		"error": func(gpu *fakenvml.GPU) { gpu.Processes = fakenvml.Processes{Error: "GPU_IS_LOST"} },
		"empty": func(gpu *fakenvml.GPU) { gpu.Processes = fakenvml.Processes{} }, // also for the self-test
		"pid 0": func(gpu *fakenvml.GPU) { gpu.Processes = fakenvml.Processes{Pids: []int{0}} },
		"N/A":   func(gpu *fakenvml.GPU) { gpu.Used = fakenvml.Bytes{Error: "NOT_SUPPORTED"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.describe(change)
			w.start("")
			a := w.join()
			a.wantSeats("1", 1)
			if err := a.hear(nil); err == nil || !strings.Contains(err.Error(), "unknown") {
				t.Fatal(err)
			}
			if got := a.stand(); got.ZeroVRAM != "yes" {
				t.Fatalf("a sick GPU keeps every standby of the node from being verified: %+v", got)
			}
			w.describe(func(gpu *fakenvml.GPU) {
				gpu.Processes, gpu.Used = fakenvml.Processes{Openers: true}, fakenvml.Bytes{Bytes: 4 << 20}
			})
			w.waitUntil("the GPU is free", func() bool {
				status, err := w.status()
				return err == nil && status.GPUs[0].Phase == arbiter.Free
			})
			a.seats("2", 1)
		})
	}
}

func TestUseWithoutAGrantIsKilled(t *testing.T) {
	w := newWorld(t, 2).start("").settled()
	a, b := w.join(), w.join()
	held := a.seats("1", 1)
	if held.UUIDs[0] != "GPU-fake-0" {
		t.Fatalf("%+v", held)
	}
	a.job(holdDevice0)
	b.job(holdDevice0)
	w.waitUntil("the thief is killed", func() bool { return w.reported("ungranted") && len(w.openers(0)) == 1 })
	b.wantSeats("1", 1)
	if err := b.hear(nil); err == nil || !strings.Contains(err.Error(), "UngrantedUse") {
		t.Fatal(err)
	}
	if got := b.stand(); got.Banned == "" {
		t.Fatalf("%+v", got)
	}
	if got := a.stand(); got.Held == nil || got.Banned != "" {
		t.Fatalf("%+v", got)
	}
}

func TestAPodCannotSpeakForAnother(t *testing.T) {
	w := newWorld(t, 1).start("")
	a, b := w.join(), w.join()
	held := a.seats("1", 1)
	for _, o := range []order{
		{Method: "POST", Path: "/v1/seats/release", Body: map[string]any{"v": 1, "seatEpoch": held.SeatEpoch}},
		{Method: "GET", Path: "/v1/seats"},
		{Method: "POST", Path: "/v1/seats", Body: map[string]any{"v": 1, "requestId": "1", "leaseEpoch": 1, "gpus": 1}},
	} {
		o.Socket = filepath.Join(w.folder, "pods", a.uid, "agent.sock")
		b.tell(o)
		if err := b.hear(nil); err == nil || !strings.Contains(err.Error(), "IdentityMismatch") {
			t.Fatalf("%s %s: %v", o.Method, o.Path, err)
		}
	}
	if err := b.release(held.SeatEpoch); err == nil || !strings.Contains(err.Error(), "IdentityMismatch") {
		t.Fatal(err)
	}
	if got := a.stand(); got.Held == nil {
		t.Fatal("another pod has released it")
	}
}

func TestWhatIsNotARequestIsRefused(t *testing.T) {
	w := newWorld(t, 1).start("").settled()
	a := w.join()
	good := func() map[string]any {
		return map[string]any{"v": 1, "requestId": "1", "leaseEpoch": 1, "gpus": 1, "waitMs": 1000}
	}
	for name, change := range map[string]func(body map[string]any){
		"another version":  func(body map[string]any) { body["v"] = 2 },
		"an unknown field": func(body map[string]any) { body["gpu"] = 1 },
		"no id":            func(body map[string]any) { body["requestId"] = "" },
		"a long id":        func(body map[string]any) { body["requestId"] = strings.Repeat("x", 129) },
		"no GPU":           func(body map[string]any) { body["gpus"] = 0 },
		"too long a wait":  func(body map[string]any) { body["waitMs"] = arbiter.MaxWaitMs + 1 },
		"a huge body":      func(body map[string]any) { body["requestId"] = strings.Repeat("x", 1<<20) },
	} {
		body := good()
		change(body)
		a.tell(order{Method: "POST", Path: "/v1/seats", Body: body})
		if err := a.hear(nil); err == nil || !strings.Contains(err.Error(), "400 InvalidRequest") {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.tell(order{Method: "POST", Path: "/v1/seats", Body: good()})
	a.granted()
}

func TestARequestIsRepeatedOverAnotherConnection(t *testing.T) {
	w := newWorld(t, 1).start("")
	a, b := w.join(), w.join()
	again := &pod{w: w, uid: b.uid}
	again.begin() // another process of the same pod
	held := a.seats("1", 1)
	waits := func() bool { s, err := w.status(); return err == nil && s.Waiting == 1 }
	b.wantSeats("1", 1)
	w.waitUntil("b waits", waits)
	again.wantSeats("1", 1)
	if err := b.hear(nil); err == nil || !strings.Contains(err.Error(), "Superseded") {
		t.Fatal(err)
	}
	if !waits() {
		t.Fatal("the end of the older connection took the newer one's request away")
	}
	if err := a.release(held.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	got := again.granted()
	if same := b.seats("1", 1); same.SeatEpoch != got.SeatEpoch {
		t.Fatalf("the same request was granted as %+v and as %+v", got, same)
	}
	if err := again.release(got.SeatEpoch); err != nil {
		t.Fatal(err)
	}

	// A runner that dies while it waits leaves nothing behind.
	held = a.seats("2", 1)
	b.wantSeats("2", 1)
	w.waitUntil("b waits", waits)
	_ = b.command.Process.Kill()
	w.waitUntil("its request is gone", func() bool { s, err := w.status(); return err == nil && s.Waiting == 0 })
	if got := a.stand().Held; got == nil || got.SeatEpoch != held.SeatEpoch {
		t.Fatalf("%+v", got)
	}
}

func TestALargeRequestAmongParkers(t *testing.T) {
	w := newWorld(t, 8).start("")
	var parkers []*pod
	for range 6 {
		parkers = append(parkers, w.join())
	}
	large := w.join()
	for _, p := range parkers {
		p.seats("0", 1)
	}
	large.wantSeats("1", 8)
	w.waitUntil("the large request waits", func() bool { s, err := w.status(); return err == nil && s.Waiting == 1 })
	for round, p := range parkers {
		if err := p.release(p.stand().Held.SeatEpoch); err != nil {
			t.Fatal(err)
		}
		p.wantSeats(fmt.Sprint("again-", round), 1) // all come back, and none overtakes
	}
	got := large.granted()
	if len(got.UUIDs) != 8 {
		t.Fatalf("%+v", got)
	}
	if err := large.release(got.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	for _, p := range parkers {
		if next := p.granted(); next.SeatEpoch <= got.SeatEpoch {
			t.Fatalf("%+v was granted before %+v", next, got)
		}
	}
}

// TestKilledAtEveryPoint kills the agent at each named point of a grant and of a release, starts it again, and looks at what the
// pods were told: no GPU is two pods', no epoch comes twice, whoever was told to hold a seat holds it.
func TestKilledAtEveryPoint(t *testing.T) {
	for _, point := range failpoint.All {
		for _, during := range []string{"grant", "synced grant", "release"} {
			if during != "synced grant" && slices.Contains(failpoint.Synced, point) {
				continue // it syncs nothing
			}
			t.Run(point+"/"+during, func(t *testing.T) {
				w := newWorld(t, 1)
				w.bounded = during == "synced grant"
				w.start("")
				a, b := w.join(), w.join()
				if err := b.release(b.seats("0", 1).SeatEpoch); err != nil { // so that its lease epoch is known, and no change of its own
					t.Fatal(err)
				}
				earlier := a.seats("1", 1)
				a.job(holdDevice0)
				w.stop(syscall.SIGTERM)
				armed := filepath.Join(w.folder, "armed")
				w.start(point + "=" + armed).settled()
				arm := func() {
					if err := os.WriteFile(armed, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				var told *grant
				if during == "release" {
					arm()
					_ = a.release(earlier.SeatEpoch)
				} else {
					// The next change is the grant to b, two seconds later, when a's job was killed.
					b.wantSeats("1", 1)
					w.waitUntil("b waits", func() bool { s, err := w.status(); return err == nil && s.Waiting == 1 })
					if err := a.release(earlier.SeatEpoch); err != nil {
						t.Fatal(err)
					}
					arm()
					if got, err := b.maybeGranted(); err == nil {
						told = &got
					}
				}
				w.killedAt(point)
				w.start("")
				w.checkAfterKill(a, b, earlier, told, during)
			})
		}
	}
}

func (w *world) checkAfterKill(a, b *pod, earlier grant, told *grant, during string) {
	w.t.Helper()
	holdsA, holdsB := a.stand().Held, b.stand().Held
	if holdsA != nil && holdsB != nil {
		w.t.Fatalf("both hold the one GPU: %+v and %+v", holdsA, holdsB)
	}
	if told != nil && (holdsB == nil || holdsB.SeatEpoch != told.SeatEpoch) {
		w.t.Fatalf("b was told %+v and holds %+v", told, holdsB)
	}
	if during == "release" {
		if err := a.release(earlier.SeatEpoch); err != nil { // again: it does not know whether it was heard
			w.t.Fatal(err)
		}
	}
	next := b.seats("1", 1) // again: it does not know whether it was heard
	if left := w.openers(0); len(left) > 0 {
		w.t.Fatalf("granted with %v on it", left)
	}
	if next.SeatEpoch <= earlier.SeatEpoch || told != nil && next.SeatEpoch != told.SeatEpoch {
		w.t.Fatalf("epoch %d after %d", next.SeatEpoch, earlier.SeatEpoch)
	}
	if err := b.release(next.SeatEpoch); err != nil {
		w.t.Fatal(err)
	}
	if last := a.seats("9", 1); last.SeatEpoch <= next.SeatEpoch {
		w.t.Fatalf("epoch %d after %d", last.SeatEpoch, next.SeatEpoch)
	}
}

func TestKilledWhileItStarts(t *testing.T) {
	w := newWorld(t, 1).start("")
	a := w.join()
	held := a.seats("1", 1)
	w.stop(syscall.SIGTERM)
	armed := filepath.Join(w.folder, "armed")
	if err := os.WriteFile(armed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, point := range failpoint.All[1:7] { // those of the file
		w.launch(point + "=" + armed)
		w.killedAt(point)
	}
	w.start("")
	if got := a.stand().Held; got == nil || got.SeatEpoch != held.SeatEpoch {
		t.Fatalf("%+v, was %+v", got, held)
	}
}

func TestACleanEndKeepsSeatsAndALostFileAdoptsThem(t *testing.T) {
	w := newWorld(t, 1).start("")
	a, b := w.join(), w.join()
	held := a.seats("1", 1)
	a.job(holdDevice0)
	w.stop(syscall.SIGTERM)
	if code := w.agent.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	w.start("")
	if got := a.stand().Held; got == nil || got.SeatEpoch != held.SeatEpoch {
		t.Fatalf("%+v", got)
	}
	w.stop(syscall.SIGTERM)
	if err := os.Remove(filepath.Join(w.folder, "state", stateFile)); err != nil {
		t.Fatal(err)
	}
	w.start("")
	w.waitUntil("a is a stranger", func() bool { return w.reported("foreign") })
	for _, p := range []*pod{a, b} { // the kubelet publishes their volumes again, or an operator does
		if err := w.operator("PUT", "/v1/pods/"+p.uid, map[string]any{"v": 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.waitUntil("a's seat is known again", func() bool { return a.stand().Held != nil })
	adopted := a.stand().Held
	if adopted == nil || adopted.SeatEpoch <= held.SeatEpoch {
		t.Fatalf("%+v after %+v", adopted, held)
	}
}

func TestAHolderThatDoesNothingHearsHowItsSeatEnds(t *testing.T) {
	w := newWorld(t, 2).start("").settled()
	a, b := w.join(), w.join()
	var ended struct{ Lost, Banned string }
	wait := func(p *pod, seatEpoch uint64) {
		p.tell(order{Method: "POST", Path: "/v1/seats/ended", Body: map[string]any{"v": 1, "seatEpoch": seatEpoch}})
	}
	held := a.seats("1", 1)
	wait(b, held.SeatEpoch)
	if err := b.hear(nil); err == nil || !strings.Contains(err.Error(), "IdentityMismatch") {
		t.Error(err)
	}
	wait(b, held.SeatEpoch+1)
	if err := b.hear(nil); err == nil || !strings.Contains(err.Error(), "StaleSeat") {
		t.Error(err)
	}
	wait(a, held.SeatEpoch)
	w.describe(func(gpu *fakenvml.GPU) { gpu.Xids = []fakenvml.Xid{{ID: 1, Code: 79}} })
	if err := a.hear(&ended); err != nil || !strings.Contains(ended.Lost, "XID 79") {
		t.Errorf("%+v, %v", ended, err)
	}
	// Who asks late hears the same; who has given his seat back hears that it is over, and no more.
	wait(a, held.SeatEpoch)
	if err := a.hear(&ended); err != nil || !strings.Contains(ended.Lost, "XID 79") {
		t.Errorf("%+v, %v", ended, err)
	}
	other := b.seats("2", 1)
	if err := b.release(other.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	ended.Lost = ""
	wait(b, other.SeatEpoch)
	if err := b.hear(&ended); err != nil || ended.Lost != "" {
		t.Errorf("%+v, %v", ended, err)
	}
}

func TestMonitoring(t *testing.T) {
	w := newWorld(t, 2).start("").settled()
	a := w.join()
	a.seats("1", 1)
	account := func() int64 { s, _ := w.status(); return s.SeatMs["tenant-1"] }
	first := account()
	w.waitUntil("the account of a seat moves while it is held", func() bool { return account() > first })
	w.describe(func(gpu *fakenvml.GPU) { gpu.Xids = []fakenvml.Xid{{ID: 1, Code: 79}} })
	w.waitUntil("the GPU is quarantined", func() bool { return w.reported("quarantined") && w.reported("podLost") })
	var text string
	if err := w.operator("GET", "/metrics", nil, &text); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`firepool_node_gpu_phase{uuid="GPU-fake-0",phase="quarantined"} 1`,
		`firepool_node_gpu_quarantined{uuid="GPU-fake-0",reason="xid"} 1`,
		`firepool_node_seat_seconds_total{tenant="tenant-1"}`,
		`firepool_node_reports_total{kind="podLost"} 1`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	if err := w.operator("GET", "/healthz", nil, &text); err != nil || text != "ok\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := clearGPU(options{stateFolder: filepath.Join(w.folder, "state")}, "GPU-fake-0"); err != nil {
		t.Error(err)
	}
	if err := clearGPU(options{stateFolder: filepath.Join(w.folder, "state")}, "GPU-none"); err == nil || !strings.Contains(err.Error(), "UnknownGPU") {
		t.Error(err)
	}
	a.seats("2", 2)
}
