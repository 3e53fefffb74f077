package raftlog_test

import (
	"context"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

// follower returns a node that does not lead.
func (c *cluster) follower(g raftlog.GroupID) *node {
	lead := c.leader(g)
	for _, n := range c.nodes {
		if n != lead {
			return n
		}
	}
	return nil
}

// until waits, for up to 20 s of virtual time.
func (c *cluster) until(what string, is func() bool) {
	for range 400 {
		if is() {
			return
		}
		time.Sleep(tick)
	}
	require.FailNow(c.t, what)
}

func removal(n byte, r raftlog.ReplicaID) raftlog.Change {
	return raftlog.Change{ID: raftlog.ChangeID{0: n}, Remove: []raftlog.ReplicaID{r}}
}

// A replica is removed while it hears nothing. Back again it asks for votes,
// disturbs nobody, is told that it is out, and says so.
//
// Property: R20 (red: nobody asked about strangers; the answer not taken in; Retire removed nothing)
func TestARemovedReplicaLearnsOfIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, 1, 3, 2)
		defer c.stopAll()
		var gone atomic.Uint64
		var asked atomic.Int64
		c.config = func(cfg *raftlog.Config) {
			cfg.Removed = func(g raftlog.GroupID, r raftlog.ReplicaID) bool {
				asked.Add(1)
				return g == 1 && uint64(r) == gone.Load()
			}
		}
		c.startAll()
		c.must(1, "before")
		c.must(2, "before")
		out := c.follower(1)
		c.net.isolate(out.id, true)
		time.Sleep(3 * election)
		lead := c.leader(1)
		term := lead.group(1).Status().Term
		require.NoError(t, lead.group(1).ChangeMembers(context.Background(), removal(1, replicaOf(1, out.id))))
		s := lead.group(1).Status()
		require.NotContains(t, s.Conf.Voters, replicaOf(1, out.id))
		require.True(t, s.ConfSafe)
		c.net.isolate(out.id, false)
		time.Sleep(5 * time.Second)
		require.NotEqual(t, raftlog.RoleRemoved, out.group(1).Status().Role, "nobody knows yet")
		require.NotZero(t, asked.Load())
		require.LessOrEqual(t, asked.Load(), int64(2*10), "about once a second, by each")
		gone.Store(uint64(replicaOf(1, out.id)))
		c.until("it is never told", func() bool { return out.group(1).Status().Role == raftlog.RoleRemoved })
		require.Equal(t, raftlog.RoleLeaderActive, lead.group(1).Status().Role)
		require.Equal(t, term, lead.group(1).Status().Term)
		err := out.propose(1, "x").Err
		require.ErrorIs(t, err, raftlog.ErrRemoved)
		require.ErrorIs(t, err, raftlog.ErrRetry)
		_, err = out.group(1).ReadIndex(context.Background())
		require.ErrorIs(t, err, raftlog.ErrRemoved)
		require.NotEqual(t, raftlog.RoleRemoved, out.group(2).Status().Role)
		c.must(1, "after")
		out.host.Retire()
		c.until("it is in the other one still", func() bool { return out.group(2).Status().Role == raftlog.RoleRemoved })
		c.until("the others do not lead it", func() bool {
			l := c.leader(2)
			return l.id != out.id && l.propose(2, "after").Err == nil
		})
	})
}

