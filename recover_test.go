package stele_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
)

// recoverFrom forces a recovery from members that do not run: each is surveyed,
// and the plan applied to each, as a person would carry them between machines.
func recoverFrom(c *testcluster.Cluster, left ...int) *stele.RecoveryPlan {
	c.T.Helper()
	plan := planFrom(c, left...)
	for _, i := range left {
		require.NoError(c.T, stele.ApplyRecovery(c.Config(i), plan), "%s", c.Member(i).Name)
	}
	c.Recovered(left...)
	return plan
}

func planFrom(c *testcluster.Cluster, left ...int) *stele.RecoveryPlan {
	c.T.Helper()
	var surveys []stele.Survey
	for _, i := range left {
		s, err := stele.SurveyDir(c.Config(i))
		require.NoError(c.T, err, "survey of %s", c.Member(i).Name)
		carried(c.T, &s)
		surveys = append(surveys, s)
	}
	plan, err := stele.PlanRecovery(surveys...)
	require.NoError(c.T, err)
	carried(c.T, plan)
	return plan
}

// carried is what a value is on another machine.
func carried[T any](t *testing.T, v *T) {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	var got T
	require.NoError(t, json.Unmarshal(b, &got))
	again, err := json.Marshal(got)
	require.NoError(t, err)
	require.Equal(t, string(b), string(again))
	*v = got
}

// produceTo appends a record through member i, and returns what it was.
func produceTo(c *testcluster.Cluster, i int, topic string, partition uint32, n int) string {
	c.T.Helper()
	p, err := c.Node(i).NewProducer(stele.ProducerConfig{})
	require.NoError(c.T, err)
	ctx, cancel := context.WithTimeout(c.T.Context(), time.Minute)
	defer cancel()
	value := fmt.Sprintf("%s/%d: %d", topic, partition, n)
	_, err = p.ProduceTo(ctx, topic, partition, stele.Record{Value: []byte(value)})
	require.NoError(c.T, err, value)
	require.NoError(c.T, p.Close(ctx))
	return value
}

// readAll returns the values in a partition, as member i reads it.
func readAll(c *testcluster.Cluster, i int, topic string, partition uint32) (values []string) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), time.Minute)
	defer cancel()
	r, err := c.Node(i).NewReader(ctx, stele.TopicPartition{Topic: topic, Partition: partition}, stele.FromStart())
	require.NoError(c.T, err)
	defer r.Close()
	short, end := context.WithTimeout(ctx, 10*time.Second)
	defer end()
	for rec, err := range r.Records(short) {
		if err != nil {
			require.ErrorIs(c.T, err, context.DeadlineExceeded)
			break
		}
		values = append(values, string(rec.Value))
	}
	return values
}

