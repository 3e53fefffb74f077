package stele_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

var grows = flag.Uint64("grows", 1, "how often three nodes become five and three again")

// Three nodes become five, lose the leader and a newcomer at one moment, get them
// back, and become three again, under load all the while: nothing that was
// acknowledged is lost.
//
//	go test . -run TestThreeFiveThree -grows=20
func TestThreeFiveThree(t *testing.T) {
	for i := range *grows {
		seed := 41 + i
		t.Run(fmt.Sprint(seed), func(t *testing.T) { threeFiveThree(t, seed) })
	}
}

func threeFiveThree(t *testing.T, seed uint64) {
	testcluster.Run(t, testcluster.Options{Seed: seed}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 6)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 6, 50*time.Millisecond)
		for range 2 {
			c.Start(c.Add())
		}
		c.WaitReady()
		c.Eventually(func() bool {
			return seat(c, 0, 3) == stele.SeatVoter && seat(c, 0, 4) == stele.SeatVoter
		}, "both get a vote")
		load.Stop()

		leader := c.MetadataLeader()
		newcomer := 4
		if leader == newcomer {
			newcomer = 3
		}
		load = l.StartLoad(1, 6, 50*time.Millisecond)
		taken := l.Acked()
		c.Eventually(func() bool { return l.Acked() > taken+50 }, "all five take records in")
		c.PowerLoss(leader)
		c.PowerLoss(newcomer)
		witness := 0
		for witness == leader || witness == newcomer {
			witness++
		}
		c.Eventually(func() bool {
			at, err := c.Node(witness).DescribeCluster(t.Context())
			return err == nil && at.Leader != 0 && len(at.Members) == 5
		}, "three of five agree on the metadata")
		c.Start(leader)
		c.Start(newcomer)
		c.WaitReady()
		before := l.Acked()
		c.Eventually(func() bool { return l.Acked() > before+200 }, "all partitions are there again")
		load.Stop()

		load = l.StartLoad(1, 6, 50*time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		for _, leaver := range []int{newcomer, leader} {
			asked := (leaver + 1) % c.Size()
			if asked == newcomer {
				asked = (asked + 1) % c.Size()
			}
			d, err := c.Node(asked).Decommission(ctx, c.Member(leaver).Name, stele.DecommissionOptions{})
			require.NoError(t, err)
			require.NoError(t, d.Wait(ctx))
		}
		load.Stop()
		for i := range c.Size() {
			if i != leader && i != newcomer {
				l.Verify(i)
				require.Len(t, c.Node(i).Members(), 3)
			}
		}
	})
}

// A member that cannot be reached is staged as a learner, and costs nobody
// anything: with one of three voters down the two others go on, in each fifth of a
// second, from before it asks until it is out again.
//
// Property: J9 (red: who joins was staged as a voter)
func TestAnUnreachableJoiner(t *testing.T) {
	const bin = 200 * time.Millisecond
	testcluster.Run(t, testcluster.Options{Seed: 42}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		down := (c.MetadataLeader() + 1) % 3
		others := []int{c.MetadataLeader(), (down + 1) % 3}
		c.PowerLoss(down)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 2, 20*time.Millisecond)
		joiner := c.Add()
		for i := range joiner { // its questions are heard; no answer comes back, and nothing else
			c.Net.Cut(c.Member(i).Addr, c.Member(joiner).Addr)
		}
		c.Eventually(func() bool { return len(l.Partitions()) == 2 }, "each partition has a leader again")
		c.Sleep(time.Second)
		begun, commit := time.Now(), c.Node(others[0]).Status().Metadata.Commit
		c.Start(joiner)
		c.Eventually(func() bool { return seat(c, others[0], joiner) != stele.SeatNone }, "it is staged")
		for range 60 {
			c.Sleep(time.Second)
			for _, i := range others {
				ctx, cancel := context.WithTimeout(t.Context(), bin)
				_, err := c.Node(i).DescribeCluster(ctx)
				cancel()
				require.NoError(t, err, "the metadata")
			}
			require.Equal(t, stele.SeatLearner, seat(c, others[0], joiner))
		}
		require.Greater(t, c.Node(others[0]).Status().Metadata.Commit, commit+10, "heartbeats of a minute")
		require.False(t, c.Node(joiner).Readiness().Ready())
		d, err := c.Node(others[0]).Decommission(t.Context(), c.Member(joiner).Name, stele.DecommissionOptions{Force: true})
		require.NoError(t, err)
		require.NoError(t, d.Wait(t.Context()), "it can be taken out again")
		end := time.Now()
		require.Greater(t, end.Sub(begun), time.Minute)
		load.Stop()
		for _, partition := range l.Partitions() {
			series := l.Series(partition, begun, end, bin)
			require.NotContains(t, series, 0, "partition %d has a gap: %v", partition, series)
		}
		for _, i := range others {
			l.Verify(i)
		}
	})
}
