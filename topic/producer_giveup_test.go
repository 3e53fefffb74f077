package topic_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// TestCallsThatGiveUpLeaveTheOthersInOrder: from the front, the middle and the
// end of what waits, and from what was claimed.
//
// Property: P6 (red: calls that gave up stayed in the queue)
func TestCallsThatGiveUpLeaveTheOthersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 1)
		p := producer(t, c.leader("orders", 0), topic.ProducerConfig{MaxBatchBytes: 1 << 10})
		isolate := func(cut bool) {
			for id := raftlog.NodeID(1); id <= 3; id++ {
				c.isolate(id, cut)
			}
		}
		isolate(true)
		pass(3 * time.Second)
		impatient, cancel := context.WithCancel(t.Context())
		defer cancel()
		var waiting sync.WaitGroup
		var want []string
		var failed atomic.Int64
		for i := range 500 {
			ctx := impatient
			if i%7 == 3 {
				ctx, want = t.Context(), append(want, fmt.Sprint(i))
			}
			waiting.Add(1)
			p.ProduceAsync(ctx, "orders", record(fmt.Sprint(i)), func(_ topic.Position, err error) {
				defer waiting.Done()
				if err != nil {
					failed.Add(1)
				}
			})
		}
		cancel()
		synctest.Wait()
		isolate(false)
		waiting.Wait()
		require.EqualValues(t, 500-len(want), failed.Load())
		require.Equal(t, want, c.node(1).dump("orders", 0))
	})
}
