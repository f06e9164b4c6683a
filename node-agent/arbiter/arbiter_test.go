package arbiter

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestASeatIsGrantedAgainOnlyWhenItWasMeasuredEmpty(t *testing.T) {
	b := newBench(t, 1).join("a", "b").ready()
	first := one[Granted](b, b.request("a", 1)).Grant
	job := b.run("a", 100, gpuName(0))
	b.measure()
	b.request("b", 1)
	b.step(Released{ID: "x", Pod: "a", SeatEpoch: first.SeatEpoch})
	none[Granted](b, b.measure()) // the process lives
	b.exit(job)
	none[Granted](b, b.measure()) // its memory stays
	b.freeMemory()
	second := one[Granted](b, b.measure()).Grant
	if second.Pod != "b" || second.SeatEpoch <= first.SeatEpoch {
		t.Fatalf("%+v after %+v", second, first)
	}
}

func TestUnknownIsNeverZero(t *testing.T) {
	faults := map[string]func(r *Reading, pods *PodsReading){
		"an NVML error for the list":   func(r *Reading, _ *PodsReading) { r.Listed = ProcessesReading{Problem: "GPU_IS_LOST"} },
		"memory N/A":                   func(r *Reading, _ *PodsReading) { r.Used = BytesReading{Problem: "NOT_SUPPORTED"} },
		"pid 0 in the list":            func(r *Reading, _ *PodsReading) { r.Listed = ProcessesReading{Problem: "pid 0"} },
		"device holders not readable":  func(r *Reading, _ *PodsReading) { r.Openers = ProcessesReading{Problem: "EACCES"} },
		"no measurement":               func(r *Reading, _ *PodsReading) { r.UUID = "GPU-other" },
		"memory that stays":            func(r *Reading, _ *PodsReading) { r.Used.Bytes = emptyBytes + MemorySlackBytes + 1 },
		"processes of pods not known":  func(_ *Reading, pods *PodsReading) { pods.Problem = "EIO" },
		"an error that hides a number": func(r *Reading, _ *PodsReading) { r.Used = BytesReading{Bytes: 0, Problem: "UNKNOWN"} },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1).join("a", "b").ready()
			epoch := one[Granted](b, b.request("a", 1)).Grant.SeatEpoch
			b.step(Released{ID: "x", Pod: "a", SeatEpoch: epoch})
			fault(b.readings[gpuName(0)], &b.pods)
			b.request("b", 1)
			none[Granted](b, b.measure())
			b.nowMs += QuarantineAfterMs
			b.step(Ticked{})
			b.phase(gpuName(0), Quarantined)
			none[Granted](b, b.measure())
		})
	}
}

func TestAnEmptyListCountsOnlyAfterASelfTest(t *testing.T) {
	b := newBench(t, 1).join("a")
	test := one[StartSelfTest](b, b.measure())
	b.step(SelfTested{UUID: test.UUID, Seen: false, Problem: "the list stayed empty"})
	b.request("a", 1)
	none[Granted](b, b.measure())
	none[StartSelfTest](b, b.measure()) // not at every poll
	b.nowMs += SelfTestAgainMs
	b.step(Ticked{})
	b.phase(gpuName(0), Quarantined)
	test = one[StartSelfTest](b, b.measure())
	b.step(SelfTested{UUID: test.UUID, Seen: true})
	b.measure()
	b.phase(gpuName(0), Free)
}

func TestTheSamePodTakesItsSeatAgainAtOnce(t *testing.T) {
	b := newBench(t, 1).join("a", "b").ready()
	epoch := one[Granted](b, b.request("a", 1)).Grant.SeatEpoch
	job := b.run("a", 100, gpuName(0))
	b.step(Released{ID: "x", Pod: "a", SeatEpoch: epoch})
	b.ask(Requested{ID: "again", Pod: "a", LeaseEpoch: 1, Count: 1})
	none[Granted](b, b.measure()) // its own job is still there
	b.exit(job)
	one[Granted](b, b.measure()) // its memory is, which is its own

	epoch = b.s.GrantOf("a").SeatEpoch
	b.request("b", 1)
	b.step(Released{ID: "y", Pod: "a", SeatEpoch: epoch})
	b.ask(Requested{ID: "third", Pod: "a", LeaseEpoch: 1, Count: 1})
	none[Granted](b, b.measure()) // b was first, and b needs the memory gone
	b.freeMemory()
	if got := one[Granted](b, b.measure()).Grant.Pod; got != "b" {
		t.Fatalf("granted to %s", got)
	}
}

