package topic

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

const (
	// openAtOnce is how many replicas are opened at the same time: those that
	// are created share the syncs of the journal.
	openAtOnce = 128

	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// reconciler makes this node hold what the metadata assigns to it. It is
// level-triggered: each pass looks at everything, whatever happened since the
// last one, and what fails is tried again later and holds up nothing else.
//
// It is the only one to open and to end replicas; its own fields belong to its
// goroutine.
type reconciler struct {
	*Manager
	retries map[address]*retry
	lapses  map[address]*retry // of replicas that were open: what was waited after the last one, until when
	dirs    map[storage.Incarnation]*topicDir
	held    map[storage.ReplicaID]heldReplica
	fills   map[storage.ReplicaID]*fill
	mends   map[address]*mending
	// restores are replicas that have lost their logs.
	restores map[address]*restoring
	foreign  strangers
	swept    bool          // stock was taken of what earlier processes left
	startBy  time.Time     // then what is assigned is opened without it
	stockAt  time.Time     // when it is tried again then
	pause    time.Duration // after a pass that failed as a whole
}

// retry is when a replica that could not be opened is tried again.
type retry struct {
	pause time.Duration
	at    time.Time
}

// topicDir is the directory of a topic's life on this node.
type topicDir struct {
	storage.TopicDir
	replicas map[storage.ReplicaID]bool
	gone     bool // it was another one, and is in quarantine: a fresh one is due
}

// run reconciles until the manager is closed. Nothing is opened before the
// metadata has caught up: an old list must not make anything.
func (rc *reconciler) run() {
	rc.startBy = rc.cfg.Clock.Now().Add(rc.cfg.StartupSweepWait)
	select {
	case <-rc.cfg.Meta.CaughtUp():
	case <-rc.life.Done():
		return
	}
	timer := rc.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		_, changed := rc.cfg.Meta.Watch()
		failed := rc.broke.wait()
		next, err := rc.pass(rc.life)
		if err != nil && rc.life.Err() == nil {
			rc.pause = nextPause(rc.pause)
			next = rc.pause
			rc.cfg.Logger.Warn("topics could not be reconciled with the metadata", zap.Error(err), zap.Duration("again_in", next))
		} else {
			rc.pause = 0
		}
		var again <-chan time.Time
		if next > 0 {
			timer.Reset(next)
			again = timer.C()
		}
		select {
		case <-changed:
		case <-failed:
		case <-again:
		case <-rc.life.Done():
			return
		}
	}
}

func nextPause(last time.Duration) time.Duration {
	return min(max(2*last, firstRetry), lastRetry)
}

