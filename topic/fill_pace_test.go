package topic_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// Two fills together keep to a node's rate: those that one node gets from two
// senders, and those that two nodes get from one.
//
// Property: R24 (red: what is received not paced; what is sent not paced)
func TestFillsKeepToTheirRate(t *testing.T) {
	const rate = 1 << 20
	for _, what := range []string{"of two senders", "of one sender"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newMoves(t, 5, 1, func(cfg *topic.Config) { cfg.FillBytesPerSecond = rate })
				_, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Partitions: 12, Replicas: 1})
				require.NoError(t, err)
				home := func(p uint32) raftlog.NodeID { return c.on("orders", p)[0] }
				other := uint32(1) // the partition that is moved beside the first
				for (home(other) == home(0)) != (what == "of one sender") {
					other++
				}
				to := map[uint32]raftlog.NodeID{}
				for id := raftlog.NodeID(1); id <= 5; id++ {
					if id == home(0) || id == home(other) {
						continue
					}
					if to[0] == 0 {
						to[0] = id
					}
					if what == "of two senders" {
						to[other] = to[0]
					} else {
						to[other] = id
					}
				}
				loads := map[uint32]*steady{}
				for p := range to {
					loads[p] = c.node(home(p)).produceSteadily(t, "orders", p, 20_000)
				}
				pass(300 * time.Millisecond)
				for _, load := range loads {
					load.end(t)
				}

				var mu sync.Mutex
				var begun, ended time.Time
				var got, first int64 // bytes of all, and of what came at once
				c.onFlow(func(_, _ raftlog.NodeID, b []byte) error {
					mu.Lock()
					defer mu.Unlock()
					ended = time.Now()
					if begun.IsZero() {
						begun = ended
					}
					got += int64(len(b))
					if ended.Equal(begun) {
						first += int64(len(b))
					}
					return nil
				})
				for p, id := range to {
					require.NoError(t, c.node(1).topics.MoveReplica(t.Context(), at("orders", p), home(p), id))
				}
				for p, id := range to {
					c.moved("orders", p)
					require.Equal(t, id, home(p))
				}
				require.Greater(t, got, int64(4*rate))
				took, least := ended.Sub(begun), time.Duration(got-first)*time.Second/rate
				require.Greater(t, took, least-time.Second/4)
				require.Less(t, took, least*2, "and not much slower")
			})
		})
	}
}
