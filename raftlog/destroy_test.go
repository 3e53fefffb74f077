package raftlog_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/proof"
	"github.com/stelelog/stele/internal/proof/prooftest"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

// A replica that was set aside goes against a proof of it: its files, and then
// what the journal says of it, also through rotations, a crash and a restart. No
// other one goes, and none that is open or was not set aside.
//
// Property: X1 (red: setAsideReplica without its look at the status; Destroy without its proof; dormant kept what was destroyed: the next rotation stopped the node)
func TestDestroy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 2)
		defer c.stopAll()
		n := c.nodes[0]
		id := n.store.Identity()
		id.ClusterID, id.Epoch, id.Node = storage.ClusterID{1}, 2, 1
		require.NoError(t, n.store.SetIdentity(id))
		inc := storage.Incarnation{7}
		dir, err := n.store.CreateTopicDir("orders", inc)
		require.NoError(t, err)
		open := func(g raftlog.GroupID) {
			o := c.options(n, g, &ledger{})
			o.Create.Dir = storage.ReplicaDir(dir, uint32(g), replicaOf(g, 1))
			group, err := n.host.OpenGroup(o)
			require.NoError(t, err)
			n.setGroup(g, group)
			c.must(g, "x")
		}
		for g := raftlog.GroupID(5); g <= 7; g++ {
			open(g)
		}
		ctx := context.Background()
		dead := prooftest.Dead(id.ClusterID, 2, inc)
		removed := func(g raftlog.GroupID) proof.Proof {
			return prooftest.Removed(id.ClusterID, 2, uint64(g), uint64(replicaOf(g, 1)))
		}
		refused := func(g raftlog.GroupID, p proof.Proof, is error) {
			t.Helper()
			done, err := n.host.Destroy(ctx, replicaOf(g, 1), p)
			require.Error(t, err)
			require.ErrorIs(t, err, raftlog.ErrRefused)
			if is != nil {
				require.ErrorIs(t, err, is)
			}
			require.Empty(t, done.Dirs)
		}
		refused(5, dead, raftlog.ErrReplicaOpen)
		require.NoError(t, n.host.CloseGroup(ctx, replicaOf(5, 1)))
		refused(5, dead, nil)
		require.NoError(t, n.host.SetAside(ctx, replicaOf(5, 1)))
		refused(5, proof.Proof{}, proof.ErrRefused)
		refused(5, removed(6), proof.ErrRefused)
		refused(5, prooftest.Dead(id.ClusterID, 1, inc), proof.ErrRefused)
		refused(9, dead, raftlog.ErrUnknownReplica)
		require.Len(t, n.host.Replicas(), 5)

		done, err := n.host.Destroy(ctx, replicaOf(5, 1), removed(5))
		require.NoError(t, err)
		require.Len(t, done.Dirs, 1)
		require.Positive(t, done.Bytes)
		refused(5, removed(5), raftlog.ErrUnknownReplica)
		require.Len(t, n.host.Replicas(), 4)
		c.rotate(n, 1)
		require.NoError(t, n.host.Failed())

		// By many, behind a stuck disk, and again by those who lost their patience.
		require.NoError(t, n.host.SetAside(ctx, replicaOf(6, 1)))
		release := stallSyncs(n)
		defer release()
		var work sync.WaitGroup
		for i := range 4 {
			work.Go(func() {
				ctx, cancel := withTimeout(time.Second)
				defer cancel()
				if i == 0 {
					_ = n.host.SetAside(ctx, replicaOf(6, 1))
				} else {
					_, _ = n.host.Destroy(ctx, replicaOf(6, 1), dead)
				}
			})
		}
		work.Wait()
		release()
		for range 2 {
			if _, err = n.host.Destroy(ctx, replicaOf(6, 1), dead); err != nil {
				require.ErrorIs(t, err, raftlog.ErrUnknownReplica)
			}
		}
		require.Len(t, n.host.Replicas(), 3)
		c.rotate(n, 1)
		require.NoError(t, n.host.Failed())
		c.must(7, "y")

		c.crash(n, simfs.Strict)
		require.NoError(t, c.start(n))
		require.Len(t, n.host.Replicas(), 3)
		refused(6, dead, raftlog.ErrUnknownReplica)
		dirs, err := n.store.Quarantined()
		require.NoError(t, err)
		require.Empty(t, dirs)
	})
}