// pass compares once. It returns when the next one is due whatever happens;
// 0: none.
func (rc *reconciler) pass(ctx context.Context) (time.Duration, error) {
	stock, err := rc.takeStock(ctx)
	if err != nil {
		return 0, err // and nothing is opened
	}
	assigned, err := rc.cfg.Meta.ListAssignments(rc.cfg.Node)
	if err != nil {
		return 0, err
	}
	wanted := make(map[storage.Incarnation]bool)
	var missing []metastore.NodeAssignment
	strange := rc.tendForeign(ctx)
	rc.closeFailed(ctx, assigned)
	moved := rc.retire(ctx, assigned)
	rc.tendFills(ctx)
	restore := rc.tendRestores(ctx, assigned)
	for _, a := range assigned {
		wanted[a.Topic.Incarnation] = true
		r := rc.replica(addressOf(a))
		if r == nil {
			missing = append(missing, a)
			continue
		}
		if r.id != a.Replica {
			continue // its own stint here has to end first
		}
		r.relocate(&a.Partition)
		r.follow(a.Topic.State)
	}
	for at := range rc.retries {
		if !wanted[at.incarnation] {
			rc.forgive(at)
		}
	}
	for at := range rc.mends {
		if !wanted[at.incarnation] && rc.mended(at) {
			delete(rc.mends, at)
		}
	}
	for at := range rc.lapses {
		if !wanted[at.incarnation] {
			delete(rc.lapses, at)
		}
	}
	rc.keep(rc.alive)
	next := rc.openAll(ctx, missing)
	if len(rc.restores) > 0 && restore == 0 { // since this pass opened what has lost its log
		restore = firstRetry
	}
	for _, wait := range [...]time.Duration{stock, restore} {
		if wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	if err := errors.Join(strange, moved, rc.purge(ctx, wanted)); err != nil {
		return 0, err
	}
	return next, nil
}

// keep forgets what is remembered of topics that are gone.
func (m *Manager) keep(alive func(storage.Incarnation) bool) {
	m.routes.keep(alive)
	m.mu.RLock()
	producers := make([]*Producer, 0, len(m.mu.producers))
	for p := range m.mu.producers {
		producers = append(producers, p)
	}
	m.mu.RUnlock()
	for _, p := range producers {
		p.keep(alive)
	}
}

// alive reports whether the topic may still be there.
func (m *Manager) alive(i storage.Incarnation) bool {
	t, err := m.cfg.Meta.TopicByIncarnation(i)
	return err != nil || t.State != metastore.TopicDeleted
}

func addressOf(a metastore.NodeAssignment) address {
	return address{a.Topic.Incarnation, a.Partition.Index}
}

// openAll opens replicas side by side, and returns when the next one is due.
func (rc *reconciler) openAll(ctx context.Context, missing []metastore.NodeAssignment) time.Duration {
	now := rc.cfg.Clock.Now()
	var due []metastore.NodeAssignment
	for _, a := range missing {
		if !rc.mended(addressOf(a)) {
			continue
		}
		if r := rc.retries[addressOf(a)]; r == nil || !now.Before(r.at) {
			due = append(due, a)
		}
	}
	errs := make([]error, len(due))
	dirs := rc.makeDirs(ctx, due, errs)
	var group sync.WaitGroup
	slots := make(chan struct{}, openAtOnce)
	for i, a := range due {
		if errs[i] != nil {
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = rc.open(a, dirs[i])
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return 0
	}
	for i, a := range due {
		rc.noteOpened(a, errs[i])
		rc.noteForeign(a.Topic.Incarnation, errs[i])
		rc.mend(a.Topic.Name, a.Partition, addressOf(a), a.Replica, errs[i])
	}
	if len(due) > 0 {
		rc.opened.flash()
	}
	return rc.nextRetry()
}

// makeDirs makes the directory of each topic once.
func (rc *reconciler) makeDirs(ctx context.Context, due []metastore.NodeAssignment, errs []error) []string {
	dirs := make([]string, len(due))
	failed := map[storage.Incarnation]error{}
	for i, a := range due {
		inc := a.Topic.Incarnation
		if failed[inc] != nil {
			errs[i] = failed[inc]
			continue
		}
		d, err := rc.makeDir(ctx, a.Topic)
		if err != nil {
			errs[i], failed[inc] = err, err
			continue
		}
		d.replicas[a.Replica] = true
		rc.hold(a.Replica, inc, a.Partition.Group)
		dirs[i] = d.Dir
	}
	return dirs
}

func (rc *reconciler) dir(t storage.TopicDir) *topicDir {
	d := rc.dirs[t.Incarnation]
	if d == nil {
		d = &topicDir{TopicDir: t, replicas: map[storage.ReplicaID]bool{}}
		rc.dirs[t.Incarnation] = d
	}
	return d
}

// beginOf is how a replica begins that the store does not know: as the command
// that created the topic says if that lists it, with all that it lists. Every
// other one begins with nothing, and hears from its group's leader what there is.
func beginOf(a metastore.NodeAssignment, dir string) storage.Begin {
	begin := storage.Begin{Dir: storage.ReplicaDir(dir, a.Partition.Index, a.Replica)}
	if first := a.Partition.FirstReplicas(); slices.Contains(first, a.Replica) {
		begin.Index, begin.Term, begin.Conf.Voters = 1, 1, first
	}
	return begin
}

// open opens one replica.
func (rc *reconciler) open(a metastore.NodeAssignment, dir string) error {
	r := &replica{address: addressOf(a), name: a.Topic.Name, id: a.Replica}
	part, err := NewPartition(PartitionConfig{
		Topic: a.Topic.Name, Partition: a.Partition.Index, Incarnation: a.Topic.Incarnation,
		MaxPendingBytes: rc.cfg.MaxPendingBytes, Clock: rc.cfg.Clock, Builders: &rc.builders,
		OnLogStart: func(start storage.LogStart, bytes int64) { rc.noteLogStart(r, start, bytes) },
	})
	if err != nil {
		return err
	}
	r.part = part
	r.place.Store(&a.Partition)
	r.lead.Store(&leadership{})
	r.ending.Store(a.Topic.State == metastore.TopicDeleting)
	r.shut.Store(a.Topic.State != metastore.TopicActive)
	begin := beginOf(a, dir)
	r.group, err = rc.cfg.Host.OpenGroup(raftlog.GroupOptions{
		Group: a.Partition.Group, Replica: a.Replica, Peers: peersOf(&a.Partition), Create: &begin, Machine: part,
		OnStatus:  func(s raftlog.Status) { rc.noteStatus(r, s) },
		OnBehind:  func(leader storage.NodeID) { rc.noteBehind(r, leader) },
		Essential: isEssential,
	})
	if err != nil {
		part.Close()
		return err
	}
	part.Bind(r.group)
	r.group.Log().OnForeign(func(err error) { rc.noteForeign(r.incarnation, err) })
	r.group.Log().OnDamage(func(first storage.Index) { rc.suspect(r, first) })
	rc.mu.Lock()
	rc.mu.replicas[r.address] = r
	rc.mu.Unlock()
	return nil
}

// noteOpened notes how an attempt ended. A failure is logged when it is first
// met and then ever less often.
func (rc *reconciler) noteOpened(a metastore.NodeAssignment, err error) {
	at := addressOf(a)
	if err == nil {
		rc.forgive(at)
		return
	}
	r := rc.retries[at]
	if r == nil {
		r = &retry{}
		rc.retries[at] = r
	}
	r.pause = nextPause(r.pause)
	r.at = rc.cfg.Clock.Now().Add(r.pause)
	rc.mu.Lock()
	known := rc.mu.failures[at]
	rc.mu.failures[at] = err
	rc.mu.Unlock()
	if known == nil || known.Error() != err.Error() {
		rc.cfg.Logger.Error("a replica cannot be opened; it is tried again",
			zap.String("topic", a.Topic.Name), zap.Uint32("partition", a.Partition.Index),
			zap.Stringer("replica", a.Replica), zap.Error(err))
	}
}

// forgive forgets that a replica could not be opened.
func (rc *reconciler) forgive(at address) {
	delete(rc.retries, at)
	rc.mu.Lock()
	defer rc.mu.Unlock()
	delete(rc.mu.failures, at)
}

// nextRetry returns how long until a replica is to be tried again, 0: none is.
func (rc *reconciler) nextRetry() time.Duration {
	var next time.Duration
	now := rc.cfg.Clock.Now()
	for _, r := range rc.retries {
		if wait := max(r.at.Sub(now), time.Millisecond); next == 0 || wait < next {
			next = wait
		}
	}
	return next
}
