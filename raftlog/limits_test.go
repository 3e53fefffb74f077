package raftlog_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stelelog/stele/raftlog"
	"github.com/stretchr/testify/require"
)

// An isolated leader stops within two election timeouts, and says of what it
// accepted that it may have happened.
// Property: R14, P9 (red: no quorum check; proposals of a lost leadership left waiting)
func TestIsolatedLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "before")
		c.settle(1)
		old := c.leader(1)
		c.net.isolate(old.id, true)
		began := time.Now()
		var accepted []string
		outcomes := make(chan raftlog.Proposal, 1000)
		var last atomic.Int64 // when the last outcome came
		for i := 0; time.Since(began) < 3*election; i++ {
			data := fmt.Sprintf("isolated %d", i)
			if old.groups[1].Status().Role.IsLeader() {
				accepted = append(accepted, data)
				old.groups[1].Propose([]byte(data), func(p raftlog.Proposal) {
					last.Store(int64(time.Since(began)))
					outcomes <- p
				})
				require.LessOrEqual(t, time.Since(began), 2*election+tick, "it still leads")
			}
			time.Sleep(tick / 2)
		}
		require.NotEmpty(t, accepted)
		unknown := 0
		for range accepted {
			// All have ended by now: without another look at the clock.
			select {
			case p := <-outcomes:
				require.Error(t, p.Err)
				if raftlog.OutcomeOf(p.Err) == raftlog.OutcomeUnknown {
					unknown++
				}
				c.outcome(p.Err)
			default:
				require.FailNow(t, "a caller still waits")
			}
		}
		require.Greater(t, unknown, len(accepted)/2)
		require.LessOrEqual(t, time.Duration(last.Load()), 2*election+tick)
		c.must(1, "after")
		c.net.isolate(old.id, false)
		c.must(1, "healed")
		require.Equal(t, []string{"before", "after", "healed"}, c.settle(1))
	})
}

// Without a quorum what waits is bounded, and more is refused at once.
// Property: R26, P9 (red: no budget of the group; no budget of the node; refused without an outcome)
func TestOverload(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, 1, 3, 2)
		defer c.stopAll()
		c.config = func(cfg *raftlog.Config) {
			cfg.MaxUncommittedBytes = 64 << 10
			cfg.MaxUncommittedBytesPerNode = 96 << 10
		}
		c.startAll()
		c.must(1, "x")
		c.must(2, "x")
		n := c.leader(1)
		if c.leader(2) != n {
			ctx, cancel := withTimeout(5 * election)
			defer cancel()
			require.NoError(t, c.leader(2).groups[2].TransferLeadership(ctx, replicaOf(2, n.id)))
			require.Equal(t, n, c.leader(2))
		}
		c.net.isolate(n.id, true)
		var overloaded, other atomic.Int64
		flood := func(g raftlog.GroupID) {
			for range 200 {
				n.groups[g].Propose([]byte(strings.Repeat("x", 4096)), func(p raftlog.Proposal) {
					if raftlog.OutcomeOf(p.Err) == raftlog.OutcomeRetry {
						overloaded.Add(1)
					} else {
						other.Add(1)
					}
					require.Error(t, p.Err)
				})
			}
		}
		flood(1)
		time.Sleep(time.Millisecond) // no time-out helps: less than a tick
		require.EqualValues(t, 200-15, overloaded.Load())
		require.LessOrEqual(t, n.host.Stats().UncommittedBytes, int64(64<<10))
		flood(2) // the node's budget is shared
		time.Sleep(time.Millisecond)
		require.EqualValues(t, 400-15-8, overloaded.Load(), "the node's budget")
		require.LessOrEqual(t, n.host.Stats().UncommittedBytes, int64(96<<10))
		require.EqualValues(t, 400-15-8, n.host.Stats().Overloads)

		time.Sleep(3 * election) // it steps down
		require.EqualValues(t, 400, overloaded.Load()+other.Load())
		require.Zero(t, n.host.Stats().UncommittedBytes)
		c.net.isolate(n.id, false)
		c.must(1, "y")
		// What is larger than the budget is accepted when nothing waits.
		require.NoError(t, c.leader(1).propose(1, strings.Repeat("y", 128<<10)).Err)
		c.settle(1)
	})
}

