package agent

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"firepool/node-agent/arbiter"
	"firepool/node-agent/measure"
)

// Join registers a pod. Its volume may be published again.
func (a *Agent) Join(e arbiter.PodJoined) error {
	if !a.do(func() { a.step(e) }) {
		return ErrStopped
	}
	return nil
}

// Leave ends what the pod has.
func (a *Agent) Leave(uid arbiter.PodUID) error {
	if !a.do(func() { a.step(arbiter.PodGone{UID: uid}); delete(a.latest, uid); a.again = true }) {
		return ErrStopped
	}
	return nil
}

// Pods that are registered and have not gone.
func (a *Agent) Pods() []arbiter.Pod {
	var pods []arbiter.Pod
	a.do(func() {
		for _, pod := range a.state.Pods {
			if !pod.Gone {
				pods = append(pods, *pod)
			}
		}
	})
	return pods
}

// Knows says whether the pod is registered and has not gone.
func (a *Agent) Knows(uid arbiter.PodUID) bool {
	known := false
	a.do(func() {
		pod := a.state.Pods[uid]
		known = pod != nil && !pod.Gone
	})
	return known
}

// Request waits for seats until they are granted, refused, or the context ends: then whatever was or would be granted is given back,
// unless the same pod has asked again meanwhile. The error is an arbiter.Problem, ErrStopped or the context's.
func (a *Agent) Request(ctx context.Context, e arbiter.Requested, waitMs int64) (arbiter.Grant, error) {
	id := string(e.Pod) + "/" + e.ID // two pods may choose the same
	waiting := &waiter{make(chan arbiter.Effect, 1)}
	alive := a.do(func() {
		e.ID = id
		if older := a.waiters[id]; older != nil {
			older.answer <- arbiter.Refused{RequestID: id, Problem: arbiter.Problem{Code: arbiter.Superseded,
				Message: "the same request came over another connection", Remedy: "read the answer there"}}
		}
		a.waiters[id] = waiting
		a.latest[e.Pod] = waiting
		e.DeadlineMs = measure.BootMs() + waitMs
		a.step(e)
		// Who was answered waits for no look, which would only take the processors from the job that begins now.
		a.again = a.again || len(a.state.Queue) > 0
	})
	if !alive {
		return arbiter.Grant{}, ErrStopped
	}
	select {
	case effect := <-waiting.answer:
		return grantOf(effect)
	case <-a.stopped:
		return arbiter.Grant{}, ErrStopped
	case <-ctx.Done():
		a.do(func() {
			if a.latest[e.Pod] == waiting {
				delete(a.waiters, id)
				a.step(arbiter.Cancelled{ID: id, Pod: e.Pod})
			}
		})
		return arbiter.Grant{}, ctx.Err()
	}
}

func grantOf(effect arbiter.Effect) (arbiter.Grant, error) {
	switch e := effect.(type) {
	case arbiter.Granted:
		return e.Grant, nil
	case arbiter.Refused:
		return arbiter.Grant{}, e.Problem
	}
	return arbiter.Grant{}, fmt.Errorf("the arbiter answered a request with %T", effect)
}

// Release gives a seat epoch back. The answer has the job's own device errors under it, and why it was lost before.
func (a *Agent) Release(ctx context.Context, pod arbiter.PodUID, seatEpoch uint64) (arbiter.Done, error) {
	a.config.Log.Debug("released", "pod", pod, "seatEpoch", seatEpoch)
	return a.ask(ctx, func(id string) arbiter.Event {
		return arbiter.Released{ID: id, Pod: pod, SeatEpoch: seatEpoch}
	})
}

// Clear lifts a quarantine by an operator's word.
func (a *Agent) Clear(ctx context.Context, uuid string) error {
	_, err := a.ask(ctx, func(id string) arbiter.Event { return arbiter.Cleared{ID: id, UUID: uuid} })
	return err
}

