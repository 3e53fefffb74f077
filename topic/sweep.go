package topic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// # What is reclaimed
//
// The reconciler sets aside what no place of the metadata belongs to any more: the
// replicas of deleted topics, whose directories it moves to quarantine, and copies
// that moved elsewhere, whose files stay where they were. The sweeper gives their
// bytes back to the disk.
//
//	what is here                          claim to confirm             and before that
//	a directory in quarantine, or a       the incarnation is dead
//	replica, of a topic that the
//	metadata here say was deleted
//	a replica that was set aside, of a    the replica is removed       a linearizable read of
//	topic that lives                                                   its own group, which no
//	                                                                   longer lists it, and has
//	                                                                   all that the copy has
//
// What the metadata here say only chooses what is asked. Whether anything may go
// is for Confirm of package metastore to say, for a majority of its voters, and
// what goes is for package storage to compare with the proof. What nobody has
// deleted stays: an incarnation that the metadata do not know may be that of a
// topic that a forced recovery lost. A copy that moved away and has committed entries
// that its group has not, or others in their place, tells of a loss: it is moved to
// quarantine and held there for a person, as is all whose reason says so
// (storage.QuarantinedDir.Held).
//
// It is level-triggered. A pass looks at all that is here, one claim after the
// other, and up to claimsAtOnce of them: first what was not tried yet, then what was
// tried longest ago. One that is refused for what it is itself has a pause of its
// own, which doubles, so that it takes no turn from others. Passes follow when the
// reconciler has put something aside, when such a pause is over, when the metadata
// change while something waits, after a pause that doubles while nothing can be
// confirmed, and every Config.SweepInterval.
const (
	claimsAtOnce   = 64
	sweepPause     = time.Second // between two passes of which the first was cut
	firstSweepWait = time.Second
	lastSweepWait  = time.Minute
)

// Reclaimed is what a node gave back to its disk for one claim.
type Reclaimed struct {
	Incarnation storage.Incarnation
	Replica     storage.ReplicaID // 0: all that was here of the incarnation
	Dirs        []string          // relative to the node's directory, as they were called
	Bytes       int64             // of the files in them
}

// ReclaimRefusal is why something that could be reclaimed was not, for now.
type ReclaimRefusal struct {
	Incarnation storage.Incarnation
	Replica     storage.ReplicaID       // 0: all that is here of the incarnation
	Reason      metastore.ConfirmReason // "": it was not a confirmation that failed
	Err         error
}

// remains is something that the sweeper may reclaim.
type remains struct {
	incarnation storage.Incarnation
	// replica is the one to go; 0: everything of the incarnation, which is dead.
	replica   storage.ReplicaID
	group     storage.GroupID
	partition uint32
	end       copyEnd // of that one
}

// copyEnd is what the copy of a replica that was set aside has at least: all of it
// was committed.
type copyEnd struct {
	last   storage.Index // that it applied
	term   storage.Term  // of last
	commit storage.Index // that it knew of
}

// claim is what has to be confirmed before they go.
func (m remains) claim() metastore.Claim {
	if m.replica != 0 {
		return metastore.ReplicaRemoved(m.group, m.replica)
	}
	return metastore.IncarnationDead(m.incarnation)
}

// sweepFacts is what a choice of remains rests on.
type sweepFacts struct {
	quarantined []storage.QuarantinedDir
	replicas    []storage.ReplicaState
	dead        func(storage.Incarnation) bool // a topic that was deleted
	lives       func(storage.Incarnation) bool
	removed     func(storage.GroupID, storage.ReplicaID) bool
}

