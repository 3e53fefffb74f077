package stele

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// live runs what a member does for as long as it is one. All of it ends with
// the node's life; what is told that the node is no member any more fails it.
//
//	steward      looks after the members, while this node leads the metadata
//	heartbeater  tells the leader that this node lives
//	promoter     asks for a vote, unless this node is an observer
//	joiner       asks where the cluster is, when this node is out of touch with it
//	roster       follows the members' addresses
//	leaderless   measures for how long the metadata has no leader
//	seed         makes what the cluster begins with
func (n *Node) live(p *parts, place membership.Joined, joined bool) {
	id := n.store.Identity()
	says := membership.MemberRequest{Node: place.Node, Nonce: id.Nonce, Addr: n.Addr(), Newest: metastore.NewestOf(n.cfg.MaxVersion)}
	leader := n.toLeader(p, place)
	log := n.log.Named("membership")
	run := func(f func(context.Context) error) {
		n.running.Go(func() {
			var removed *membership.RemovedError
			if err := f(n.life); errors.As(err, &removed) {
				p.host.Retire() // whom nobody knows any more is not told by raft
				n.fail(err)
			}
		})
	}
	run(p.steward.Run)
	heartbeater := membership.NewHeartbeater(membership.HeartbeaterConfig{ToLeader: leader, Says: says, Logger: log})
	n.heartbeater.Store(heartbeater)
	run(heartbeater.Run)
	if !n.cfg.Observer {
		run(membership.NewPromoter(membership.PromoterConfig{
			ToLeader: leader, Says: says, Replica: place.Replica, Logger: log,
			Conf: func() raftlog.ConfState { return p.meta.GroupStatus().Conf },
		}).Run)
	}
	joiner := n.joiner(p)
	n.asking.Store(joiner)
	run(func(ctx context.Context) error { return joiner.Run(ctx, joined) })
	run(func(ctx context.Context) error { return n.followMembers(ctx, p, place.Node) })
	run(func(ctx context.Context) error { return n.leaderless.watch(ctx, p.meta.Leader) })
	run(func(ctx context.Context) error { return n.seed(ctx, p.meta) })
}

func (n *Node) toLeader(p *parts, place membership.Joined) membership.ToLeader {
	return membership.ToLeader{
		Self: place.Node, Leader: p.meta.Leader, Here: p.steward.HandleCall, Caller: n.net, Clock: n.clock,
	}
}

// joiner asks, where the configuration says, to be taken in; one that is part of
// a cluster also those that it knows from there. p is nil before.
func (n *Node) joiner(p *parts) *membership.Joiner {
	cfg := membership.JoinerConfig{
		Name: n.cfg.Name, Nonce: n.store.Identity().Nonce, Addr: n.Addr(), Newest: metastore.NewestOf(n.cfg.MaxVersion),
		Observer: n.cfg.Observer, SegmentBytes: n.cfg.SegmentBytes, Peers: n.cfg.joinPeers(), Caller: joinCaller{n}, CheckAddr: n.cfg.checkAddr,
		Reached: n.net.reach, Clock: n.clock, Logger: n.log.Named("membership"),
	}
	if p != nil {
		cfg.Leader = p.meta.Leader
		cfg.Out = func() bool { return p.meta.GroupStatus().Role == raftlog.RoleRemoved }
		cfg.Known = n.net.roster.Load().addrs
	}
	return membership.NewJoiner(cfg)
}

// joinCaller counts what a joiner asks.
type joinCaller struct{ n *Node }

func (c joinCaller) CallAddr(ctx context.Context, addr, method string, req []byte) ([]byte, error) {
	c.n.asked.Add(1)
	return c.n.net.CallAddr(ctx, addr, method, req)
}

// leaderless measures for how long this node has seen no leader of the metadata.
type leaderless struct {
	mu    sync.Mutex
	spent time.Duration
	since time.Time // that there is none; zero: there is one
}

func (l *leaderless) total() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		return l.spent
	}
	return l.spent + clock.System().Now().Sub(l.since)
}

func (l *leaderless) note(none bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := clock.System().Now()
	switch {
	case none && l.since.IsZero():
		l.since = now
	case !none && !l.since.IsZero():
		l.spent, l.since = l.spent+now.Sub(l.since), time.Time{}
	}
}

// watch measures until ctx ends.
func (l *leaderless) watch(ctx context.Context, leader func() (raftlog.NodeID, <-chan struct{})) error {
	for {
		node, changed := leader()
		l.note(node == 0)
		select {
		case <-changed:
		case <-ctx.Done():
			l.note(false)
			return ctx.Err()
		}
	}
}

