package stele_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/transport"
)

// seat is what member i is, as member at sees it.
func seat(c *testcluster.Cluster, at, i int) stele.Seat {
	for _, m := range c.Node(at).Members() {
		if m.Name == c.Member(i).Name {
			return m.Seat
		}
	}
	return stele.SeatNone
}

// holds counts the replicas of a topic on member i.
func holds(c *testcluster.Cluster, i int, topic string) (n int) {
	for _, p := range c.Node(i).Status().Partitions {
		if p.Topic == topic {
			n++
		}
	}
	return n
}

// A node joins a running cluster under load: it gets the metadata as a whole,
// then the log, then a vote, and holds partitions of new topics.
func TestANodeJoins(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 21}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 2, 20*time.Millisecond)

		fourth := c.Add()
		c.Start(fourth)
		c.WaitReady()
		require.NotEqual(t, stele.SeatNone, seat(c, fourth, fourth))
		c.Eventually(func() bool { return seat(c, 0, fourth) == stele.SeatVoter }, "it gets a vote")
		load.Stop()
		l.Verify(fourth)

		_, err := c.Node(fourth).CreateTopic(t.Context(), "wide", stele.TopicConfig{Partitions: 8, Replicas: 4})
		require.NoError(t, err)
		c.Eventually(func() bool { return holds(c, fourth, "wide") == 8 }, "it holds partitions")
		wide := c.NewLedger("wide")
		load = wide.StartLoad(1, 8, 20*time.Millisecond)
		c.Eventually(func() bool { return wide.Acked() > 100 }, "they take records")
		load.Stop()
		for i := range c.Size() {
			wide.Verify(i)
		}

		c.PowerLoss(fourth)
		c.Start(fourth)
		c.WaitReady()
		l.Verify(fourth)
	})
}

// A member whose disk was wiped is a new node, by itself: it waits until its old
// life was silent for long enough, and takes its place and its vote. The old disk
// comes back to nothing.
//
// Property: J17, R21 (red: the place of a life that was just heard passes on; who was removed told by nobody, and admitted again)
func TestAWipedMemberIsANewNode(t *testing.T) {
	for _, wiped := range []int{0, 2} {
		testcluster.Run(t, testcluster.Options{Seed: 9}, func(c *testcluster.Cluster) {
			t := c.T
			c.StartAll()
			mustCreate(c, 0, "orders", 1)
			l := c.NewLedger("orders")
			load := l.StartLoad(1, 1, 50*time.Millisecond)
			c.Sleep(2 * time.Second)
			old := c.Node(wiped).Status().Node
			c.PowerLoss(wiped)
			oldDisk := c.Member(wiped).FS
			c.Wipe(wiped)
			c.Start(wiped)
			r := c.Node(wiped).Readiness()
			require.Contains(t, []stele.ReadinessCode{stele.WaitingForMembers, stele.Joining}, r.Code)
			c.Sleep(20 * time.Second)
			require.False(t, c.Node(wiped).Readiness().Ready(), "its old life was not silent for long")
			c.Eventually(func() bool { return c.Node(wiped).Readiness().Ready() }, "it is taken in")
			require.NotEqual(t, old, c.Node(wiped).Status().Node)
			other := (wiped + 1) % c.Size()
			c.Eventually(func() bool { return seat(c, other, wiped) == stele.SeatVoter }, "it gets the vote of its old life")
			c.Eventually(func() bool {
				for _, m := range c.Node(other).Members() {
					if m.Node == old && m.Seat != stele.SeatNone {
						return false
					}
				}
				return true
			}, "its old life has none")
			load.Stop()
			l.Verify(other)

			c.Eventually(func() bool { return len(c.Node(other).Members()) == 3 && holds(c, wiped, "orders") == 1 }, "all that it was is the new one's")
			c.Kill(wiped)
			newDisk := c.Member(wiped).FS
			c.Member(wiped).FS = oldDisk
			c.Start(wiped)
			c.Eventually(func() bool { return c.Node(wiped).Readiness().Code == stele.Removed }, "the old disk is found, and stays out")
			require.Len(t, c.Node(other).Members(), 3)
			c.Kill(wiped)
			c.Member(wiped).FS = newDisk
			c.Start(wiped)
			c.Eventually(func() bool { return c.Node(wiped).Readiness().Ready() }, "the new one goes on")
			l.Verify(wiped)
		})
	}
}

// A node is closed at any moment of its way into a cluster, again and again, also
// while it waits for who does not answer: that waits for nobody, and the next start
// goes on from there.
//
// Property: L3 (red: a question to a peer went on)
func TestANodeIsClosedWhileItJoins(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 134}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 3)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		late := c.Add()
		for i, moment := range []time.Duration{0, 0, 5, 5, 10, 10, 20, 20, 50, 100, 300} {
			if i%2 == 1 {
				c.Isolate(late)
			}
			c.Start(late)
			c.Sleep(moment * time.Millisecond)
			if i%2 == 1 {
				c.Sleep(300 * time.Millisecond)
			}
			begun := time.Now()
			c.Close(late)
			require.Less(t, time.Since(begun), time.Second, "closed after %v", moment)
			c.Rejoin(late)
		}
		c.Start(late)
		c.WaitReady()
		require.Len(t, lives(c, 0, late), 1)
	})
}

// Topics are made while a node that is to hold replicas of them has just been cut off. Who
// makes them holds none of some of the partitions, and asks others who leads; it waits for
// the one that is cut off no longer than for an election at first. Far away from each
// other they wait longer with each try.
func TestTopicsAreMadeBesideANodeThatIsCutOff(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 171}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.WaitReady()
		mustCreate(c, 0, "before", 1)
		apart := 4
		if c.MetadataLeader() == apart {
			apart = 3
		}
		c.Isolate(apart)
		began := time.Now()
		mustCreate(c, 0, "orders", 20)
		require.Less(t, time.Since(began), 6*time.Second)
	})
	config := func(cfg *stele.Config) { cfg.CallTimeout = time.Second }
	testcluster.Run(t, testcluster.Options{Nodes: 4, Seed: 172, Config: config}, func(c *testcluster.Cluster) {
		c.StartAll()
		c.WaitReady()
		c.Net.SetFaults(transport.Faults{MinLatency: 55 * time.Millisecond, MaxLatency: 56 * time.Millisecond})
		for i := range 4 {
			mustCreate(c, i, fmt.Sprint("orders-", i), 4)
		}
	})
}