// chooseRemains returns what may be reclaimed, as far as this node knows: dead
// incarnations first. It is pure.
func chooseRemains(f sweepFacts) (all []remains) {
	asked := map[storage.Incarnation]bool{}
	bury := func(i storage.Incarnation, ok bool) {
		if ok && !asked[i] {
			asked[i] = true
			if f.dead(i) {
				all = append(all, remains{incarnation: i})
			}
		}
	}
	held := map[storage.ReplicaID]bool{}
	for _, d := range f.quarantined {
		if r, ok := d.Replica(); ok && d.Held() {
			held[r] = true
		}
		if !d.Held() {
			bury(d.Incarnation())
		}
	}
	var moved []remains
	for i := range f.replicas {
		st := &f.replicas[i]
		inc, ok := st.Incarnation()
		if st.Status != storage.ReplicaSetAside || !ok {
			continue
		}
		bury(inc, true)
		if f.lives(inc) && f.removed(st.Group, st.Replica) && !held[st.Replica] {
			partition, _ := st.Partition()
			end := copyEnd{st.Log.LastIndex, st.Log.LastTerm, max(st.Hard.Commit, st.Log.LastIndex)}
			moved = append(moved, remains{inc, st.Replica, st.Group, partition, end})
		}
	}
	return append(all, moved...)
}

// sweeper reclaims. Its fields belong to its goroutine.
type sweeper struct {
	*Manager
	turns turns         // of what was refused
	wait  time.Duration // after a pass in which nothing could be confirmed
}

// sweep runs until the manager is closed. It begins when the reconciler has taken
// stock of what earlier processes left.
func (sw *sweeper) run() {
	sw.survey()
	select {
	case <-sw.stocked:
	case <-sw.life.Done():
		return
	}
	timer := sw.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	news := false
	for {
		put := sw.aside.wait()
		_, changed := sw.cfg.Meta.Watch()
		sw.survey()
		again, waiting := sw.pass(sw.life, news)
		sw.survey()
		if !waiting {
			changed = nil
		}
		timer.Reset(again)
		news = false
		select {
		case <-put:
		case <-changed:
			news = true
		case <-timer.C():
		case <-sw.life.Done():
			return
		}
	}
}

// pass goes through what is here once; news: the metadata have changed. It returns
// when the next pass is due, and whether something waits for what others may change.
func (sw *sweeper) pass(ctx context.Context, news bool) (again time.Duration, waiting bool) {
	all, err := sw.look()
	if err != nil {
		if sw.life.Err() == nil {
			sw.cfg.Logger.Warn("what could be reclaimed cannot be listed", zap.Error(err))
		}
		return sw.later(), false
	}
	for _, gone := range sw.turns.keep(all) {
		sw.kept.note(gone.key(), nil)
	}
	for n, what := range sw.turns.due(all, sw.cfg.Clock.Now(), news) {
		if n == claimsAtOnce {
			return sweepPause, false
		}
		err := sw.reclaim(ctx, what)
		if sw.life.Err() != nil {
			return lastSweepWait, false
		}
		if err == nil {
			delete(sw.turns, what)
			sw.wait = 0
			continue
		}
		sw.note(what, err)
		own := ownTrouble(err)
		sw.turns.refused(what, sw.cfg.Clock.Now(), own)
		if !own {
			return sw.later(), true // of all others it would say the same
		}
	}
	sw.wait = 0
	next, waiting := sw.turns.next(sw.cfg.Clock.Now())
	if !waiting {
		next = sw.cfg.SweepInterval
	}
	return min(next, sw.cfg.SweepInterval), waiting
}

// later is the pause after a pass that got stuck.
func (sw *sweeper) later() time.Duration {
	sw.wait = min(max(2*sw.wait, firstSweepWait), lastSweepWait)
	return min(sw.wait, sw.cfg.SweepInterval)
}

// ownTrouble reports whether an error is of what was to be reclaimed, and not of
// this node or the metadata.
func ownTrouble(err error) bool {
	var refused *metastore.ConfirmError
	if errors.As(err, &refused) {
		return refused.Reason == metastore.ConfirmNotSo || refused.Reason == metastore.ConfirmDissent
	}
	var version *metastore.ClusterVersionError
	return !errors.As(err, &version) && !errors.Is(err, metastore.ErrUnavailable) && !errors.Is(err, storage.ErrClosed)
}

