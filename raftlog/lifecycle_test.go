package raftlog_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

func TestTransferLeadership(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "x")
		for range 4 {
			old := c.leader(1)
			to := c.nodes[int(old.id)%3]
			ctx, cancel := withTimeout(5 * election)
			began := time.Now()
			require.NoError(t, old.groups[1].TransferLeadership(ctx, replicaOf(1, to.id)))
			cancel()
			require.Less(t, time.Since(began), election)
			require.Equal(t, to, c.leader(1))
			c.must(1, "y")
		}
		// A follower cannot, nor can a leader hand over to a dead node.
		old := c.leader(1)
		other := c.nodes[int(old.id)%3]
		ctx, cancel := withTimeout(5 * election)
		defer cancel()
		var elsewhere *raftlog.NotLeaderError
		require.ErrorAs(t, other.groups[1].TransferLeadership(ctx, 0), &elsewhere)
		c.stop(other)
		err := old.groups[1].TransferLeadership(ctx, replicaOf(1, other.id))
		require.ErrorIs(t, err, raftlog.ErrTransferFailed)
		require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
		c.must(1, "it leads on")
		require.ErrorIs(t, old.groups[1].TransferLeadership(ctx, 12345), raftlog.ErrNoTarget)
	})
}

// Every call that waits ends when its context does, or with the host.
// Property: L4 (red: waiting for the loop without a context; reads without a context)
func TestContexts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "x")
		n := c.leader(1)
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		n.ledgers[1].close(gate)
		done := make(chan raftlog.Proposal, 1)
		n.groups[1].Propose([]byte("y"), func(p raftlog.Proposal) { done <- p })
		time.Sleep(tick)
		c.net.isolate(n.id, true)

		for _, c := range []struct {
			name string
			call func(ctx context.Context) error
		}{
			{"ReadIndex", func(ctx context.Context) error {
				_, err := n.groups[1].ReadIndex(ctx)
				return err
			}},
			{"TransferLeadership", func(ctx context.Context) error {
				return n.groups[1].TransferLeadership(ctx, replicaOf(1, c.nodes[int(n.id)%3].id))
			}},
			{"CloseGroup", func(ctx context.Context) error { return n.host.CloseGroup(ctx, replicaOf(1, n.id)) }},
		} {
			cause := fmt.Errorf("cause of %s", c.name)
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(3*time.Millisecond, func() { cancel(cause) })
			began := time.Now()
			err := c.call(ctx)
			require.ErrorIs(t, err, context.Canceled, c.name)
			require.ErrorIs(t, err, cause, c.name)
			require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(err), c.name)
			require.Equal(t, 3*time.Millisecond, time.Since(began), c.name)
		}
		open()
		<-done
		ctx, cancel := withTimeout(time.Second)
		defer cancel()
		require.NoError(t, n.host.CloseGroup(ctx, replicaOf(1, n.id)), "another call finishes")
	})
}

// Close and Abort end every call, at any moment, as often as they are called.
// Property: L3 (red: the writer not ended; the end does not wait for the goroutines)
func TestCloseAndAbort(t *testing.T) {
	for i := range seeds(24, 6) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newCluster(t, uint64(i), 3, 3)
				defer c.stopAll()
				c.startAll()
				acked := &acknowledged{}
				var wg sync.WaitGroup
				stop := make(chan struct{})
				c.load(acked, stop, &wg)
				time.Sleep(time.Duration(i*i) * 5 * time.Millisecond)
				n := c.nodes[i%3]
				disk := n.disk
				ctx, cancel := withTimeout(time.Duration(i%4) * time.Second)
				defer cancel()
				began := time.Now()
				var closers sync.WaitGroup
				for k := range 3 {
					closers.Go(func() {
						if (k+i)%3 == 0 {
							n.host.Abort()
						} else {
							_ = n.host.Close(ctx)
						}
					})
				}
				closers.Wait()
				require.LessOrEqual(t, time.Since(began), election+2*tick)
				require.NoError(t, n.store.Close())
				ops := disk.Ops()
				for _, g := range c.groups {
					p := n.propose(g, "late")
					require.ErrorIs(t, p.Err, raftlog.ErrClosed)
					require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(p.Err))
					_, err := n.groups[g].ReadIndex(context.Background())
					require.ErrorIs(t, err, raftlog.ErrClosed)
					require.ErrorIs(t, n.groups[g].TransferLeadership(context.Background(), 0), raftlog.ErrClosed)
				}
				n.host.HandleFrame(2, []byte("late"))
				time.Sleep(election)
				require.Equal(t, ops, disk.Ops(), "something was written after the end")
				n.host.Abort()
				require.NoError(t, n.host.Close(ctx))
				n.host = nil
				require.NoError(t, c.start(n))
				close(stop)
				wg.Wait()
				acked.check(t, c)
			})
		})
	}
}