// An empty replica on a node that knows nobody is added: it learns where the
// leader is from what it hears, answers, and is told that it needs a snapshot,
// now and then.
//
// Property: R24, R32 (red: places not learnt from messages; the notice not sent)
func TestAJoinerIsToldThatItIsBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "x")
		n := &node{id: 4, disk: simfs.New(77)}
		store, err := storage.Open(storage.Config{FS: n.disk, Dir: path.Join("/node", "4"), JournalFileSize: 64 << 10})
		require.NoError(t, err)
		defer store.Close()
		host, err := raftlog.Open(raftlog.Config{Node: 4, Store: store, Sender: sender{c.net, 4}, Tick: tick})
		require.NoError(t, err)
		defer host.Abort()
		c.net.set(4, host)
		told := make(chan raftlog.NodeID, 100)
		g, err := host.OpenGroup(raftlog.GroupOptions{
			Group: 1, Replica: 104, Create: &raftlog.Begin{Dir: "groups/1"}, Machine: &ledger{},
			OnBehind: func(leader raftlog.NodeID) { told <- leader },
		})
		require.NoError(t, err)
		lead := c.leader(1)
		lead.group(1).UpdatePeers(map[raftlog.ReplicaID]raftlog.NodeID{
			replicaOf(1, 1): 1, replicaOf(1, 2): 2, replicaOf(1, 3): 3, 104: 4,
		})
		learner := raftlog.Change{ID: raftlog.ChangeID{1}, Learners: []raftlog.ReplicaID{104}}
		require.NoError(t, lead.group(1).ChangeMembers(context.Background(), learner))
		require.Equal(t, []raftlog.ReplicaID{104}, lead.group(1).Status().Conf.Learners)
		c.until("it is never told", func() bool { return len(told) > 0 })
		require.Equal(t, lead.id, <-told)
		time.Sleep(10 * time.Second)
		require.InDelta(t, 10, len(told), 2)
		s := g.Status()
		require.Equal(t, raftlog.RoleObserver, s.Role)
		require.Equal(t, replicaOf(1, lead.id), s.Leader)
		require.LessOrEqual(t, s.SinceLeader, 3)

		// Its leader goes, and it notices.
		c.net.isolate(4, true)
		time.Sleep(3 * election)
		require.Zero(t, g.Status().Leader)
		require.GreaterOrEqual(t, g.Status().SinceLeader, 20)
		require.Equal(t, raftlog.RoleObserver, g.Status().Role)
	})
}

func TestChangeMembersOutcomes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		ctx := context.Background()
		lead, other := c.leader(1), c.follower(1)
		var elsewhere *raftlog.NotLeaderError
		c.until("no leader known", func() bool { return other.group(1).Status().Leader != 0 })
		require.ErrorAs(t, other.group(1).ChangeMembers(ctx, removal(1, replicaOf(1, lead.id))), &elsewhere)
		require.Equal(t, lead.id, elsewhere.Node)
		err := lead.group(1).ChangeMembers(ctx, removal(1, replicaOf(1, lead.id)))
		require.ErrorAs(t, err, new(*raftlog.ChangeError))
		require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))

		c.net.isolate(lead.id, true)
		soon, cancel := withTimeout(100 * time.Millisecond)
		defer cancel()
		err = lead.group(1).ChangeMembers(soon, removal(2, replicaOf(1, other.id)))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(err))
		require.True(t, lead.group(1).Status().ConfPending)
		err = lead.group(1).ChangeMembers(ctx, removal(3, replicaOf(1, other.id)))
		require.ErrorIs(t, err, raftlog.ErrChangePending)
		err = lead.group(1).ChangeMembers(ctx, removal(2, replicaOf(1, other.id)))
		require.ErrorIs(t, err, raftlog.ErrLeadershipLost, "the same wish is followed")
		require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(err))
		c.net.isolate(lead.id, false)

		lead = c.leader(1)
		ended, last := make(chan error, 1), replicaOf(1, c.follower(1).id)
		for _, n := range c.nodes {
			c.net.isolate(n.id, true)
		}
		go func() { ended <- lead.group(1).ChangeMembers(ctx, removal(4, last)) }()
		time.Sleep(tick)
		lead.host.Abort()
		require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(<-ended))
		require.ErrorIs(t, lead.group(1).ChangeMembers(ctx, removal(5, 1)), raftlog.ErrClosed)
	})
}

// Property: R16, H10 (red: a resignation that hands over to nobody)
func TestResign(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		ctx := context.Background()
		old := c.leader(1)
		to := c.nodes[old.id%3]
		c.must(1, "x")
		start := time.Now()
		require.NoError(t, old.group(1).Resign(ctx, replicaOf(1, to.id)))
		c.until("no leader", func() bool { return to.group(1).Status().Role == raftlog.RoleLeaderActive })
		require.Less(t, time.Since(start), election/2, "a hand-over, not an election")
		require.ErrorAs(t, old.group(1).Resign(ctx), new(*raftlog.NotLeaderError))

		// Nobody is there: it steps down all the same, and accepts nothing.
		c.net.isolate(to.id, true)
		ended := make(chan error, 1)
		go func() { ended <- to.group(1).Resign(ctx) }()
		time.Sleep(tick)
		require.ErrorIs(t, to.propose(1, "y").Err, raftlog.ErrTransferring)
		require.NoError(t, <-ended)
		require.False(t, to.group(1).Status().Role.IsLeader())
		require.NotEqual(t, to, c.leader(1))
		c.net.isolate(to.id, false)
		c.must(1, "z")
	})
}
