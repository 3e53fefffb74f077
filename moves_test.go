package stele_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// partitions is what member at knows of a topic.
func partitions(c *testcluster.Cluster, at int, topic string) []metastore.Partition {
	c.T.Helper()
	info, err := c.Node(at).DescribeTopic(c.T.Context(), topic)
	require.NoError(c.T, err)
	return info.Partitions
}

// moving counts the replicas of a topic that are on their way.
func moving(c *testcluster.Cluster, at int, topic string) (n int) {
	for _, p := range partitions(c, at, topic) {
		if p.Target != nil {
			n++
		}
	}
	return n
}

// generations sums how often assignments of a topic changed.
func generations(c *testcluster.Cluster, at int, topic string) (n uint64) {
	for _, p := range partitions(c, at, topic) {
		n += p.Generation
	}
	return n
}

// on counts the replicas of a topic that a node has by the metadata.
func on(c *testcluster.Cluster, at int, topic string, node stele.NodeID) (n int) {
	for _, p := range partitions(c, at, topic) {
		if _, holds := p.On(node); holds {
			n++
		}
	}
	return n
}

func deadFor(c *testcluster.Cluster, at int, node stele.NodeID) bool {
	for _, m := range c.Node(at).Members() {
		if m.Node == node {
			return m.Liveness.Dead
		}
	}
	return false
}

// Property: M1, M2, M3 (red: a dead destination was waited for without end; it was given up at once; a node with one replica more gave it away, for ever; what a dead node holds was moved)
//
// A node joins, is given partitions, and dies while they are on their way: they
// are waited for two minutes from when its heartbeats were missed for long enough,
// and then all is as it was. It comes back, and gets its share; then nothing is
// planned any more, whoever leads. It dies for good: what it holds stays its own
// until somebody says that it will not return.
func TestANodeDiesWhilePartitionsMoveToIt(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 41}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 5) // 15 replicas: four nodes cannot have as many each
		before := partitions(c, 0, "orders")
		l := c.NewLedger("orders")
		load := l.StartLoadOn(0, 1, 5, 200*time.Millisecond)
		fourth := c.Add()
		c.Start(fourth)
		for moving(c, 0, "orders") < 2 {
			c.Sleep(20 * time.Millisecond)
		}
		c.PowerLoss(fourth)
		id := c.Node(0).Members()[3].Node
		c.Eventually(func() bool { return deadFor(c, 0, id) }, "it is marked dead")
		died := time.Now()
		left := moving(c, 0, "orders")
		require.Positive(t, left)
		c.Sleep(115 * time.Second)
		require.Equal(t, left, moving(c, 0, "orders"), "they are waited for")
		c.Eventually(func() bool { return moving(c, 0, "orders") == 0 }, "they are given up")
		require.InDelta(t, 2*time.Minute, time.Since(died), float64(10*time.Second))
		for i, p := range partitions(c, 0, "orders") {
			if _, moved := p.On(id); !moved { // one may have been swapped just before
				require.Equal(t, before[i].Replicas, p.Replicas)
			}
		}

		c.Start(fourth)
		c.Eventually(func() bool { return on(c, 0, "orders", id) == 3 && moving(c, 0, "orders") == 0 }, "it gets its share")
		load.Stop()
		l.Verify(fourth)
		settled := generations(c, 0, "orders")
		led := c.MetadataLeader()
		c.PowerLoss(led)
		other := (led + 1) % 3
		c.Eventually(func() bool { _, err := c.Node(other).DescribeCluster(t.Context()); return err == nil }, "another one leads")
		c.Start(led)
		c.Sleep(20 * time.Second)
		require.Equal(t, settled, generations(c, other, "orders"), "planned again, to no effect")

		load = l.StartLoadOn(0, 1, 5, 200*time.Millisecond)
		c.PowerLoss(fourth)
		c.Eventually(func() bool { return deadFor(c, 0, id) }, "it is marked dead")
		c.Sleep(5 * time.Minute)
		require.Equal(t, settled, generations(c, 0, "orders"), "nobody said that it will not return")
		_, err := c.Node(0).Decommission(t.Context(), c.Member(fourth).Name, stele.DecommissionOptions{Force: true})
		require.NoError(t, err)
		c.Eventually(func() bool { return len(c.Node(0).Members()) == 3 }, "it is out")
		require.Zero(t, on(c, 0, "orders", id))
		for _, p := range partitions(c, 0, "orders") {
			require.Len(t, p.Replicas, 3)
		}
		acked := l.Acked()
		c.Eventually(func() bool { return l.Acked() > acked+20 }, "the others go on")
		load.Stop()
		for i := range 3 {
			l.Verify(i)
		}
	})
}