// A closed leader hands over: the group is led again at once, and the next
// start finds a checkpoint.
// Property: H10 (red: no hand-over at Close)
func TestCloseHandsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 5)
		defer c.stopAll()
		for _, g := range c.groups {
			c.must(g, "x")
		}
		n := c.leader(1)
		ctx, cancel := withTimeout(5 * time.Second)
		defer cancel()
		began := time.Now()
		require.NoError(t, n.host.Close(ctx))
		require.Less(t, time.Since(began), election/2)
		require.NoError(t, n.store.Close())
		n.host = nil
		for _, g := range c.groups {
			require.NotEqual(t, n, c.leader(g))
		}
		require.Less(t, time.Since(began), election/2, "an election time-out passed")
		store, err := storage.Open(storage.Config{FS: n.disk, Dir: "/node/" + fmt.Sprint(uint64(n.id)), JournalFileSize: 64 << 10, SegmentSize: 16 << 10})
		require.NoError(t, err)
		for _, st := range store.Replicas() {
			require.Empty(t, st.Tail, "%v", st.Replica)
		}
		require.NoError(t, store.Close())
	})
}

// A voter that has just died does not keep the others from taking over.
//
// Property: H10, R16 (red: handed over once, to the first)
func TestCloseHandsOverToTheNext(t *testing.T) {
	for dead := range 4 {
		bubble(t, func(t *testing.T) {
			c := startCluster(t, 1, 5, 3)
			defer c.stopAll()
			for _, g := range c.groups {
				c.must(g, "x")
			}
			n := c.leader(1)
			others := slices.DeleteFunc(slices.Clone(c.nodes), func(o *node) bool { return o == n })
			c.net.isolate(others[dead].id, true)
			require.NoError(t, n.host.Close(context.Background()))
			began := time.Now()
			require.NoError(t, n.store.Close())
			n.host = nil
			for _, g := range c.groups {
				c.leader(g)
			}
			require.Less(t, time.Since(began), election/2, "an election time-out passed")
		})
	}
}

// With a hand-over that cannot work Close ends all the same, within an
// election timeout for each that might take over, and two more.
func TestCloseWithoutTarget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		n := c.leader(1)
		c.net.isolate(n.id, true)
		began := time.Now()
		require.NoError(t, n.host.Close(context.Background()))
		require.LessOrEqual(t, time.Since(began), 5*(election+tick))
	})
}

// A node that fails while it hands over closes all the same.
// Property: L3 (red: waiting for a round of a journal that failed; a node that joins: TestANodeIsClosedWhileItJoins of the root)
func TestCloseOfAFailingNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "x")
		n := c.leader(1)
		c.net.isolate(n.id, true) // nobody takes over
		closed := make(chan error, 1)
		go func() { closed <- n.host.Close(context.Background()) }()
		time.Sleep(2 * tick)
		n.disk.SetHook(func(op simfs.Op) error {
			if op.Kind == simfs.OpSync && strings.Contains(op.Path, "/journal/") {
				return errDisk
			}
			return nil
		})
		select {
		case err := <-closed:
			require.ErrorIs(t, err, errDisk)
		case <-time.After(time.Minute):
			require.FailNow(t, "Close hangs", "%v", n.host.Failed())
		}
	})
}

// Who closes second waits where time goes on: what the first one waits for may
// take long.
func TestCloseTwiceBehindAStuckSync(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 1)
		defer c.stopAll()
		c.must(1, "x")
		n := c.nodes[0]
		release := stallSyncs(n)
		defer release()
		n.groups[1].Propose([]byte("y"), func(raftlog.Proposal) {})
		time.Sleep(tick)
		var wg sync.WaitGroup
		ended := make(chan struct{})
		for range 2 {
			wg.Go(n.host.Abort)
			wg.Go(func() {
				ctx, cancel := withTimeout(time.Second)
				defer cancel()
				_ = n.host.Close(ctx)
			})
		}
		go func() { wg.Wait(); close(ended) }()
		time.Sleep(time.Minute)
		select {
		case <-ended:
			require.FailNow(t, "closed before the sync ended")
		default:
		}
		release()
		<-ended
	})
}

