package topic_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/topic"
)

// TestReadersLeaveAStalledReplica: its watermark may be shown and does not move,
// because the disk hangs. When it has caught up it is read from again.
//
// Property: P7 (red: a reader waited at the replica here for as long as it had; a node that is cut off: TestASessionNeverGoesBack)
func TestReadersLeaveAStalledReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		made := c.create("orders", 1)
		leader := c.leader("orders", 0)
		n := c.follower(made.Partitions[0], leader)
		p := producer(t, leader, topic.ProducerConfig{})
		r, err := n.topics.NewReader(t.Context(), at("orders", 0), topic.FromStart())
		require.NoError(t, err)
		defer r.Close()
		next := 0
		exchange := func(within time.Duration) {
			t.Helper()
			value := fmt.Sprint(next)
			_, err := p.Produce(t.Context(), "orders", record(value))
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), within) // virtual
			defer cancel()
			v, err := r.Fetch(ctx, 1<<20)
			require.NoError(t, err)
			require.True(t, v.Next())
			require.Equal(t, value, string(v.Record().Value))
			require.False(t, v.Next())
			next++
		}
		exchange(time.Second)
		pass(time.Minute) // nothing is asked while nobody reads

		healed := make(chan struct{})
		heal := sync.OnceFunc(func() { close(healed) })
		defer heal()
		c.disks[n.id].SetHook(func(op simfs.Op) error {
			if op.Kind == simfs.OpSync || op.Kind == simfs.OpWrite {
				<-healed
			}
			return nil
		})
		exchange(15 * time.Second)
		away := n.topics.Stats().FetchedAway
		require.NotZero(t, away)
		for range 5 {
			exchange(time.Second)
		}
		heal()
		pass(5 * time.Second)
		away = n.topics.Stats().FetchedAway
		for range 5 {
			exchange(time.Second)
		}
		require.Equal(t, away, n.topics.Stats().FetchedAway)
	})
}
