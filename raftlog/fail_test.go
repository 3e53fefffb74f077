package raftlog_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stretchr/testify/require"
)

// stallSyncs makes the journal syncs of a node wait until they are released.
func stallSyncs(n *node) (release func()) {
	gate := make(chan struct{})
	n.disk.SetHook(func(op simfs.Op) error {
		if op.Kind == simfs.OpSync && strings.Contains(op.Path, "/journal/") {
			<-gate
		}
		return nil
	})
	return sync.OnceFunc(func() { close(gate) })
}

var errDisk = errors.New("the disk says no")

// A state machine that panics or fails ends its group on this node, and
// nothing else, there or elsewhere.
// Property: L1, R27 (red: no recover around apply; frames of a failed group forgotten by a rotation)
func TestStateMachineFails(t *testing.T) {
	for _, how := range []string{"panic", "error"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newCluster(t, 1, 3, 2)
				defer c.stopAll()
				c.ledger = func(l *ledger, n *node, g raftlog.GroupID) {
					if n.id == 1 && g == 1 && how == "panic" {
						l.poison = []byte("poison")
					}
					if n.id == 1 && g == 1 && how == "error" {
						l.refuse = []byte("poison")
					}
				}
				c.startAll()
				c.must(1, "x")
				sick := c.nodes[0]
				if c.leader(1) != sick {
					ctx, cancel := withTimeout(5 * election)
					defer cancel()
					require.NoError(t, c.leader(1).groups[1].TransferLeadership(ctx, replicaOf(1, 1)))
				}
				require.Equal(t, sick, c.leader(1))
				p := sick.propose(1, "poison")
				var failed *raftlog.GroupFailedError
				require.ErrorAs(t, p.Err, &failed)
				require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(p.Err))
				require.Equal(t, replicaOf(1, 1), failed.Replica)
				require.NoError(t, sick.host.Failed())

				p = sick.propose(1, "more")
				require.ErrorAs(t, p.Err, &failed)
				require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(p.Err))
				ctx, cancel := withTimeout(time.Minute)
				defer cancel()
				_, err := sick.groups[1].ReadIndex(ctx)
				require.ErrorAs(t, err, &failed)
				time.Sleep(tick)
				status := sick.groups[1].Status()
				require.Equal(t, raftlog.RoleResigned, status.Role)
				require.ErrorAs(t, status.Failed, &failed)
				require.NoError(t, sick.groups[2].Status().Failed)
				require.Equal(t, 1, sick.host.Stats().GroupsFailed)

				require.NotEqual(t, sick, c.leader(1))
				c.must(1, "the others go on")
				for i := range 200 { // rotations carry the failed group
					c.must(2, fmt.Sprint(i, strings.Repeat("x", 1000)))
				}
				require.NotZero(t, sick.host.Stats().Rotations)
				require.NoError(t, sick.host.Failed())

				// Mended and opened again, it has lost nothing.
				c.ledger = nil
				if how == "panic" {
					c.crash(sick, simfs.Strict)
					require.NoError(t, c.start(sick))
				} else {
					require.NoError(t, sick.host.CloseGroup(ctx, replicaOf(1, 1)))
					l := &ledger{}
					group, err := sick.host.OpenGroup(c.options(sick, 1, l))
					require.NoError(t, err)
					sick.ledgers[1] = l
					sick.setGroup(1, group)
				}
				c.must(1, "again")
				require.Equal(t, []string{"x", "poison", "the others go on", "again"}, c.settle(1))
			})
		})
	}
}