func TestAContainedMemoryErrorTakesTheShortcutAway(t *testing.T) {
	b := newBench(t, 1).join("a").ready()
	epoch := one[Granted](b, b.request("a", 1)).Grant.SeatEpoch
	job := b.run("a", 100, gpuName(0))
	b.step(XidReported{UUID: gpuName(0), Code: 94})
	if done := one[Done](b, b.step(Released{ID: "x", Pod: "a", SeatEpoch: epoch})); !slices.Equal(done.Xids, []int{94}) {
		t.Fatalf("%+v", done)
	}
	b.exit(job)
	b.ask(Requested{ID: "again", Pod: "a", LeaseEpoch: 1, Count: 1})
	none[Granted](b, b.measure())
	b.freeMemory()
	one[Granted](b, b.measure())
}

func TestSurvivorsAreKilledAndASeatThatStaysDirtyIsQuarantined(t *testing.T) {
	b := newBench(t, 1).join("a", "b").ready()
	epoch := one[Granted](b, b.request("a", 1)).Grant.SeatEpoch
	b.nowMs += 500
	b.run("a", 100, gpuName(0))
	quiet := Process{Pid: 101, StartMs: b.nowMs, Pod: "a", Name: "daemon"} // holds no device
	b.pods.ByPod["a"] = append(b.pods.ByPod["a"], quiet)
	b.nowMs += 500
	b.step(Released{ID: "x", Pod: "a", SeatEpoch: epoch})
	b.nowMs += 500
	later := Process{Pid: 102, StartMs: b.nowMs, Pod: "a", Name: "job without device"}
	b.pods.ByPod["a"] = append(b.pods.ByPod["a"], later)
	grandchild := Process{Pid: 103, StartMs: b.nowMs, Pod: "a", Name: "double-forked"}
	b.readings[gpuName(0)].Openers.Processes = append(b.readings[gpuName(0)].Openers.Processes, grandchild)
	none[Kill](b, b.measure())
	b.nowMs += KillAfterMs
	var killed []int
	for _, kill := range of[Kill](b.measure()) {
		killed = append(killed, kill.Process.Pid)
	}
	slices.Sort(killed)
	if !slices.Equal(killed, []int{100, 101, 103}) {
		t.Fatalf("killed %v; the runner and the job that needs no device are not to be", killed)
	}
	none[Kill](b, b.measure()) // not at every poll
	b.nowMs += QuarantineAfterMs
	b.measure()
	b.phase(gpuName(0), Quarantined)
	if refused := one[Refused](b, b.request("b", 1)); refused.Problem.Code != SeatSetSick || !strings.Contains(refused.Problem.Message, "dirty") {
		t.Fatalf("%+v", refused)
	}
	charged := b.s.InfrastructureMs
	b.nowMs += 1000
	b.step(Ticked{})
	if b.s.InfrastructureMs-charged != 1000 {
		t.Fatal("a quarantined GPU is charged to the infrastructure")
	}
	b.pods.ByPod["a"] = b.pods.ByPod["a"][:1]
	b.readings[gpuName(0)].Openers.Processes, b.readings[gpuName(0)].Listed.Processes = nil, nil
	b.freeMemory()
	b.measure()
	b.phase(gpuName(0), Free)
}

func TestUngrantedUseIsKilledAndItsPodBanned(t *testing.T) {
	b := newBench(t, 2).join("a", "b").ready()
	one[Granted](b, b.request("a", 1))
	own := b.run("a", 100, gpuName(0))
	thief := b.run("b", 200, gpuName(0))
	effects := b.measure()
	if kill := one[Kill](b, effects); kill.Process.Pid != thief.Pid {
		t.Fatalf("killed %+v", kill)
	}
	if report := one[Report](b, effects); report.Kind != "ungranted" || report.Pod != "b" {
		t.Fatalf("%+v", report)
	}
	if refused := one[Refused](b, b.request("b", 1)); refused.Problem.Code != UngrantedUse {
		t.Fatalf("%+v", refused)
	}
	b.exit(thief)
	b.exit(own)
	// A GPU that nobody holds is as little theirs.
	b.run("a", 101, gpuName(1))
	if kill := one[Kill](b, b.measure()); kill.UUID != gpuName(1) {
		t.Fatalf("%+v", kill)
	}
	b.phase(gpuName(1), Verifying)
}

