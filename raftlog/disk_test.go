package raftlog_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stretchr/testify/require"
)

const stallTimeout = 2 * time.Second // the default

// A leader whose disk stops answering still answers its followers: nobody would
// elect another, so it has to hand over itself, within a bound. All who wait
// hear of it, nothing is lost, and it goes on by itself afterwards.
//
// Property: S7 (red: rounds under way not watched; proposals at or below commit kept while the disk is stalled)
func TestAStalledDiskMovesLeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, 1, 3, 2)
		defer c.stopAll()
		var told atomic.Int64
		c.config = func(cfg *raftlog.Config) { cfg.OnDisk = func() { told.Add(1) } }
		c.startAll()
		sick := c.leader(1)
		c.must(1, "x")
		if c.leader(2) != sick {
			ctx, cancel := withTimeout(5 * election)
			defer cancel()
			require.NoError(t, c.leader(2).groups[2].TransferLeadership(ctx, replicaOf(2, sick.id)))
			require.Same(t, sick, c.leader(2)) // once it has won
		}
		release := stallSyncs(sick)
		defer release()
		ended := make(chan raftlog.Proposal, 4)
		for _, g := range c.groups {
			sick.groups[g].Propose([]byte("while it stalls"), func(p raftlog.Proposal) { ended <- p })
			time.Sleep(time.Millisecond)
			sick.groups[g].Propose([]byte("behind it"), func(p raftlog.Proposal) { ended <- p })
		}
		time.Sleep(stallTimeout + election)
		require.Len(t, ended, 4)
		for range 4 {
			p := <-ended
			require.ErrorIs(t, p.Err, raftlog.ErrDiskStalled)
			require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(p.Err))
		}
		for _, g := range c.groups {
			require.NotEqual(t, sick, c.leader(g))
		}
		require.GreaterOrEqual(t, sick.host.Stalled(), stallTimeout)
		require.EqualValues(t, 1, told.Load())
		for _, g := range c.groups {
			c.must(g, "the others go on")
		}
		time.Sleep(time.Minute)
		for _, g := range c.groups {
			require.NotEqual(t, sick, c.leader(g))
		}
		release()
		require.Equal(t, []string{"x", "while it stalls", "behind it", "the others go on"}, c.settle(1))
		require.Zero(t, sick.host.Stalled())
		require.EqualValues(t, 1, sick.host.Stats().Stalls)
		require.EqualValues(t, 2, told.Load())
		require.NoError(t, sick.host.Failed())
		ctx, cancel := withTimeout(5 * election)
		defer cancel()
		require.NoError(t, c.leader(1).groups[1].TransferLeadership(ctx, replicaOf(1, sick.id)))
		c.must(1, "it may lead again")
	})
}

// latencies proposes one entry after the other and returns how long each took.
func (c *cluster) latencies(n int) (took []time.Duration) {
	for i := range n {
		start := time.Now()
		c.must(1, fmt.Sprint(i))
		took = append(took, time.Since(start))
	}
	return took
}

// takeForSyncs makes each sync of a node's journal take so long.
func takeForSyncs(n *node, d time.Duration) {
	n.disk.SetHook(func(op simfs.Op) error {
		if op.Kind == simfs.OpSync && strings.Contains(op.Path, "/journal/") {
			time.Sleep(d)
		}
		return nil
	})
}

// A quorum is not waited for twice: with one follower's disk stalled entries
// take exactly as long as without.
//
// Property: S7 (red: nothing sent to anybody while one follower is 50 entries behind)
func TestAStalledFollowerCostsNoTime(t *testing.T) {
	run := func(stall bool) (took []time.Duration) {
		bubble(t, func(t *testing.T) {
			c := startCluster(t, 1, 3, 1)
			defer c.stopAll()
			c.must(1, "x")
			for _, n := range c.nodes {
				takeForSyncs(n, time.Millisecond)
			}
			follower := c.nodes[int(c.leader(1).id)%3]
			if stall {
				release := stallSyncs(follower)
				defer release()
			}
			took = c.latencies(400)
			if stall {
				time.Sleep(3 * time.Second)
				require.NotZero(t, follower.host.Stalled())
			}
			took = append(took, c.latencies(100)...)
		})
		return took
	}
	require.Equal(t, run(false), run(true))
}

// A disk that takes 300 ms for each sync is slow, not stalled: nothing but
// patience is lost.
//
// Property: S7 (red: a time-out of 200 ms)
func TestASlowDiskKeepsItsLeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 2)
		defer c.stopAll()
		for _, n := range c.nodes {
			takeForSyncs(n, 300*time.Millisecond)
		}
		c.must(1, "x")
		before := c.leader(1).groups[1].Status().Term
		for i := range 50 {
			c.must(1, fmt.Sprint(i))
			c.must(2, fmt.Sprint(i))
		}
		require.Equal(t, before, c.leader(1).groups[1].Status().Term)
		for _, n := range c.nodes {
			require.Zero(t, n.host.Stats().Stalls)
		}
	})
}

// On a full disk a leader takes in what is essential, and nothing else, from the
// moment that it hears of it; reads and elections go on; and it ends.
//
// Property: S6 (red: proposals on a full disk taken in; essential ones refused)
func TestAFullDiskRefusesProposals(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "x")
		full := &raftlog.DiskFullError{Left: 900, Reserve: 1000}
		for _, n := range c.nodes {
			n.host.SetDiskFull(full)
		}
		leader := c.leader(1)
		p := leader.propose(1, "y")
		var got *raftlog.DiskFullError
		require.ErrorAs(t, p.Err, &got)
		require.Equal(t, full, got)
		require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(p.Err))
		c.must(1, "essential")
		var elsewhere *raftlog.NotLeaderError
		require.ErrorAs(t, c.nodes[int(leader.id)%3].propose(1, "y").Err, &elsewhere, "a follower says who leads, not that its disk is full")

		ctx, cancel := withTimeout(time.Minute)
		defer cancel()
		_, err := leader.groups[1].ReadIndex(ctx)
		require.NoError(t, err)
		c.crash(leader, simfs.Strict)
		next := c.leader(1)
		require.ErrorAs(t, next.propose(1, "y").Err, &got)
		require.NoError(t, c.start(leader))
		for _, n := range c.nodes {
			n.host.SetDiskFull(nil)
		}
		c.must(1, "z")
		require.Equal(t, []string{"x", "essential", "z"}, c.settle(1))
	})
}

// One full disk is no reason to refuse: leadership moves to a disk with room,
// and the full one follows, until next to nothing is left. Then it stands still
// instead of failing, and goes on when there is room.
//
// Property: S6 (red: a leader with a full disk that stays; the appends of other leaders taken in to the end)
func TestAFullDiskMovesLeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "x")
		full := c.leader(1)
		full.host.SetDiskFull(&raftlog.DiskFullError{Left: 900, Reserve: 1000})
		time.Sleep(tick)
		require.NotEqual(t, full, c.leader(1))
		c.must(1, "y")
		time.Sleep(time.Second)
		require.Equal(t, []string{"x", "y"}, full.ledgers[1].snapshot(), "it follows")
		full.host.SetDiskFull(&raftlog.DiskFullError{Left: 200, Reserve: 1000})
		c.must(1, "z")
		time.Sleep(time.Second)
		require.Equal(t, []string{"x", "y"}, full.ledgers[1].snapshot(), "it stands still")
		full.host.SetDiskFull(nil)
		require.Equal(t, []string{"x", "y", "z"}, c.settle(1))
	})
}
