package stele_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// A node whose name differs from a member's only in the case of letters is not let
// in, however long that member is heard or not, and says why.
//
// Property: J17 (red: it was refused for good with the name of a member that it does not have, which let it in)
func TestANameThatLooksLikeAnothersIsNotLetIn(t *testing.T) {
	config := func(cfg *stele.Config) {
		if cfg.Name == "node-4" {
			cfg.Name = "NODE-1"
		}
	}
	testcluster.Run(t, testcluster.Options{Seed: 66, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(5 * time.Second) // the cluster's version is raised
		fourth := c.Add()
		c.Start(fourth)
		for range 10 {
			c.Sleep(10 * time.Second)
			r := c.Node(fourth).Readiness()
			require.Equal(t, stele.Joining, r.Code)
			require.Contains(t, r.Reason, "differs only in the case of letters")
			require.Len(t, c.Node(1).Members(), 3)
		}
		c.PowerLoss(0) // also when the other one is dead
		c.Sleep(2 * time.Minute)
		require.Len(t, c.Node(1).Members(), 3)
		require.Equal(t, stele.Joining, c.Node(fourth).Readiness().Code)
	})
}

// A new node is given the name of a healthy one by mistake. That one is never evicted:
// the new one is refused for good as soon as the healthy one was heard again, also
// when it asks again later, while the other one is down and somebody else leads.
//
// Property: J17 (red: admitted at once; the refusal was not kept)
func TestAMistypedNameEvictsNobody(t *testing.T) {
	config := func(cfg *stele.Config) {
		if cfg.Name == "node-4" {
			cfg.Name = "node-3"
		}
	}
	testcluster.Run(t, testcluster.Options{Seed: 133, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		const healthy = 2
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		l := c.NewLedger("orders")
		load := l.StartLoad(healthy, 1, time.Second)
		c.Sleep(40 * time.Second) // whoever leads has led for long enough to replace somebody
		node := c.Node(healthy).Status().Node
		stays := func(at int) {
			t.Helper()
			require.Equal(t, []stele.NodeID{node}, lives(c, at, healthy))
			require.Equal(t, stele.SeatVoter, seat(c, at, healthy))
			require.Len(t, c.Node(at).Members(), 3)
		}
		mistyped := c.Add()
		c.Start(mistyped)
		c.Eventually(func() bool { return c.Node(mistyped).Readiness().Code == stele.Removed }, "it is refused")
		require.Contains(t, c.Node(mistyped).Readiness().Reason, "another name")
		stays(0)
		c.Sleep(20 * time.Second)
		stays(1)
		require.True(t, c.Node(healthy).Readiness().Ready())
		load.Stop()

		c.Kill(mistyped)
		c.PowerLoss(healthy)
		c.Eventually(func() bool { return c.MetadataLeader() >= 0 }, "somebody leads")
		next := c.MetadataLeader()
		require.NoError(t, c.Node(1-next).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(1-next).Name))
		c.Sleep(40 * time.Second) // it is silent for long enough to be replaced
		c.Start(mistyped)
		c.Sleep(10 * time.Second)
		require.Equal(t, stele.Removed, c.Node(mistyped).Readiness().Code, "refused for good")
		stays(0)
		c.Start(healthy)
		c.WaitReadyBut(mistyped)
		require.Equal(t, node, c.Node(healthy).Status().Node)
		stays(1)
		l.Verify(healthy)
	})
}
