package metastore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
)

// requireShut checks that nothing about assignments is answered.
func (n *fakeNode) requireShut(t *testing.T) {
	t.Helper()
	synctest.Wait()
	require.False(t, n.store.AppliedCaughtUp())
	require.NotEmpty(t, n.store.CatchingUp())
	_, err := n.store.ListAssignments(n.member.Node)
	require.ErrorIs(t, err, ErrUnavailable)
	require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
	for _, name := range []string{"orders", "nothing"} {
		_, err = n.store.GetAssignment(name, 0)
		require.ErrorIs(t, err, ErrUnavailable, "never 'not found', never 'not yours'")
		require.NotErrorIs(t, err, ErrTopicNotFound)
	}
	_, err = n.store.Topic("nothing")
	require.ErrorIs(t, err, ErrUnavailable)
	_, err = n.store.TopicByIncarnation(inc(99))
	require.ErrorIs(t, err, ErrUnavailable)
}

func (n *fakeNode) requireOpen(t *testing.T) {
	t.Helper()
	<-n.store.CaughtUp()
	require.True(t, n.store.AppliedCaughtUp())
	require.Empty(t, n.store.CatchingUp())
	_, err := n.store.ListAssignments(n.member.Node)
	require.NoError(t, err)
	_, err = n.store.GetAssignment("nothing", 0)
	require.ErrorIs(t, err, ErrTopicNotFound)
}

// pass lets virtual time go by.
func pass(d time.Duration) {
	<-clock.System().NewTimer(d).C()
	synctest.Wait()
}

// Property: C1, C7 (red: ListAssignments without its look at the gate)
func TestAssignmentsAreUnavailableUntilCaughtUpOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		c.startAll()
		old := c.nodes[3]
		orders, err := c.nodes[1].store.CreateTopic(t.Context(), TopicSpec{Name: "orders", Config: TopicConfig{Partitions: 3}})
		require.NoError(t, err)
		old.requireOpen(t)
		got, err := old.store.GetAssignment("orders", 2)
		require.NoError(t, err)
		require.Equal(t, orders.Partitions[2], got.Partition)

		// Node 3 restarts over what it had, with 30 entries to come in which the
		// topic is deleted and made again.
		fs := old.store.config.FS.(*simfs.FS)
		require.NoError(t, old.store.Close())
		c.append(topicDeleting{orders.Incarnation}, topicDeleted{orders.Incarnation})
		for range 27 {
			c.append(noop{})
		}
		c.append(createTopic{inc(7), "orders", TopicConfig{Partitions: 1}})
		c.elect(0)
		n := c.start(3, fs)
		n.requireShut(t)
		_, err = n.store.Topic("orders")
		require.NoError(t, err, "a read that is named stale answers from what is here")
		n.set(func(n *fakeNode) { n.hold = true })
		c.elect(1)
		for at := n.applied; at < c.last(); at++ {
			n.catchUp(at) // a leader is there, and the replay is at every stage once
			n.requireShut(t)
		}
		n.catchUp(c.last())
		n.requireOpen(t)
		all, err := n.store.ListAssignments(3)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, inc(7), all[0].Topic.Incarnation)

		// It latches: without a leader, and behind again.
		n.set(func(n *fakeNode) { n.hold = true })
		c.elect(0)
		pass(time.Hour)
		n.requireOpen(t)
	})
}

// Property: C2 (red: a known leader counted as a confirmed round)
func TestALeaderInViewIsNotCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.start(2, simfs.New(2))
		n.set(func(n *fakeNode) { n.hold = true })
		c.elect(1) // heard of by a heartbeat; reads of node 2 get no further
		for range 50 {
			pass(time.Second)
			n.requireShut(t)
		}
		require.Greater(t, n.reads, 5, "it goes on asking")
		n.set(func(n *fakeNode) { n.hold = false })
		n.requireOpen(t)
	})
}

// Property: C3 (red: RoundIndex taken from what was applied here)
func TestCatchingUpInBatchesDoesNotOpenEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		c.startAll()
		fs := c.nodes[2].store.config.FS.(*simfs.FS)
		require.NoError(t, c.nodes[2].store.Close())
		for range 200 {
			c.append(noop{})
		}
		n := c.startHeld(2, fs)
		require.Less(t, n.applied+100, c.last())
		for at := n.applied + 10; at < c.last(); at += 10 {
			n.catchUp(at) // all that this node's raft has heard of is applied
			pass(time.Second)
			n.requireShut(t)
		}
		n.catchUp(c.last())
		n.requireOpen(t)
	})
}

