package raftlog_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

// rotate proposes to g until the journal of n has rotated a few times.
func (c *cluster) rotate(n *node, g raftlog.GroupID) {
	before := n.host.Stats().Rotations
	for i := 0; n.host.Stats().Rotations < before+3; i++ {
		require.Less(c.t, i, 1000)
		c.must(g, fmt.Sprint(i, strings.Repeat("y", 3000)))
	}
}

// A replica is set aside and closed by many at once, behind a stuck disk, and
// again by those who lost their patience.
// Property: L1 (red: every call writes a frame of its own)
func TestSetAsideByMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 2)
		defer c.stopAll()
		n := c.nodes[0]
		c.must(1, "x")
		c.must(2, "x")
		release := stallSyncs(n)
		defer release()
		var impatient, wg sync.WaitGroup
		for i := range 6 {
			impatient.Go(func() {
				ctx, cancel := withTimeout(time.Second)
				defer cancel()
				if i%2 == 0 {
					c.outcome(n.host.CloseGroup(ctx, replicaOf(2, 1)))
				} else {
					c.outcome(n.host.SetAside(ctx, replicaOf(2, 1)))
				}
			})
		}
		impatient.Wait()
		for i := range 6 {
			wg.Go(func() {
				if i%2 == 0 {
					require.NoError(t, n.host.CloseGroup(context.Background(), replicaOf(2, 1)))
				} else {
					require.NoError(t, n.host.SetAside(context.Background(), replicaOf(2, 1)))
				}
			})
		}
		time.Sleep(time.Second)
		_, err := n.host.OpenGroup(c.options(n, 2, &ledger{}))
		require.ErrorIs(t, err, raftlog.ErrReplicaOpen)
		release()
		wg.Wait()
		_, err = n.host.OpenGroup(c.options(n, 2, &ledger{}))
		require.ErrorIs(t, err, raftlog.ErrSetAside)
		c.rotate(n, 1)
		require.NoError(t, n.host.Failed())
	})
}

// Whoever opens a replica has it until it is closed: it is neither set aside
// nor forgotten meanwhile.
// Property: L1 (red: what is being opened is set aside)
func TestLeavingWhileOpening(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 2)
		defer c.stopAll()
		n := c.nodes[0]
		c.must(1, "x")
		c.must(2, "x")
		ctx := context.Background()
		require.NoError(t, n.host.CloseGroup(ctx, replicaOf(1, 1)))
		l := &ledger{}
		o := c.options(n, 1, l)
		release := stallSyncs(n)
		defer release()
		closed := make(chan error, 1)
		o.Recover = func(log *storage.Log) error {
			err := n.host.SetAside(ctx, replicaOf(1, 1))
			require.ErrorIs(t, err, raftlog.ErrReplicaOpen)
			require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
			go func() { closed <- n.host.CloseGroup(ctx, replicaOf(1, 1)) }()
			time.Sleep(tick)
			return l.recover(log)
		}
		g, err := n.host.OpenGroup(o)
		require.NoError(t, err)
		n.ledgers[1] = l
		n.setGroup(1, g)
		release()
		require.NoError(t, <-closed)
		c.must(1, "y")
		c.rotate(n, 2)
		c.must(1, "z")
		require.NoError(t, n.host.Failed())
		require.NoError(t, n.host.SetAside(ctx, replicaOf(1, 1)))
		c.rotate(n, 2)
		require.NoError(t, n.host.Failed())
	})
}

// Whatever becomes of a replica, the host knows it, also after a restart.
func TestReplicas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 4)
		defer c.stopAll()
		n := c.nodes[0]
		for _, g := range c.groups {
			c.must(g, "x")
		}
		ctx := context.Background()
		require.NoError(t, n.host.CloseGroup(ctx, replicaOf(1, 1)))
		require.NoError(t, n.host.SetAside(ctx, replicaOf(2, 1)))
		failLog(n, 3, simfs.OpWrite)
		require.Error(t, n.propose(3, "y").Err)
		check := func() {
			t.Helper()
			all := n.host.Replicas()
			require.Len(t, all, 4)
			for i, st := range all {
				require.Equal(t, raftlog.GroupID(i+1), st.Group)
				require.Equal(t, replicaOf(st.Group, 1), st.Replica)
				require.Equal(t, fmt.Sprintf("groups/%d", i+1), st.Dir)
				require.Equal(t, i == 1, st.Status == storage.ReplicaSetAside)
				require.Empty(t, st.Tail)
			}
		}
		check()
		c.crash(n, simfs.Strict)
		groups := c.groups
		c.groups = nil
		require.NoError(t, c.start(n))
		check()
		c.groups = groups
		require.NoError(t, n.host.Close(ctx))
		require.Nil(t, n.host.Replicas())
	})
}
