package raftlog_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stretchr/testify/require"
)

// Whatever moves leadership about, a read on any node that began after a write
// was acknowledged sees it.
func TestReadsSeeAcknowledgedWrites(t *testing.T) {
	for seed := range uint64(seeds(6, 2)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { readUnderFaults(t, seed) })
		})
	}
}

func readUnderFaults(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4))
	c := startCluster(t, seed, 3, 1)
	defer c.stopAll()
	var newest atomic.Uint64 // index of the newest acknowledged write
	var reads, writes atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	worker := func(f func(n *node)) {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				f(c.nodes[i%3])
				time.Sleep(3 * time.Millisecond)
			}
		})
	}
	for range 2 {
		worker(func(n *node) {
			p := n.propose(1, "write")
			if p.Err != nil {
				c.outcome(p.Err)
				return
			}
			writes.Add(1)
			for old := newest.Load(); uint64(p.Index) > old && !newest.CompareAndSwap(old, uint64(p.Index)); old = newest.Load() {
			}
		})
		worker(func(n *node) {
			ctx, cancel := withTimeout(election)
			defer cancel()
			least := raftlog.Index(newest.Load())
			at, err := n.groups[1].ReadIndex(ctx)
			if err != nil {
				c.outcome(err)
				return
			}
			reads.Add(1)
			if at < least {
				t.Errorf("seed %d: read at %d on %v, %d was acknowledged before it began", seed, at, n.id, least)
			}
			if applied := n.groups[1].Status().Applied; applied < at {
				t.Errorf("seed %d: read at %d, applied %d", seed, at, applied)
			}
		})
	}
	for range 12 {
		n := c.nodes[rng.IntN(3)]
		switch rng.IntN(3) {
		case 0:
			ctx, cancel := withTimeout(election)
			_ = n.groups[1].TransferLeadership(ctx, 0)
			cancel()
		case 1:
			c.net.isolate(n.id, true)
		}
		time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
		c.net.isolate(n.id, false)
		time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	require.Greater(t, writes.Load(), int64(100))
	require.Greater(t, reads.Load(), int64(100))
}

// With one voter raft itself does not check that the leader knows what was
// committed before it.
func TestReadOnRestartedSingleVoter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 1)
		defer c.stopAll()
		var last raftlog.Proposal
		for i := range 30 {
			last = c.must(1, fmt.Sprint(i))
		}
		n := c.nodes[0]
		c.crash(n, simfs.Strict)
		require.NoError(t, c.start(n))
		ctx, cancel := withTimeout(10 * election)
		defer cancel()
		at, err := n.groups[1].ReadIndex(ctx)
		require.NoError(t, err)
		require.GreaterOrEqual(t, at, last.Index)
		require.GreaterOrEqual(t, len(n.ledgers[1].snapshot()), 30)
	})
}

// The state machine is asked for nothing that it has not applied.
func TestReadWaitsForApply(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "before")
		leader := c.leader(1)
		follower := c.nodes[int(leader.id)%3]
		c.settle(1)
		gate := make(chan struct{})
		follower.ledgers[1].mu.Lock()
		follower.ledgers[1].gate = gate
		follower.ledgers[1].mu.Unlock()
		p := c.must(1, "behind the gate")

		ctx, cancel := withTimeout(time.Second)
		defer cancel()
		_, err := follower.groups[1].ReadIndex(ctx)
		require.ErrorIs(t, err, ctx.Err())
		close(gate)
		ctx, cancel = withTimeout(time.Second)
		defer cancel()
		at, err := follower.groups[1].ReadIndex(ctx)
		require.NoError(t, err)
		require.GreaterOrEqual(t, at, p.Index)
	})
}

func TestReadable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		p := c.must(1, "x")
		c.settle(1)
		leader := c.leader(1)
		follower := c.nodes[int(leader.id)%3]
		at, ok := follower.groups[1].Readable()
		require.True(t, ok)
		require.GreaterOrEqual(t, at, p.Index)

		// Restarted without anybody to teach it, it shows nothing.
		c.crash(follower, simfs.Strict)
		c.net.isolate(follower.id, true)
		require.NoError(t, c.start(follower))
		time.Sleep(4 * election)
		_, ok = follower.groups[1].Readable()
		require.False(t, ok)
		c.net.isolate(follower.id, false)
		c.must(1, "y")
		c.settle(1)
		_, ok = follower.groups[1].Readable()
		require.True(t, ok)
	})
}
