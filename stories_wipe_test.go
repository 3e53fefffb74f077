package stele_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// lives are the ids that a name has, as member at sees it.
func lives(c *testcluster.Cluster, at, i int) (ids []stele.NodeID) {
	for _, m := range c.Node(at).Members() {
		if m.Name == c.Member(i).Name {
			ids = append(ids, m.Node)
		}
	}
	return ids
}

// A disk is lost while replicas of the same partitions are on their way to a node
// that has just joined: the moves do not wait for what the lost disk will never
// know, and the lost replicas are replaced.
//
// Property: R21 (red: a move that waits until the lost replica knows of the last change)
func TestADiskIsLostWhilePartitionsMove(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 62}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 4)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 4, 100*time.Millisecond)
		c.Sleep(5 * time.Second) // the cluster's version is raised
		const wiped = 2
		old := c.Node(wiped).Status().Node
		c.PowerLoss(wiped)
		c.Wipe(wiped)
		c.Start(wiped)
		c.Start(c.Add())
		c.Eventually(func() bool { return c.Node(0).Readiness().Ready() && c.Node(wiped).Readiness().Ready() }, "it is taken in")
		c.Eventually(func() bool { now := lives(c, 0, wiped); return len(now) == 1 && now[0] != old }, "its old life is over")
		c.Eventually(func() bool {
			at, err := c.Node(0).DescribeCluster(t.Context())
			return err == nil && len(at.Moves) == 0
		}, "nothing moves any more")
		load.Stop()
		for i := range c.Size() {
			require.Equal(t, 3, holds(c, i, "orders"), "of 12 replicas on 4 nodes")
			l.Verify(i)
		}
	})
}

// A disk is lost before the cluster could raise its version, and without that no
// node is taken in: what the new life of the node says counts for its name.
//
// Property: J17, C9 (red: the version waits ten minutes for a life that is over; a heartbeat of before, which version 1 cannot record, kept its place)
func TestADiskIsLostBeforeTheVersionIsRaised(t *testing.T) {
	k := &capped{versions: map[string]uint64{"node-3": 1}}
	testcluster.Run(t, testcluster.Options{Seed: 67, Config: k.config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(20 * time.Second)
		require.EqualValues(t, 1, version(c, 0))
		c.PowerLoss(2)
		c.Wipe(2)
		c.Sleep(3 * time.Minute)
		require.EqualValues(t, 1, version(c, 0), "it may come back as it was")
		k.versions = nil
		c.Start(2)
		c.Eventually(func() bool { return c.Node(2).Readiness().Ready() }, "it is taken in")
		require.GreaterOrEqual(t, version(c, 0), uint64(2))
		c.Eventually(func() bool { return len(lives(c, 0, 2)) == 1 }, "its old life is over")
	})
}
