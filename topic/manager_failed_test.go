package topic_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
			var err error
			for range 2 { // the first record fails it
				_, err = p.Produce(t.Context(), "orders", record("x"))
				require.Error(t, err)
				require.NoError(t, outcomes(err))
			}
			require.ErrorIs(t, err, raftlog.ErrRetry)
			var noLeader *topic.NoLeaderError
			require.ErrorAs(t, err, &noLeader)
			require.ErrorContains(t, err, "orders/0")
			require.ErrorContains(t, err, broken.Error())
		}
		s := holder.topics.Status()
		require.Len(t, s, 1)
		require.Equal(t, raftlog.RoleResigned, s[0].Role)
		require.ErrorContains(t, s[0].Err, broken.Error())
	})
}
