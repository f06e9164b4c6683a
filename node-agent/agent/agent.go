// Package agent drives the arbiter: one goroutine owns its state, feeds it events, writes its file and carries its effects out.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"sync"
	"time"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/failpoint"
	"firepool/node-agent/journal"
	"firepool/node-agent/measure"
)

const (
	// pollBusy: somebody waits or a release is being verified; hand-back time is seats that nobody uses.
	pollBusy = 20 * time.Millisecond
	// pollIdle: only use without a grant can be found.
	pollIdle = 500 * time.Millisecond
	// tick: deadlines pass also while the driver does not answer.
	tick = 200 * time.Millisecond
	// saveEvery: accounts of at most this long are lost with the agent; the same period in which they are read.
	saveEvery = 10 * time.Second
	// maxReports that are listed; older ones are in the log.
	maxReports = 256
)

// XidSource waits for the driver's next device error.
type XidSource interface {
	WaitXid(ctx context.Context) (uuid string, code int, err error)
}

// Config of an agent.
type Config struct {
	Driver   measure.Driver
	Xids     XidSource
	Observer *measure.Observer
	Journal  *journal.Journal
	// Holder makes the process of a self-test on the GPU.
	Holder func(uuid string) *exec.Cmd
	// Checkpoint suspends and resumes processes; nil where that is not to be had.
	Checkpoint measure.Checkpoint
	// Reported gets something after reports; with room for one, so that nobody waits.
	Reported chan<- struct{}
	Log      *slog.Logger
}

// Agent of one node.
type Agent struct {
	config  Config
	devices []arbiter.Device
	inputs  chan func()
	stopped chan struct{}
	failure error

	// Owned by the loop.
	state     *arbiter.State
	waiters   map[string]*waiter
	latest    map[arbiter.PodUID]*waiter
	answers   int
	reports   []Report
	counts    map[string]int
	measuring bool
	again     bool // something has changed since the measurement began
	lookers   []*looker
	savedAt   time.Time
	decidedAt time.Time // of the step whose effects are carried out
	// checkpoints under way, by pod.
	checkpoints map[arbiter.PodUID]bool
	endings     map[arbiter.PodUID]*ending
}

// Report with its time.
type Report struct {
	AtMs int64 `json:"atMs"`
	arbiter.Report
}

// waiter waits for one answer.
type waiter struct{ answer chan arbiter.Effect }

// looker waits for a measurement that begins after it came.
type looker struct {
	sinceMs int64
	seen    chan arbiter.Observed
}

// New reads the file and finds the GPUs. A file that is lost makes the agent adopt what it finds; one that cannot be
// read stops it, because an operator can do better.
func New(config Config) (*Agent, error) {
	devices, err := config.Driver.Devices()
	if err != nil {
		return nil, fmt.Errorf("find the GPUs: %w", err)
	}
	entry, err := config.Journal.Read()
	if err != nil {
		return nil, err
	}
	a := &Agent{
		config: config, devices: devices, inputs: make(chan func()), stopped: make(chan struct{}),
		waiters: map[string]*waiter{}, latest: map[arbiter.PodUID]*waiter{}, counts: map[string]int{},
		checkpoints: map[arbiter.PodUID]bool{}, endings: map[arbiter.PodUID]*ending{},
	}
	if entry == nil {
		// Epochs only grow, also over a lost file: no node grants a seat every millisecond.
		a.state = arbiter.New(devices, uint64(time.Now().UnixMilli()), measure.BootMs(), true)
	} else {
		a.state, err = arbiter.Restore(entry.Arbiter, devices, entry.BootID == config.Journal.BootID, measure.BootMs())
	}
	if err == nil {
		err = a.state.Check()
	}
	if err == nil {
		err = a.save()
	}
	return a, err
}

// Run until the context ends, or until the agent cannot go on: then the error says why. Seats stay as they are.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer func() { cancel(); close(a.stopped); background.Wait() }()
	background.Go(func() { a.readXids(ctx) })
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	poll := time.NewTimer(0)
	defer poll.Stop()
	for a.failure == nil {
		select {
		case <-ctx.Done():
			return a.save()
		case input := <-a.inputs:
			input()
			if a.again && !a.measuring {
				poll.Reset(0)
			}
		case <-ticks.C:
			a.step(arbiter.Ticked{})
		case <-poll.C:
			a.measure(&background, func() { poll.Reset(a.pause()) })
		}
		if time.Since(a.savedAt) > saveEvery && a.failure == nil {
			a.failure = a.save()
		}
	}
	return a.failure
}

func (a *Agent) pause() time.Duration {
	switch {
	case a.again || len(a.lookers) > 0:
		return 0
	case len(a.state.Queue) > 0:
		return pollBusy
	}
	for _, g := range a.state.GPUs {
		if g.Phase == arbiter.Verifying {
			return pollBusy
		}
	}
	return pollIdle
}