func TestForeignProcessesAreNeverTouched(t *testing.T) {
	b := newBench(t, 2).join("a").ready()
	b.run("", 900, gpuName(1))
	b.run("pod-that-is-not-ours", 901, gpuName(1))
	effects := b.measure()
	none[Kill](b, effects)
	b.phase(gpuName(1), Quarantined)
	if q := b.s.GPU(gpuName(1)).Quarantine; q.Reason != "foreign" || !strings.Contains(q.Detail, "900") || !strings.Contains(q.Detail, "901") {
		t.Fatalf("%+v", q)
	}
	b.freeMemory() // with a device open and no memory in it, it still is on the GPU
	none[Kill](b, b.measure())
	b.phase(gpuName(1), Quarantined)
	// On a held GPU the holder goes on, and the quarantine begins when it ends.
	grant := one[Granted](b, b.request("a", 1)).Grant
	b.run("", 902, gpuName(0))
	none[Kill](b, b.measure())
	b.phase(gpuName(0), Held)
	b.step(Released{ID: "x", Pod: "a", SeatEpoch: grant.SeatEpoch})
	b.phase(gpuName(0), Quarantined)
}

func TestAProcessOfTheJobThatLetTheDeviceGoStillCounts(t *testing.T) {
	b := newBench(t, 1).join("a", "b").ready()
	epoch := one[Granted](b, b.request("a", 1)).Grant.SeatEpoch
	daemon := Process{Pid: 100, StartMs: b.nowMs, Pod: "a", Name: "daemon"}
	b.pods.ByPod["a"] = append(b.pods.ByPod["a"], daemon)
	b.step(Released{ID: "x", Pod: "a", SeatEpoch: epoch})
	b.request("b", 1)
	none[Granted](b, b.measure())
	b.exit(daemon)
	one[Granted](b, b.measure())
}

func TestAMeasurementThatComesLateSaysNothingAboutANewerHolder(t *testing.T) {
	b := newBench(t, 1).join("a", "b").ready()
	epoch := one[Granted](b, b.request("a", 1)).Grant.SeatEpoch
	job := b.run("a", 100, gpuName(0))
	late := Observed{AtMs: b.nowMs + 1, GPUs: []Reading{*b.readings[gpuName(0)]}, Pods: b.pods}
	late.GPUs[0].Openers.Processes = slices.Clone(late.GPUs[0].Openers.Processes)
	late.GPUs[0].Listed.Processes = slices.Clone(late.GPUs[0].Listed.Processes)
	late.Pods.ByPod = map[PodUID][]Process{"a": slices.Clone(b.pods.ByPod["a"])} // b's runner has not started yet
	b.nowMs += 20
	b.step(Released{ID: "x", Pod: "a", SeatEpoch: epoch})
	b.exit(job)
	b.freeMemory()
	b.request("b", 1)
	one[Granted](b, b.measure())
	if effects := b.step(late); len(effects) > 0 || b.s.Pods["a"].Banned != "" || b.s.GrantOf("b") == nil {
		t.Fatalf("%+v", effects)
	}
}