// Property: C4 (red: raft's word that the read's index is applied taken for the state machine's; no batch for empty entries)
func TestTheGateWaitsForTheStateMachinesOwnIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1)
		n := c.startHeld(1, simfs.New(1))
		c.elect(1) // an empty entry: the read round is confirmed, and nothing applied
		n.requireShut(t)
		require.Contains(t, n.store.CatchingUp(), "applied is 1 of 2")
		n.set(func(n *fakeNode) { n.hold = false })
		n.requireOpen(t) // by the empty entry alone, on a quiet cluster
	})
}

func TestTheGateOpensBehindAConfigurationEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1)
		n := c.start(1, simfs.New(1))
		c.entries = append(c.entries, raftlog.Entry{Index: 2, Term: 1, Kind: 2, Conf: &raftlog.ConfState{Voters: []raftlog.ReplicaID{11}}})
		c.elect(1)
		n.requireOpen(t)
	})
}

// Property: C5 (red: RoleLeaderStarting let through; RoundTerm not compared)
func TestANewLeaderPassesABarrierFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		n := c.start(1, simfs.New(1))
		n.set(func(n *fakeNode) { n.role = raftlog.RoleLeaderStarting })
		c.elect(1)
		for range 20 {
			pass(time.Second)
			n.requireShut(t)
		}
		n.set(func(n *fakeNode) { n.role = 0 })
		n.requireOpen(t)

		// A follower whose round was confirmed becomes the leader before it has
		// applied up to it.
		n = c.startHeld(2, simfs.New(2))
		c.elect(1)
		synctest.Wait()
		confirmed := c.last()
		reads := n.reads
		require.Positive(t, reads)
		n.set(func(n *fakeNode) { n.early = false })
		c.elect(2)
		n.catchUp(confirmed)
		n.requireShut(t)
		n.set(func(n *fakeNode) { n.hold = false })
		n.requireOpen(t)
		require.Greater(t, n.reads, reads, "a round of its own term")
	})
}

func TestCaughtUpDecision(t *testing.T) {
	good := caughtUpFacts{
		Role: raftlog.RoleFollower, Term: 5, Leader: 11,
		Round: true, RoundTerm: 5, RoundIndex: 40, SinceRound: 5 * time.Second, Applied: 40,
	}
	ok, missing := good.caughtUp(5 * time.Second)
	require.True(t, ok)
	require.Empty(t, missing)
	for want, change := range map[string]func(*caughtUpFacts){
		"no leader is known":         func(f *caughtUpFacts) { f.Leader = 0 },
		"not yet committed":          func(f *caughtUpFacts) { f.Role = raftlog.RoleLeaderStarting },
		"no read of this process":    func(f *caughtUpFacts) { f.Round = false },
		"was in term 5, now is term": func(f *caughtUpFacts) { f.Term = 6 },
		"last heard 5.000000001s":    func(f *caughtUpFacts) { f.SinceRound++ },
		"applied is 39 of 40":        func(f *caughtUpFacts) { f.Applied = 39 },
	} {
		f := good
		change(&f)
		ok, missing := f.caughtUp(5 * time.Second)
		require.False(t, ok, want)
		require.Contains(t, missing, want)
	}
	for _, role := range []raftlog.Role{raftlog.RoleLeaderActive, raftlog.RoleObserver} {
		f := good
		f.Role = role
		ok, _ := f.caughtUp(5 * time.Second)
		require.True(t, ok, role)
	}
}

func TestBarrierWaitsForALeaderAndEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 3)
		c.startAll()
		require.NoError(t, c.nodes[2].store.Barrier(t.Context()))
		c.elect(0)
		start := clock.System().Now()
		err := c.nodes[2].store.Barrier(t.Context())
		require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
		require.Equal(t, 5*time.Second, clock.System().Now().Sub(start))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = c.nodes[2].store.Barrier(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
		done := make(chan error)
		go func() { done <- c.nodes[2].store.Barrier(t.Context()) }()
		pass(time.Second)
		c.elect(3)
		require.NoError(t, <-done)
	})
}
