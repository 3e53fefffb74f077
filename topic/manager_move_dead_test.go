package topic_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// late is the clock of a process that finds more time gone by than it ran.
type late struct {
	clock.Clock
	by atomic.Int64 // nanoseconds
}

func (l *late) Now() time.Time { return l.Clock.Now().Add(time.Duration(l.by.Load())) }

// Property: M3, H2 (red: the time of a pause counted as time for which the destination was dead)
//
// A destination is dead for a minute and a half when another node comes to lead the
// partition, which has seen the mark as long: the move is waited for as if nothing
// had been. The process of that node is paused for an hour, and then the two minutes
// begin anew, for who came back meanwhile and died again was not seen.
func TestAPauseIsNoTimeForWhichADestinationIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clocks := map[raftlog.NodeID]*late{}
		c := newMoves(t, 4, 1, func(cfg *topic.Config) {
			clocks[cfg.Node] = &late{Clock: clock.System()}
			cfg.Clock = clocks[cfg.Node]
		})
		top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
		require.NoError(t, err)
		to := c.off("orders", 0)
		c.crash(to, simfs.Strict)
		before := c.partition("orders", 0)
		require.NoError(t, c.running()[0].topics.MoveReplica(t.Context(), at("orders", 0), before.Replicas[0].Node, to))
		c.markDead(to)
		pass(90 * time.Second)
		first := c.leader("orders", 0)
		for _, a := range before.Replicas {
			if a.Node != first.id {
				require.NoError(t, first.topics.OpenGroup(top.Incarnation, 0).TransferLeadership(t.Context(), a.Replica))
				break
			}
		}
		settle(t, "another one leads", func() bool { return c.leader("orders", 0).id != first.id })
		pass(25 * time.Second)
		require.NotNil(t, c.partition("orders", 0).Target, "not dead for two minutes")
		clocks[c.leader("orders", 0).id].by.Add(int64(time.Hour))
		pass(115 * time.Second)
		require.NotNil(t, c.partition("orders", 0).Target, "not dead for two minutes that were seen")
		begun := time.Now()
		c.moved("orders", 0)
		require.Less(t, time.Since(begun), 10*time.Second)
		require.Equal(t, before.Replicas, c.partition("orders", 0).Replicas)
		c.awaitConf(t, top, 0)
	})
}