func TestXids(t *testing.T) {
	for code, want := range map[int]Phase{13: Held, 31: Held, 43: Held, 45: Held, 94: Held, 63: Held,
		48: Quarantined, 64: Quarantined, 74: Quarantined, 79: Quarantined, 95: Quarantined, 119: Quarantined, 154: Quarantined, 7777: Quarantined} {
		b := newBench(t, 2).join("a").ready()
		grant := one[Granted](b, b.request("a", 2)).Grant
		effects := b.step(XidReported{UUID: gpuName(0), Code: code})
		b.phase(gpuName(0), want)
		lost := slices.ContainsFunc(of[Report](effects), func(r Report) bool { return r.Kind == "podLost" && r.Pod == "a" })
		if lost != (want == Quarantined) {
			t.Fatalf("XID %d: podLost reported: %v", code, lost)
		}
		told := one[Done](b, b.step(Released{ID: "x", Pod: "a", SeatEpoch: grant.SeatEpoch})).Lost
		if (told != "") != lost {
			t.Fatalf("XID %d: its release says %q", code, told)
		}
		b.measure()
		if code == 63 || want == Quarantined {
			b.phase(gpuName(0), Quarantined) // measured empty, and still not granted
			one[Done](b, b.step(Cleared{ID: "c", UUID: gpuName(0)}))
			b.measure()
		}
		b.phase(gpuName(0), Free)
		b.phase(gpuName(1), Free)
	}
}

func TestRefusals(t *testing.T) {
	b := newBench(t, 2).join("a", "b").ready()
	code := func(effects []Effect) Code { t.Helper(); return one[Refused](b, effects).Problem.Code }
	grant := one[Granted](b, b.ask(Requested{ID: "1", Pod: "a", LeaseEpoch: 5, Count: 1})).Grant
	if again := one[Granted](b, b.ask(Requested{ID: "1", Pod: "a", LeaseEpoch: 5, Count: 1})).Grant; again.SeatEpoch != grant.SeatEpoch {
		t.Fatal("a repeated request was granted twice")
	}
	for want, effects := range map[Code][]Effect{
		HoldAndWait:      b.ask(Requested{ID: "2", Pod: "a", LeaseEpoch: 5, Count: 1}),
		StaleLease:       b.ask(Requested{ID: "3", Pod: "a", LeaseEpoch: 4, Count: 1}),
		UnknownPod:       b.ask(Requested{ID: "4", Pod: "nobody", LeaseEpoch: 1, Count: 1}),
		InvalidRequest:   b.ask(Requested{ID: "5", Pod: "b", LeaseEpoch: 1, Count: 0}),
		SeatUnavailable:  b.ask(Requested{ID: "6", Pod: "b", LeaseEpoch: 1, Count: 3}),
		IdentityMismatch: b.step(Released{ID: "7", Pod: "b", SeatEpoch: grant.SeatEpoch}),
		StaleSeat:        b.step(Released{ID: "8", Pod: "a", SeatEpoch: grant.SeatEpoch + 1}),
	} {
		if got := code(effects); got != want {
			t.Errorf("%s, wanted %s", got, want)
		}
	}
	one[Done](b, b.step(Released{ID: "9", Pod: "a", SeatEpoch: grant.SeatEpoch}))
	one[Done](b, b.step(Released{ID: "9", Pod: "a", SeatEpoch: grant.SeatEpoch}))
	b.ask(Requested{ID: "10", Pod: "b", LeaseEpoch: 1, Count: 2, DeadlineMs: b.nowMs + 100})
	b.nowMs += 100
	if got := code(b.step(Ticked{})); got != SeatUnavailable {
		t.Error(got)
	}
}

func TestASetWithTooFewWellGPUsIsSick(t *testing.T) {
	b := newBench(t, 2).join("a", "b").ready()
	one[Granted](b, b.ask(Requested{ID: "1", Pod: "a", LeaseEpoch: 1, Count: 1}))
	b.step(XidReported{UUID: gpuName(1), Code: 79})
	ask := func(id string, count int) Requested {
		return Requested{ID: id, Pod: "b", LeaseEpoch: 1, Count: count, DeadlineMs: b.nowMs + 100}
	}
	none[Refused](b, b.ask(ask("2", 1))) // the other one is busy: it is worth waiting
	sick := one[Refused](b, slices.DeleteFunc(b.ask(ask("3", 2)), func(e Effect) bool {
		refused, ok := e.(Refused)
		return ok && refused.Problem.Code == Superseded
	}))
	if sick.Problem.Code != SeatSetSick || !strings.Contains(sick.Problem.Message, gpuName(1)+" quarantined (xid: XID 79)") {
		t.Fatalf("%+v", sick)
	}
	b.step(XidReported{UUID: gpuName(0), Code: 79})
	if alone := one[Refused](b, b.ask(ask("4", 1))); alone.Problem.Code != SeatSetSick {
		t.Fatalf("%+v", alone)
	}
}

