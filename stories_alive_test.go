package stele_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// deadAt are the members that one of them knows to be dead.
func deadAt(c *testcluster.Cluster, at int) (names []string) {
	for _, m := range c.Node(at).Members() {
		if m.Liveness.Dead {
			names = append(names, m.Name)
		}
	}
	return names
}

// heardAlike is when the members were heard last, if all nodes have applied the same
// of the metadata: then all of them must say the same.
func heardAlike(c *testcluster.Cluster) (stamps map[stele.NodeID]metastore.Stamp) {
	synctest.Wait()
	for i := range c.Size() {
		if c.Node(i).Status().Metadata.Applied != c.Node(0).Status().Metadata.Applied {
			return nil
		}
	}
	for i := range c.Size() {
		here := map[stele.NodeID]metastore.Stamp{}
		for _, m := range c.Node(i).Members() {
			here[m.Node] = m.Liveness.Stamp
		}
		if i == 0 {
			stamps = here
		}
		require.Equal(c.T, stamps, here, "member %d", i)
	}
	return stamps
}

// Nobody can speak to anybody for minutes, and nobody is dead: when the network is
// back no member is marked, neither at once nor later.
//
// Property: H2, H3 (red: a new leadership counted as an hour old, without the breaker)
func TestNobodyIsDeadAfterAStretchWithoutLeader(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 101}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(10 * time.Second) // the cluster's version is raised, and heartbeats are recorded
		for i := range c.Size() {
			c.Isolate(i)
		}
		c.Sleep(4 * time.Minute)
		require.Negative(t, c.MetadataLeader())
		for i := range c.Size() {
			c.Rejoin(i)
		}
		c.WaitReady()
		for range 100 {
			for i := range c.Size() {
				require.Empty(t, deadAt(c, i))
			}
			c.Sleep(500 * time.Millisecond)
		}
	})
}

// The time of day jumps, by hours and in both directions, on who leads and on who
// leads next, as when somebody sets it: nobody is marked dead, and who falls silent
// is, as soon as at any other time. When a member was heard last is what the clock of
// who leads said, on every node the same.
//
// Property: H1, H2 (red: silence measured by the time of day; each replica stored its own time of day for a heartbeat)
func TestClocksJump(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 104}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 1, 500*time.Millisecond)
		c.Sleep(40 * time.Second) // the version is raised, and who leads may mark the dead
		for _, by := range []time.Duration{time.Hour, -2 * time.Hour, 5 * time.Hour} {
			leader := c.MetadataLeader()
			before, begun := c.Clock(leader).Now(), time.Now()
			c.Jump(leader, by)
			require.Equal(t, by, c.Clock(leader).Now().Round(0).Sub(before.Round(0)), "the time of day")
			require.Zero(t, c.Clock(leader).Now().Sub(before), "no time passed")
			seen := 0
			for range 80 {
				for i := range c.Size() {
					require.Empty(t, deadAt(c, i))
				}
				c.Sleep(500 * time.Millisecond)
				if heard := heardAlike(c); heard != nil {
					seen++
					if by > 0 && time.Since(begun) > 15*time.Second {
						for _, at := range heard {
							require.InDelta(t, c.Clock(leader).Now().UnixMilli(), at.Time().UnixMilli(), 15_000, "the clock of who leads")
						}
					}
				}
			}
			require.Greater(t, seen, 20)
			next := (leader + 1) % c.Size()
			acked := l.Acked()
			require.NoError(t, c.Node(leader).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(next).Name))
			c.Sleep(35 * time.Second)
			require.Empty(t, deadAt(c, next))
			require.Greater(t, l.Acked(), acked, "records are taken in")
		}
		leader := c.MetadataLeader()
		c.Jump(leader, -2*time.Hour)
		silent := (leader + 1) % c.Size()
		c.PowerLoss(silent)
		begun := time.Now()
		c.Eventually(func() bool { return len(deadAt(c, leader)) == 1 }, "it is marked")
		require.InDelta(t, 30*time.Second, time.Since(begun), float64(6*time.Second))
		other := (leader + 2) % c.Size()
		c.Eventually(func() bool { return len(deadAt(c, other)) == 1 }, "the heartbeat that was judged is the same there")
		c.Start(silent)
		c.WaitReady()
		load.Stop()
		for i := range c.Size() {
			l.Verify(i)
		}
	})
}

// Of five voters two fall silent: both are marked, since three are a majority. They
// come back, and nobody is dead.
//
// Property: H5, H6 (red: voters never marked while others of them are; a heartbeat that ends no mark)
func TestTwoOfFiveAreMarkedDead(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 102}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(10 * time.Second) // the cluster's version is raised
		leader := c.MetadataLeader()
		silent := []int{(leader + 1) % 5, (leader + 2) % 5}
		for _, i := range silent {
			c.PowerLoss(i)
		}
		c.Sleep(25 * time.Second)
		require.Empty(t, deadAt(c, leader), "not yet")
		c.Eventually(func() bool { return len(deadAt(c, leader)) == 2 }, "both are marked")
		for _, i := range silent {
			c.Start(i)
		}
		c.Eventually(func() bool { return len(deadAt(c, leader)) == 0 }, "a heartbeat ends it")
	})
}

// Seven members, five votes. A voter dies: for ten minutes it keeps its vote, then
// one that stands by has it, and the dead one is a learner, and a member. A voter
// leaves: one that stands by has its vote at once.
//
// Property: J18 (red: nobody takes the vote of a dead one, or of one that leaves)
func TestAStandbyTakesAVote(t *testing.T) {
	if testing.Short() {
		t.Skip("eleven minutes of seven nodes")
	}
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 103}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		for range 2 {
			c.Start(c.Add())
		}
		c.WaitReady()
		c.Sleep(20 * time.Second)
		for _, i := range []int{5, 6} {
			require.Equal(t, stele.SeatLearner, seat(c, 0, i), "it stands by")
		}
		leader := c.MetadataLeader()
		dead := (leader + 1) % 5
		c.PowerLoss(dead)
		c.Sleep(9*time.Minute + 50*time.Second)
		require.Equal(t, stele.SeatVoter, seat(c, leader, dead))
		c.Eventually(func() bool {
			return seat(c, leader, dead) == stele.SeatLearner && (seat(c, leader, 5) == stele.SeatVoter) != (seat(c, leader, 6) == stele.SeatVoter)
		}, "its vote passes on")
		c.Start(dead)
		c.WaitReady()
		c.Sleep(20 * time.Second)
		require.Equal(t, stele.SeatLearner, seat(c, leader, dead), "it stands by now")

		leaver := (leader + 2) % 5
		require.NoError(t, decommission(t.Context(), c, leader, leaver, stele.DecommissionOptions{}).Wait(t.Context()))
		votes := 0
		for _, m := range c.Node(leader).Members() {
			if m.Seat == stele.SeatVoter {
				votes++
			}
		}
		require.Equal(t, 5, votes, "the vote of who left passes on")
	})
}
