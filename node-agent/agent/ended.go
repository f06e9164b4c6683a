package agent

import (
	"context"
	"fmt"

	"firepool/node-agent/arbiter"
)

// Ended says how a seat ended.
type Ended struct {
	Lost   string // a device failed under it
	Banned string // the pod used a device without a grant, and is granted nothing any more
}

// ending waits for the end of one seat.
type ending struct {
	seatEpoch uint64
	answer    chan error
	ended     Ended
}

// Ended waits until the seat is the pod's no longer, or the pod is granted nothing any more: a holder that uses no device would hear of
// neither. One call for each pod: a newer one ends the one before.
func (a *Agent) Ended(ctx context.Context, uid arbiter.PodUID, seatEpoch uint64) (Ended, error) {
	waiting := &ending{seatEpoch: seatEpoch, answer: make(chan error, 1)}
	var refused error
	alive := a.do(func() {
		if refused = a.notHeld(uid, seatEpoch); refused != nil {
			return
		}
		if older := a.endings[uid]; older != nil {
			older.answer <- arbiter.Problem{Code: arbiter.Superseded, Message: "the pod has asked again", Remedy: "wait for the newer answer"}
		}
		a.endings[uid] = waiting
		a.tellEnded()
	})
	if !alive {
		return Ended{}, ErrStopped
	}
	if refused != nil {
		return Ended{}, refused
	}
	select {
	case err := <-waiting.answer:
		return waiting.ended, err
	case <-a.stopped:
		return Ended{}, ErrStopped
	case <-ctx.Done():
		a.do(func() {
			if a.endings[uid] == waiting {
				delete(a.endings, uid)
			}
		})
		return Ended{}, ctx.Err()
	}
}

// notHeld says why the seat never was this pod's.
func (a *Agent) notHeld(uid arbiter.PodUID, seatEpoch uint64) error {
	grant := a.state.Grants[seatEpoch]
	switch {
	case a.state.Pods[uid] == nil:
		return arbiter.Problem{Code: arbiter.UnknownPod, Message: "this pod has no volume of the node agent", Remedy: "give the pod the inline CSI volume"}
	case seatEpoch > a.state.SeatEpoch:
		return arbiter.Problem{Code: arbiter.StaleSeat, Message: fmt.Sprintf("no seat epoch %d was granted here", seatEpoch), Remedy: "ask what the pod holds"}
	case grant != nil && grant.Pod != uid:
		return arbiter.Problem{Code: arbiter.IdentityMismatch, Message: fmt.Sprintf("seat epoch %d is another pod's", seatEpoch), Remedy: "ask what the pod holds"}
	}
	return nil
}

// tellEnded answers those whose seat has ended. At each step: few wait, and only a step ends a seat.
func (a *Agent) tellEnded() {
	for uid, waiting := range a.endings {
		pod := a.state.Pods[uid]
		if pod != nil && pod.Banned == "" && a.state.Grants[waiting.seatEpoch] != nil {
			continue
		}
		if pod != nil {
			waiting.ended.Banned = pod.Banned
			if pod.LostEpoch == waiting.seatEpoch {
				waiting.ended.Lost = pod.Lost
			}
		}
		delete(a.endings, uid)
		waiting.answer <- nil
	}
}
