package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fakeCheckpoint is a test double of cuda-checkpoint: it asks the process (runJob) to close the device, or to open it again, and waits
// until it has. While the file `refuse` is there, it fails; while `hangs` is, it hangs after the first process; the one that `dies` names
// dies under it. No memory moves.
const fakeCheckpoint = `#!/bin/sh
[ "$1 $2" = "--toggle --pid" ] || exit 2
[ -e FOLDER/refuse ] && { echo "the FAKE refuses" >&2; exit 1; }
[ -e FOLDER/hangs ] && [ -e FOLDER/toggled ] && { echo $$ > FOLDER/hangs; while :; do sleep 1; done; }
[ "$(cat FOLDER/dies 2>/dev/null)" = "$3" ] && { kill -KILL $3; exit 1; }
has() { ls -l /proc/$1/fd 2>/dev/null | grep -c FOLDER/dev/nvidia; }
before=$(has $3)
kill -USR1 $3 || exit 1
until [ $(has $3) != $before ]; do sleep 0.01; done
echo "$3" >> FOLDER/toggled
`

// runJob has the device open, and closes and opens it when it is told to.
func runJob(device string) int {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGUSR1)
	for {
		file, err := os.Open(device)
		if err != nil {
			return 1
		}
		fmt.Println("up")
		<-told
		_ = file.Close()
		<-told
	}
}

