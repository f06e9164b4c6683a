package arbiter

import (
	"fmt"
	"slices"
)

// Check returns the first invariant that does not hold, by its name in the README; nil when all do.
// The agent checks after every step and stops rather than go on with a state that contradicts itself.
func (s *State) Check() error {
	if err := s.checkGrants(); err != nil {
		return err
	}
	if err := s.checkGPUs(); err != nil {
		return err
	}
	return s.checkQueue()
}

func (s *State) checkGrants() error {
	holders := map[PodUID]uint64{}
	for epoch, grant := range s.Grants {
		if epoch != grant.SeatEpoch || epoch > s.SeatEpoch {
			return fmt.Errorf("N2: grant %d is kept under %d, the last epoch is %d", grant.SeatEpoch, epoch, s.SeatEpoch)
		}
		if other, twice := holders[grant.Pod]; twice {
			return fmt.Errorf("N4: pod %s holds seat epochs %d and %d", grant.Pod, other, epoch)
		}
		holders[grant.Pod] = epoch
		if s.Pods[grant.Pod] == nil {
			return fmt.Errorf("N1: grant %d is of pod %s, which is not known", epoch, grant.Pod)
		}
		for _, uuid := range grant.UUIDs {
			if g := s.GPU(uuid); g == nil || g.Phase != Held || g.SeatEpoch != epoch {
				return fmt.Errorf("N1: GPU %s of grant %d is not held by it", uuid, epoch)
			}
		}
	}
	return nil
}

func (s *State) checkGPUs() error {
	for _, g := range s.GPUs {
		switch g.Phase {
		case Held:
			if grant := s.Grants[g.SeatEpoch]; grant == nil || !slices.Contains(grant.UUIDs, g.UUID) {
				return fmt.Errorf("N1: GPU %s is held under seat epoch %d, which does not name it", g.UUID, g.SeatEpoch)
			}
		case Free:
			if !g.SelfTested || g.BaselineBytes == nil || g.Former != nil || g.seen == nil || g.seen.verdict.Kind != RELEASED {
				return fmt.Errorf("N3: GPU %s is free without having been measured so", g.UUID)
			}
		case Quarantined:
			if g.Quarantine == nil {
				return fmt.Errorf("N3: GPU %s is quarantined without a reason", g.UUID)
			}
		case Verifying:
		default:
			return fmt.Errorf("N3: GPU %s is %q", g.UUID, g.Phase)
		}
		if g.Phase != Held && g.SeatEpoch != 0 {
			return fmt.Errorf("N1: GPU %s is %s under seat epoch %d", g.UUID, g.Phase, g.SeatEpoch)
		}
	}
	return nil
}

func (s *State) checkQueue() error {
	if len(s.Queue) > MaxWaiting || len(s.Pods) > MaxPods || len(s.SeatMs) > MaxTenants+1 {
		return fmt.Errorf("N6: %d requests, %d pods, %d tenants", len(s.Queue), len(s.Pods), len(s.SeatMs))
	}
	waiting := map[PodUID]bool{}
	for _, r := range s.Queue {
		if waiting[r.Pod] {
			return fmt.Errorf("N4: pod %s waits twice", r.Pod)
		}
		waiting[r.Pod] = true
		if s.GrantOf(r.Pod) != nil {
			return fmt.Errorf("N4: pod %s holds a seat and waits for another", r.Pod)
		}
		if pod := s.Pods[r.Pod]; pod == nil || pod.Gone || pod.Banned != "" {
			return fmt.Errorf("N5: pod %s waits and may not", r.Pod)
		}
	}
	return nil
}
