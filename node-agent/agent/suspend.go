package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/measure"
)

// CheckpointFailed: a process could not be taken off its GPU, or put back on it. Its job was killed.
const CheckpointFailed arbiter.Code = "CheckpointFailed"

// Suspend takes what runs under the seat off its GPUs, and gives the seat back: they are verified like any others, and their processes
// live on. Again for the same seat it goes on where it was. It returns the device memory that the host now has.
func (a *Agent) Suspend(ctx context.Context, uid arbiter.PodUID, seatEpoch uint64) (uint64, error) {
	var hostBytes uint64
	err := a.toggling(uid, func() error {
		suspended := false
		a.do(func() {
			if job := a.suspension(uid); job != nil && job.SeatEpoch == seatEpoch && a.state.Grants[seatEpoch] == nil {
				suspended, hostBytes = true, job.HostBytes // the answer was not heard
			}
		})
		if suspended {
			return nil
		}
		observed, err := a.lookNow(ctx)
		if err != nil {
			return err
		}
		on, used, err := a.onGPUs(uid, seatEpoch, observed)
		if err != nil {
			return err
		}
		if err := a.hasProgramFor(on); err != nil {
			return err
		}
		if _, err = a.ask(ctx, func(id string) arbiter.Event {
			return arbiter.Suspending{ID: id, Pod: uid, SeatEpoch: seatEpoch, Processes: on, HostBytes: used}
		}); err != nil {
			return err
		}
		job := on // and, asked again, what was taken off before
		a.do(func() {
			if suspension := a.suspension(uid); suspension != nil {
				job, hostBytes = slices.Clone(suspension.Processes), suspension.HostBytes
			}
		})
		if err := a.toggle(ctx, on, job); err != nil {
			return err
		}
		_, err = a.ask(ctx, func(id string) arbiter.Event {
			return arbiter.Released{ID: id, Pod: uid, SeatEpoch: seatEpoch, Suspended: true}
		})
		return err
	})
	return hostBytes, err
}

// Resume puts the pod's suspended processes back on the GPUs that they had, which the pod must hold under this seat.
func (a *Agent) Resume(ctx context.Context, uid arbiter.PodUID, seatEpoch uint64) error {
	return a.toggling(uid, func() error {
		observed, err := a.lookNow(ctx)
		if err != nil {
			return err
		}
		on, _, err := a.onGPUs(uid, seatEpoch, observed)
		if err != nil {
			return err
		}
		var processes []arbiter.Process
		a.do(func() {
			if job := a.suspension(uid); job != nil && job.SeatEpoch != seatEpoch {
				processes = slices.Clone(job.Processes)
			}
		})
		if len(processes) == 0 {
			return arbiter.Problem{Code: arbiter.NotSuspended, Message: "the pod has no suspended job", Remedy: "start the job anew"}
		}
		off := slices.DeleteFunc(slices.Clone(processes), func(p arbiter.Process) bool { return slices.Contains(pidsOf(on), p.Pid) })
		if err := a.hasProgramFor(off); err != nil {
			return err
		}
		if err := a.toggle(ctx, off, processes); err != nil {
			return err
		}
		_, err = a.ask(ctx, func(id string) arbiter.Event { return arbiter.Resumed{ID: id, Pod: uid, SeatEpoch: seatEpoch} })
		return err
	})
}

// toggling, one call for each pod at a time: the program knows no direction.
func (a *Agent) toggling(uid arbiter.PodUID, do func() error) error {
	busy := false
	if !a.do(func() { busy = a.checkpoints[uid]; a.checkpoints[uid] = true }) {
		return ErrStopped
	}
	if busy {
		return arbiter.Problem{Code: arbiter.Superseded, Message: "the pod's job is being suspended or resumed", Remedy: "wait for that answer"}
	}
	defer a.do(func() { delete(a.checkpoints, uid) })
	return do()
}