func (n *Node) stewardConfig(p *parts, place membership.Joined) membership.StewardConfig {
	return membership.StewardConfig{
		Place: place, Nonce: n.store.Identity().Nonce, Newest: metastore.NewestOf(n.cfg.MaxVersion),
		Meta: p.meta, Group: metaGroup{p.meta}, Caller: n.net, Backlog: p.backlog(place.Node),
		Clock: n.clock, Logger: n.log.Named("membership"), Tick: n.cfg.Tick,
		Random:  func(b []byte) { _, _ = rand.Read(b) }, // never fails: the runtime ends the process instead
		Rules:   membership.Rules{CallTimeout: n.cfg.CallTimeout},
		OnEvent: n.events.onMembership(), Stuck: p.stuck,
		Addr: func(node raftlog.NodeID) string { addr, _ := n.net.addr(node); return addr },
		Out:  func() bool { return p.meta.GroupStatus().Role == raftlog.RoleRemoved || n.wasRemoved() },
	}
}

// wasRemoved reports whether this node was told that it is no member any more.
func (n *Node) wasRemoved() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	var removed *RemovedError
	return errors.As(n.mu.failed, &removed)
}

// metaGroup is raft group 1, which is another one after the node was given the
// state as a whole.
type metaGroup struct{ meta *metastore.Store }

func (g metaGroup) Status() raftlog.Status { return g.meta.GroupStatus() }

func (g metaGroup) ChangeMembers(ctx context.Context, c raftlog.Change) error {
	return g.meta.Group().ChangeMembers(ctx, c)
}

func (g metaGroup) Resign(ctx context.Context, successors ...raftlog.ReplicaID) error {
	return g.meta.Group().Resign(ctx, successors...)
}

func (g metaGroup) TransferLeadership(ctx context.Context, to raftlog.ReplicaID) error {
	return g.meta.Group().TransferLeadership(ctx, to)
}

// backlog says whether this node knows that it is draining, and how many
// bytes of records it accepted before that and has not answered.
func (p *parts) backlog(self raftlog.NodeID) func() (draining bool, count uint64) {
	return func() (bool, uint64) { return p.door.backlog(p.meta, p.topics, self) }
}

// door is that of the producers. What it is to be is read, and done, as one: what was
// read before a departure must not open or close it after (D1).
type door struct{ mu sync.Mutex }

type doorMembers interface {
	Member(NodeID) (metastore.Member, bool)
}

type doorTopics interface {
	Drain() uint64
	Undrain()
}

// backlog closes the door of a node that drains, and says how many bytes of records
// came through it and are not answered.
func (d *door) backlog(members doorMembers, topics doorTopics, self NodeID) (draining bool, bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := members.Member(self)
	if !ok || !m.Liveness.Draining() {
		return false, 0
	}
	return true, topics.Drain()
}

// follow opens the door of a node that stays.
func (d *door) follow(members doorMembers, topics doorTopics, self NodeID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m, ok := members.Member(self); ok && !m.Liveness.Draining() {
		topics.Undrain() // taken back, if it was
	}
}

// followMembers keeps the roster, and the producers' door open while the node
// stays, until ctx ends.
func (n *Node) followMembers(ctx context.Context, p *parts, self NodeID) error {
	meta := p.meta
	for {
		_, changed := meta.Watch()
		if members := meta.Members(); len(members) > 0 {
			n.net.roster.Load().agreed(members)
			n.findWay(meta.Recoveries())
		}
		p.door.follow(meta, p.topics, self)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// seed makes what the cluster begins with, once in the cluster's life: whichever
// of its initial members comes first (J19).
func (n *Node) seed(ctx context.Context, meta *metastore.Store) error {
	if len(n.cfg.InitialState.Settings)+len(n.cfg.InitialState.Topics) == 0 {
		return nil
	}
	select {
	case <-meta.CaughtUp():
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		_, changed := meta.Watch()
		seeded, err := meta.Seed(ctx, n.cfg.InitialState)
		switch {
		case err == nil:
			if seeded {
				n.log.Info("made what the cluster begins with")
			}
			return nil
		case !errors.Is(err, raftlog.ErrRefused):
			n.log.Debug("the cluster's initial state is not made yet", zap.Error(err))
		default:
			n.log.Error("the cluster's initial state cannot be made", zap.Error(err))
			return err
		}
		timer := clock.System().NewTimer(seedAgain)
		select {
		case <-changed:
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// seedAgain is how long after a failure the initial state is proposed again,
// unless the metadata changes before.
const seedAgain = time.Second
