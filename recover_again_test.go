package stele_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// TestARecoveryAfterARecovery: two of five are left, serve, grow, and lose their
// majority again; a node that joined since is left alone. All that was acknowledged
// and that it held is there, ids are of the second epoch, and the nodes of both
// earlier ones are fenced.
//
// Property: R33 (red: a second recovery led to the epoch of the first; ids had no more than one epoch)
func TestARecoveryAfterARecovery(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 5}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		_, err := c.Node(0).CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: 2, Replicas: 5})
		require.NoError(t, err)
		want := []string{produceTo(c, 0, "orders", 0, 1)}
		c.Sleep(5 * time.Second)
		c.PowerLossAll()

		recoverFrom(c, 0, 1)
		c.Start(0)
		c.Start(1)
		c.WaitReady()
		want = append(want, produceTo(c, 1, "orders", 0, 2))
		fifth, sixth := c.Add(), c.Add()
		c.Start(fifth)
		c.Start(sixth)
		c.WaitReady()
		c.Eventually(func() bool {
			for _, p := range partitions(c, 0, "orders") {
				if len(p.Replicas) < 4 || p.Target != nil {
					return false
				}
			}
			return true
		}, "the new ones have replicas")
		want = append(want, produceTo(c, 0, "orders", 0, 3))
		c.Sleep(20 * time.Second) // the new ones vote
		c.Isolate(sixth)
		c.Eventually(func() bool { return c.MetadataLeader() != sixth }, "the others lead")
		first, err := c.Node(0).CreateTopic(ctx, "first", stele.TopicConfig{Partitions: 8, Replicas: 3})
		require.NoError(t, err, "which it never hears of")
		c.PowerLossAll()
		c.Rejoin(sixth)

		plan := recoverFrom(c, sixth)
		require.Equal(t, [2]uint64{1, 2}, [2]uint64{plan.From, plan.To})
		c.Start(sixth)
		c.WaitReady()
		require.Equal(t, want, readAll(c, sixth, "orders", 0))
		want = append(want, produceTo(c, sixth, "orders", 0, 4))
		second, err := c.Node(sixth).CreateTopic(ctx, "second", stele.TopicConfig{Partitions: 8, Replicas: 1})
		require.NoError(t, err)
		given := map[uint64]bool{}
		for _, topic := range []metastore.Topic{first, second} {
			for _, p := range topic.Partitions {
				ids := []uint64{uint64(p.Group)}
				for _, a := range p.Replicas {
					ids = append(ids, uint64(a.Replica))
				}
				for _, id := range ids {
					require.False(t, given[id], "%d came again", id)
					given[id] = true
				}
			}
		}

		// One of the first epoch knows nobody of the third, but some of the second.
		for _, left := range []struct {
			node  int
			epoch uint64
		}{{0, 1}, {fifth, 1}, {2, 0}} {
			c.Start(left.node)
			c.Eventually(func() bool { return c.Node(left.node).Readiness().Code == stele.Fenced }, "a node of an earlier epoch is fenced")
			var fenced *stele.EpochFencedError
			require.ErrorAs(t, c.Node(left.node).WaitReady(ctx), &fenced)
			require.Equal(t, [2]uint64{left.epoch, 2}, [2]uint64{fenced.Epoch, fenced.Current})
		}
		for _, i := range []int{0, fifth, 2} {
			c.Kill(i)
		}
		for range 2 {
			c.Start(c.Add())
		}
		c.WaitReady()
		cluster, err := c.Node(sixth).DescribeCluster(ctx)
		require.NoError(t, err)
		require.Equal(t, uint64(2), cluster.Epoch)
		require.Len(t, cluster.Recoveries, 2)
		c.Eventually(func() bool { return len(c.Node(sixth).Members()) == 3 }, "who was left behind is no member any more")
		want = append(want, produceTo(c, sixth+1, "orders", 0, 5))
		require.Equal(t, want, readAll(c, sixth+2, "orders", 0))
	})
}