// TestOneOfThreeIsLeft is the smallest recovery, with all that follows: the one
// that is left serves what it had, others join, and what has too few replicas gets
// them back; those that were left behind are fenced, and say so.
//
// Property: R33 (red: epochs were not compared; that a node is fenced was not noted in its directory)
func TestOneOfThreeIsLeft(t *testing.T) {
	var met sync.Map // names of those that came back
	registry := prometheus.NewRegistry()
	config := func(cfg *stele.Config) {
		cfg.Metrics = registry
		cfg.Events.PeerFenced = func(p stele.FencedPeer) { met.Store(p.Name, p.Epoch) }
	}
	testcluster.Run(t, testcluster.Options{Nodes: 3, Seed: 1, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		_, err := c.Node(0).CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: 2, Replicas: 3})
		require.NoError(t, err)
		want := []string{produceTo(c, 0, "orders", 0, 1), produceTo(c, 1, "orders", 0, 2)}
		c.Sleep(5 * time.Second) // the third replica, the one that is left, may hold them later than the quorum
		c.PowerLossAll()

		_, err = stele.SurveyDir(c.Config(0))
		require.NoError(t, err)
		plan := recoverFrom(c, 2)
		require.Len(t, plan.LeftBehind, 2)
		require.Len(t, plan.Forced, 2)
		require.Empty(t, plan.Lost)
		c.Start(2)
		c.WaitReady()
		require.Equal(t, want, readAll(c, 2, "orders", 0))
		want = append(want, produceTo(c, 2, "orders", 0, 3))

		c.Start(0)
		c.Start(1)
		for i := range 2 {
			c.Eventually(func() bool { return c.Node(i).Readiness().Code == stele.Fenced }, "a node of the old epoch is fenced")
			var fenced *stele.EpochFencedError
			require.ErrorAs(t, c.Node(i).WaitReady(ctx), &fenced)
			require.Equal(t, [2]uint64{0, 1}, [2]uint64{fenced.Epoch, fenced.Current})
			require.ErrorIs(t, fenced, stele.ErrRefused)
			require.NotZero(t, gathered(t, registry, "stele_fenced"))
			_, err := c.Node(i).NewProducer(stele.ProducerConfig{})
			require.ErrorAs(t, err, &fenced)
			c.Close(i)
			c.Start(i)
			require.Equal(t, stele.Fenced, c.Node(i).Readiness().Code, "it knows at its next start")
			c.Close(i)
		}
		require.Equal(t, stele.Ready, c.Node(2).Readiness().Code)
		for _, name := range []string{"node-1", "node-2"} {
			epoch, ok := met.Load(name)
			require.True(t, ok, "%s was told of", name)
			require.Equal(t, uint64(0), epoch)
		}
		require.GreaterOrEqual(t, gathered(t, registry, "stele_fenced_peers_total"), 2.0)

		for range 2 {
			c.Start(c.Add())
		}
		c.WaitReady()
		c.Eventually(func() bool {
			topics, err := c.Node(2).ListTopics(ctx)
			require.NoError(t, err)
			return len(topics[0].Partitions[0].Replicas) == 3 && len(topics[0].Partitions[1].Replicas) == 3
		}, "the partitions have all their replicas again")
		c.Eventually(func() bool { return len(c.Node(2).Members()) == 3 }, "who was left behind is no member any more")
		want = append(want, produceTo(c, 3, "orders", 0, 4))
		require.Equal(t, want, readAll(c, 4, "orders", 0))

		cluster, err := c.Node(2).DescribeCluster(ctx)
		require.NoError(t, err)
		require.Equal(t, uint64(1), cluster.Epoch)
		require.True(t, cluster.Recoveries[0].DestructionHeld)
		require.NoError(t, c.Node(3).EndHold(ctx, 1))
		cluster, err = c.Node(2).DescribeCluster(ctx)
		require.NoError(t, err)
		require.False(t, cluster.Recoveries[0].DestructionHeld)
	})
}

