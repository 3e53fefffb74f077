package raftlog_test

import (
	"context"
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
// Property: R25 (red: reads answered before their index is applied)
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
		if rng.IntN(2) == 0 {
			n = c.leader(1)
		}
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
// Property: R25 (red: reads stepped on a leader that has not committed in its term)
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

// A leader whose process was paused while others elected another one wakes up
// believing that it leads. It must not answer from what it knows.
// Property: R25 (red: a leader answers from its own applied index)
func TestPausedLeaderAnswersNoReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, 1, 3, 1)
		defer c.stopAll()
		var paused [4]atomic.Pointer[chan struct{}]
		c.config = func(cfg *raftlog.Config) {
			cfg.StepHook = func(*raftlog.Core, *raftlog.Effects) {
				if gate := paused[cfg.Node].Load(); gate != nil {
					<-*gate
				}
			}
		}
		c.startAll()
		c.must(1, "before")
		old := c.leader(1)
		gate := make(chan struct{})
		paused[old.id].Store(&gate)
		c.net.isolate(old.id, true)
		time.Sleep(4 * election)
		var written raftlog.Proposal
		for _, n := range c.nodes {
			if n != old && n.groups[1].Status().Role.IsLeader() {
				written = n.propose(1, "while it was paused")
			}
		}
		require.NoError(t, written.Err)
		require.NotZero(t, written.Index)
		require.Equal(t, raftlog.RoleLeaderActive, old.groups[1].Status().Role)
		read := make(chan raftlog.Index, 1)
		go func() {
			ctx, cancel := withTimeout(10 * election)
			defer cancel()
			at, _ := old.groups[1].ReadIndex(ctx)
			read <- at
		}()
		time.Sleep(time.Millisecond)
		close(gate)
		paused[old.id].Store(nil)
		time.Sleep(election)
		c.net.isolate(old.id, false)
		if at := <-read; at != 0 {
			require.GreaterOrEqual(t, at, written.Index)
		}
		c.settle(1)
	})
}

// The state machine is asked for nothing that it has not applied.
// Property: R25 (red: reads answered before their index is applied)
func TestReadWaitsForApply(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "before")
		leader := c.leader(1)
		follower := c.nodes[int(leader.id)%3]
		c.settle(1)
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		follower.ledgers[1].close(gate)
		p := c.must(1, "behind the gate")

		ctx, cancel := withTimeout(time.Second)
		defer cancel()
		_, err := follower.groups[1].ReadIndex(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		open()
		ctx, cancel = withTimeout(time.Second)
		defer cancel()
		at, err := follower.groups[1].ReadIndex(ctx)
		require.NoError(t, err)
		require.GreaterOrEqual(t, at, p.Index)
	})
}

// What the state machine was not told of is not applied for anybody: it shows
// its readers what it did only then.
// Property: R25 (red: entries counted as applied before the state machine was told)
func TestReadWaitsForTheStateMachineToShow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "before")
		c.settle(1)
		leader := c.leader(1)
		follower := c.nodes[int(leader.id)%3]
		curtain := make(chan struct{})
		open := sync.OnceFunc(func() { close(curtain) })
		defer open()
		follower.ledgers[1].draw(curtain)
		p := c.must(1, "behind the curtain")
		time.Sleep(tick)
		require.Contains(t, follower.ledgers[1].snapshot(), "behind the curtain")
		at, _ := follower.groups[1].Readable()
		require.Less(t, at, p.Index)
		require.Less(t, follower.groups[1].Status().Applied, p.Index)
		ctx, cancel := withTimeout(time.Second)
		defer cancel()
		_, err := follower.groups[1].ReadIndex(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		open()
		ctx, cancel = withTimeout(time.Second)
		defer cancel()
		at, err = follower.groups[1].ReadIndex(ctx)
		require.NoError(t, err)
		require.GreaterOrEqual(t, at, p.Index)
		require.GreaterOrEqual(t, follower.ledgers[1].showsUpTo(), p.Index)

		// Nor does a proposer hear of it before.
		curtain = make(chan struct{})
		open = sync.OnceFunc(func() { close(curtain) })
		defer open()
		leader.ledgers[1].draw(curtain)
		done := make(chan raftlog.Proposal, 1)
		leader.groups[1].Propose([]byte("y"), func(p raftlog.Proposal) { done <- p })
		time.Sleep(time.Second)
		require.Empty(t, done)
		open()
		require.NoError(t, (<-done).Err)
	})
}

// Property: P3 (red: readable whatever the core says; sessions: TestASessionNeverGoesBack in topic)
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