// A callback that panics is a bug of one group's user.
// Property: L1 (red: no recover around callbacks)
func TestCallbackPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 2)
		defer c.stopAll()
		n := c.nodes[0]
		n.groups[1].Propose([]byte("x"), func(raftlog.Proposal) { panic("a bug") })
		time.Sleep(time.Second)
		require.Equal(t, raftlog.RoleResigned, n.groups[1].Status().Role)
		c.must(2, "x")
		// The same where a proposal is refused, by the loop.
		n.groups[2].Propose(nil, func(p raftlog.Proposal) {
			require.ErrorIs(t, p.Err, raftlog.ErrEmptyProposal)
			panic("a bug")
		})
		time.Sleep(time.Second)
		require.Equal(t, raftlog.RoleResigned, n.groups[2].Status().Role)
		require.NoError(t, n.host.Failed())
	})
}

// A hook that panics stops the node: everybody who waits hears of it, and so
// does everybody who comes later.
// Property: L1, P9 (red: groups that were to be looked at forgotten)
func TestHookPanics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, 1, 1, 3)
		defer c.stopAll()
		var boom atomic.Bool
		c.config = func(cfg *raftlog.Config) {
			cfg.StepHook = func(*raftlog.Core, *raftlog.Effects) {
				if boom.Load() {
					panic("a bug")
				}
			}
		}
		c.startAll()
		for _, g := range c.groups {
			c.must(g, "x")
		}
		n := c.nodes[0]
		release := stallSyncs(n)
		defer release()
		ended := make(chan error, 100)
		propose := func() {
			for _, g := range c.groups {
				n.groups[g].Propose([]byte("y"), func(p raftlog.Proposal) { ended <- p.Err })
			}
		}
		propose()
		time.Sleep(tick / 2)
		require.Empty(t, ended)
		boom.Store(true)
		release()
		for range 20 { // inboxes are exchanged
			propose()
			time.Sleep(tick)
		}
		require.Len(t, ended, 63)
		for range 63 {
			err := <-ended
			var failed *raftlog.HostFailedError
			require.ErrorAs(t, err, &failed)
			c.outcome(err)
		}
		for _, g := range c.groups {
			require.Equal(t, raftlog.RoleResigned, n.groups[g].Status().Role)
			ctx, cancel := withTimeout(time.Minute)
			_, err := n.groups[g].ReadIndex(ctx)
			require.NoError(t, ctx.Err())
			cancel()
			require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err), "%v", err)
		}
	})
}

// A node whose journal fails acknowledges nothing any more; all who wait are
// told that it may have happened; the others go on.
// Property: S5 (red: the error of a round ignored)
func TestJournalFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 2)
		defer c.stopAll()
		c.must(1, "x")
		sick := c.leader(1)
		sick.disk.SetHook(func(op simfs.Op) error {
			if op.Kind == simfs.OpSync && strings.Contains(op.Path, "/journal/") {
				return errDisk
			}
			return nil
		})
		p := sick.propose(1, "y")
		require.ErrorIs(t, p.Err, errDisk)
		require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(p.Err))
		require.ErrorIs(t, sick.host.Failed(), errDisk)
		time.Sleep(tick)
		for _, g := range c.groups {
			require.ErrorIs(t, sick.groups[g].Status().Failed, errDisk)
			p = sick.propose(g, "z")
			require.ErrorIs(t, p.Err, errDisk)
			require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(p.Err))
			require.NotEqual(t, sick, c.leader(g))
			c.must(g, "the others go on")
		}
		_, err := sick.host.OpenGroup(raftlog.GroupOptions{Group: 1, Replica: 999, Machine: &ledger{}})
		c.outcome(err)
		sick.host.Abort()
	})
}

// A log that cannot be written ends its group here; the node goes on, and after
// a restart the log is whole again.
// Property: S5, R27 (red: frames of a failed group forgotten by a rotation)
func TestLogFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 2)
		defer c.stopAll()
		c.must(1, "x")
		c.settle(1)
		sick := c.nodes[int(c.leader(1).id)%3] // a follower
		sick.disk.SetHook(func(op simfs.Op) error {
			if op.Kind == simfs.OpWrite && strings.Contains(op.Path, "/groups/1/") {
				return errDisk
			}
			return nil
		})
		for i := range 150 {
			c.must(1, fmt.Sprint(i, strings.Repeat("x", 1000)))
			c.must(2, fmt.Sprint(i))
		}
		time.Sleep(time.Second)
		require.Equal(t, raftlog.RoleResigned, sick.groups[1].Status().Role)
		require.NoError(t, sick.host.Failed())
		require.NotZero(t, sick.host.Stats().Rotations)
		c.crash(sick, simfs.Strict)
		require.NoError(t, c.start(sick))
		c.must(1, "y")
		require.Len(t, c.settle(1), 152)
	})
}