func TestASeatIsChargedToTheTenantWithinThePodsAccount(t *testing.T) {
	b := newBench(t, 1).join("a").ready()
	account := b.s.Pods["a"].Tenant
	hold := func(id, tenant string) {
		t.Helper()
		b.measure()
		grant := one[Granted](b, b.ask(Requested{ID: id, Pod: "a", LeaseEpoch: 1, Count: 1, Tenant: tenant})).Grant
		b.nowMs += 1_000
		b.step(Ticked{})
		one[Done](b, b.step(Released{ID: "x" + id, Pod: "a", SeatEpoch: grant.SeatEpoch}))
	}
	hold("1", "red")
	hold("2", "")
	hold("3", "other-account")
	for _, name := range []string{account + "/red", account, account + "/other-account"} {
		if b.s.SeatMs[name] < 1_000 {
			t.Errorf("%s was charged %d ms: %v", name, b.s.SeatMs[name], b.s.SeatMs)
		}
	}
	if len(b.s.SeatMs) != 3 {
		t.Error(b.s.SeatMs)
	}
	for i := range 2 * MaxTenantsOfAccount {
		hold(fmt.Sprintf("lie-%d", i), fmt.Sprintf("t%d", i))
	}
	if names := len(b.s.SeatMs); names > MaxTenantsOfAccount+2 {
		t.Errorf("%d names of one account", names)
	}
	if b.s.SeatMs[account+"/"+OtherTenant] < 1_000 {
		t.Error("the names past the limit were charged to nobody")
	}
}

func TestAPodWithoutProcessesHoldsNothing(t *testing.T) {
	b := newBench(t, 1).join("a", "b").ready()
	one[Granted](b, b.request("a", 1))
	delete(b.pods.ByPod, "a")
	b.request("b", 1)
	b.measure() // ends the grant; what was measured before says nothing about the seat after it
	if got := one[Granted](b, b.measure()).Grant.Pod; got != "b" {
		t.Fatal(got)
	}
	b.step(PodGone{UID: "b"})
	b.measure()
	delete(b.pods.ByPod, "b")
	b.measure()
	b.measure()
	if b.s.Pods["b"] != nil {
		t.Fatal("a pod that has gone is still known")
	}
}

func TestAPodWithoutVolumeHasGoneWithItsLastProcess(t *testing.T) {
	b := newBench(t, 1).ready()
	b.step(PodJoined{UID: "a", NoVolume: true})
	b.step(Observed{AtMs: b.nowMs - 1, Pods: b.pods}) // begun before it came
	b.pods.ByPod["a"] = []Process{{Pid: 10, StartMs: 1, Pod: "a", Name: "runner"}}
	one[Granted](b, b.request("a", 1))
	none[Refused](b, b.measure())
	if b.s.GrantOf("a") == nil {
		t.Fatal("it lives and has lost its seat")
	}
	delete(b.pods.ByPod, "a")
	b.measure()
	b.measure()
	b.measure()
	if b.s.Pods["a"] != nil {
		t.Fatal("a pod of which nothing is left is still known")
	}
	b.phase(gpuName(0), Free)
}

func TestARequestThatIsAskedAgainKeepsItsTurn(t *testing.T) {
	b := newBench(t, 1).join("a", "b", "c").ready()
	epoch := one[Granted](b, b.request("a", 1)).Grant.SeatEpoch
	b.request("b", 1)
	b.request("c", 1)
	none[Refused](b, b.request("b", 1))
	b.step(Released{ID: "x", Pod: "a", SeatEpoch: epoch})
	if got := one[Granted](b, b.measure()).Grant.Pod; got != "b" {
		t.Fatal(got)
	}
	if refused := one[Refused](b, b.ask(Requested{ID: "another", Pod: "c", LeaseEpoch: 1, Count: 1})); refused.RequestID != "r-c" || refused.Problem.Code != Superseded {
		t.Fatalf("%+v", refused)
	}
}

