package topic

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// restoring is a replica that has lost its log: nothing of it is there, though there
// should be. It stays closed, so that it vouches for nothing that it has not, while a
// fill brings it a copy of another replica's. What it promised beyond that is in the
// journal, and stays: see raftlog.CheckRestore.
//
// The copy has to reach what is known here to be committed. Where the others cannot
// get there without this replica (it is one of two), it waits for a person.
type restoring struct {
	r     *replica // not open: it has neither group nor partition
	fill  *fill    // nil: none is under way
	pause time.Duration
	again time.Time // when the next begins
}

// restore notes that a replica has lost its log.
func (rc *reconciler) restore(topic string, place metastore.Partition, at address, id storage.ReplicaID, lost error) {
	if rc.restores[at] != nil {
		return
	}
	r := &replica{address: at, name: topic, id: id}
	r.place.Store(&place)
	r.lead.Store(&leadership{})
	rc.restores[at] = &restoring{r: r}
	rc.stats.damages.Add(1)
	rc.cfg.Logger.Error("a replica has lost its log: it stays closed until it has a copy of another one's",
		zap.String("topic", topic), zap.Uint32("partition", at.partition), zap.Stringer("replica", id), zap.Error(lost))
}

// tendRestores begins, ends and installs what replicas without a log are to get. It
// returns when it is to be called again whatever happens, 0: never.
func (rc *reconciler) tendRestores(ctx context.Context, assigned []metastore.NodeAssignment) (next time.Duration) {
	if len(rc.restores) == 0 {
		return 0
	}
	wanted := make(map[address]*metastore.NodeAssignment, len(assigned))
	for i := range assigned {
		wanted[addressOf(assigned[i])] = &assigned[i]
	}
	now := rc.cfg.Clock.Now()
	busy := len(rc.fills)
	for _, s := range rc.restores {
		if s.fill != nil {
			busy++
		}
	}
	for at, s := range rc.restores {
		a := wanted[at]
		if a == nil || a.Replica != s.r.id || a.Topic.State == metastore.TopicDeleting {
			s.end()
			delete(rc.restores, at)
			continue
		}
		s.r.place.Store(&a.Partition)
		if s.fill != nil && s.fill.ended() {
			if rc.restored(ctx, s) {
				delete(rc.restores, at)
				delete(rc.retries, at)
				continue
			}
			s.pause = nextPause(s.pause)
			s.again = now.Add(s.pause)
		}
		if s.fill == nil && !now.Before(s.again) && busy < fillsAtOnce {
			s.fill = rc.startFill(s.r, 0)
			busy++
		}
		if wait := max(s.again.Sub(now), firstRetry); (s.fill == nil || s.fill.ended()) && (next == 0 || wait < next) {
			next = wait
		}
	}
	return next
}

// restored gives a replica the log that a fill brought, if it brought one; true: it
// has it, and can be opened.
func (rc *reconciler) restored(ctx context.Context, s *restoring) bool {
	f := s.fill
	if f.err != nil {
		if rc.life.Err() == nil {
			f.log().Warn("a replica that lost its log was not filled; it is tried again", zap.Error(f.err))
		}
		s.end()
		return false
	}
	ctx, cancel := within(ctx, rc.cfg.Clock, installWait)
	defer cancel()
	has := func() bool {
		return slices.ContainsFunc(rc.cfg.Host.Replicas(), func(st storage.ReplicaState) bool {
			return st.Replica == s.r.id && st.Log.Reset == f.begin.Reset
		})
	}
	err := rc.cfg.Host.RestoreLog(ctx, s.r.id, f.begin, f.cut.term)
	if err == nil || f.given && has() {
		f.log().Info("a replica that lost its log has a copy of another one's",
			zap.Uint64("up_to", uint64(f.begin.Index)), zap.Int64("bytes", f.got.Load()))
		rc.stats.fills.Add(1)
		return true
	}
	f.log().Warn("the copy for a replica that lost its log is not in its place yet", zap.Error(err))
	switch raftlog.OutcomeOf(err) {
	case raftlog.OutcomeUnknown:
		f.given = true
	case raftlog.OutcomeRefused:
		s.end()
	}
	return false
}

// end ends the fill that is under way, and removes what it brought.
func (s *restoring) end() {
	if s.fill == nil {
		return
	}
	s.fill.cancel()
	<-s.fill.done
	s.fill.drop()
	s.fill = nil
}

// endRestores ends what a topic's replicas are to get.
func (rc *reconciler) endRestores(i storage.Incarnation) {
	for at, s := range rc.restores {
		if at.incarnation == i {
			s.end()
			delete(rc.restores, at)
		}
	}
}
