package topic

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// handBack gives leaderships to whom they belong, a few at a time, and returns
// when to look again; 0: none that this node leads belongs to another one.
func (mv *mover) handBack() time.Duration {
	if mv.cfg.NoHandBack {
		return 0
	}
	now := mv.cfg.Clock.Now()
	if wait := handBackEvery - now.Sub(mv.lastHandBack); wait > 0 && !mv.lastHandBack.IsZero() {
		return wait
	}
	foreign := mv.foreign()
	if len(foreign) == 0 {
		return 0
	}
	mv.lastHandBack = now
	chosen := handBacks(foreign, handBackAtOnce)
	errs := make([]error, len(chosen))
	var group sync.WaitGroup
	for i, p := range chosen {
		group.Go(func() {
			ctx, cancel := within(mv.life, mv.cfg.Clock, moveTry)
			defer cancel()
			errs[i] = mv.handTo(ctx, p)
		})
	}
	group.Wait()
	for i, p := range chosen {
		if errs[i] == nil {
			delete(mv.failed, p.address)
			mv.stats.handedBack.Add(1)
		} else if mv.life.Err() == nil {
			mv.failed[p.address] = mv.cfg.Clock.Now()
		}
	}
	return handBackEvery
}

func (mv *mover) handTo(ctx context.Context, p ledPartition) error {
	r := mv.replica(p.address)
	if r == nil {
		return nil
	}
	err := r.group.TransferLeadership(ctx, p.preferred)
	if err != nil {
		mv.logOf(r).Debug("the preferred leader did not take over", zap.Stringer("preferred", p.preferred), zap.Error(err))
	}
	return err
}

// foreign returns what is known of the partitions that this node leads in
// another one's place, as far as the metadata alone do not speak against it:
// only of those more has to be known.
func (mv *mover) foreign() []ledPartition {
	stays := map[storage.NodeID]bool{}
	for _, m := range mv.cfg.Meta.Members() {
		stays[m.Node] = !m.Liveness.Dead && !m.Liveness.Draining()
	}
	now := mv.cfg.Clock.Now()
	var all []ledPartition
	for _, r := range mv.leading() {
		place, lead := r.where(), r.lead.Load()
		if len(place.Replicas) == 0 {
			continue
		}
		first := place.Replicas[0]
		if first.Node == mv.cfg.Node || !stays[first.Node] {
			continue
		}
		p := ledPartition{
			address: r.address, led: now.Sub(lead.since), preferred: first.Replica, stays: true,
			sinceContact: -1, sinceCaughtUp: -1,
			busy: place.Target != nil || lead.learners || r.ending.Load(),
		}
		if at, ok := mv.failed[r.address]; ok {
			p.failed = max(now.Sub(at), 1)
		}
		if !p.busy && p.led >= ledFor {
			p.know(r.group.Status())
		}
		all = append(all, p)
	}
	maps.DeleteFunc(mv.failed, func(a address, _ time.Time) bool {
		return !slices.ContainsFunc(all, func(p ledPartition) bool { return p.address == a })
	})
	return all
}

// know takes in what the leader knows of the preferred one.
func (p *ledPartition) know(s raftlog.Status) {
	p.busy = p.busy || s.Transferee != 0 || s.Role != raftlog.RoleLeaderActive
	p.voter = slices.Contains(s.Conf.Voters, p.preferred)
	for _, of := range s.Progress {
		if of.Replica == p.preferred {
			p.sinceContact, p.sinceCaughtUp = of.SinceContact, of.SinceCaughtUp
			if of.Match >= s.Last { // where nothing comes nothing is acknowledged
				p.sinceCaughtUp = 0
			}
		}
	}
}

// followers notes what the leader here knows of the others.
func (r *replica) followers(of *PartitionStatus) {
	if !r.leads() {
		return
	}
	place := r.where()
	s := r.group.Status()
	for _, p := range s.Progress {
		if p.Replica == r.id {
			continue
		}
		of.Lag = max(of.Lag, s.Last-min(p.Match, s.Last))
		if p.SinceContact < 0 || p.SinceContact > presentTicks {
			if node := nodeOf(place, p.Replica); node != 0 {
				of.Silent = append(of.Silent, node)
			}
		}
	}
	for _, u := range s.Unsettled {
		if node := nodeOf(place, u); node != 0 {
			of.Unsettled = append(of.Unsettled, node)
		}
	}
}