// failLog makes an operation on the files of a group's logs fail.
func failLog(n *node, g raftlog.GroupID, kind simfs.OpKind) {
	n.disk.SetHook(func(op simfs.Op) error {
		if op.Kind == kind && strings.Contains(op.Path, fmt.Sprintf("/groups/%d/", g)) {
			return errDisk
		}
		return nil
	})
}

// A log that failed holds up neither checkpoints nor the journal's files, and
// a restart has all of it.
// Property: S5, R27 (red: a checkpoint without some logs counted as none)
func TestFailedLogsDoNotPinTheJournal(t *testing.T) {
	for name, kind := range map[string]simfs.OpKind{"write": simfs.OpWrite, "sync": simfs.OpSync} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := startCluster(t, 1, 1, 2)
				defer c.stopAll()
				n := c.nodes[0]
				c.must(1, "x")
				failLog(n, 1, kind)
				y := n.propose(1, "y")
				before := n.host.Stats().Checkpoints
				for range 5 {
					c.rotate(n, 2)
				}
				require.Equal(t, raftlog.RoleResigned, n.groups[1].Status().Role)
				require.GreaterOrEqual(t, n.host.Stats().Checkpoints, before+10)
				files, err := n.disk.List("/node/n1/journal")
				require.NoError(t, err)
				require.Less(t, len(files), 10)
				require.Equal(t, kind == simfs.OpSync, y.Err == nil, "%v", y.Err)
				c.crash(n, simfs.Strict)
				require.NoError(t, c.start(n))
				c.must(1, "z")
				require.Equal(t, []string{"x", "y", "z"}, c.settle(1))
			})
		})
	}
}

// What a rotation carries over may be more than a generation is to hold: that
// alone is no reason to rotate again.
func TestRotationsFollowWhatIsWritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 2)
		defer c.stopAll()
		n := c.nodes[0]
		c.must(1, "x")
		failLog(n, 1, simfs.OpWrite)
		require.Error(t, n.propose(1, strings.Repeat("z", 300<<10)).Err)
		for range 20 { // idle, but for marks
			n.propose(2, "a")
			time.Sleep(time.Second)
		}
		rotations := n.host.Stats().Rotations
		require.LessOrEqual(t, rotations, uint64(2))
		for range 300 {
			c.must(2, strings.Repeat("y", 3000)) // 900 KB
		}
		more := n.host.Stats().Rotations - rotations
		require.NotZero(t, more)
		require.LessOrEqual(t, more, uint64(4), "300 KB are carried over")
		require.NoError(t, n.host.Failed())
	})
}

// An acknowledged record is synced on a majority: with two journals stuck
// nothing is acknowledged, with one stuck everything is.
// Property: P8 (red: appends count as durable before their sync)
func TestAcknowledgedMeansQuorum(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "x")
		c.settle(1)
		leader := c.leader(1)
		one, two := c.nodes[int(leader.id)%3], c.nodes[(int(leader.id)+1)%3]
		free := stallSyncs(one)
		defer free()
		c.must(1, "one journal is stuck")
		freeToo := stallSyncs(two)
		defer freeToo()
		done := make(chan raftlog.Proposal, 1)
		leader.groups[1].Propose([]byte("two journals are stuck"), func(p raftlog.Proposal) { done <- p })
		time.Sleep(election / 2)
		require.Empty(t, done)
		freeToo()
		require.NoError(t, (<-done).Err)
		free()
		c.settle(1)
	})
}
