package topic_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// TestAReplicaThatFailedSaysWhy, where it is and to who wants to write to it.
func TestAReplicaThatFailedSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 1)
		c.config = func(cfg *topic.Config) { cfg.CallTimeout = time.Second }
		c.startAll()
		_, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Replicas: 1})
		require.NoError(t, err)
		holder := c.leader("orders", 0)
		broken := errors.New("the disk is full")
		c.disks[holder.id].SetHook(func(op simfs.Op) error {
			if strings.Contains(op.Path, "topics/orders@") {
				return broken
			}
			return nil
		})
		for _, n := range c.running() {
			p := producer(t, n, topic.ProducerConfig{Anonymous: true})
			var noLeader *topic.NoLeaderError
			settle(t, "without a leader", func() bool {
				// What reached the log before it failed, again each time that it
				// is opened, has an unknown outcome.
				_, err := p.Produce(t.Context(), "orders", record("x"))
				require.Error(t, err)
				require.NoError(t, outcomes(err))
				require.ErrorContains(t, err, "orders/0")
				require.ErrorContains(t, err, broken.Error())
				return errors.As(err, &noLeader)
			})
			require.ErrorIs(t, noLeader, raftlog.ErrRetry)
		}
		s := holder.topics.Status()
		require.Len(t, s, 1)
		require.Zero(t, s[0].Role, "it is to be opened again")
		require.ErrorContains(t, s[0].Err, broken.Error())
	})
}

// TestAReplicaThatFailedIsOpenedAgain, ever less often as long as it fails.
//
// Property: P7 (red: what failed while it was open stayed as it was; moves: TestReplicasMoveWhileNodesFail)
func TestAReplicaThatFailedIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, 1)
		logger, logged := observer.New(zap.ErrorLevel)
		c.config = func(cfg *topic.Config) { cfg.Logger = zap.New(logger) }
		c.startAll()
		c.create("orders", 1)
		_, err := producer(t, c.node(1), topic.ProducerConfig{}).Produce(t.Context(), "orders", record("before"))
		require.NoError(t, err)
		c.crash(1, simfs.Strict)
		n := c.start(1)
		for len(n.topics.Status()) == 0 || n.topics.Status()[0].Role == 0 {
			pass(time.Millisecond)
		}
		p := producer(t, n, topic.ProducerConfig{})
		var broken atomic.Bool
		c.disks[1].SetHook(func(op simfs.Op) error {
			if broken.Load() && op.Kind == simfs.OpRead && strings.Contains(op.Path, "topics/orders@") {
				return errors.New("a bad sector")
			}
			return nil
		})
		broken.Store(true)
		settle(t, "failed", func() bool {
			s := n.topics.Status()
			return len(s) == 1 && s[0].Err != nil && strings.Contains(s[0].Err.Error(), "a bad sector")
		})
		pass(time.Minute)
		require.Less(t, logged.Len(), 30)
		broken.Store(false)
		_, err = p.Produce(t.Context(), "orders", record("after"))
		require.NoError(t, err)
		require.NoError(t, n.topics.Status()[0].Err)
		require.Equal(t, []string{"before", "after"}, n.dump("orders", 0))
	})
}
