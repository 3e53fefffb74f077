package stele_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

type operationKey struct{}

// TestTraceIsToldOfOperations: of the whole node, with the caller's values, and
// of a reader that begins at a time.
func TestTraceIsToldOfOperations(t *testing.T) {
	var mu sync.Mutex
	begun, ended := map[string]int{}, map[string]int{}
	trace := func(ctx context.Context, op stele.Operation) (context.Context, func(error)) {
		mu.Lock()
		defer mu.Unlock()
		name, _ := ctx.Value(operationKey{}).(string)
		name += "/" + op.Name
		begun[name]++
		return context.WithValue(ctx, operationKey{}, name), func(error) {
			mu.Lock()
			defer mu.Unlock()
			ended[name]++
		}
	}
	testcluster.Run(t, testcluster.Options{Nodes: 1, Config: func(cfg *stele.Config) { cfg.Trace = trace }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		p, err := c.Node(0).NewProducer(stele.ProducerConfig{Codec: stele.CodecZstd})
		require.NoError(t, err)
		ctx := context.WithValue(t.Context(), operationKey{}, "request")
		_, err = p.Produce(ctx, "orders", stele.Record{})
		require.NoError(t, err)
		c.Sleep(time.Second)
		r, err := c.Node(0).NewReader(ctx, stele.TopicPartition{Topic: "orders"}, stele.FromTime(time.Now()))
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Offset())
		r.Close()
		r, err = c.Node(0).NewReader(ctx, stele.TopicPartition{Topic: "orders"}, stele.FromTime(time.Now().Add(-time.Minute)))
		require.NoError(t, err)
		_, err = r.Fetch(ctx, 1)
		require.NoError(t, err)
		r.Close()
		require.NoError(t, p.Close(ctx))
		require.NoError(t, c.Node(0).DeleteTopic(ctx, "orders"))
	})
	require.Equal(t, map[string]int{
		"/create topic": 1, "request/produce": 1, "request/produce/commit": 1, "request/fetch": 1, "request/delete topic": 1,
	}, begun)
	require.Equal(t, begun, ended)
}

// Each node tells its own host's trace, and nobody else's: of a record that goes through
// one node to the leader on another, the first one's host sees all that its node does,
// inside of the request, and the other one's host the commit.
//
// Property: L2 (red: the first node's trace told by all)
func TestEachNodeTellsItsOwnTrace(t *testing.T) {
	var mu sync.Mutex
	told := map[string]map[string]int{}
	config := func(cfg *stele.Config) {
		node := cfg.Name
		cfg.Trace = func(ctx context.Context, op stele.Operation) (context.Context, func(error)) {
			mu.Lock()
			defer mu.Unlock()
			name, _ := ctx.Value(operationKey{}).(string)
			name += "/" + op.Name
			if told[node] == nil {
				told[node] = map[string]int{}
			}
			told[node][name]++
			return context.WithValue(ctx, operationKey{}, name), nil
		}
	}
	testcluster.Run(t, testcluster.Options{Seed: 3, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		leader := leaderOf(c, stele.TopicPartition{Topic: "orders"})
		through, third := (leader+1)%3, (leader+2)%3
		mu.Lock()
		clear(told)
		mu.Unlock()
		p, err := c.Node(through).NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		_, err = p.Produce(context.WithValue(t.Context(), operationKey{}, "request"), "orders", stele.Record{})
		require.NoError(t, err)
		require.NoError(t, p.Close(t.Context()))
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, map[string]int{"request/produce": 1, "request/produce/forward": 1}, told[c.Member(through).Name])
		require.Len(t, told[c.Member(leader).Name], 1)
		for name, times := range told[c.Member(leader).Name] {
			require.Regexp(t, "/commit$", name)
			require.Equal(t, 1, times)
		}
		require.Empty(t, told[c.Member(third).Name])
	})
}
