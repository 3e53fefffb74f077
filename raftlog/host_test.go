package raftlog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

func TestHostsReplicate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 3)
		defer c.stopAll()
		for _, g := range c.groups {
			for i := range 50 {
				p := c.must(g, fmt.Sprintf("%v record %d", g, i))
				require.EqualValues(t, i, p.Result.BaseOffset)
				require.Equal(t, i, p.Result.Value)
			}
		}
		for _, g := range c.groups {
			got := c.settle(g)
			require.Len(t, got, 50)
			for i, r := range got {
				require.Equal(t, fmt.Sprintf("%v record %d", g, i), r)
			}
			for _, n := range c.nodes {
				read, err := n.groups[g].Log().ReadAt(0, 1<<20, nil)
				require.NoError(t, err)
				require.EqualValues(t, 50, n.groups[g].Log().NextOffset())
				require.Equal(t, storage.VerdictData, read.Frames[len(read.Frames)-1].Verdict)
			}
		}
		stats := c.leader(1).host.Stats()
		require.NotZero(t, stats.Proposals)
		require.NotZero(t, stats.Rounds)
	})
}

func TestOneNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 2)
		defer c.stopAll()
		for i := range 20 {
			c.must(1, fmt.Sprint(i))
		}
		ctx, cancel := withTimeout(time.Second)
		defer cancel()
		at, err := c.nodes[0].groups[1].ReadIndex(ctx)
		require.NoError(t, err)
		require.Equal(t, c.nodes[0].groups[1].Status().Applied, at)
		require.Len(t, c.nodes[0].ledgers[1].snapshot(), 20)
	})
}

// TestAProposalOfOneLeadership: it is taken in in its term alone.
func TestAProposalOfOneLeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 1)
		defer c.stopAll()
		c.must(1, "x")
		g := c.nodes[0].groups[1]
		in := func(term raftlog.Term) raftlog.Proposal {
			done := make(chan raftlog.Proposal, 1)
			g.ProposeIn(term, []byte("y"), func(p raftlog.Proposal) { done <- p })
			return <-done
		}
		now := g.Status().Term
		for _, term := range []raftlog.Term{now - 1, now + 1} {
			p := in(term)
			require.ErrorIs(t, p.Err, raftlog.ErrLeadershipLost)
			require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(p.Err))
		}
		require.Len(t, c.nodes[0].ledgers[1].snapshot(), 1)
		p := in(now)
		require.NoError(t, p.Err)
		require.Equal(t, now, p.Term)
	})
}

func TestFollowerNamesTheLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "x")
		leader := c.leader(1)
		c.settle(1)
		for _, n := range c.nodes {
			if n == leader {
				continue
			}
			p := n.propose(1, "y")
			var elsewhere *raftlog.NotLeaderError
			require.ErrorAs(t, p.Err, &elsewhere)
			require.Equal(t, leader.id, elsewhere.Node)
			require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(p.Err))
		}
	})
}
