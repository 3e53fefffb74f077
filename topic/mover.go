package topic

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

const (
	// moveEvery is how often a leader looks at a move that waits for something.
	moveEvery = 200 * time.Millisecond
	// moveTry bounds one step.
	moveTry = 10 * time.Second
	// lostAfter is how long a destination may be dead before the move is given up.
	// It is counted by this process's clock from when it saw the mark, so that
	// neither a jump of the wall clock nor a new leader shortens it. A process that
	// was paused counts anew: it did not see who came back meanwhile.
	lostAfter = 2 * time.Minute
	// deadEvery is how often a process looks at the marks of the dead at least, and
	// pausedAfter how late it does if it was paused. A pass may take moveTry twice.
	deadEvery   = 5 * time.Second
	pausedAfter = 2*moveTry + 2*deadEvery
)

// mover carries out moves: on each node, for the partitions that it leads. It is
// level-triggered: each pass looks at what the metadata want and at what the
// group's configuration is, and takes one step (stepOf) of each partition, all
// side by side. Its own fields belong to its goroutine, those of a moveWork to
// whoever takes the step.
type mover struct {
	*Manager
	works  map[address]*moveWork
	dead   map[storage.NodeID]time.Time // since when this process knows
	looked time.Time                    // at the marks of the dead
	failed map[address]time.Time        // when a hand-back failed last

	lastHandBack time.Time
}

// moveWork is what a leader remembers between two steps of one partition.
// Nothing of it is needed; it keeps a wish's id, and knows how fast the new
// replica follows.
type moveWork struct {
	r      *replica
	follow rounds
	wish   string
	id     raftlog.ChangeID
	err    string // of the last step that failed
}

func (mv *mover) run() {
	select {
	case <-mv.cfg.Meta.CaughtUp():
	case <-mv.life.Done():
		return
	}
	timer := mv.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		_, changed := mv.cfg.Meta.Watch()
		led := mv.led.wait()
		next := mv.pass()
		var again <-chan time.Time
		if next > 0 {
			timer.Reset(next)
			again = timer.C()
		}
		select {
		case <-changed:
		case <-led:
		case <-again:
		case <-mv.life.Done():
			return
		}
	}
}

// pass takes one step of every partition that needs one, and returns when to
// look again whatever happens; 0: not.
func (mv *mover) pass() time.Duration {
	mv.noteDead()
	var next time.Duration
	led := map[address]bool{}
	var steps sync.WaitGroup
	for _, r := range mv.leading() {
		if r.where().Target == nil && !r.lead.Load().learners {
			continue
		}
		led[r.address] = true
		w := mv.works[r.address]
		if w == nil || w.r != r {
			w = &moveWork{r: r}
			mv.works[r.address] = w
		}
		steps.Go(func() { mv.step(w) })
		next = moveEvery
	}
	steps.Wait()
	for a := range mv.works {
		if !led[a] {
			delete(mv.works, a)
		}
	}
	mv.moves.keep(led)
	if due := mv.handBack(); due > 0 && (next == 0 || due < next) {
		next = due
	}
	if len(mv.dead) > 0 && (next == 0 || deadEvery < next) {
		next = deadEvery
	}
	return next
}

// leading returns the open replicas that lead and whose topic lives, and sees to
// it that they know where the others are.
func (mv *mover) leading() []*replica {
	mv.mu.RLock()
	var all []*replica
	for _, r := range mv.mu.replicas {
		if r.lead.Load().role == raftlog.RoleLeaderActive && !r.ending.Load() {
			all = append(all, r)
		}
	}
	mv.mu.RUnlock()
	return slices.DeleteFunc(all, func(r *replica) bool { return !mv.refresh(r) })
}

// refresh has a replica know what the metadata say of its partition; false: the
// topic is no more.
func (m *Manager) refresh(r *replica) bool {
	t, err := m.cfg.Meta.TopicByIncarnation(r.incarnation)
	if err != nil || !t.State.Kept() || int(r.partition) >= len(t.Partitions) {
		return false
	}
	r.relocate(&t.Partitions[r.partition])
	return true
}