// look lists what may be reclaimed.
func (sw *sweeper) look() ([]remains, error) {
	dirs, err := sw.cfg.Store.Quarantined()
	if err != nil {
		return nil, err
	}
	states := sw.cfg.Host.Replicas()
	if states == nil {
		return nil, raftlog.Retry(raftlog.ErrClosed)
	}
	state := func(i storage.Incarnation) metastore.TopicState {
		t, err := sw.cfg.Meta.TopicByIncarnation(i)
		if err != nil {
			return 0
		}
		return t.State
	}
	return chooseRemains(sweepFacts{
		quarantined: dirs, replicas: states, removed: sw.cfg.Meta.ReplicaDead,
		dead: func(i storage.Incarnation) bool { return state(i) == metastore.TopicDeleted },
		lives: func(i storage.Incarnation) bool {
			s := state(i)
			return s.Kept() || s == metastore.TopicDeleting
		},
	}), nil
}

// reclaim asks for a proof, and destroys what it proves.
func (sw *sweeper) reclaim(ctx context.Context, what remains) error {
	if what.replica != 0 {
		err := sw.hasLeft(ctx, what)
		var longer *LongerCopyError
		if errors.As(err, &longer) {
			return sw.holdCopy(what, longer)
		}
		if err != nil {
			return err
		}
	}
	p, err := sw.cfg.Meta.Confirm(ctx, what.claim())
	if err != nil {
		return err
	}
	got := Reclaimed{Incarnation: what.incarnation, Replica: what.replica}
	add := func(d storage.Destroyed) {
		got.Dirs, got.Bytes = append(got.Dirs, d.Dirs...), got.Bytes+d.Bytes
		for _, k := range d.Kept {
			err = errors.Join(err, fmt.Errorf("%s is kept: %s", k.Dir, k.Reason))
		}
	}
	ids := []storage.ReplicaID{what.replica}
	if what.replica == 0 {
		d, e := sw.cfg.Store.DestroyTopic(p)
		add(d)
		err = errors.Join(err, e)
		ids = sw.asideOf(what.incarnation)
	}
	for _, id := range ids {
		d, e := sw.cfg.Host.Destroy(ctx, id, p)
		add(d)
		if !errors.Is(e, raftlog.ErrUnknownReplica) {
			err = errors.Join(err, e)
		}
	}
	sw.turns.of(what).told = ""
	sw.kept.note(what.key(), nil)
	sw.noteReclaimed(got)
	// Whoever came to know of the incarnation again while its files were there.
	sw.keep(sw.alive)
	if err != nil {
		return raftlog.Retry(withoutOutcome{err})
	}
	return nil
}

// asideOf returns the replicas of an incarnation that were set aside here.
func (sw *sweeper) asideOf(i storage.Incarnation) (ids []storage.ReplicaID) {
	for _, st := range sw.cfg.Host.Replicas() {
		if inc, ok := st.Incarnation(); ok && inc == i && st.Status == storage.ReplicaSetAside {
			ids = append(ids, st.Replica)
		}
	}
	return ids
}

// note tells why something stays, once for each reason.
func (sw *sweeper) note(what remains, err error) {
	sw.kept.note(what.key(), err)
	refusal := ReclaimRefusal{Incarnation: what.incarnation, Replica: what.replica, Err: err}
	key := err.Error()
	var refused *metastore.ConfirmError
	if errors.As(err, &refused) {
		refusal.Reason = refused.Reason
		key = string(refused.Reason)
	}
	var version *metastore.ClusterVersionError
	if errors.As(err, &version) {
		key = "version"
	}
	turn := sw.turns.of(what)
	if turn.told == key {
		return
	}
	turn.told = key
	sw.cfg.Logger.Info("what was set aside is kept for now", zap.Stringer("claim", what.claim()), zap.Error(err))
	if sw.cfg.OnReclaimRefused != nil {
		sw.kept.telling.Lock()
		defer sw.kept.telling.Unlock()
		sw.cfg.OnReclaimRefused(refusal)
	}
}