func (a *Agent) ask(ctx context.Context, event func(id string) arbiter.Event) (arbiter.Done, error) {
	waiting := &waiter{make(chan arbiter.Effect, 1)}
	alive := a.do(func() {
		a.answers++
		id := "answer-" + strconv.Itoa(a.answers)
		a.waiters[id] = waiting
		a.step(event(id))
		a.again = true
	})
	if !alive {
		return arbiter.Done{}, ErrStopped
	}
	select {
	case effect := <-waiting.answer:
		switch e := effect.(type) {
		case arbiter.Done:
			return e, nil
		case arbiter.Refused:
			return arbiter.Done{}, e.Problem
		}
		return arbiter.Done{}, fmt.Errorf("the arbiter answered with %T", effect)
	case <-a.stopped:
		return arbiter.Done{}, ErrStopped
	case <-ctx.Done():
		return arbiter.Done{}, ctx.Err()
	}
}

// lookNow is a measurement that begins after the call.
func (a *Agent) lookNow(ctx context.Context) (arbiter.Observed, error) {
	look := &looker{sinceMs: measure.BootMs(), seen: make(chan arbiter.Observed, 1)}
	if !a.do(func() { a.lookers = append(a.lookers, look); a.again = true }) {
		return arbiter.Observed{}, ErrStopped
	}
	select {
	case observed := <-look.seen:
		return observed, nil
	case <-a.stopped:
		return arbiter.Observed{}, ErrStopped
	case <-ctx.Done():
		return arbiter.Observed{}, ctx.Err()
	}
}

// Standing of one pod.
type Standing struct {
	Pod  arbiter.Pod
	Held *arbiter.Grant
	// ZeroVRAM: no process of the pod has a GPU open or is listed on one, by a measurement that began after the question.
	ZeroVRAM arbiter.Sign
	Why      string
}

// Stand measures how the pod stands: what it holds, and whether it is on any GPU.
func (a *Agent) Stand(ctx context.Context, uid arbiter.PodUID) (Standing, error) {
	observed, err := a.lookNow(ctx)
	if err != nil {
		return Standing{}, err
	}
	var standing Standing
	known := false
	a.do(func() {
		pod := a.state.Pods[uid]
		if known = pod != nil; !known {
			return
		}
		standing.Pod = *pod
		if grant := a.state.GrantOf(uid); grant != nil {
			held := *grant
			held.UUIDs = slices.Clone(grant.UUIDs)
			standing.Held = &held
		}
		standing.ZeroVRAM, standing.Why = a.onNoGPU(uid, observed)
	})
	if !known {
		return standing, arbiter.Problem{Code: arbiter.UnknownPod, Message: "this pod has no volume of the node agent", Remedy: "give the pod the inline CSI volume"}
	}
	return standing, nil
}

func (a *Agent) onNoGPU(uid arbiter.PodUID, observed arbiter.Observed) (arbiter.Sign, string) {
	sign, why := arbiter.Yes, ""
	for _, reading := range observed.GPUs {
		g := a.state.GPU(reading.UUID)
		lists := []arbiter.ProcessesReading{reading.Openers, reading.Listed}
		if g.Phase == arbiter.Quarantined {
			// Its driver may never answer again; that the pod does not have it open is enough, or no standby of the node is ever verified.
			lists = lists[:1]
		}
		for _, list := range lists {
			if list.Problem != "" {
				sign, why = arbiter.Unknown, reading.UUID+": "+list.Problem
				continue
			}
			for _, p := range list.Processes {
				if p.Pod == uid {
					return arbiter.No, fmt.Sprintf("process %d (%s) is on %s", p.Pid, p.Name, reading.UUID)
				}
			}
		}
		if g.Phase != arbiter.Quarantined && !g.SelfTested && sign == arbiter.Yes {
			sign, why = arbiter.Unknown, reading.UUID+": no self-test has seen a process in the driver's list"
		}
	}
	return sign, why
}