// noteDead notes since when this process has known that nodes are dead, without a
// break.
func (mv *mover) noteDead() {
	now := mv.cfg.Clock.Now()
	if now.Sub(mv.looked) > pausedAfter {
		mv.dead = nil
	}
	mv.looked = now
	dead := map[storage.NodeID]time.Time{}
	for _, m := range mv.cfg.Meta.Members() {
		if !m.Liveness.Dead {
			continue
		}
		if dead[m.Node] = mv.dead[m.Node]; dead[m.Node].IsZero() {
			dead[m.Node] = now
		}
	}
	mv.dead = dead
}

// step takes the next step of one partition. What changes anything is decided
// again after a linearizable read: what was decided on may have been finished,
// or cancelled, by another leader whose word this node had not heard yet.
func (mv *mover) step(w *moveWork) {
	ctx, cancel := within(mv.life, mv.cfg.Clock, moveTry)
	defer cancel()
	now := mv.cfg.Clock.Now()
	next := stepOf(mv.facts(w, now))
	if next.step == stepNone {
		return
	}
	mv.tell(w, next)
	if next.step == stepWait {
		return
	}
	err := mv.cfg.Meta.Barrier(ctx)
	if err == nil && mv.refresh(w.r) && w.r.leads() {
		if again := stepOf(mv.facts(w, now)); again.step == next.step {
			err = mv.take(ctx, w, again)
		}
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if err != nil && text != w.err && mv.life.Err() == nil {
		mv.logOf(w.r).Info("a step of a move failed; it is tried again", zap.Stringer("step", next.step), zap.String("why", next.why), zap.Error(err))
	}
	w.err = text
}

// take carries a step out.
func (mv *mover) take(ctx context.Context, w *moveWork, next nextStep) error {
	place := w.r.where()
	switch next.step {
	case stepChange:
		next.change.ID = w.wishFor(&next.change, mv.cfg.Rand)
		return w.r.group.ChangeMembers(ctx, next.change)
	case stepTransfer:
		return w.r.group.TransferLeadership(ctx, next.to)
	}
	move := metastore.Move{
		Incarnation: w.r.incarnation, Partition: w.r.partition, Group: place.Group, Generation: place.Generation, Target: *place.Target,
	}
	var err error
	count := &mv.stats.moved
	if next.step == stepFinish {
		err = mv.cfg.Meta.FinishMove(ctx, move)
	} else {
		count = &mv.stats.movesCancelled
		err = mv.cfg.Meta.CancelMove(ctx, move)
	}
	if err == nil {
		count.Add(1)
		mv.logOf(w.r).Info("a move has ended", zap.Stringer("to", place.Target.Add.Node), zap.Stringer("how", next.phase), zap.String("why", next.why))
	}
	return err
}

// wishFor returns the id of a wish: the same one as long as the wish is.
func (w *moveWork) wishFor(ch *raftlog.Change, rand func() uint64) raftlog.ChangeID {
	if wish := fmt.Sprint(ch.Learners, ch.Voters, ch.Remove); wish != w.wish {
		w.wish = wish
		for i := 0; i < len(w.id); i += 8 {
			for k, v := 0, rand(); k < 8; k, v = k+1, v>>8 {
				w.id[i+k] = byte(v)
			}
		}
	}
	return w.id
}

// facts looks at a partition.
func (mv *mover) facts(w *moveWork, now time.Time) *moveFacts {
	s := w.r.group.Status()
	place := w.r.where()
	f := &moveFacts{
		self: s.Replica, conf: s.Conf, safe: s.ConfSafe && !s.ConfPending, target: place.Target,
	}
	for _, r := range s.Unsettled {
		if !mv.givenUp(nodeOf(place, r)) {
			f.unsettled = append(f.unsettled, r)
		}
	}
	if !s.Role.IsLeader() {
		return &moveFacts{self: s.Replica, safe: true}
	}
	for _, r := range s.Conf.Learners {
		if (place.Target == nil || place.Target.Add.Replica != r) && mv.cfg.Meta.ReplicaDead(place.Group, r) {
			f.orphans = append(f.orphans, r)
		}
	}
	if place.Target == nil {
		return f
	}
	f.destination = mv.destination(place.Target.Add.Node)
	to, _ := mv.cfg.Meta.Member(place.Target.Add.Node)
	f.ousts = to.Liveness.Replaces != 0 && to.Liveness.Replaces == nodeOf(place, place.Target.Remove)
	for _, p := range s.Progress {
		if p.Replica == place.Target.Remove && p.SinceContact >= 0 && p.SinceContact <= presentTicks {
			f.contested = f.ousts
		}
		switch p.Replica {
		case place.Target.Add.Replica:
			w.follow.observe(now, p.Match, s.Last)
			f.caughtUp = w.follow.close() && p.SinceContact >= 0 && p.SinceContact <= presentTicks
		case s.Replica:
		default:
			if slices.Contains(s.Conf.Voters, p.Replica) && p.SinceContact >= 0 && p.SinceContact <= presentTicks {
				f.successor = true
			}
		}
	}
	return f
}

// givenUp reports whether a node is given up: it is silent, and on its way out. It
// may have lost its disk, then it never knows of a change; who waited for it
// would wait for ever, and with it the move that takes its own replica away. It
// counts as the one disk that may be lost.
func (mv *mover) givenUp(node storage.NodeID) bool {
	m, ok := mv.cfg.Meta.Member(node)
	return ok && m.Liveness.Dead && m.Liveness.Draining()
}

// destination says what the metadata say of a node, and since when, as of this pass.
func (mv *mover) destination(node storage.NodeID) destination {
	m, ok := mv.cfg.Meta.Member(node)
	switch {
	case !ok || m.Liveness.Draining():
		return destinationLeaving
	case !m.Liveness.Dead:
		return destinationLives
	case mv.dead[node].IsZero() || mv.looked.Sub(mv.dead[node]) < lostAfter:
		return destinationDead
	}
	return destinationLost
}

// tell says how far a move is, if it is farther than it was.
func (mv *mover) tell(w *moveWork, next nextStep) {
	place := w.r.where()
	if place.Target == nil || next.phase == 0 {
		return
	}
	p := MoveProgress{
		TopicPartition: TopicPartition{w.r.name, w.r.partition}, Incarnation: w.r.incarnation,
		From: nodeOf(place, place.Target.Remove), To: place.Target.Add.Node,
		Phase: next.phase, Why: next.why, Missing: w.follow.missing,
	}
	if !mv.moves.note(w.r.address, p) {
		return
	}
	mv.logOf(w.r).Debug("a move goes on", zap.Stringer("phase", p.Phase), zap.Stringer("to", p.To), zap.String("why", p.Why))
	if mv.cfg.OnMove != nil {
		mv.moves.telling.Lock()
		defer mv.moves.telling.Unlock()
		mv.cfg.OnMove(p)
	}
}

func (m *Manager) logOf(r *replica) *zap.Logger {
	return m.cfg.Logger.With(zap.String("topic", r.name), zap.Uint32("partition", r.partition), zap.Stringer("replica", r.id))
}

// rounds tells whether a replica keeps up with a log that grows: what was in the
// log at some moment is a round, and it keeps up when it has a round within an
// election timeout, or nearly (section 4.2.1 of the Raft thesis). That it has all
// would never be true under load.
type rounds struct {
	goal    storage.Index // of this round; 0: none has begun
	since   time.Time
	took    time.Duration // the last whole round
	whole   bool          // there was one
	missing storage.Index
}

// roundLimit is how long a round of one that keeps up takes at most, as it is
// seen: a leader looks every moveEvery.
const roundLimit = 500*time.Millisecond + moveEvery

// observe notes what the replica has and where the log ends now.
func (r *rounds) observe(now time.Time, match, last storage.Index) {
	r.missing = last - min(match, last)
	switch {
	case r.goal == 0 || match == 0:
		*r = rounds{goal: last, since: now, missing: r.missing}
	case match >= r.goal:
		r.took, r.whole = now.Sub(r.since), true
		r.goal, r.since = last, now
	case now.Sub(r.since) > roundLimit:
		r.whole = false
	}
}

// close reports whether the replica keeps up.
func (r *rounds) close() bool { return r.whole && r.took <= roundLimit }