func newSuspending(t *testing.T, gpus int) *world {
	t.Helper()
	w := newWorld(t, gpus)
	folder, err := filepath.EvalSymlinks(w.folder)
	if err == nil {
		err = os.WriteFile(w.checkpoint(), []byte(strings.ReplaceAll(fakeCheckpoint, "FOLDER", folder)), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w.start("", "-cuda-checkpoint="+w.checkpoint()).settled()
}

func (w *world) checkpoint() string { return filepath.Join(w.folder, "FAKE-cuda-checkpoint") }

// cudaJob starts a process that can be suspended, below a shell that has no GPU.
func (p *pod) cudaJob(minor int) {
	p.w.t.Helper()
	p.job(fmt.Sprintf("%s=job %s DEVICE%d & wait", roleVariable, os.Args[0], minor))
}

type suspension struct {
	HostBytes uint64 `json:"hostBytes"`
}

func (p *pod) suspend(seatEpoch uint64) (suspension, error) {
	p.w.t.Helper()
	var got suspension
	p.tell(order{Method: "POST", Path: "/v1/seats/suspend", Body: map[string]any{"v": 1, "seatEpoch": seatEpoch}})
	err := p.hear(&got)
	return got, err
}

func (p *pod) resume(seatEpoch uint64) error {
	p.w.t.Helper()
	p.tell(order{Method: "POST", Path: "/v1/seats/resume", Body: map[string]any{"v": 1, "seatEpoch": seatEpoch}})
	return p.hear(nil)
}

func TestASuspendedJobGivesItsGPUToAnotherAndGoesOnLater(t *testing.T) {
	w := newSuspending(t, 2)
	a, b := w.join(), w.join()
	first := a.seats("1", 1)
	a.cudaJob(0)
	before := w.openers(0)
	got, err := a.suspend(first.SeatEpoch)
	if err != nil || got.HostBytes != 100<<20 {
		t.Fatalf("%+v, %v", got, err)
	}
	if stand := a.stand(); stand.Held != nil || stand.ZeroVRAM != "yes" || stand.Suspended != first.SeatEpoch {
		t.Fatalf("%+v", stand)
	}
	var text string
	if err := w.operator("GET", "/metrics", nil, &text); err != nil || !strings.Contains(text, `firepool_node_suspended_bytes{tenant="tenant-1"} 104857600`) {
		t.Fatalf("%v in\n%s", err, text)
	}
	other := b.seats("1", 2) // the GPU was measured empty, and the job was not killed for living
	b.job("exec 3<DEVICE0; echo up; exec sleep 600")
	a.wantSeats("2", 1)
	if err := b.release(other.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	second := a.granted()
	if second.UUIDs[0] != first.UUIDs[0] {
		t.Fatalf("%+v, it was on %+v", second, first)
	}
	if err := a.resume(second.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	if after := w.openers(0); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Fatalf("%v are on the GPU, %v were", after, before)
	}
	// It is a job like any other again: what is left of it when its seat is released is killed.
	if err := a.release(second.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	b.seats("2", 2)
	if left := w.openers(0); len(left) > 0 || a.stand().Suspended != 0 {
		t.Fatal(left)
	}
}

func TestAJobThatCannotBeSuspendedIsLostByName(t *testing.T) {
	w := newSuspending(t, 1)
	a, b := w.join(), w.join()
	held := a.seats("1", 1)
	if _, err := a.suspend(held.SeatEpoch); err == nil || !strings.Contains(err.Error(), "409 NotSuspended") { // there is no job
		t.Fatal(err)
	}
	a.cudaJob(0)
	if err := os.WriteFile(filepath.Join(w.folder, "refuse"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.suspend(held.SeatEpoch); err == nil || !strings.Contains(err.Error(), "500 CheckpointFailed") || !strings.Contains(err.Error(), "the FAKE refuses") {
		t.Fatal(err)
	}
	w.waitUntil("the job is killed", func() bool { return len(w.openers(0)) == 0 })
	if err := a.release(held.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	b.seats("1", 1)
	if _, err := b.suspend(held.SeatEpoch); err == nil || !strings.Contains(err.Error(), "StaleSeat") {
		t.Fatal(err)
	}
}

func TestASuspensionIsAnsweredAgainAndEndsWithItsSeatsRelease(t *testing.T) {
	w := newSuspending(t, 1)
	a := w.join()
	held := a.seats("1", 1)
	a.cudaJob(0)
	for range 2 {
		if got, err := a.suspend(held.SeatEpoch); err != nil || got.HostBytes != 100<<20 {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(w.folder, "toggled")); err != nil || len(strings.Fields(string(text))) != 1 {
		t.Fatalf("%q, %v", text, err)
	}
	if err := a.release(held.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	if stand := a.stand(); stand.Suspended != 0 {
		t.Fatalf("%+v", stand)
	}
}

func TestAProcessThatEndsWhileItIsSuspendedIsNoFailure(t *testing.T) {
	w := newSuspending(t, 2)
	a := w.join()
	held := a.seats("1", 2)
	a.cudaJob(0)
	a.cudaJob(1)
	dies := fmt.Sprint(w.openers(0)[0])
	if err := os.WriteFile(filepath.Join(w.folder, "dies"), []byte(dies), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.suspend(held.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	second := a.seats("2", 2)
	if err := a.resume(second.SeatEpoch); err != nil || len(w.openers(0)) != 0 || len(w.openers(1)) != 1 {
		t.Fatalf("%v, %v, %v", err, w.openers(0), w.openers(1))
	}
}

func TestAnAgentWithoutTheProgramSuspendsNothingAndKillsNothing(t *testing.T) {
	w := newWorld(t, 1).start("").settled()
	a := w.join()
	held := a.seats("1", 1)
	if _, err := a.suspend(held.SeatEpoch); err == nil || !strings.Contains(err.Error(), "409 NotSuspended") { // and needs none for it
		t.Fatal(err)
	}
	a.cudaJob(0)
	if _, err := a.suspend(held.SeatEpoch); err == nil || !strings.Contains(err.Error(), "no cuda-checkpoint") {
		t.Fatal(err)
	}
	if len(w.openers(0)) != 1 {
		t.Fatal(w.openers(0))
	}
}

func TestAProgramThatIsNotThereIsFoundOutAtTheStart(t *testing.T) {
	w := newWorld(t, 1)
	var said strings.Builder
	code := run([]string{"-device=fake", "-identity=fake", "-fake-dir=" + w.devices(), "-listen=", "-state-dir=" + filepath.Join(w.folder, "state"),
		"-pods-dir=" + filepath.Join(w.folder, "pods"), "-cuda-checkpoint=" + w.checkpoint()}, io.Discard, &said)
	if code != 1 || !strings.Contains(said.String(), w.checkpoint()) || !strings.Contains(said.String(), "leave it out") {
		t.Fatalf("%d, %s", code, said.String())
	}
}

func TestASuspendedJobOutlivesTheAgent(t *testing.T) {
	w := newSuspending(t, 1)
	a := w.join()
	first := a.seats("1", 1)
	a.cudaJob(0)
	if _, err := a.suspend(first.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	w.stop(syscall.SIGKILL)
	w.start("", "-cuda-checkpoint="+w.checkpoint()).settled()
	second := a.seats("2", 1)
	if err := a.resume(second.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	if len(w.openers(0)) != 1 {
		t.Fatal(w.openers(0))
	}
	if err := a.resume(second.SeatEpoch); err == nil || !strings.Contains(err.Error(), "NotSuspended") {
		t.Fatal(err)
	}
	if len(w.openers(0)) != 1 {
		t.Fatal("asked again, it was toggled again")
	}
}

func TestAnAgentThatDiesWhileItSuspendsGoesOnWithTheRest(t *testing.T) {
	w := newSuspending(t, 2)
	a := w.join()
	held := a.seats("1", 2)
	a.cudaJob(0)
	a.cudaJob(1)
	hangs, toggled := filepath.Join(w.folder, "hangs"), filepath.Join(w.folder, "toggled")
	if err := os.WriteFile(hangs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lines := func(path string) []string {
		text, _ := os.ReadFile(path)
		return strings.Fields(string(text))
	}
	a.tell(order{Method: "POST", Path: "/v1/seats/suspend", Body: map[string]any{"v": 1, "seatEpoch": held.SeatEpoch}})
	w.waitUntil("one is off its GPU, and the other on its way", func() bool { return len(lines(toggled)) == 1 && len(lines(hangs)) == 1 })
	w.stop(syscall.SIGKILL)
	if err := a.hear(nil); err == nil {
		t.Fatal("the agent answered")
	}
	var program int
	if _, err := fmt.Sscan(lines(hangs)[0], &program); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.Kill(program, syscall.SIGKILL), os.Remove(hangs)); err != nil {
		t.Fatal(err)
	}
	w.start("", "-cuda-checkpoint="+w.checkpoint()).settled()
	if _, err := a.suspend(held.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	if got := lines(toggled); len(got) != 2 || got[0] == got[1] {
		t.Fatalf("toggled %v, each once was wanted", got)
	}
	second := a.seats("2", 2)
	if err := a.resume(second.SeatEpoch); err != nil || len(w.openers(0)) != 1 || len(w.openers(1)) != 1 {
		t.Fatalf("%v, %v, %v", err, w.openers(0), w.openers(1))
	}
}

func TestASuspendedJobThatEndsIsReported(t *testing.T) {
	w := newSuspending(t, 1)
	a := w.join()
	held := a.seats("1", 1)
	a.cudaJob(0)
	job := w.openers(0)[0]
	if _, err := a.suspend(held.SeatEpoch); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(job, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.waitUntil("it is known to be lost", func() bool { return w.reported("suspendedLost") })
	a.seats("2", 1)
}
