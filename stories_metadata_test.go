package stele_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// The metadata of one node are damaged on its disk, so that a topic that lives is
// dead in them, and it leads when a fourth node joins and asks it for all of them. It
// gives none: it stops over that, with an error that says what helps, and the fourth
// node gets from the next leader what the others have. Its copy of the records is
// there, aside; nothing is destroyed. It is not opened again, and comes back as a node
// whose disk was replaced.
//
// Property: X5 (red: one node was believed about removals: all replicas of the topic stopped; the sender gave what it had; a dissent was none)
func TestDamagedMetadataDoNotSpread(t *testing.T) {
	s := newSweeps()
	var mu sync.Mutex
	failed := map[string]error{}
	config := func(cfg *stele.Config) {
		s.config(cfg)
		name := cfg.Name
		cfg.Events.NodeFailed = func(err error) {
			mu.Lock()
			defer mu.Unlock()
			failed[name] = err
		}
		cfg.NoRebalance = true
		cfg.MetadataCheckInterval = 24 * time.Hour // so that it is the asking
	}
	testcluster.Run(t, testcluster.Options{Seed: 145, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		made := created(c, "orders")
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 2, 100*time.Millisecond)
		c.Sleep(10 * time.Second)
		load.Stop()
		const bad = 1
		c.Eventually(func() bool { return segments(t, c.Member(bad).FS, made.Incarnation) > 0 }, "written")
		before := segments(t, c.Member(bad).FS, made.Incarnation)
		c.Close(bad)
		c.Damaged(bad)
		bury(t, c.Member(bad).FS, made.Incarnation, "orders")
		c.Start(bad)
		for range 20 {
			if c.MetadataLeader() == bad {
				break
			}
			_ = c.Node(0).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(bad).Name)
			c.Sleep(2 * time.Second)
		}
		require.Equal(t, bad, c.MetadataLeader())
		require.True(t, c.Node(bad).Readiness().Ready(), "it does not know")

		joined := c.Add()
		c.Start(joined)
		c.Eventually(func() bool { return c.Node(bad).Readiness().Code == stele.Failed }, "it has stopped")
		require.ErrorIs(t, c.Node(bad).WaitReady(t.Context()), metastore.ErrStateDiverged)
		require.Contains(t, c.Node(bad).Readiness().Reason, "move this node's directory away")
		c.WaitReadyBut(bad)
		for _, i := range []int{0, 2, joined} {
			got, err := c.Node(i).DescribeTopic(t.Context(), "orders")
			require.NoError(t, err)
			require.Equal(t, made.Incarnation, got.Incarnation)
			require.Zero(t, s.reclaimed(c.Member(i).Name))
		}
		l.Verify(0)
		l.Verify(2)
		mu.Lock()
		require.ErrorIs(t, failed[c.Member(bad).Name], metastore.ErrStateDiverged)
		require.Len(t, failed, 1)
		mu.Unlock()
		require.Zero(t, s.reclaimed(c.Member(bad).Name))
		require.GreaterOrEqual(t, segments(t, c.Member(bad).FS, made.Incarnation), before, "its copy is there")

		c.Kill(bad)
		require.ErrorIs(t, c.Open(bad), metastore.ErrStateDiverged)
		require.GreaterOrEqual(t, segments(t, c.Member(bad).FS, made.Incarnation), before)
		c.Wipe(bad)
		c.Start(bad)
		c.Eventually(func() bool { return c.Node(bad).Readiness().Ready() }, "it is taken in")
		c.Eventually(func() bool { return len(lives(c, 0, bad)) == 1 }, "its old life is over")
		l.Verify(0)
		require.Positive(t, gathered(t, s.registry, "stele_metadata_checks_total"))
	})
}