// Two clusters in one process share nothing: one is slow, fails and ends, and
// the other does not notice.
// Property: L2 (red: a counter shared by all hosts)
func TestHostsShareNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := startCluster(t, 1, 3, 2), startCluster(t, 2, 3, 2)
		defer a.stopAll()
		defer b.stopAll()
		a.must(1, "a")
		b.must(1, "b")
		b.settle(1)
		b.settle(2)
		before := b.nodes[0].host.Stats()
		for i := range 100 {
			a.must(1, fmt.Sprint(i))
		}
		after := b.nodes[0].host.Stats()
		require.Equal(t, before.Proposals, after.Proposals)
		require.Equal(t, before.EntriesApplied, after.EntriesApplied)
		a.stopAll()
		b.must(1, "c")
		require.Equal(t, []string{"b", "c"}, b.settle(1))
		require.Equal(t, before.EntriesApplied+1, b.nodes[0].host.Stats().EntriesApplied)
		require.Equal(t, before.ElectionsWon, b.nodes[0].host.Stats().ElectionsWon)
	})
}

// Dormant replicas, closed groups and those set aside are carried through
// rotations and restarts.
func TestGroupsComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 4)
		defer c.stopAll()
		for _, g := range c.groups {
			c.must(g, "x")
			c.settle(g)
		}
		n := c.nodes[0]
		ctx, cancel := withTimeout(time.Minute)
		defer cancel()
		rotate := func() {
			before := n.host.Stats().Rotations
			for i := 0; n.host.Stats().Rotations < before+3; i++ {
				c.must(4, fmt.Sprint(i, strings.Repeat("y", 3000)))
			}
		}
		require.NoError(t, n.host.CloseGroup(ctx, replicaOf(1, 1)))
		require.NoError(t, n.host.CloseGroup(ctx, replicaOf(1, 1)), "twice")
		require.NoError(t, n.host.SetAside(ctx, replicaOf(2, 1)))
		require.NoError(t, n.host.SetAside(ctx, replicaOf(2, 1)), "twice")
		require.ErrorIs(t, n.propose(1, "closed").Err, raftlog.ErrClosed)
		err := n.host.SetAside(ctx, 4711)
		require.ErrorIs(t, err, raftlog.ErrUnknownReplica)
		rotate()

		_, err = n.host.OpenGroup(c.options(n, 2, &ledger{}))
		require.ErrorIs(t, err, raftlog.ErrSetAside)
		require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
		_, err = n.host.OpenGroup(c.options(n, 3, &ledger{}))
		require.ErrorIs(t, err, raftlog.ErrReplicaOpen)
		again := &ledger{}
		group, err := n.host.OpenGroup(c.options(n, 1, again))
		require.NoError(t, err)
		n.ledgers[1] = again
		n.setGroup(1, group)
		c.must(1, "reopened")
		require.Equal(t, []string{"x", "reopened"}, c.settle(1))

		// A restart leaves all dormant; one that is never opened goes on being
		// carried.
		c.crash(n, simfs.Strict)
		all := c.groups
		c.groups = []raftlog.GroupID{4}
		require.NoError(t, c.start(n))
		rotate()
		rotate()
		group, err = n.host.OpenGroup(c.options(n, 1, &ledger{}))
		require.NoError(t, err)
		require.GreaterOrEqual(t, group.Status().Last, raftlog.Index(3))
		c.groups = all
		_, err = n.host.OpenGroup(c.options(n, 2, &ledger{}))
		require.ErrorIs(t, err, raftlog.ErrSetAside)
		c.settle(4)
	})
}

// Property: R32 (red: the configuration not asked whether it lists the replica)
func TestOpenGroupRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 1)
		defer c.stopAll()
		host := c.nodes[0].host
		open := func(change func(o *raftlog.GroupOptions)) error {
			o := c.options(c.nodes[0], 2, &ledger{})
			change(&o)
			_, err := host.OpenGroup(o)
			require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err), "%v", err)
			return err
		}
		require.ErrorIs(t, open(func(o *raftlog.GroupOptions) { o.Create = nil }), raftlog.ErrUnknownReplica)
		require.Error(t, open(func(o *raftlog.GroupOptions) { o.Machine = nil }))
		require.Error(t, open(func(o *raftlog.GroupOptions) { o.Group = 0 }))
		// Only replicas that the creating command lists start with its
		// configuration.
		require.Error(t, open(func(o *raftlog.GroupOptions) { o.Replica = 4711 }))
		// A replica is of one group for ever.
		require.NoError(t, host.CloseGroup(context.Background(), replicaOf(1, 1)))
		require.Error(t, open(func(o *raftlog.GroupOptions) {
			*o = c.options(c.nodes[0], 1, &ledger{})
			o.Group = 7
		}))
	})
}

