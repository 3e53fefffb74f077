package topic_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// span is an operation that a host was told of.
type span struct {
	topic.Operation
	inside *span
	ends   int
	err    error
}

type spanKey struct{}

// spans are what a host was told, by all nodes.
type spans struct {
	mu  sync.Mutex
	all []*span
}

func (s *spans) trace(ctx context.Context, op topic.Operation) (context.Context, func(error)) {
	inside, _ := ctx.Value(spanKey{}).(*span)
	made := &span{Operation: op, inside: inside}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, made)
	return context.WithValue(ctx, spanKey{}, made), func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		made.ends++
		made.err = err
	}
}

// check reports what is not as Operation says.
func (s *spans) check(t *testing.T) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]int{}
	for _, x := range s.all {
		names[x.Name]++
		require.Equal(t, 1, x.ends, "%+v", x)
		switch x.Name {
		case topic.OpForward:
			require.NotNil(t, x.inside, "%+v", x)
			require.Equal(t, topic.OpProduce, x.inside.Name)
		case topic.OpCommit:
			require.NotNil(t, x.inside, "%+v", x)
			require.Contains(t, []string{topic.OpProduce, topic.OpForward}, x.inside.Name)
			if x.inside.Name == topic.OpForward {
				require.Equal(t, x.inside.Leader, x.Leader)
				require.Equal(t, x.inside.Records, x.Records)
			}
		default:
			require.Nil(t, x.inside, "%+v", x)
		}
		if x.Name == topic.OpForward || x.Name == topic.OpCommit {
			require.GreaterOrEqual(t, x.Partition, 0)
			require.Positive(t, x.Records)
			require.Greater(t, x.Bytes, 80)
			require.NotZero(t, x.Leader)
		}
	}
	return names
}

// Property: L2 (red: an attempt that was given up had no end)
func TestSpansAreBalanced(t *testing.T) {
	for seed := range runs(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s spans
				x := newChaosWith(t, 2000+seed, func(cfg *topic.Config) { cfg.Trace = s.trace })
				rng := rand.New(rand.NewPCG(seed, 3))
				x.loss = 0.02
				for _, n := range x.running() {
					x.load(n, seed)
				}
				for range 4 {
					pass(time.Duration(rng.IntN(1500)) * time.Millisecond)
					x.disturb(rng, seed)
				}
				x.stop()
				x.work.Wait()
				x.verify()
				require.NoError(t, x.node(1).topics.DeleteTopic(t.Context(), "orders"))
				for _, n := range x.running() {
					x.crash(n.id, 0)
				}
				synctest.Wait()
				names := s.check(t)
				require.Equal(t, []string{topic.OpCommit, topic.OpCreateTopic, topic.OpDeleteTopic, topic.OpFetch, topic.OpForward, topic.OpProduce}, slices.Sorted(maps.Keys(names)))
				t.Log(names)
			})
		})
	}
}

// TestSpansSayWhatHappens: one call of each kind, with its attributes and its
// outcome.
func TestSpansSayWhatHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s spans
		c := newCluster(t, 4, 1)
		c.config = func(cfg *topic.Config) { cfg.Trace = s.trace }
		c.startAll()
		made, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Replicas: 3})
		require.NoError(t, err)
		leader := c.leader("orders", 0)
		p := producer(t, c.outside(made.Partitions[0]), topic.ProducerConfig{})
		_, err = p.ProduceTo(t.Context(), "orders", 0, record("1"), record("22"))
		require.NoError(t, err)
		_, err = p.ProduceTo(t.Context(), "orders", 7, record("1"))
		require.ErrorIs(t, err, raftlog.ErrRefused)
		pass(time.Second)
		s.check(t)
		find := func(name string) *span {
			i := slices.IndexFunc(s.all, func(x *span) bool { return x.Name == name && x.err == nil })
			require.GreaterOrEqual(t, i, 0, name)
			return s.all[i]
		}
		require.Equal(t, topic.Operation{Name: topic.OpProduce, Topic: "orders", Partition: 0, Records: 2, Bytes: 3}, find(topic.OpProduce).Operation)
		commit := find(topic.OpCommit)
		forward := commit.inside // one before it may have gone where there is no leader
		require.Equal(t, topic.OpForward, forward.Name)
		require.Equal(t, topic.Operation{Name: topic.OpForward, Topic: "orders", Records: 2, Bytes: forward.Bytes, Leader: leader.id}, forward.Operation)
		require.Equal(t, topic.Operation{Name: topic.OpCommit, Topic: "orders", Records: 2, Bytes: forward.Bytes, Leader: leader.id}, commit.Operation)
		require.Same(t, find(topic.OpProduce), forward.inside)
		require.Equal(t, topic.Operation{Name: topic.OpCreateTopic, Topic: "orders", Partition: -1}, find(topic.OpCreateTopic).Operation)
		last := s.all[len(s.all)-1]
		require.Equal(t, 7, last.Partition)
		require.ErrorIs(t, last.err, raftlog.ErrRefused)
	})
}

// TestWithoutTraceNothingIsSpent on it.
func TestWithoutTraceNothingIsSpent(t *testing.T) {
	ctx, op := t.Context(), topic.Operation{Name: topic.OpProduce, Topic: "orders"}
	require.Zero(t, testing.AllocsPerRun(100, func() { topic.Trace(nil).Begin(ctx, op) }))
	nothing := topic.Trace(func(context.Context, topic.Operation) (context.Context, func(error)) { return nil, nil })
	require.Zero(t, testing.AllocsPerRun(100, func() { nothing.Begin(ctx, op) }))
}