// TestTwoRecoveriesOfOneCluster: two people plan with different survivors, and each
// applies a plan. Both lead to epoch 1, so that there are two clusters of one id and
// epoch. They keep apart, whoever is in them since, and say so; and a later recovery
// is not planned with nodes of both.
//
// Property: R33 (red: the plan was not compared; a node that joined did not say by which plan; nor did its survey; those of the other cluster who spoke not counted)
func TestTwoRecoveriesOfOneCluster(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	registry := prometheus.NewRegistry()
	config := func(cfg *stele.Config) { cfg.Metrics = registry }
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 6, Config: config, Logger: zap.New(core)}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		_, err := c.Node(0).CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: 1, Replicas: 5})
		require.NoError(t, err)
		want := []string{produceTo(c, 0, "orders", 0, 1)}
		c.Sleep(5 * time.Second)
		c.PowerLossAll()
		one, other := planFrom(c, 0, 1), planFrom(c, 2)
		require.Equal(t, one.To, other.To)
		for _, i := range []int{0, 1} {
			require.NoError(t, stele.ApplyRecovery(c.Config(i), one))
		}
		require.NoError(t, stele.ApplyRecovery(c.Config(2), other))
		require.ErrorIs(t, stele.ApplyRecovery(c.Config(2), one), stele.ErrRefused)
		c.Recovered(0, 1)
		c.Start(0)
		c.Start(1)
		c.WaitReady()
		joined := c.Add() // asks all, and one cluster answers
		c.Start(joined)
		c.WaitReady()
		c.Recovered(2)
		c.Start(2)
		for _, i := range []int{0, 1, 2, joined} {
			c.Eventually(func() bool { return c.Node(i).Readiness().Ready() }, "both serve")
		}
		ofOne := append([]string{}, append(want, produceTo(c, joined, "orders", 0, 2))...)
		ofOther := append([]string{}, append(want, produceTo(c, 2, "orders", 0, 3))...)
		c.Sleep(2 * time.Minute)
		for _, i := range []int{0, 1, joined} {
			require.True(t, c.Node(i).Readiness().Ready())
			require.Equal(t, ofOne, readAll(c, i, "orders", 0))
			require.Len(t, c.Node(i).Members(), 3, "the other ones are left behind")
		}
		require.True(t, c.Node(2).Readiness().Ready())
		require.Equal(t, ofOther, readAll(c, 2, "orders", 0))

		// The one that joined loses sight of its cluster, and asks for it at the other.
		members := len(c.Node(2).Members())
		c.Isolate(joined)
		c.Net.Heal(c.Member(joined).Addr, c.Member(2).Addr)
		c.Net.Heal(c.Member(2).Addr, c.Member(joined).Addr)
		c.Sleep(time.Minute)
		require.Len(t, c.Node(2).Members(), members, "it was taken in")
		c.Rejoin(joined)
		c.Eventually(func() bool { return c.Node(joined).Readiness().Ready() }, "it is back")
		by := map[any]bool{}
		for _, e := range logs.FilterMessageSnippet("another forced recovery").All() {
			by[e.ContextMap()["node"]] = true
		}
		require.True(t, by[c.Member(2).Name], "it did not say so: %v", by)
		require.NotZero(t, gathered(t, registry, "stele_rival_peers_total"))

		c.PowerLossAll()
		var surveys []stele.Survey
		for _, i := range []int{joined, 2} {
			s, err := stele.SurveyDir(c.Config(i))
			require.NoError(t, err)
			require.Equal(t, uint64(1), s.Epoch)
			surveys = append(surveys, s)
		}
		require.NotEqual(t, surveys[0].Plan, surveys[1].Plan)
		_, err = stele.PlanRecovery(surveys...)
		var refused *stele.RecoveryError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, stele.RefusedMixed, refused.Code)
	})
}

// TestPowerFailsAtEveryMomentOfARecovery: the plan is applied to the same directory
// anew for each operation of the file system, before which power fails. What is left
// is the directory of before, or one that no node opens; and the plan, applied again,
// makes of it what it says.
//
// Property: R33 (red: IDENTITY did not say that a recovery has begun; a replica that was forced already was taken for another one)
func TestPowerFailsAtEveryMomentOfARecovery(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 3, Seed: 7}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		value := produceTo(c, 0, "orders", 0, 1)
		c.Sleep(time.Second)
		c.PowerLossAll()
		plan := planFrom(c, 2)
		begun := c.Member(2).FS
		moments, opened := 0, 0
		for at := int64(1); ; at++ {
			fs := begun.Image(simfs.Kill)
			c.Member(2).FS = fs
			fs.SetHook(simfs.CrashAt(fs.Ops() + at))
			err := stele.ApplyRecovery(c.Config(2), plan)
			fs.SetHook(nil)
			if err == nil {
				break
			}
			moments++
			c.Member(2).FS = fs.Crash(simfs.Random)
			node, err := stele.Open(t.Context(), c.Config(2))
			if err == nil {
				opened++
				require.NotEqual(t, stele.Ready, node.Readiness().Code)
				require.NoError(t, node.Close(t.Context()))
				c.Member(2).FS = fs.Crash(simfs.Random) // it may have been elected to nothing, but its term may have risen
			} else {
				var recovering *stele.RecoveringError
				require.ErrorAs(t, err, &recovering, "operation %d", at)
			}
			require.NoError(t, stele.ApplyRecovery(c.Config(2), plan), "operation %d", at)
			s, err := stele.SurveyDir(c.Config(2))
			require.NoError(t, err)
			require.Equal(t, [2]any{uint64(1), plan.ID}, [2]any{s.Epoch, s.Plan}, "operation %d", at)
		}
		require.Greater(t, moments, 15)
		require.Less(t, opened, moments)
		c.Recovered(2)
		c.Start(2)
		c.WaitReady()
		require.Equal(t, []string{value}, readAll(c, 2, "orders", 0))
	})
}
