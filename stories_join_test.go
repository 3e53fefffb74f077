package stele_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// A member is down while all that it ever knew leave and others come. What it is
// configured with, and what its metadata say, are addresses where nobody lives; but
// the leader speaks to it.
//
// Property: J7, J14 (red: who speaks and is not known forgotten)
func TestAMemberWhoseWholeWorldLeft(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 81}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		late := c.Add()
		c.Start(late)
		c.WaitReady()
		c.Eventually(func() bool { return seat(c, 0, late) == stele.SeatVoter }, "it gets a vote")
		c.Close(late)
		var young []int
		for range 3 {
			i := c.Add()
			c.Start(i)
			young = append(young, i)
		}
		c.WaitReady()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		for i := range 3 {
			d, err := c.Node(young[0]).Decommission(ctx, c.Member(i).Name, stele.DecommissionOptions{})
			require.NoError(t, err)
			require.NoError(t, d.Wait(ctx))
			c.Kill(i)
		}
		c.Start(late)
		c.Eventually(func() bool { return c.Node(late).Readiness().Ready() }, "it finds its cluster")
		require.Len(t, c.Node(late).Members(), 4)
	})
}

// A new node was told of three members, and by the time it starts one of them has
// moved and the others have left the cluster. They still run, and name those that
// were beside them.
//
// Property: J7 (red: a node that was removed names nobody)
func TestTheConfiguredMembersHaveAllGone(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 66}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		late := c.Add()
		for range 2 {
			c.Start(c.Add())
		}
		voters := func() (n int) {
			for i := range c.Size() {
				if c.Node(i) != nil && seat(c, 0, i) == stele.SeatVoter {
					n++
				}
			}
			return n
		}
		c.Eventually(func() bool { return voters() == 5 }, "five vote")
		for _, leaves := range []int{1, 2} {
			d, err := c.Node(0).Decommission(t.Context(), c.Member(leaves).Name, stele.DecommissionOptions{})
			require.NoError(t, err)
			require.NoError(t, d.Wait(t.Context()))
			c.Eventually(func() bool { return c.Node(leaves).Readiness().Code == stele.Removed }, "it knows")
		}
		c.Kill(0)
		c.MoveTo(0, "moved:7942")
		c.Start(0)
		c.WaitReadyBut(1, 2)
		c.Start(late)
		c.Eventually(func() bool { return c.Node(late).Readiness().Ready() }, "the new node finds the cluster")
	})
}