// do runs in the loop; false when the agent has stopped.
func (a *Agent) do(input func()) bool {
	done := make(chan struct{})
	select {
	case a.inputs <- func() { input(); close(done) }:
		<-done
		return true
	case <-a.stopped:
		return false
	}
}

func (a *Agent) save() error {
	a.savedAt = time.Now()
	return a.config.Journal.Sync(a.state.Durable())
}

// step feeds one event. Nobody is told of anything that this agent would not know when it starts again.
func (a *Agent) step(event arbiter.Event) {
	if a.failure != nil {
		return
	}
	result := a.state.Step(event, measure.BootMs())
	a.decidedAt = time.Now()
	if err := a.state.Check(); err != nil {
		a.failure = fmt.Errorf("the arbiter contradicts itself after %T: %w. The agent stops before it acts on it", event, err)
		return
	}
	if result.Durable {
		failpoint.At(failpoint.Decided)
		if err := a.config.Journal.Write(a.state.Durable()); err != nil {
			a.failure = fmt.Errorf("write the agent's file: %w", err)
			return
		}
		failpoint.At(failpoint.EffectsBegun)
	}
	for _, effect := range result.Effects {
		a.carryOut(effect)
	}
	if result.Durable {
		failpoint.At(failpoint.EffectsFinish)
	}
	a.tellEnded()
}

func (a *Agent) carryOut(effect arbiter.Effect) {
	switch e := effect.(type) {
	case arbiter.Granted:
		// The time between is that of the file.
		a.config.Log.Debug("granted", "pod", e.Grant.Pod, "seatEpoch", e.Grant.SeatEpoch, "decided", a.decidedAt)
		a.tell(e.RequestID, e)
	case arbiter.Refused:
		a.tell(e.RequestID, e)
	case arbiter.Done:
		a.tell(e.ID, e)
	case arbiter.Kill:
		a.counts["killed"]++
		a.config.Log.Warn("kill", "pid", e.Process.Pid, "name", e.Process.Name, "pod", e.Process.Pod, "gpu", e.UUID, "why", e.Why)
		if err := measure.Kill(a.config.Observer.ProcRoot, e.Process); err != nil {
			a.config.Log.Error("kill", "pid", e.Process.Pid, "error", err)
		}
	case arbiter.StartSelfTest:
		go a.selfTest(e.UUID)
	case arbiter.Report:
		a.counts[e.Kind]++
		a.config.Log.Warn(e.Kind, "gpu", e.UUID, "pod", e.Pod, "xid", e.Xid, "detail", e.Detail)
		a.reports = append(a.reports, Report{measure.BootMs(), e})
		a.reports = a.reports[max(0, len(a.reports)-maxReports):]
		select {
		case a.config.Reported <- struct{}{}:
		default:
		}
	}
}

func (a *Agent) tell(id string, effect arbiter.Effect) {
	if waiting := a.waiters[id]; waiting != nil {
		delete(a.waiters, id)
		waiting.answer <- effect
	}
}

// measure starts one measurement, in the background: a driver that does not answer stops no deadline.
func (a *Agent) measure(background *sync.WaitGroup, next func()) {
	if a.measuring {
		return
	}
	a.measuring, a.again = true, false
	ours := map[arbiter.PodUID]bool{}
	for uid := range a.state.Pods {
		ours[uid] = true
	}
	background.Go(func() {
		observed := a.config.Observer.Observe(func(uid arbiter.PodUID) bool { return ours[uid] }, a.devices)
		a.do(func() {
			a.measuring = false
			a.step(observed)
			a.showLookers(observed)
			next()
		})
	})
}

func (a *Agent) showLookers(observed arbiter.Observed) {
	var waiting []*looker
	for _, l := range a.lookers {
		if observed.AtMs > l.sinceMs {
			l.seen <- observed
		} else {
			waiting = append(waiting, l)
		}
	}
	a.lookers = waiting
}

func (a *Agent) selfTest(uuid string) {
	holder := 0
	err := measure.SelfTest(a.config.Driver, uuid, a.config.Holder(uuid), func(pid int) {
		holder = pid
		a.config.Observer.Ignore(pid, true)
	})
	event := arbiter.SelfTested{UUID: uuid, Seen: err == nil}
	if err != nil {
		event.Problem = err.Error()
	}
	a.do(func() { a.step(event); a.again = true })
	// Only now: a measurement that was begun during the test is not to take its process for a stranger.
	a.config.Observer.Ignore(holder, false)
}

func (a *Agent) readXids(ctx context.Context) {
	for {
		uuid, code, err := a.config.Xids.WaitXid(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			a.config.Log.Error("read device errors", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		a.do(func() { a.step(arbiter.XidReported{UUID: uuid, Code: code}) })
	}
}

// ErrStopped: the agent is going down. Who holds a seat keeps it.
var ErrStopped = errors.New("the node agent is stopping")
