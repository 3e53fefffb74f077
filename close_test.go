package stele_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// A node that leads everything is closed: others lead at once, far sooner than an
// election would take, and records go on. A voter that is dead is not waited for;
// and when nobody is left to lead, the last one ends all the same. So does a node
// that leads since a moment before, and has not heard of anybody yet.
//
// Property: H10, R16 (red: nothing handed over; a dead voter asked first; one that has just won falls silent at once)
func TestCloseHandsOverAllThatItLeads(t *testing.T) {
	const election = 500 * time.Millisecond // the least that a follower waits
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 52, Config: func(c *stele.Config) { c.NoLeaderRebalance = true }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		_, err := c.Node(0).CreateTopic(t.Context(), "orders", stele.TopicConfig{Partitions: 4, Replicas: 5})
		require.NoError(t, err)
		groups := []stele.TopicPartition{{}}
		for p := range uint32(4) {
			groups = append(groups, stele.TopicPartition{Topic: "orders", Partition: p})
		}
		led := func(by ...int) bool {
			for _, at := range groups[1:] {
				if !slices.Contains(by, leaderOf(c, at)) {
					return false
				}
			}
			return slices.Contains(by, c.MetadataLeader())
		}
		lead := func(i int) {
			for _, at := range groups {
				require.NoError(t, c.Node(i).TransferLeadership(t.Context(), at, c.Member(i).Name))
			}
		}
		leads := func(i int) {
			lead(i)
			c.Eventually(func() bool { return led(i) }, "it leads everything")
			c.Sleep(time.Second)
		}
		closes := func(i int, to ...int) {
			begun := time.Now()
			c.Close(i)
			for !led(to...) {
				require.Less(t, time.Since(begun), election/5, "an election")
				c.Sleep(time.Millisecond)
			}
			require.Less(t, time.Since(begun), election/5)
		}

		c.Sleep(5 * time.Second) // the cluster's version is raised
		for range 5 {            // whatever the last of the transfers has come to
			lead(0)
			closes(0, 1, 2, 3, 4)
			c.Start(0)
			c.WaitReady()
		}
		leads(0)
		closes(0, 1, 2, 3, 4)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 4, 20*time.Millisecond)
		c.Sleep(election / 2)
		require.Greater(t, l.Acked(), 8, "records go on")
		load.Stop()
		c.Start(0)
		c.WaitReady()

		leads(4)
		c.PowerLoss(0)
		c.Sleep(2 * time.Second)
		closes(4, 1, 2, 3)

		leads(3)
		c.PowerLoss(1)
		c.PowerLoss(2)
		begun := time.Now()
		c.Close(3)
		require.Less(t, time.Since(begun), 10*election, "nobody is left to lead")
		c.StartAll()
		for i := range c.Size() {
			l.Verify(i)
		}
	})
}