func TestPrioritiesAge(t *testing.T) {
	b := newBench(t, 1).join("low", "high").ready()
	b.nowMs += FreshMs + 1 // nothing is granted before the next measurement
	b.ask(Requested{ID: "l", Pod: "low", LeaseEpoch: 1, Count: 1})
	b.nowMs += PriorityAgeMs
	b.ask(Requested{ID: "h", Pod: "high", LeaseEpoch: 1, Count: 1, Priority: 1})
	if got := one[Granted](b, b.measure()).Grant.Pod; got != "low" {
		t.Fatal(got)
	}
}

func TestARestartKeepsHoldersAndMeasuresTheRest(t *testing.T) {
	b := newBench(t, 3).join("a", "b").ready()
	held := one[Granted](b, b.request("a", 1)).Grant
	dirty := one[Granted](b, b.request("b", 1)).Grant
	b.run("b", 100, dirty.UUIDs[0])
	b.step(Released{ID: "x", Pod: "b", SeatEpoch: dirty.SeatEpoch})
	b.step(XidReported{UUID: gpuName(2), Code: 79})
	charged := b.s.SeatMs["tenant-of-a"]
	file, err := json.Marshal(b.s.Durable())
	if err != nil {
		t.Fatal(err)
	}
	restore := func(sameBoot bool) {
		var d Durable
		if err := json.Unmarshal(file, &d); err != nil {
			t.Fatal(err)
		}
		devices := []Device{{UUID: gpuName(0)}, {UUID: gpuName(1), Minor: 1}, {UUID: gpuName(2), Minor: 2}}
		if b.s, err = Restore(d, devices, sameBoot, b.nowMs); err != nil {
			t.Fatal(err)
		}
	}
	b.nowMs += 5000
	restore(true)
	none[Granted](b, b.request("b", 1))
	if got := b.s.SeatMs["tenant-of-a"] - charged; got != 5000 {
		t.Fatalf("%d ms were charged for a seat that was held through 5,000 ms without an agent", got)
	}
	if g := b.s.GrantOf("a"); g == nil || g.SeatEpoch != held.SeatEpoch {
		t.Fatalf("%+v", g)
	}
	none[Granted](b, b.measure()) // b's process lives
	b.phase(gpuName(2), Quarantined)

	restore(false)
	b.pods.ByPod = map[PodUID][]Process{}
	b.readings[dirty.UUIDs[0]].Openers, b.readings[dirty.UUIDs[0]].Listed = ProcessesReading{}, ProcessesReading{}
	b.freeMemory()
	b.ready().join("c")
	if after := one[Granted](b, b.request("c", 3)).Grant; after.SeatEpoch <= dirty.SeatEpoch {
		t.Fatalf("epoch %d after %d", after.SeatEpoch, dirty.SeatEpoch)
	}
}

func TestALostFileAdoptsWhoUsesADevice(t *testing.T) {
	b := newBench(t, 2)
	b.s = New([]Device{{UUID: gpuName(0)}, {UUID: gpuName(1), Minor: 1}}, 500, b.nowMs, true)
	b.run("a", 100, gpuName(0))
	b.run("b", 200, gpuName(1))
	b.measure()
	b.phase(gpuName(0), Quarantined) // by a stranger, as far as anybody knows
	jobs := maps.Clone(b.pods.ByPod)
	b.join("a", "b", "c")
	for pod, processes := range jobs {
		b.pods.ByPod[pod] = append(b.pods.ByPod[pod], processes...)
	}
	b.run("c", 300, gpuName(1))
	effects := b.measure()
	if g := b.s.GrantOf("a"); g == nil || !g.Adopted || g.SeatEpoch <= 500 {
		t.Fatalf("%+v", g)
	}
	if kills := of[Kill](effects); len(kills) != 2 {
		t.Fatalf("%+v", kills)
	}
	b.step(Released{ID: "x", Pod: "a", SeatEpoch: b.s.GrantOf("a").SeatEpoch})
	b.nowMs += KillAfterMs
	killed := map[int]bool{}
	for _, kill := range of[Kill](b.measure()) {
		killed[kill.Process.Pid] = true
	}
	if !killed[100] || killed[10] || killed[11] || killed[12] || killed[13] {
		t.Fatalf("killed %v; the runners are not to be", killed)
	}
	if b.s.Pods["a"].Banned != "" || b.s.Pods["b"].Banned == "" {
		t.Fatal("who uses a GPU alone is its holder, two are none")
	}
}
