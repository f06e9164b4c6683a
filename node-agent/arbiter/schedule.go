package arbiter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// overdue: seats that stay dirty, and requests that have waited long enough.
func (s *State) overdue() {
	for _, g := range s.GPUs {
		if g.Phase == Verifying && s.NowMs-g.SinceMs >= QuarantineAfterMs {
			reason, detail := "unknown", "it could not be measured for 10 s"
			if g.seen != nil {
				detail = g.seen.verdict.Why
				if g.seen.verdict.Kind == HELD {
					reason = "dirty"
				}
			}
			s.quarantine(g, Quarantine{Reason: reason, Detail: detail})
		}
	}
	s.Queue = slices.DeleteFunc(s.Queue, func(r *Request) bool {
		if s.NowMs < r.DeadlineMs {
			return false
		}
		s.emit(Refused{r.ID, Problem{SeatUnavailable, "no seat within the time asked for: " + s.blocking(r), "ask again, or elsewhere"}})
		return true
	})
}

// schedule grants in the one order: priority (which ageing lifts), then arrival. A request that cannot be granted yet
// reserves all GPUs that it could use, so that no later one delays it; nobody holds some GPUs while waiting for others.
func (s *State) schedule() {
	slices.SortStableFunc(s.Queue, func(a, b *Request) int {
		return cmp.Or(cmp.Compare(s.rank(b), s.rank(a)), cmp.Compare(a.seq, b.seq))
	})
	reserved := map[*GPU]bool{}
	s.Queue = slices.DeleteFunc(s.Queue, func(r *Request) bool {
		visible := s.visible(r)
		usable := slices.DeleteFunc(slices.Clone(visible), func(g *GPU) bool { return g.Phase == Quarantined })
		if len(usable) < r.Count {
			code := SeatSetSick
			if len(visible) < r.Count {
				code = SeatUnavailable // it asks for more than it has
			}
			s.emit(Refused{r.ID, Problem{code,
				fmt.Sprintf("%d GPUs asked for, %d of the pod's %d can be used: %s", r.Count, len(usable), len(visible), s.blocking(r)),
				"ask for fewer, or on another node"}})
			return true
		}
		var ready []*GPU
		for _, g := range usable {
			if !reserved[g] && s.grantable(g, r.Pod) {
				ready = append(ready, g)
			}
		}
		if len(ready) < r.Count {
			for _, g := range usable {
				reserved[g] = true
			}
			return false
		}
		s.grant(r, s.choose(ready, r))
		return true
	})
}

func (s *State) rank(r *Request) int64 {
	return int64(r.Priority) + (s.NowMs-r.arrivedMs)/PriorityAgeMs
}

func (s *State) visible(r *Request) []*GPU {
	var found []*GPU
	for _, g := range s.GPUs {
		if slices.Contains(r.Visible, g.UUID) {
			found = append(found, g)
		}
	}
	return found
}

// grantable: measured a moment ago, either empty, or left clean enough for the pod that had it last.
func (s *State) grantable(g *GPU, pod PodUID) bool {
	if g.seen == nil || s.NowMs-g.seen.atMs > FreshMs {
		return false
	}
	if g.Phase == Free {
		return g.seen.verdict.Kind == RELEASED
	}
	return g.ownAgain(pod) && g.seen.verdict.ForSamePod()
}

func (g *GPU) ownAgain(pod PodUID) bool {
	return g.Phase == Verifying && g.Former != nil && g.Former.Pod == pod && !g.Former.Suspect
}

// choose takes the pod's own former GPUs first: that leaves the clean ones to others.
func (s *State) choose(ready []*GPU, r *Request) []*GPU {
	slices.SortStableFunc(ready, func(a, b *GPU) int {
		own := func(g *GPU) int {
			if g.ownAgain(r.Pod) {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(own(a), own(b)), cmp.Compare(a.Minor, b.Minor))
	})
	return ready[:r.Count]
}

func (s *State) grant(r *Request, gpus []*GPU) {
	s.SeatEpoch++
	grant := &Grant{
		SeatEpoch: s.SeatEpoch, RequestID: r.ID, Pod: r.Pod, Tenant: s.payer(s.Pods[r.Pod].Tenant, r.Tenant),
		LeaseEpoch: r.LeaseEpoch, AtMs: s.NowMs,
	}
	for _, g := range gpus {
		grant.UUIDs = append(grant.UUIDs, g.UUID)
		g.enter(Held, s.NowMs)
		g.SeatEpoch = grant.SeatEpoch
	}
	s.Grants[grant.SeatEpoch] = grant
	s.durable = true
	s.emit(Granted{r.ID, grant.copied()})
}

// blocking says, for people, what each GPU that the request could use is doing.
func (s *State) blocking(r *Request) string {
	var lines []string
	for _, g := range s.visible(r) {
		line := g.UUID + " " + string(g.Phase)
		switch {
		case g.Quarantine != nil:
			line += " (" + g.Quarantine.Reason + ": " + g.Quarantine.Detail + ")"
		case g.seen != nil && g.Phase == Verifying:
			line += " (" + g.seen.verdict.Why + ")"
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return "the pod sees no GPU of this node"
	}
	return strings.Join(lines, "; ")
}

// account charges the time since the last step: a held GPU to its tenant, hand-back to the tenant that hands
// back, and what is sick or not yet known to the infrastructure.
func (s *State) account(nowMs int64) {
	passed := nowMs - s.NowMs
	s.NowMs = nowMs
	if passed == 0 {
		return
	}
	for _, g := range s.GPUs {
		switch {
		case g.Phase == Held:
			s.charge(s.Grants[g.SeatEpoch].Tenant, passed)
		case g.Phase == Verifying && g.Former != nil:
			s.charge(g.Former.Tenant, passed)
		case g.Phase != Free:
			s.InfrastructureMs += passed
		}
	}
}

// payer is the name that is charged. Whoever made the pod has chosen the account, and nobody in the pod gets out of it: what the pod
// says of a tenant only divides what its account is charged.
func (s *State) payer(account, tenant string) string {
	if tenant == "" {
		return account
	}
	name := account + "/" + tenant
	if _, known := s.SeatMs[name]; known {
		return name
	}
	names := 0
	for other := range s.SeatMs {
		if strings.HasPrefix(other, account+"/") {
			names++
		}
	}
	if names >= MaxTenantsOfAccount {
		return account + "/" + OtherTenant
	}
	return name
}

func (s *State) charge(tenant string, ms int64) {
	if _, known := s.SeatMs[tenant]; !known && len(s.SeatMs) >= MaxTenants {
		tenant = OtherTenant
	}
	s.SeatMs[tenant] += ms
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