// TestTwoOfFiveAreLeft: the two are cut off, the others go on and give out ids,
// then all lose power and three never come back. Of what the two knew nothing is
// lost, nothing that the others gave out comes again, and when they return, all at
// one moment and with one of the two in reach, nobody is harmed.
//
// Property: R33 (red: epochs were not compared)
func TestTwoOfFiveAreLeft(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 2}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		const partitions = 10
		_, err := c.Node(0).CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: partitions, Replicas: 3})
		require.NoError(t, err)
		want := map[uint32][]string{}
		for p := range uint32(partitions) {
			want[p] = append(want[p], produceTo(c, int(p)%5, "orders", p, 1), produceTo(c, int(p+1)%5, "orders", p, 2))
		}
		before, err := c.Node(0).NewProducer(stele.ProducerConfig{Name: "billing"})
		require.NoError(t, err)
		_, err = before.ProduceTo(ctx, "orders", 0, stele.Record{Value: []byte("orders/0: named")})
		require.NoError(t, err)
		want[0] = append(want[0], "orders/0: named")
		c.Sleep(5 * time.Second)

		// The lost suffix: topics, replicas and producers that the two never hear of.
		c.Isolate(0)
		c.Isolate(1)
		c.Net.Heal(c.Member(0).Addr, c.Member(1).Addr)
		c.Net.Heal(c.Member(1).Addr, c.Member(0).Addr)
		c.Eventually(func() bool { return c.MetadataLeader() > 1 }, "the three lead")
		lost := map[uint64]bool{}
		short, end := context.WithTimeout(ctx, 5*time.Second)
		_, err = c.Node(2).CreateTopic(short, "gone", stele.TopicConfig{Partitions: 7, Replicas: 3})
		end()
		require.ErrorIs(t, err, stele.ErrOutcomeUnknown, "some partitions are without a leader")
		gone, err := c.Node(2).DescribeTopic(ctx, "gone")
		require.NoError(t, err)
		for _, p := range gone.Partitions {
			lost[uint64(p.Group)] = true
			for _, a := range p.Replicas {
				lost[uint64(a.Replica)] = true
			}
		}
		c.PowerLossAll()

		plan := recoverFrom(c, 0, 1)
		require.Len(t, plan.LeftBehind, 3)
		require.Equal(t, partitions, plan.Partitions(), "of the topic that the two know")
		require.True(t, plan.Kept > 0 && len(plan.Forced) > 0 && len(plan.Lost) > 0, "%+v", plan)
		c.Rejoin(0)
		c.Rejoin(1)
		c.Start(0)
		c.Start(1)
		c.WaitReady()
		for p := range uint32(partitions) {
			if !isLost(plan, p) {
				got := readAll(c, int(p)%2, "orders", p)
				require.Equal(t, want[p], got[:min(len(got), len(want[p]))], "partition %d: all that was acknowledged while the two were there", p)
				want[p] = append(got, produceTo(c, int(p)%2, "orders", p, 3))
			}
		}
		require.Len(t, c.Node(0).Status().Lost, len(plan.Lost))
		for _, g := range plan.Lost {
			require.Contains(t, c.Node(1).Status().Lost, stele.TopicPartition{Topic: "orders", Partition: g.Partition})
			var none *stele.NoLeaderError
			p, err := c.Node(0).NewProducer(stele.ProducerConfig{})
			require.NoError(t, err)
			short, end := context.WithTimeout(ctx, 15*time.Second)
			_, err = p.ProduceTo(short, "orders", g.Partition, stele.Record{Value: []byte("to nobody")})
			end()
			require.True(t, errors.As(err, &none) || errors.Is(err, context.DeadlineExceeded), "%v", err)
			require.NotErrorIs(t, err, stele.ErrRefused)
			require.ErrorContains(t, err, "copy the other partitions of its topic elsewhere")
			short, end = context.WithTimeout(ctx, 15*time.Second)
			_, err = c.Node(0).NewReader(short, stele.TopicPartition{Topic: "orders", Partition: g.Partition}, stele.FromStart())
			end()
			require.ErrorContains(t, err, "copy the other partitions of its topic elsewhere")
			break // they are all alike
		}
		fresh, err := c.Node(1).CreateTopic(ctx, "fresh", stele.TopicConfig{Partitions: 20, Replicas: 2})
		require.NoError(t, err)
		for _, p := range fresh.Partitions {
			require.False(t, lost[uint64(p.Group)], "%v came again", p.Group)
			for _, a := range p.Replicas {
				require.False(t, lost[uint64(a.Replica)], "%v came again", a.Replica)
				require.Contains(t, []stele.NodeID{1, 2}, a.Node)
			}
		}

		// The three return at once. They are a majority of the old epoch, and one of
		// them reaches one of the two.
		term := c.Node(0).Status().Metadata.Term
		for i := 2; i < 5; i++ {
			c.Isolate(i)
			for k := 2; k < 5; k++ {
				c.Net.Heal(c.Member(i).Addr, c.Member(k).Addr)
				c.Net.Heal(c.Member(k).Addr, c.Member(i).Addr)
			}
		}
		for i := 2; i < 5; i++ {
			c.Start(i)
		}
		c.Net.Heal(c.Member(2).Addr, c.Member(0).Addr)
		c.Net.Heal(c.Member(0).Addr, c.Member(2).Addr)
		for i := 2; i < 5; i++ {
			c.Eventually(func() bool { return c.Node(i).Readiness().Code == stele.Fenced }, "all of the old epoch are fenced")
		}
		for i := 2; i < 5; i++ {
			c.Rejoin(i)
		}
		c.Sleep(time.Minute)
		for i := 2; i < 5; i++ {
			require.Equal(t, stele.Fenced, c.Node(i).Readiness().Code)
			c.Kill(i)
		}
		require.Equal(t, term, c.Node(0).Status().Metadata.Term, "nobody raised the term")
		require.Equal(t, stele.Ready, c.Node(0).Readiness().Code)
		require.Equal(t, stele.Ready, c.Node(1).Readiness().Code)

		// It grows again.
		for range 2 {
			c.Start(c.Add())
		}
		c.WaitReady()
		c.Eventually(func() bool {
			topics, err := c.Node(0).ListTopics(ctx)
			require.NoError(t, err)
			for _, topic := range topics {
				for _, p := range topic.Partitions {
					if n := len(p.Replicas); n > 0 && n < int(topic.Config.Replicas) {
						return false
					}
				}
			}
			return true
		}, "every partition that is left has all its replicas")
		c.Eventually(func() bool { return len(c.Node(0).Members()) == 4 }, "who was left behind is no member any more")
		for p := range uint32(partitions) {
			if !isLost(plan, p) {
				require.Equal(t, want[p], readAll(c, 5, "orders", p))
			}
		}
		require.NoError(t, c.Node(1).DeleteTopic(ctx, "orders"), "with partitions that are lost")
	})
}