// suspension of the pod's job, or nil. For the goroutine that owns the state.
func (a *Agent) suspension(uid arbiter.PodUID) *arbiter.Suspension {
	if pod := a.state.Pods[uid]; pod != nil {
		return pod.Suspended
	}
	return nil
}

// hasProgramFor them: where there is nobody to toggle none is needed.
func (a *Agent) hasProgramFor(processes []arbiter.Process) error {
	if a.config.Checkpoint != nil || len(processes) == 0 {
		return nil
	}
	return arbiter.Problem{Code: CheckpointFailed, Message: "this agent has no cuda-checkpoint", Remedy: "start it with -cuda-checkpoint, or release the seat"}
}

// toggle each of them. When one fails the whole job is killed: a part of it on the GPU and a part off it is nothing that can go on.
// The pod's caller having left does not stop it half-way.
func (a *Agent) toggle(ctx context.Context, processes, job []arbiter.Process) error {
	ctx = context.WithoutCancel(ctx)
	for _, p := range processes {
		if !measure.Lives(a.config.Observer.ProcRoot, p) {
			continue // the program is told a pid, which another process may have by now
		}
		err := a.config.Checkpoint(ctx, p.Pid)
		if err == nil || a.ends(p) {
			continue
		}
		for _, q := range job {
			a.config.Log.Warn("kill", "pid", q.Pid, "name", q.Name, "pod", q.Pod, "why", "its job could not be suspended or resumed")
			if err := measure.Kill(a.config.Observer.ProcRoot, q); err != nil {
				a.config.Log.Error("kill", "pid", q.Pid, "error", err)
			}
		}
		return arbiter.Problem{Code: CheckpointFailed, Message: fmt.Sprintf("process %d (%s), whose job was killed: %v", p.Pid, p.Name, err),
			Remedy: "release the seat; the job is lost by no fault of its own"}
	}
	return nil
}

// exitTimeout: one that was killed is on its GPU until the driver has taken its memory.
const exitTimeout = time.Second

// ends: the process has ended, or does so now. What is over cannot be suspended, and is nobody's fault.
func (a *Agent) ends(p arbiter.Process) bool {
	for deadline := time.Now().Add(exitTimeout); time.Now().Before(deadline); time.Sleep(exitTimeout / 50) {
		if !measure.Lives(a.config.Observer.ProcRoot, p) {
			return true
		}
	}
	return false
}

// onGPUs of the seat: the pod's processes, by the kernel or by the driver, and the memory in use there over the empty device's.
func (a *Agent) onGPUs(uid arbiter.PodUID, seatEpoch uint64, observed arbiter.Observed) (on []arbiter.Process, used uint64, err error) {
	a.do(func() {
		grant := a.state.Grants[seatEpoch]
		if grant == nil || grant.Pod != uid {
			err = arbiter.Problem{Code: arbiter.StaleSeat, Message: fmt.Sprintf("the pod does not hold seat epoch %d", seatEpoch), Remedy: "ask what the pod holds"}
			return
		}
		for _, reading := range observed.GPUs {
			if !slices.Contains(grant.UUIDs, reading.UUID) {
				continue
			}
			for _, list := range []arbiter.ProcessesReading{reading.Openers, reading.Listed} {
				if list.Problem != "" {
					err = arbiter.Problem{Code: arbiter.SeatUnavailable, Message: "who is on " + reading.UUID + " is not known: " + list.Problem, Remedy: "ask again, or release the seat"}
					return
				}
				for _, p := range list.Processes {
					if p.Pod == uid && !slices.Contains(on, p) {
						on = append(on, p)
					}
				}
			}
			if g := a.state.GPU(reading.UUID); g.BaselineBytes != nil && reading.Used.Problem == "" && reading.Used.Bytes > *g.BaselineBytes {
				used += reading.Used.Bytes - *g.BaselineBytes
			}
		}
	})
	return on, used, err
}

func pidsOf(processes []arbiter.Process) []int {
	var pids []int
	for _, p := range processes {
		pids = append(pids, p.Pid)
	}
	return pids
}
