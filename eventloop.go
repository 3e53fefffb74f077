package stele

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// lookAgain is how often is looked at what nobody tells: replicas that could not
// be opened, whose raft group is not there, and a silent leader.
const lookAgain = time.Second

// eventLoop tells the host of changes. It is level-triggered: it compares what
// is with what it told, so that what waits is bounded by what there is.
//
//	raft's loop ──noteStep──▶ news (newest of each group) ─┐
//	readiness, topics, replicas ───────────────────────────┴▶ run ──▶ Events
//
// The fields below mu belong to the goroutine of run.
type eventLoop struct {
	node      *Node
	events    Events
	wake      chan struct{}
	done      chan struct{} // closed when run has ended
	goroutine atomic.Uint64 // of run

	told       [numEvents]atomic.Uint64
	panics     atomic.Uint64
	superseded atomic.Uint64 // leaders, and what leaders told
	busySince  atomic.Int64  // when the function that runs was called, in Unix nanoseconds; 0: none runs

	mu struct {
		sync.Mutex
		news  map[raftlog.GroupID]groupNews
		queue []func() // of what leaders here told; at most queuedAtMost
	}

	readiness Readiness
	failed    bool // told
	changes   uint64
	topics    map[storage.Incarnation]metastore.Topic
	groups    map[raftlog.GroupID]place
	leaders   map[raftlog.GroupID]groupNews // told
	failures  map[raftlog.GroupID]string    // told
	members   map[NodeID]Member             // told
}

// groupNews is the newest that is known of a group's leader, and why its
// replica failed, if it did.
type groupNews struct {
	term   storage.Term
	leader storage.ReplicaID
	failed error
}

// place is the partition of a group and where its replicas are.
type place struct {
	TopicPartition
	replicas []metastore.Assignment
}

// event numbers the functions of Events.
type event int

const (
	readinessChanged event = iota
	leaderChanged
	replicaFailed
	memberChanged
	membershipNoticed
	moveChanged
	damageChanged
	reclaimed
	quarantined
	reclaimRefused
	restored
	nodeFailed
	topicCreated
	topicDeleted
	topicRetired
	topicUndeleted
	peerFenced
	metadataSplit
	numEvents
)

// eventNames are the fields of Events.
var eventNames = [numEvents]string{"ReadinessChanged", "LeaderChanged", "ReplicaFailed", "MemberChanged", "MembershipNoticed", "MoveChanged", "DamageChanged", "Reclaimed", "Quarantined", "ReclaimRefused", "Restored", "NodeFailed", "TopicCreated", "TopicDeleted", "TopicRetired", "TopicUndeleted", "PeerFenced", "MetadataSplit"}

func (e *Events) none() bool {
	return e.ReadinessChanged == nil && e.LeaderChanged == nil && e.ReplicaFailed == nil && e.MemberChanged == nil &&
		e.MembershipNoticed == nil && e.MoveChanged == nil && e.DamageChanged == nil && e.Reclaimed == nil && e.ReclaimRefused == nil &&
		e.Quarantined == nil && e.Restored == nil &&
		e.NodeFailed == nil && e.TopicCreated == nil && e.TopicDeleted == nil && e.TopicRetired == nil && e.TopicUndeleted == nil && e.PeerFenced == nil && e.MetadataSplit == nil
}

func newEventLoop(n *Node) *eventLoop {
	l := &eventLoop{node: n, events: n.cfg.Events, wake: make(chan struct{}, 1), done: make(chan struct{})}
	l.topics, l.groups = map[storage.Incarnation]metastore.Topic{}, map[raftlog.GroupID]place{}
	l.leaders, l.failures = map[raftlog.GroupID]groupNews{}, map[raftlog.GroupID]string{}
	l.members = map[NodeID]Member{}
	l.mu.news = map[raftlog.GroupID]groupNews{}
	return l
}

// stepHook is what raft's loop calls, nil if nobody wants to know.
func (l *eventLoop) stepHook() func(*raftlog.Core, *raftlog.Effects) {
	if l.events.LeaderChanged == nil && l.events.ReplicaFailed == nil {
		return nil
	}
	return l.noteStep
}

