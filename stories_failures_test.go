package stele_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// leads counts the partitions that member i leads.
func leads(c *testcluster.Cluster, i int) (n int) {
	for _, p := range c.Node(i).Status().Partitions {
		if p.Role.IsLeader() {
			n++
		}
	}
	return n
}

// others are the members of a cluster but some.
func others(c *testcluster.Cluster, but ...int) (all []int) {
	for i := range c.Size() {
		out := false
		for _, b := range but {
			out = out || b == i
		}
		if !out {
			all = append(all, i)
		}
	}
	return all
}

// underLoad has a story happen to three nodes under load, demands that records
// are taken in afterwards, and reads all that was acknowledged on every node.
func underLoad(t *testing.T, seed uint64, story func(c *testcluster.Cluster, goesOn func())) {
	testcluster.Run(t, testcluster.Options{Seed: seed}, func(c *testcluster.Cluster) {
		c.StartAll()
		mustCreate(c, 0, "orders", 6)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 6, 20*time.Millisecond)
		goesOn := func() {
			c.T.Helper()
			before := l.Acked()
			c.Eventually(func() bool { return l.Acked() > before+50 }, "records are taken in")
		}
		goesOn()
		story(c, goesOn)
		for i := range c.Size() {
			if c.Node(i) == nil {
				c.Start(i)
			}
		}
		c.WaitReady()
		again := l.StartLoad(1, 6, 20*time.Millisecond)
		goesOn()
		load.Stop()
		again.Stop()
		for i := range c.Size() {
			l.Verify(i)
		}
		for i := range c.Size() {
			c.Close(i)
		}
		require.GreaterOrEqual(c.T, c.CompareOffline(), l.Acked())
	})
}

func TestAFollowerThatLeadsPartitionsDies(t *testing.T) {
	underLoad(t, 71, func(c *testcluster.Cluster, goesOn func()) {
		victim := (c.MetadataLeader() + 1) % 3
		c.Eventually(func() bool { return leads(c, victim) > 0 }, "it leads partitions")
		c.PowerLoss(victim)
		goesOn()
		for _, i := range others(c, victim) {
			require.True(c.T, c.Node(i).Readiness().Ready(), "the metadata had their leader all the while")
		}
	})
}

func TestTheMetadataLeaderDies(t *testing.T) {
	underLoad(t, 72, func(c *testcluster.Cluster, goesOn func()) {
		victim := c.MetadataLeader()
		c.PowerLoss(victim)
		goesOn()
		c.Eventually(func() bool { return c.MetadataLeader() >= 0 }, "another one leads")
		mustCreate(c, c.MetadataLeader(), "more", 1)
	})
}

// Clients of two nodes produce to a partition that the third one leads, which
// dies: their records go to the next leader.
func TestANodeThatClientsForwardToDies(t *testing.T) {
	underLoad(t, 73, func(c *testcluster.Cluster, goesOn func()) {
		t := c.T
		var victim int
		var partition uint32
		c.Eventually(func() bool {
			for i := range c.Size() {
				for _, p := range c.Node(i).Status().Partitions {
					if p.Role.IsLeader() {
						victim, partition = i, p.Partition
						return true
					}
				}
			}
			return false
		}, "somebody leads a partition")
		type told struct {
			from int
			at   stele.Position
			err  error
		}
		answers := make(chan told)
		for _, i := range others(c, victim) {
			p, err := c.Node(i).NewProducer(stele.ProducerConfig{})
			require.NoError(t, err)
			go func() {
				for n := range 40 {
					at, err := p.ProduceTo(t.Context(), "orders", partition, stele.Record{Key: []byte{byte(i), byte(n)}, Value: []byte("forwarded " + string(rune('a'+i)) + time.Duration(n).String())})
					last := told{i, stele.Position{}, err}
					if err == nil {
						last.at = at[0]
					}
					if n == 39 || err != nil {
						_ = p.Close(t.Context())
						answers <- last
						return
					}
				}
			}()
		}
		c.Sleep(20 * time.Millisecond)
		c.PowerLoss(victim)
		for range 2 {
			a := <-answers
			require.NoError(t, a.err, "the producer of node %d", a.from)
			require.Equal(t, partition, a.at.Partition)
		}
		goesOn()
	})
}

// Two of three die, three times: nothing is taken in while one is left alone, and
// all that was is there when another one is back.
func TestTwoOfThreeDie(t *testing.T) {
	underLoad(t, 74, func(c *testcluster.Cluster, goesOn func()) {
		for round := range 3 {
			first := (c.MetadataLeader() + round) % 3
			second := (first + 1) % 3
			c.PowerLoss(first)
			c.Sleep(200 * time.Millisecond)
			c.PowerLoss(second)
			alone := others(c, first, second)[0]
			c.Eventually(func() bool { return !c.Node(alone).Readiness().Ready() }, "the last one says that it cannot serve")
			c.Start(second)
			c.WaitReady()
			c.Start(first)
			c.WaitReady()
		}
	})
}

// Nodes are closed and started one after the other, and another one dies while one
// is down.
func TestANodeDiesDuringARollingRestart(t *testing.T) {
	underLoad(t, 75, func(c *testcluster.Cluster, goesOn func()) {
		for i := range c.Size() {
			c.Close(i)
			if i == 1 {
				c.PowerLoss(2)
				c.Sleep(3 * time.Second)
				c.Start(2)
			}
			c.Start(i)
			c.WaitReady()
		}
	})
}

// Two of five lose their disks, one after the other: the second one when every
// voter of every group knows that the first one was replaced. Nobody has to do
// anything, and nothing is lost.
//
// Property: R21 (red: a new life that does not take over the vote of the old one)
func TestTwoOfFiveLoseTheirDisks(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 76}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 5)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 5, 100*time.Millisecond)
		c.Sleep(5 * time.Second)
		for _, wiped := range []int{3, 1} {
			old := c.Node(wiped).Status().Node
			c.PowerLoss(wiped)
			c.Wipe(wiped)
			c.Start(wiped)
			c.Eventually(func() bool {
				now := lives(c, 0, wiped)
				return len(now) == 1 && now[0] != old && seat(c, 0, wiped) == stele.SeatVoter
			}, "a new life has its place")
			c.Eventually(func() bool { return settled(c) }, "every voter knows")
		}
		load.Stop()
		for i := range c.Size() {
			l.Verify(i)
			require.Len(t, c.Node(i).Members(), 5)
		}
	})
}

// settled reports whether every group is as it should be, and every voter of it
// durably knows: the next disk may be lost.
func settled(c *testcluster.Cluster) bool {
	led := map[stele.TopicPartition]bool{}
	for i := range c.Size() {
		s := c.Node(i).Status()
		if s.Metadata.Role.IsLeader() && (!s.Metadata.Settled || s.Metadata.ConfPending) {
			return false
		}
		for _, p := range s.Partitions {
			if p.Target || len(p.Unsettled) > 0 || p.Err != nil {
				return false
			}
			if p.Role.IsLeader() {
				led[stele.TopicPartition{Topic: p.Topic, Partition: p.Partition}] = true
			}
		}
	}
	ctx, cancel := context.WithTimeout(c.T.Context(), 10*time.Second)
	defer cancel()
	at, err := c.Node(0).DescribeCluster(ctx)
	if err != nil || len(at.Moves) > 0 {
		return false
	}
	topics, err := c.Node(0).ListTopics(ctx)
	n := 0
	for _, t := range topics {
		n += len(t.Partitions)
	}
	return err == nil && len(led) == n
}
