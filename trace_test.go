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