// What no log could hold is refused for good, before it is in any.
// Property: P9 (red: no limit)
func TestTooLarge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 1)
		defer c.stopAll()
		n := c.nodes[0]
		done := make(chan raftlog.Proposal, 1)
		n.groups[1].Propose(make([]byte, raftlog.MaxProposalBytes+1), func(p raftlog.Proposal) { done <- p })
		p := <-done
		var tooLarge *raftlog.TooLargeError
		require.ErrorAs(t, p.Err, &tooLarge)
		require.Equal(t, raftlog.TooLargeError{Size: raftlog.MaxProposalBytes + 1, Max: raftlog.MaxProposalBytes}, *tooLarge)
		c.outcome(p.Err)
		require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(p.Err))
		require.Zero(t, n.host.Stats().UncommittedBytes)
		require.Zero(t, n.host.Stats().Overloads)
		c.must(1, "x")
		require.Equal(t, []string{"x"}, c.settle(1))
	})
}

// A state machine that hangs holds up its own group alone, and its proposals
// are bounded.
// Property: R27 (red: apply runs in the loop)
func TestSlowApply(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 3)
		defer c.stopAll()
		for _, g := range c.groups {
			c.must(g, "before")
		}
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		for _, n := range c.nodes {
			n.ledgers[1].close(gate)
		}
		slow := make(chan raftlog.Proposal, 1)
		c.leader(1).groups[1].Propose([]byte("slow"), func(p raftlog.Proposal) { slow <- p })
		for i := range 30 {
			c.must(2, fmt.Sprint(i))
			c.must(3, fmt.Sprint(i))
		}
		c.settle(2)
		select {
		case <-slow:
			require.FailNow(t, "applied behind a closed gate")
		default:
		}
		require.Equal(t, raftlog.RoleLeaderActive, c.leader(1).groups[1].Status().Role)
		open()
		require.NoError(t, (<-slow).Err)
		c.settle(1)
	})
}

// A follower whose journal is stuck drops what it has no room for, and catches
// up later.
// Property: R26 (red: no budget of unwritten bytes)
func TestUnwrittenBytesAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.config = func(cfg *raftlog.Config) { cfg.MaxUnwrittenBytes = 16 << 10 }
		c.startAll()
		c.must(1, "x")
		c.settle(1)
		leader := c.leader(1)
		slow := c.nodes[int(leader.id)%3]
		release := stallSyncs(slow)
		defer release()
		for range 100 {
			c.must(1, strings.Repeat("x", 2000))
		}
		require.NotZero(t, slow.host.Stats().MessagesDropped)
		release()
		require.Len(t, c.settle(1), 101)
	})
}

// A follower whose state machines are slow takes in only so much ahead of them,
// and goes on by itself. Its other groups do not notice.
// Property: R26, R27 (red: entries that wait for the state machine not counted; not counted for the node)
func TestUnappliedBytesAreBounded(t *testing.T) {
	for _, slowGroups := range [][]raftlog.GroupID{{1}, {1, 3}} {
		bubble(t, func(t *testing.T) { unappliedBytesAreBounded(t, slowGroups) })
	}
}

func unappliedBytesAreBounded(t *testing.T, slowGroups []raftlog.GroupID) {
	c := newCluster(t, 1, 3, 3)
	defer c.stopAll()
	c.config = func(cfg *raftlog.Config) {
		cfg.MaxUnwrittenBytes = 16 << 10
		if len(slowGroups) > 1 {
			cfg.MaxUnwrittenBytesPerNode = 16 << 10
		}
	}
	c.startAll()
	for _, g := range c.groups {
		c.must(g, "x")
		c.settle(g)
	}
	slow := c.nodes[int(c.leader(1).id)%3]
	for _, g := range slowGroups { // followers on that node
		if c.leader(g) == slow {
			ctx, cancel := withTimeout(5 * election)
			defer cancel()
			require.NoError(t, slow.groups[g].TransferLeadership(ctx, 0))
		}
	}
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	for _, g := range slowGroups {
		slow.ledgers[g].close(gate)
	}
	for range 100 {
		for _, g := range slowGroups {
			c.must(g, strings.Repeat("x", 2000))
		}
		c.must(2, "y")
		require.LessOrEqual(t, slow.host.Stats().UnappliedBytes, int64(20<<10))
	}
	s := slow.groups[1].Status()
	require.LessOrEqual(t, s.Durable-s.Applied, raftlog.Index(10))
	require.NotZero(t, slow.host.Stats().MessagesDropped)
	require.NotZero(t, slow.host.Stats().UnappliedBytes)
	require.Len(t, c.settle(2), 101)
	open()
	for _, g := range slowGroups {
		require.Len(t, c.settle(g), 101)
	}
	require.Zero(t, slow.host.Stats().UnappliedBytes)
}
