package stele_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// Leadership of the metadata and of a partition is handed over under load, asked
// for on any node, and again; nothing is lost. To a node that is silent it is not.
func TestLeadershipIsHandedOver(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 51, Config: func(c *stele.Config) { c.NoLeaderRebalance = true }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		c.Sleep(5 * time.Second)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 2, 20*time.Millisecond)
		orders := stele.TopicPartition{Topic: "orders", Partition: 1}
		for to := range c.Size() {
			for _, asked := range []int{(to + 1) % c.Size(), to} {
				require.NoError(t, c.Node(asked).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(to).Name))
				require.Equal(t, to, c.MetadataLeader())
				require.NoError(t, c.Node(asked).TransferLeadership(t.Context(), orders, c.Member(to).Name))
				require.Equal(t, to, leaderOf(c, orders))
			}
			before := l.Acked()
			c.Eventually(func() bool { return l.Acked() > before+20 }, "records go on")
		}

		var none *stele.NoMemberError
		require.ErrorAs(t, c.Node(0).TransferLeadership(t.Context(), orders, "nobody"), &none)
		err := c.Node(0).TransferLeadership(t.Context(), stele.TopicPartition{Topic: "orders", Partition: 9}, c.Member(1).Name)
		require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err), "%v", err)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, c.Node(0).TransferLeadership(ended, orders, c.Member(1).Name), context.Canceled)

		down := 0 // 2 leads
		c.PowerLoss(down)
		c.Sleep(2 * time.Second)
		for _, of := range []stele.TopicPartition{{}, orders} {
			err = c.Node(1).TransferLeadership(t.Context(), of, c.Member(down).Name)
			require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err), "%v", err)
		}
		c.Start(down)
		c.WaitReady()
		load.Stop()
		for i := range c.Size() {
			l.Verify(i)
		}
	})
}

// leaderOf is the member that leads a partition, or -1.
func leaderOf(c *testcluster.Cluster, at stele.TopicPartition) int {
	for i := range c.Size() {
		if c.Node(i) == nil {
			continue
		}
		for _, p := range c.Node(i).Status().Partitions {
			if p.Topic == at.Topic && p.Partition == at.Partition && p.Role.IsLeader() {
				return i
			}
		}
	}
	return -1
}
