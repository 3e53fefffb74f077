package stele_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// A member moves while the cluster cannot agree on anything, because another one
// is down and its own vote is needed: the others answer where it speaks from, and
// once they have a leader all agree on its new address.
//
// Property: R15, J8 (red: frames answered at the address that the metadata say)
func TestAMemberMovesWhileNobodyLeads(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 61}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(5 * time.Second) // the cluster's version is raised
		moves, stays, lost := c.MetadataLeader(), (c.MetadataLeader()+1)%3, (c.MetadataLeader()+2)%3
		c.Kill(moves)
		c.PowerLoss(lost)
		c.MoveTo(moves, "elsewhere:7942")
		c.Start(moves)
		at := func(i int) string { return c.Node(i).Members()[moves].Addr }
		c.Eventually(func() bool { return c.Node(stays).Readiness().Ready() && c.Node(moves).Readiness().Ready() }, "they elect")
		c.Eventually(func() bool { return at(stays) == "elsewhere:7942" && at(moves) == "elsewhere:7942" }, "they agree")
		c.Start(lost)
		c.Eventually(func() bool { return c.Node(lost).Readiness().Ready() && at(lost) == "elsewhere:7942" }, "the third one hears of it")
		require.Len(t, c.Node(lost).Members(), 3)
	})
}

// A member that lost its disk starts with the addresses of its configuration, of
// which one is old: what that node says of itself is believed.
//
// Property: J8 (red: the configuration of a node that joined believed before the node that it speaks of)
func TestAnOldConfigurationIsNotBelieved(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 63}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(5 * time.Second) // the cluster's version is raised
		old := c.Config(0)
		c.Kill(2)
		c.MoveTo(2, "elsewhere:7942")
		c.Start(2)
		c.Eventually(func() bool { return c.Node(1).Members()[2].Addr == "elsewhere:7942" }, "the others know")
		c.Kill(0)
		c.Wipe(0)
		c.StartWith(0, func(cfg *stele.Config) { cfg.InitialMembers = old.InitialMembers })
		c.Eventually(func() bool { return c.Node(0).Readiness().Ready() }, "it is taken in")
		require.NoError(t, c.Node(0).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(2).Name))
		c.Eventually(func() bool { return c.Node(0).Readiness().Ready() }, "it follows")
		c.Eventually(func() bool {
			for _, m := range c.Node(0).Members() {
				if m.Name == c.Member(2).Name {
					return m.Addr == "elsewhere:7942"
				}
			}
			return false
		}, "it knows too")
	})
}

// A member that lost its disk leads, with a configuration that has old addresses,
// when another one loses its disk and comes back elsewhere: the leader speaks to it
// where it said that it is.
//
// Property: J17 (red: the configuration believed before what a life said when it joined, and its calls not listened to)
func TestALifeThatJoinedIsWhereItSaid(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 64}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Sleep(5 * time.Second) // the cluster's version is raised
		c.Kill(0)
		c.Wipe(0)
		c.Start(0)
		c.Eventually(func() bool {
			return c.Node(0).Readiness().Ready() && seat(c, 1, 0) == stele.SeatVoter && len(lives(c, 1, 0)) == 1
		}, "it has its place")
		require.NoError(t, c.Node(0).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(0).Name))
		c.Kill(1)
		c.Wipe(1)
		c.MoveTo(1, "elsewhere:7942")
		c.Start(1)
		c.Eventually(func() bool { return c.Node(1).Readiness().Ready() && seat(c, 0, 1) == stele.SeatVoter }, "it is taken in")
	})
}
