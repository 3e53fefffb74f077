package topic_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/topic"
)

// A producer that was replaced gets no epoch, and so fences nobody.
func TestAReplacedProducerDoesNotFenceTheNewerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		late := &lateClock{Clock: clock.System()}
		c.config = func(cfg *topic.Config) { cfg.Clock = late }
		c.startAll()
		c.create("orders", 1)
		produce := func(p *topic.Producer) error {
			_, err := p.Produce(t.Context(), "orders", record("x"))
			return err
		}
		other := producer(t, c.node(1), topic.ProducerConfig{})
		first := producer(t, c.node(1), topic.ProducerConfig{Name: "biller"})
		require.NoError(t, produce(first))
		second := producer(t, c.node(1), topic.ProducerConfig{Name: "biller"})
		require.NoError(t, produce(second))
		late.by.Add(int64(topic.ProducerExpiry + time.Hour)) // the partition forgets both
		require.NoError(t, produce(other))
		var fenced *topic.FencedError
		require.ErrorAs(t, produce(first), &fenced)
		require.NoError(t, produce(second))
	})
}