// A voter that is down keeps nobody from leaving: partitions that it holds move on
// without its knowing of it.
//
// Property: D1, R21 (red: each move waited until all voters knew of the last change)
func TestANodeLeavesWhileAnotherOneIsDown(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 43}, func(c *testcluster.Cluster) {
		t := c.T
		_, l, load := grown(c)
		fifth := c.Add()
		c.Start(fifth)
		c.WaitReady()
		c.Eventually(func() bool { return seat(c, 0, fifth) == stele.SeatVoter }, "it gets a vote")
		c.Eventually(func() bool { return moving(c, 0, "orders") == 0 }, "partitions are where they are to be")
		leaver := (c.MetadataLeader() + 1) % 5
		down, at := (leaver+1)%5, (leaver+2)%5
		c.PowerLoss(down)
		d, err := c.Node(at).Decommission(t.Context(), c.Member(leaver).Name, stele.DecommissionOptions{WhenPossible: true})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		require.NoError(t, d.Wait(ctx))
		c.Start(down)
		c.Eventually(func() bool { return c.Node(down).Readiness().Ready() }, "the other one is back")
		load.Stop()
		l.Verify(down)
		l.Verify(at)
	})
}

// A person has a replica of a dead node copied to another one: the dead node stays a
// member, and the partition has all its replicas.
//
// Property: M2 (red: a move from a node that is dead was refused)
func TestAReplicaOfADeadNodeIsMovedByAPerson(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 4, Seed: 44, Config: func(cfg *stele.Config) { cfg.NoRebalance = true }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 1, 50*time.Millisecond)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		member := func(node stele.NodeID) int { return int(node) - 1 }
		replicas := partitions(c, 0, "orders")[0].Replicas
		free := 0
		for slices.ContainsFunc(replicas, func(a metastore.Assignment) bool { return member(a.Node) == free }) {
			free++
		}
		dead := member(replicas[2].Node)
		name := func(i int) string { return c.Member(i).Name }
		of := stele.TopicPartition{Topic: "orders"}
		ctx, at := t.Context(), c.Node(member(replicas[0].Node))
		require.ErrorIs(t, at.MoveReplica(ctx, of, name(free), name(dead)), stele.ErrRefused, "it has none")
		require.ErrorIs(t, at.MoveReplica(ctx, of, name(dead), name(member(replicas[1].Node))), stele.ErrReplicaExists)
		var nobody *stele.NoMemberError
		require.ErrorAs(t, at.MoveReplica(ctx, of, name(dead), "nobody"), &nobody)

		c.PowerLoss(dead)
		c.Eventually(func() bool { return deadFor(c, member(replicas[0].Node), replicas[2].Node) }, "it is dead")
		require.NoError(t, at.MoveReplica(ctx, of, name(dead), name(free)))
		c.Eventually(func() bool { return holds(c, free, "orders") == 1 && moving(c, free, "orders") == 0 }, "the copy is there")
		require.Len(t, c.Node(free).Members(), 4)
		require.ErrorIs(t, at.MoveReplica(ctx, of, name(free), name(dead)), stele.ErrMemberDead)
		load.Stop()
		l.Verify(free)
	})
}