func isLost(plan *stele.RecoveryPlan, partition uint32) bool {
	for _, g := range plan.Lost {
		if g.Partition == partition {
			return true
		}
	}
	return false
}

// TestAPartitionLosesItsMajority: three of five nodes are left and serve, but some
// partitions had two of three replicas on the lost ones. They are recovered with all
// that was acknowledged, and the others go on as they are.
//
// Property: R33 (red: a majority of the metadata was enough to refuse)
func TestAPartitionLosesItsMajority(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 4}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		const partitions = 10
		_, err := c.Node(0).CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: partitions, Replicas: 3})
		require.NoError(t, err)
		want := map[uint32][]string{}
		for p := range uint32(partitions) {
			want[p] = append(want[p], produceTo(c, int(p)%5, "orders", p, 1))
		}
		c.Sleep(5 * time.Second)
		c.PowerLossAll()
		plan := recoverFrom(c, 0, 1, 2)
		require.Len(t, plan.LeftBehind, 2)
		require.Empty(t, plan.Lost)
		require.True(t, len(plan.Forced) > 0 && plan.Kept > 0, "%+v", plan)
		for i := range 3 {
			c.Start(i)
		}
		c.WaitReady()
		for p := range uint32(partitions) {
			want[p] = append(want[p], produceTo(c, int(p)%3, "orders", p, 2))
		}
		c.Start(c.Add())
		c.WaitReady()
		c.Eventually(func() bool {
			topics, err := c.Node(0).ListTopics(ctx)
			require.NoError(t, err)
			for _, p := range topics[0].Partitions {
				if len(p.Replicas) != 3 || p.Target != nil {
					return false
				}
			}
			return len(c.Node(0).Members()) == 4
		}, "every partition has three replicas again, and who was left behind is no member")
		for p := range uint32(partitions) {
			require.Equal(t, want[p], readAll(c, int(p)%3, "orders", p))
		}
	})
}

// TestRecoveryIsInterrupted: power fails at operations of the file system while a
// plan is applied, and again while it is applied once more. Until it is done no
// node opens the directory, or one of the old epoch does, unchanged; afterwards
// the cluster is what it would have been.
//
// Property: R33 (red: IDENTITY did not say that a recovery has begun)
func TestRecoveryIsInterrupted(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 3}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		_, err := c.Node(0).CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: 5, Replicas: 5})
		require.NoError(t, err)
		value := produceTo(c, 0, "orders", 0, 1)
		c.Sleep(time.Second)
		c.PowerLossAll()
		plan := planFrom(c, 0, 1)
		for _, i := range []int{0, 1} {
			cuts := 0
			for at := int64(1 + i); ; at += 7 {
				fs := c.Member(i).FS
				from := fs.Ops()
				fs.SetHook(simfs.CrashAt(from + at))
				err := stele.ApplyRecovery(c.Config(i), plan)
				fs.SetHook(nil)
				if err == nil {
					break
				}
				cuts++
				c.Member(i).FS = fs.Crash(simfs.Random)
				if at%3 == 0 {
					continue // once more with what this attempt left
				}
				node, err := stele.Open(ctx, c.Config(i))
				var recovering *stele.RecoveringError
				if err != nil {
					require.ErrorAs(t, err, &recovering, "operation %d", at)
					require.ErrorIs(t, err, stele.ErrRefused)
					continue
				}
				require.NotEqual(t, stele.Ready, node.Readiness().Code)
				require.NoError(t, node.Close(ctx))
			}
			require.Greater(t, cuts, 3, "%s", c.Member(i).Name)
			require.NoError(t, stele.ApplyRecovery(c.Config(i), plan), "once more is harmless")
		}
		c.Recovered(0, 1)
		c.Start(0)
		c.Start(1)
		c.WaitReady()
		require.Equal(t, []string{value}, readAll(c, 1, "orders", 0))
		produceTo(c, 0, "orders", 0, 2)
		c.Eventually(func() bool {
			seats := 0
			for _, m := range c.Node(0).Members() {
				if m.Seat == stele.SeatVoter {
					seats++
				}
			}
			return seats == 2
		}, "both vote")
	})
}
