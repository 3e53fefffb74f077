package topic_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// TestBatchesAreFormedInTheTurn: what is produced until the loop takes proposals
// in shares a batch, and one that gives up until then is not in it.
func TestBatchesAreFormedInTheTurn(t *testing.T) {
	for _, codec := range []topic.Codec{topic.CodecNone, topic.CodecS2} {
		synctest.Test(t, func(t *testing.T) {
			c := startCluster(t, 3, 1)
			orders := c.create("orders", 1)
			n := c.leader("orders", 0)
			p := producer(t, n, topic.ProducerConfig{Codec: codec})
			_, err := p.Produce(t.Context(), "orders", record("first"))
			require.NoError(t, err)
			before := n.topics.Stats()

			held, release := make(chan struct{}), make(chan struct{})
			require.True(t, n.topics.Group(orders.Incarnation, 0).OnTurn(func() { close(held); <-release }))
			<-held
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			var offsets []raftlog.Offset
			var want []string
			for i := range 100 {
				if i == 50 {
					p.ProduceAsync(ctx, "orders", record("given up"), func(_ topic.Position, err error) { gone <- err })
				}
				want = append(want, fmt.Sprint(i))
				p.ProduceAsync(t.Context(), "orders", record(want[i]), func(at topic.Position, err error) {
					require.NoError(t, err)
					offsets = append(offsets, at.Offset)
				})
			}
			cancel()
			err = <-gone
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, raftlog.ErrRetry, "it was not sent")
			close(release)
			require.NoError(t, p.Flush(t.Context()))
			require.Len(t, offsets, 100)
			for i, at := range offsets {
				require.EqualValues(t, i+1, at)
			}
			require.Equal(t, append([]string{"first"}, want...), n.dump("orders", 0))
			after := n.topics.Stats()
			require.EqualValues(t, 1, after.Batches-before.Batches)
		})
	}
}