// noteStep keeps what is newest of a group.
func (l *eventLoop) noteStep(_ *raftlog.Core, e *raftlog.Effects) {
	s := e.Status
	if s == nil {
		return
	}
	l.mu.Lock()
	last, waits := l.mu.news[s.Group]
	next := groupNews{s.Term, s.Leader, s.Failed}
	if waits && last.leader != 0 && (last.leader != next.leader || last.term != next.term) {
		l.superseded.Add(1)
	}
	if next.failed == nil {
		next.failed = last.failed // not told yet
	}
	l.mu.news[s.Group] = next
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// know takes the topics that the node knew when it was opened. It is called
// before run can see any.
func (l *eventLoop) know(topics []Topic, members []Member) {
	for _, t := range topics {
		l.note(t)
	}
	for _, m := range members {
		m.Liveness.Stamp, m.Liveness.Newest = 0, 0
		l.members[m.Node] = m
	}
}

// note keeps a topic and which group is which of its partitions.
func (l *eventLoop) note(t Topic) {
	last := l.topics[t.Incarnation].Partitions
	l.topics[t.Incarnation] = t
	if len(last) > 0 && len(t.Partitions) > 0 && &last[0] == &t.Partitions[0] {
		return
	}
	for _, p := range t.Partitions {
		replicas := p.Replicas
		if p.Target != nil {
			replicas = append(slices.Clone(replicas), p.Target.Add)
		}
		l.groups[p.Group] = place{TopicPartition{Topic: t.Name, Partition: p.Index}, replicas}
	}
}

// start begins to tell; stop ends it.
func (l *eventLoop) start() {
	if l.events.none() {
		close(l.done)
		return
	}
	l.readiness = l.node.Readiness()
	go l.run()
}

// run tells until the node is closed.
func (l *eventLoop) run() {
	defer close(l.done)
	l.goroutine.Store(goroutineID())
	timer := clock.System().NewTimer(lookAgain)
	defer timer.Stop()
	for l.node.life.Err() == nil {
		readiness, on := l.node.readiness()
		parts := l.node.net.parts.Load()
		var topics <-chan struct{}
		var changes uint64
		if parts != nil {
			changes, topics = parts.meta.Watch()
		}
		l.tellNode(readiness)
		if parts != nil {
			l.tellParts(parts, changes)
		}
		var again <-chan time.Time
		if l.events.ReplicaFailed != nil || l.events.ReadinessChanged != nil || l.events.MemberChanged != nil {
			timer.Reset(lookAgain)
			again = timer.C()
		}
		select {
		case <-l.wake:
		case <-on.own:
		case <-on.leader:
		case <-on.caughtUp:
		case <-topics:
		case <-again:
		case <-l.node.life.Done():
		}
	}
}

func (l *eventLoop) tellNode(r Readiness) {
	if from := l.readiness; r.Code != from.Code && r.Code != Closed {
		l.readiness = r
		if f := l.events.ReadinessChanged; f != nil {
			l.tell(readinessChanged, func() { f(ReadinessChange{from, r}) })
		}
	}
	if l.failed {
		return
	}
	if err := l.node.failure(); err != nil {
		l.failed = true
		if f := l.events.NodeFailed; f != nil {
			l.tell(nodeFailed, func() { f(err) })
		}
	}
}

// tellParts tells of topics first: a leader is one of a topic that was told.
func (l *eventLoop) tellParts(p *parts, changes uint64) {
	l.mu.Lock()
	news := l.mu.news // before the topics: a group that they lack then is that of a deleted one
	l.mu.news = map[raftlog.GroupID]groupNews{}
	l.mu.Unlock()
	if _, placed := l.groups[raftlog.MetadataGroup]; !placed || changes != l.changes {
		l.changes = changes
		l.placeMetadata(p.meta.Members())
		l.tellTopics(p.meta.Topics())
	}
	if l.events.MemberChanged != nil {
		l.tellMembers(l.node.members(p))
	}
	l.tellQueued()
	for _, id := range slices.Sorted(maps.Keys(news)) {
		if at, ok := l.groups[id]; ok {
			l.tellGroup(id, at, news[id])
		}
	}
	if l.events.ReplicaFailed != nil && p.failure() == nil {
		for _, s := range p.topics.Status() {
			l.tellFailure(s.Group, TopicPartition{Topic: s.Topic, Partition: s.Partition}, s.Err)
		}
	}
}

func (l *eventLoop) tellTopics(now []Topic) {
	alive := make(map[storage.Incarnation]bool, len(now))
	for _, t := range now {
		alive[t.Incarnation] = true
	}
	var gone []Topic
	for id, t := range l.topics {
		if !alive[id] {
			gone = append(gone, t)
		}
	}
	slices.SortFunc(gone, func(a, b Topic) int { return strings.Compare(a.Name, b.Name) })
	for _, t := range gone {
		l.forget(t)
		if f := l.events.TopicDeleted; f != nil {
			l.tell(topicDeleted, func() { f(t) })
		}
	}
	for _, t := range now {
		last, known := l.topics[t.Incarnation]
		l.note(t)
		if f := l.events.TopicCreated; !known && f != nil {
			l.tell(topicCreated, func() { f(t) })
		}
		was, is := isRetired(last.State), isRetired(t.State)
		back := t
		if was && is && last.Deletion.At != t.Deletion.At { // it was brought back, and deleted again, meanwhile
			was = false
			back.State, back.Deletion = TopicActive, Deletion{Number: last.Deletion.Number}
		}
		if f := l.events.TopicUndeleted; isRetired(last.State) && back.State == TopicActive && f != nil {
			l.tell(topicUndeleted, func() { f(back) })
		}
		if f := l.events.TopicRetired; is && !was && f != nil {
			l.tell(topicRetired, func() { f(t) })
		}
	}
}

// isRetired reports whether a topic was deleted with a grace that lasts. One that is
// being brought back still is.
func isRetired(s TopicState) bool {
	return s == TopicRetiring || s == TopicRetired || s == TopicRestoring
}

func (l *eventLoop) forget(t Topic) {
	delete(l.topics, t.Incarnation)
	for _, p := range t.Partitions {
		delete(l.groups, p.Group)
		delete(l.leaders, p.Group)
		delete(l.failures, p.Group)
	}
}

func (l *eventLoop) placeMetadata(members []metastore.Member) {
	var at place
	for _, m := range members {
		at.replicas = append(at.replicas, metastore.Assignment{Replica: m.Replica, Node: m.Node})
	}
	l.groups[raftlog.MetadataGroup] = at
}

func (l *eventLoop) tellMembers(now []Member) {
	gone := maps.Clone(l.members)
	for _, m := range now {
		m.Liveness.Stamp, m.Liveness.Newest = 0, 0 // of each heartbeat
		delete(gone, m.Node)
		if last := l.members[m.Node]; m != last {
			l.members[m.Node] = m
			l.tell(memberChanged, func() { l.events.MemberChanged(MemberChange{From: last, To: m}) })
		}
	}
	for _, node := range slices.Sorted(maps.Keys(gone)) {
		delete(l.members, node)
		l.tell(memberChanged, func() { l.events.MemberChanged(MemberChange{From: gone[node]}) })
	}
}

func (l *eventLoop) tellGroup(id raftlog.GroupID, at place, n groupNews) {
	if id != raftlog.MetadataGroup { // that one fails with its node
		l.tellFailure(id, at.TopicPartition, n.failed)
	}
	last := l.leaders[id]
	if n.leader == last.leader && (n.leader == 0 || n.term == last.term) {
		return
	}
	l.leaders[id] = n
	change := LeaderChange{TopicPartition: at.TopicPartition, Term: n.term}
	for _, r := range at.replicas {
		if r.Replica == n.leader {
			change.Leader = r.Node
		}
	}
	if f := l.events.LeaderChanged; f != nil {
		l.tell(leaderChanged, func() { f(change) })
	}
}

func (l *eventLoop) tellFailure(id raftlog.GroupID, at TopicPartition, err error) {
	if err == nil {
		delete(l.failures, id)
		return
	}
	if l.failures[id] == err.Error() {
		return
	}
	l.failures[id] = err.Error()
	if f := l.events.ReplicaFailed; f != nil {
		l.tell(replicaFailed, func() { f(ReplicaFailure{at, err}) })
	}
}

// tell calls a function of the host, unless the node is being closed.
func (l *eventLoop) tell(e event, call func()) {
	if l.node.life.Err() != nil {
		return
	}
	l.told[e].Add(1)
	l.busySince.Store(clock.System().Now().UnixNano())
	defer l.busySince.Store(0)
	defer func() {
		if r := recover(); r != nil {
			l.panics.Add(1)
			l.node.log.Error("a function of Events panicked", zap.String("event", eventNames[e]), zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
		}
	}()
	call()
}

// busy is how long the function that runs has run; 0: none runs.
func (l *eventLoop) busy() time.Duration {
	since := l.busySince.Load()
	if since == 0 {
		return 0
	}
	return clock.System().Now().Sub(time.Unix(0, since))
}

// wait returns when no function of Events runs any more, or ctx has ended. It
// does not wait for one that calls it.
func (l *eventLoop) wait(ctx context.Context) error {
	if l.inside() {
		return nil
	}
	select {
	case <-l.done:
		return nil
	default:
	}
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return raftlog.Retry(fmt.Errorf("stele: the node is closed, but a function of Events still runs: %w", ctx.Err()))
	}
}

// inside reports whether it is called by a function of Events.
func (l *eventLoop) inside() bool {
	id := goroutineID()
	return id != 0 && id == l.goroutine.Load()
}

// goroutineID names the goroutine that calls; 0 if it cannot be told. A Close in a function of
// Events must not wait for that function, a Close elsewhere must, and nothing
// but the goroutine tells them apart: the host may pass any context.
func goroutineID() uint64 {
	b := make([]byte, 64)
	b = bytes.TrimPrefix(b[:runtime.Stack(b, false)], []byte("goroutine "))
	digits, _, _ := bytes.Cut(b, []byte(" "))
	id, _ := strconv.ParseUint(string(digits), 10, 64)
	return id
}
