package topic_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// TestWhatExpiresWithoutNumbersLeavesNoGap: a batch that was to get other
// numbers ends before it got them, while the metadata give out no identity. The
// records behind it begin where the new identity begins, and not where the
// batch's old numbers were: that would cost them yet another identity.
//
// Property: P4 (red: what follows a batch that had lost its numbers began at the old ones)
func TestWhatExpiresWithoutNumbersLeavesNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		late := &lateClock{Clock: clock.System()}
		c.config = func(cfg *topic.Config) { cfg.Clock, cfg.CallTimeout = late, 2*time.Second }
		c.startAll()
		c.create("orders", 12)
		n, part := c.leaderWithoutMetadata("orders", 12)
		produce := func(p *topic.Producer, value string) error {
			_, err := p.ProduceTo(t.Context(), "orders", part, record(value))
			return err
		}
		p, other := producer(t, n, topic.ProducerConfig{Name: "biller"}), producer(t, n, topic.ProducerConfig{})
		for _, value := range []string{"0", "1", "2"} {
			require.NoError(t, produce(p, value))
		}
		require.NoError(t, produce(other, "other"))
		late.by.Add(int64(topic.ProducerExpiry + time.Hour))
		require.NoError(t, produce(other, "later"))

		var deaf atomic.Bool
		deaf.Store(true)
		c.mu.Lock()
		c.meet = func(from, _ raftlog.NodeID, method string) error {
			if deaf.Load() && from == n.id && method == "meta.propose" {
				return raftlog.Retry(errors.New("it cannot be reached"))
			}
			return nil
		}
		c.mu.Unlock()
		expired, kept := make(chan error, 1), make(chan error, 1)
		go func() { expired <- produce(p, "expired") }()
		pass(9 * time.Second) // the metadata say no after 10 s
		go func() { kept <- produce(p, "kept") }()
		err := <-expired
		require.ErrorIs(t, err, raftlog.ErrRetry)
		saysWhere(t, err, "identity")
		deaf.Store(false)
		require.NoError(t, <-kept)
		require.Equal(t, []string{"0", "1", "2", "other", "later", "kept"}, n.dump("orders", part))
		require.Equal(t, topic.ProducerBatch{ID: n.producerOf(at("orders", part), 0).ID, Epoch: 1}, n.producerOf(at("orders", part), 5))
	})
}

// leaderWithoutMetadata returns a node that leads a partition, and not the
// metadata.
func (c *cluster) leaderWithoutMetadata(name string, partitions uint32) (*node, uint32) {
	for part := range partitions {
		n := c.leader(name, part)
		if leader, _ := n.meta.Leader(); leader != n.id {
			return n, part
		}
	}
	require.FailNow(c.t, "one node leads everything")
	return nil, 0
}

// producerOf returns who wrote the batch that holds an offset.
func (n *node) producerOf(at topic.TopicPartition, o int64) topic.ProducerBatch {
	t := n.cluster.t
	r, err := n.topics.NewReader(t.Context(), at, topic.FromOffset(storage.Offset(o)))
	require.NoError(t, err)
	defer r.Close()
	v, err := r.Fetch(t.Context(), 1)
	require.NoError(t, err)
	b, _, err := topic.ReadBatch(v.Bytes())
	require.NoError(t, err)
	return b.Producer()
}
