package stele_test

import (
	"context"
	"fmt"
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

// loaded is a cluster under load.
type loaded struct {
	*testcluster.Cluster
	ledger *testcluster.Ledger
	loads  []*testcluster.Load
}

// start starts a member, and a producer on it: that of its last life ended with it.
func (c *loaded) start(i int) {
	c.Start(i)
	c.load(i)
}

func (c *loaded) load(i int) {
	c.loads = append(c.loads, c.ledger.StartLoadOn(i, 1, 6, 20*time.Millisecond))
}

// goesOn demands that records are taken in from now on.
func (c *loaded) goesOn() {
	c.T.Helper()
	before := c.ledger.Acked()
	c.Eventually(func() bool { return c.ledger.Acked() > before+50 }, "records are taken in")
}

// underLoad has a story happen to three nodes under load, demands that records
// are taken in afterwards, and reads all that was acknowledged on every node.
func underLoad(t *testing.T, seed uint64, story func(c *loaded)) {
	testcluster.Run(t, testcluster.Options{Seed: seed}, func(cluster *testcluster.Cluster) {
		cluster.StartAll()
		mustCreate(cluster, 0, "orders", 6)
		c := &loaded{Cluster: cluster, ledger: cluster.NewLedger("orders")}
		for i := range c.Size() {
			c.load(i)
		}
		c.goesOn()
		story(c)
		for i := range c.Size() {
			if c.Node(i) == nil {
				c.start(i)
			}
		}
		c.WaitReady()
		c.goesOn()
		for _, load := range c.loads {
			load.Stop()
		}
		for i := range c.Size() {
			c.ledger.Verify(i)
		}
		for i := range c.Size() {
			c.Close(i)
		}
		require.GreaterOrEqual(c.T, c.CompareOffline(), c.ledger.Acked())
	})
}

// Property: P7 (red: the journal was not synced)
func TestAFollowerThatLeadsPartitionsDies(t *testing.T) {
	underLoad(t, 71, func(c *loaded) {
		victim := (c.MetadataLeader() + 1) % 3
		c.Eventually(func() bool { return leads(c.Cluster, victim) > 0 }, "it leads partitions")
		c.PowerLoss(victim)
		c.goesOn()
		for _, i := range others(c.Cluster, victim) {
			require.True(c.T, c.Node(i).Readiness().Ready(), "the metadata had their leader all the while")
		}
	})
}

// Property: P7 (red: the journal was not synced)
func TestTheMetadataLeaderDies(t *testing.T) {
	underLoad(t, 72, func(c *loaded) {
		victim := c.MetadataLeader()
		c.PowerLoss(victim)
		c.goesOn()
		c.Eventually(func() bool { return c.MetadataLeader() >= 0 }, "another one leads")
		mustCreate(c.Cluster, c.MetadataLeader(), "more", 1)
	})
}

// Clients of two nodes produce to a partition that the third one leads, which
// dies: their records go to the next leader.
//
// Property: P7 (red: the journal was not synced)
func TestANodeThatClientsForwardToDies(t *testing.T) {
	underLoad(t, 73, func(c *loaded) {
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
			err  error
			at   map[stele.Offset]string
		}
		answers := make(chan told)
		for _, i := range others(c.Cluster, victim) {
			p, err := c.Node(i).NewProducer(stele.ProducerConfig{})
			require.NoError(t, err)
			go func() {
				got := told{from: i, at: map[stele.Offset]string{}}
				for n := 0; n < 40 && got.err == nil; n++ {
					value := fmt.Sprintf("forwarded %d.%d", i, n)
					var at []stele.Position
					at, got.err = p.ProduceTo(t.Context(), "orders", partition, stele.Record{Value: []byte(value)})
					if got.err == nil {
						got.at[at[0].Offset] = value
					}
				}
				_ = p.Close(t.Context())
				answers <- got
			}()
		}
		c.Sleep(20 * time.Millisecond)
		c.PowerLoss(victim)
		got := []told{<-answers, <-answers}
		c.goesOn()
		all := c.ReadAll(t.Context(), got[0].from, stele.TopicPartition{Topic: "orders", Partition: partition})
		for _, a := range got {
			require.NoError(t, a.err, "the producer of node %d", a.from)
			require.Len(t, a.at, 40)
			for at, value := range a.at {
				require.Equal(t, value, all[at])
			}
		}
	})
}

// Two of three die, three times: nothing is taken in while one is left alone, and
// all that was is there when another one is back.
//
// Property: P4, P7 (red: a batch that was sent again was appended again; the journal was not synced)
func TestTwoOfThreeDie(t *testing.T) {
	underLoad(t, 74, func(c *loaded) {
		for round := range 3 {
			first := (c.MetadataLeader() + round) % 3
			second := (first + 1) % 3
			c.PowerLoss(first)
			c.Sleep(200 * time.Millisecond)
			c.PowerLoss(second)
			alone := others(c.Cluster, first, second)[0]
			c.Eventually(func() bool { return !c.Node(alone).Readiness().Ready() }, "the last one says that it cannot serve")
			taken := c.ledger.Acked()
			c.Sleep(5 * time.Second)
			require.Equal(c.T, taken, c.ledger.Acked(), "one of three takes nothing in")
			c.start(second)
			c.WaitReady()
			c.goesOn()
			c.start(first)
			c.WaitReady()
			c.goesOn()
		}
	})
}

// Nodes are closed and started one after the other, and another one dies while one
// is down.
//
// Property: P7 (red: the journal was not synced)
func TestANodeDiesDuringARollingRestart(t *testing.T) {
	underLoad(t, 75, func(c *loaded) {
		for i := range c.Size() {
			c.Close(i)
			if i == 1 {
				c.PowerLoss(2)
				c.Sleep(3 * time.Second)
				c.start(2)
			}
			c.start(i)
			c.WaitReady()
			c.goesOn()
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
