package stele_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// Two nodes that no genesis lists are alone for hours: nobody answers them but each
// other. They lose power, wait on, and found nothing. Then the initial members start,
// and the two are members of that cluster, with ids that come after those of the
// founders.
//
// Property: J1 (red: who joins founded a cluster of its own)
func TestNodesThatJoinAreAloneForHours(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 112}, func(c *testcluster.Cluster) {
		t := c.T
		alone := []int{c.Add(), c.Add()}
		each := func(change func(*stele.Config)) {
			for _, i := range alone {
				c.StartWith(i, change)
			}
		}
		askEachOther := func(cfg *stele.Config) {
			for _, i := range alone {
				cfg.Join = append(cfg.Join, c.Member(i).Addr)
			}
		}
		each(askEachOther)
		for range 2 {
			for range 7 {
				c.Sleep(11 * time.Minute)
				for _, i := range alone {
					at := c.Node(i).Status()
					require.Equal(t, stele.Joining, at.Readiness.Code)
					require.Zero(t, at.Node, "it took an id")
					require.Zero(t, at.ClusterID, "it made a cluster")
					require.Empty(t, c.Node(i).Members())
				}
			}
			for _, i := range alone {
				c.PowerLoss(i)
			}
			each(askEachOther)
		}
		c.Start(0)
		c.Sleep(11 * time.Minute)
		require.Equal(t, stele.WaitingForMembers, c.Node(0).Readiness().Code, "nor does one of three found")
		c.StartAll()
		c.WaitReady()
		c.Eventually(func() bool { return seat(c, 0, alone[0]) == stele.SeatVoter && seat(c, 0, alone[1]) == stele.SeatVoter }, "both get a vote")
		id := c.Node(0).Status().ClusterID
		require.NotZero(t, id)
		for _, i := range alone {
			require.Equal(t, id, c.Node(i).Status().ClusterID)
			require.Greater(t, c.Node(i).Status().Node, stele.NodeID(3))
		}
	})
}