func TestManyGroups(t *testing.T) {
	bubble(t, func(t *testing.T) {
		groups := 200
		c := startCluster(t, 1, 3, groups)
		defer c.stopAll()
		var wg sync.WaitGroup
		for _, g := range c.groups {
			wg.Go(func() {
				for i := range 3 {
					c.must(g, fmt.Sprint(g, i))
				}
			})
		}
		wg.Wait()
		for _, g := range c.groups {
			require.Len(t, c.settle(g), 3)
		}
		var rounds, roundFrames, frames, messages uint64
		for _, n := range c.nodes {
			s := n.host.Stats()
			require.Equal(t, groups, s.Groups)
			rounds, roundFrames = rounds+s.Rounds, roundFrames+s.RoundFrames
			frames, messages = frames+s.FramesSent, messages+s.MessagesSent
		}
		// Many groups share rounds and frames.
		require.Greater(t, roundFrames, 2*rounds)
		require.Greater(t, messages, 2*frames)
	})
}

func TestStrayFrames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 1, 1)
		defer c.stopAll()
		host := c.nodes[0].host
		host.HandleFrame(2, nil)
		host.HandleFrame(2, []byte{9, 9, 9})
		host.HandleFrame(2, []byte{1, 3})
		require.EqualValues(t, 3, host.Stats().FramesMalformed)
		c.must(1, "x")
	})
}

func TestConfig(t *testing.T) {
	store, err := storage.Open(storage.Config{FS: simfs.New(1), Dir: "/n"})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	good := raftlog.Config{Node: 1, Store: store, Sender: sender{newNetwork(), 1}}
	for field, change := range map[string]func(*raftlog.Config){
		"Node":                       func(c *raftlog.Config) { c.Node = 0 },
		"Store":                      func(c *raftlog.Config) { c.Store = nil },
		"Sender":                     func(c *raftlog.Config) { c.Sender = nil },
		"Tick":                       func(c *raftlog.Config) { c.Tick = time.Microsecond },
		"HeartbeatTicks":             func(c *raftlog.Config) { c.HeartbeatTicks = -1 },
		"ElectionTicks":              func(c *raftlog.Config) { c.ElectionTicks = 2 },
		"MaxUncommittedBytes":        func(c *raftlog.Config) { c.MaxUncommittedBytes = 5 },
		"MaxUncommittedBytesPerNode": func(c *raftlog.Config) { c.MaxUncommittedBytesPerNode = 5 },
		"MaxUnwrittenBytes":          func(c *raftlog.Config) { c.MaxUnwrittenBytes = -1 },
		"MaxUnwrittenBytesPerNode":   func(c *raftlog.Config) { c.MaxUnwrittenBytesPerNode = 5 },
		"MaxMessageBytes":            func(c *raftlog.Config) { c.MaxMessageBytes = 5 },
		"MaxInflightBytes":           func(c *raftlog.Config) { c.MaxInflightBytes = 5 },
		"MaxApplyBytes":              func(c *raftlog.Config) { c.MaxApplyBytes = 5 },
		"KeepBytes":                  func(c *raftlog.Config) { c.KeepBytes = 5 },
		"MaxFrameBytes":              func(c *raftlog.Config) { c.MaxFrameBytes = 5 },
	} {
		cfg := good
		change(&cfg)
		_, err := raftlog.Open(cfg)
		var wrong *raftlog.ConfigError
		require.ErrorAs(t, err, &wrong, field)
		require.Equal(t, field, wrong.Field)
	}
}

// Calls that the end of the host overtakes may have returned when their answer
// comes; the race detector sees whether they share it.
func TestCallsBesideTheEnd(t *testing.T) {
	for seed := range uint64(seeds(100, 30)) {
		bubble(t, func(t *testing.T) {
			c := startCluster(t, seed, 1, 3)
			defer c.stopAll()
			n := c.nodes[0]
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					_ = n.host.SetAside(context.Background(), replicaOf(raftlog.GroupID(1+i%3), 1))
				})
				wg.Go(func() {
					_, _ = n.host.OpenGroup(c.options(n, raftlog.GroupID(10+i), &ledger{}))
				})
			}
			_ = n.host.Close(context.Background())
			wg.Wait()
		})
	}
}
