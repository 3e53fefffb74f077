package topic

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

const (
	// fillsAtOnce is how many replicas of this node are filled at a time. Others
	// wait: their leaders ask again.
	fillsAtOnce = 8
	// installWait bounds how long a pass waits for a replica to be closed and its
	// reset to be synced.
	installWait = 10 * time.Second
)

// tendFills begins fills of open replicas that need them, ends those whose
// replica is gone, and gives a replica the log that a fill brought. It belongs
// to the reconciler, which alone opens and ends replicas: so a topic that is
// deleted, or a move that is cancelled, meets a fill between two steps, and its
// files are gone before the topic's directory is moved.
func (rc *reconciler) tendFills(ctx context.Context) {
	for id, f := range rc.fills {
		switch {
		case rc.replica(f.r.address) != f.r || f.r.ending.Load():
			f.cancel()
			<-f.done
		case !f.ended():
			continue
		case f.err == nil:
			if !rc.install(ctx, f) {
				continue // another pass
			}
		case rc.life.Err() == nil && !errors.Is(f.err, errNoFill):
			f.log().Warn("a replica was not filled; its leader asks again", zap.Error(f.err))
		}
		f.drop()
		f.r.behind.Store(0)
		delete(rc.fills, id)
	}
	rc.mu.RLock()
	var behind []*replica
	for _, r := range rc.mu.replicas {
		if r.behind.Load() != 0 && rc.fills[r.id] == nil && !r.ending.Load() && r.failed() == nil {
			behind = append(behind, r)
		}
	}
	rc.mu.RUnlock()
	for _, r := range behind {
		if len(rc.fills) >= fillsAtOnce {
			r.behind.Store(0)
			continue
		}
		rc.fills[r.id] = rc.startFill(r, raftlog.NodeID(r.behind.Load()))
	}
}

// endFills ends the fills of a topic's replicas, and removes what they brought.
func (rc *reconciler) endFills(i storage.Incarnation) {
	rc.endRestores(i)
	for id, f := range rc.fills {
		if f.r.incarnation == i {
			f.cancel()
			<-f.done
			f.drop()
			delete(rc.fills, id)
		}
	}
}

// install gives a replica the log that was staged for it, by a reset, and has it
// opened again in this pass. It reports whether the fill is of no more use.
func (rc *reconciler) install(ctx context.Context, f *fill) bool {
	ctx, cancel := within(ctx, rc.cfg.Clock, installWait)
	defer cancel()
	if !f.given {
		err := rc.cfg.Host.ResetGroup(ctx, f.r.id, f.begin, f.cut.term)
		f.given = err == nil || raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown
		switch {
		case err == nil:
			f.log().Info("a replica was filled", zap.Uint64("up_to", uint64(f.begin.Index)), zap.Int64("bytes", f.got.Load()))
			rc.stats.fills.Add(1)
		case f.given || raftlog.OutcomeOf(err) == raftlog.OutcomeRetry:
			f.log().Warn("a replica's new log is not in its place yet", zap.Error(err))
		default:
			f.log().Info("a replica's new log was not needed", zap.Error(err))
		}
		if err != nil && !f.given && raftlog.OutcomeOf(err) == raftlog.OutcomeRetry {
			rc.later(f.r.address)
			return false
		}
	}
	if err := rc.cfg.Host.CloseGroup(ctx, f.r.id); err != nil {
		f.log().Warn("a replica that is to have a new log could not be closed", zap.Error(err))
		rc.later(f.r.address)
		return false
	}
	rc.forget(f.r)
	return true
}

// later has another pass look at a replica after a while.
func (rc *reconciler) later(at address) {
	r := rc.retries[at]
	if r == nil {
		r = &retry{}
		rc.retries[at] = r
	}
	r.pause = nextPause(r.pause)
	r.at = rc.cfg.Clock.Now().Add(r.pause)
}

// forget drops a replica that was closed; whoever waits for it looks again.
func (rc *reconciler) forget(r *replica) {
	rc.mu.Lock()
	if rc.mu.replicas[r.address] == r {
		delete(rc.mu.replicas, r.address)
	}
	rc.mu.Unlock()
	r.part.Close()
	rc.opened.flash()
	r.changed.flash()
}
