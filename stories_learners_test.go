package stele_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// Two of three voters are cut off, and two members that do not vote are in reach,
// as is the replica that a partition was about to move to: whatever they hold,
// nothing is agreed on and nothing is acknowledged until a voter is back. Run holds
// every log, and what every commit rests on, against each other.
//
// Property: R10, R7 (red: learners counted by raft)
func TestLearnersAreNoQuorum(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 111, Config: func(cfg *stele.Config) { cfg.NoRebalance = true }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		observer := func(cfg *stele.Config) { cfg.Observer = true }
		learners := []int{c.Add(), c.Add()}
		for _, i := range learners {
			c.StartWith(i, observer)
		}
		c.WaitReady()
		c.Eventually(func() bool { return seat(c, 0, 3) == stele.SeatLearner && seat(c, 0, 4) == stele.SeatLearner }, "they learn")
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 1, 10*time.Millisecond)
		c.Eventually(func() bool { return l.Acked() > 100 }, "records are taken in")

		// The partition gets a learner: from then on one voter of it is left.
		leader := leaderOf(c, stele.TopicPartition{Topic: "orders"})
		require.NoError(t, c.Node(leader).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(leader).Name))
		away := others(c, append(learners, leader)...)
		group := partitions(c, leader, "orders")[0].Group
		require.NoError(t, c.Node(leader).MoveReplica(t.Context(), stele.TopicPartition{Topic: "orders"}, c.Member(away[0]).Name, c.Member(learners[0]).Name))
		for len(c.Conf(group).Learners) == 0 {
			c.Sleep(100 * time.Microsecond)
		}
		for _, i := range away {
			c.Isolate(i)
		}
		c.Sleep(10 * time.Millisecond) // what was on its way
		require.Len(t, c.Conf(group).Learners, 1, "still a learner")
		require.Len(t, c.Conf(group).Voters, 3)
		before := l.Acked()
		made := make(chan error)
		for _, i := range append(learners, leader) {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				_, err := c.Node(i).CreateTopic(ctx, "more-of-"+c.Member(i).Name, stele.TopicConfig{})
				made <- err
			}()
		}
		for range 3 {
			require.Error(t, <-made)
		}
		require.Equal(t, before, l.Acked(), "acknowledged without a quorum")
		require.False(t, c.Node(leader).Readiness().Ready())

		c.Rejoin(away[1])
		c.Isolate(away[0])
		c.Eventually(func() bool { return l.Acked() > before+100 }, "two of three voters")
		c.Rejoin(away[0])
		c.Eventually(func() bool { return holds(c, learners[0], "orders") == 1 && moving(c, leader, "orders") == 0 }, "the move ends")
		load.Stop()
		for i := range c.Size() {
			c.Eventually(func() bool { return c.Node(i).Readiness().Ready() }, "all are there again")
			l.Verify(i)
		}
	})
}

// A node is down when a topic is created that it is to hold replicas of. One of
// them is moved away before it is back: that one never starts. The other one starts
// as the creation said, however late. And when the first one is moved back it is
// another replica, which begins empty and learns its configuration. Run checks
// with what each replica begins.
//
// Property: R32 (red: a replica that moved here begins with the configuration of the creation)
func TestReplicasBeginLate(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 112, Config: func(cfg *stele.Config) { cfg.NoRebalance = true }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		fourth := c.Add()
		c.Start(fourth)
		c.WaitReady()
		c.Eventually(func() bool { return seat(c, 0, fourth) == stele.SeatVoter }, "it gets a vote")
		down := (c.MetadataLeader() + 1) % 3
		at := (down + 1) % 3
		node := c.Node(down).Status().Node
		c.PowerLoss(down)
		mustCreate(c, at, "orders", 4)
		all := partitions(c, at, "orders")
		var moves, stays metastore.Partition // that the node holds replicas of
		for _, p := range all {
			if _, holds := p.On(node); holds && moves.Group == 0 {
				moves = p
			} else if holds {
				stays = p
			}
		}
		require.NotZero(t, stays.Group, "%+v", all)
		first, _ := moves.On(node)
		free := others(c, down)[0]
		for _, i := range others(c, down) {
			if _, holds := moves.On(c.Node(i).Status().Node); !holds {
				free = i
			}
		}
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 4, 100*time.Millisecond)
		of := stele.TopicPartition{Topic: "orders", Partition: moves.Index}
		require.NoError(t, c.Node(at).MoveReplica(t.Context(), of, c.Member(down).Name, c.Member(free).Name))
		c.Eventually(func() bool { return on(c, at, "orders", node) == 2 && moving(c, at, "orders") == 0 }, "its replica is elsewhere")
		c.Sleep(time.Minute)

		c.Start(down)
		c.Eventually(func() bool { return c.Node(down).Readiness().Ready() && holds(c, down, "orders") == 2 }, "it is back")
		c.Sleep(5 * time.Second)
		require.False(t, c.Began(moves.Group, first), "a replica began that nobody counts on")
		late, _ := stays.On(node)
		require.True(t, c.Began(stays.Group, late))

		require.NoError(t, c.Node(at).MoveReplica(t.Context(), of, c.Member(free).Name, c.Member(down).Name))
		c.Eventually(func() bool { return holds(c, down, "orders") == 3 && moving(c, at, "orders") == 0 }, "a replica of it is here")
		second, ok := partitions(c, at, "orders")[moves.Index].On(node)
		require.True(t, ok)
		require.NotEqual(t, first, second)
		load.Stop()
		for i := range c.Size() {
			l.Verify(i)
		}
	})
}
