package raftlog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stretchr/testify/require"
)

func seeds(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// acknowledged is what proposers were told, per group: the record at an offset.
type acknowledged struct {
	mu      sync.Mutex
	records map[raftlog.GroupID]map[raftlog.Offset]string
}

func (a *acknowledged) add(g raftlog.GroupID, at raftlog.Offset, data string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.records == nil {
		a.records = map[raftlog.GroupID]map[raftlog.Offset]string{}
	}
	if a.records[g] == nil {
		a.records[g] = map[raftlog.Offset]string{}
	}
	a.records[g][at] = data
}

// outcome checks that an error says what it means.
func (c *cluster) outcome(err error) {
	matches := 0
	for _, o := range []error{raftlog.ErrRetry, raftlog.ErrRefused, raftlog.ErrOutcomeUnknown} {
		if errors.Is(err, o) {
			matches++
		}
	}
	if matches != 1 {
		c.t.Errorf("%v has %d outcomes", err, matches)
	}
}

// check compares with what all replicas agree on.
func (a *acknowledged) check(t *testing.T, c *cluster) int {
	n := 0
	for _, g := range c.groups {
		c.must(g, "after the fault")
		got := c.settle(g)
		for at, data := range a.records[g] {
			require.Less(t, int(at), len(got), "%v: offset %d is lost", g, at)
			require.Equal(t, data, got[at], "%v: offset %d", g, at)
			n++
		}
	}
	return n
}

// load keeps proposals in flight at whatever leads, until stop is closed.
func (c *cluster) load(acked *acknowledged, stop <-chan struct{}, wg *sync.WaitGroup) {
	for _, g := range c.groups {
		for worker := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					data := fmt.Sprintf("%v worker %d record %d %s", g, worker, i, pad(i))
					n := c.nodes[(i+worker)%len(c.nodes)]
					group := n.group(g)
					if group == nil {
						time.Sleep(tick)
						continue
					}
					done := make(chan raftlog.Proposal, 1)
					group.Propose([]byte(data), func(p raftlog.Proposal) { done <- p })
					if p := <-done; p.Err == nil {
						acked.add(g, p.Result.BaseOffset, data)
					} else {
						c.outcome(p.Err)
					}
					time.Sleep(3 * time.Millisecond)
				}
			})
		}
	}
}

// slowSyncs makes a sync of the journal take a few milliseconds, so that work
// piles up behind it.
func slowSyncs(hook simfs.Hook) simfs.Hook {
	return func(op simfs.Op) error {
		if op.Kind == simfs.OpSync && strings.Contains(op.Path, "/journal/") {
			time.Sleep(time.Duration(op.Seq%9) * time.Millisecond)
		}
		return hook(op)
	}
}

func pad(i int) string { return string(make([]byte, i*37%600)) }

// Whole clusters lose power at a random operation of each disk, several times
// in a row, also while they recover, and have lost nothing that they
// acknowledged.
// Property: S1, R22, P9 (red: a journal round answered before its sync; the commit index of a capture not raised to what was applied; errors of what waited without an outcome)
func TestClusterLosesPower(t *testing.T) {
	for seed := range uint64(seeds(16, 3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { losePower(t, seed) })
		})
	}
}

func losePower(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	c := newCluster(t, seed, 3, 3)
	defer c.stopAll()
	acked := &acknowledged{}
	for range 3 {
		for _, n := range c.nodes {
			n.disk.SetHook(simfs.CrashAt(n.disk.Ops() + 20 + rng.Int64N(400)))
		}
		var wg sync.WaitGroup
		stop := make(chan struct{})
		running := true
		for _, n := range c.nodes {
			running = c.start(n) == nil && running
		}
		if running {
			c.load(acked, stop, &wg)
			time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
		}
		close(stop)
		how := simfs.Survival(rng.IntN(4))
		for _, n := range c.nodes {
			c.crash(n, how)
		}
		wg.Wait()
	}
	c.startAll()
	t.Logf("seed %d: %d acknowledged records", seed, acked.check(t, c))
}

// Nodes crash one after the other under load, each at a random operation, and
// come back from what their disk kept.
// Property: R22 (red: frames behind a capture with an older commit index than the capture)
func TestNodesCrashInTurn(t *testing.T) {
	for seed := range uint64(seeds(6, 2)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 2))
				c := startCluster(t, seed, 3, 3)
				defer c.stopAll()
				acked := &acknowledged{}
				var wg sync.WaitGroup
				stop := make(chan struct{})
				c.load(acked, stop, &wg)
				for range 6 {
					n := c.nodes[rng.IntN(len(c.nodes))]
					n.disk.SetHook(slowSyncs(simfs.CrashAt(n.disk.Ops() + rng.Int64N(300))))
					time.Sleep(time.Duration(200+rng.IntN(1000)) * time.Millisecond)
					c.crash(n, simfs.Survival(rng.IntN(4)))
					time.Sleep(time.Duration(rng.IntN(800)) * time.Millisecond)
					require.NoError(t, c.start(n), "seed %d", seed)
				}
				close(stop)
				wg.Wait()
				t.Logf("seed %d: %d acknowledged records", seed, acked.check(t, c))
			})
		})
	}
}

// A follower is killed between a write and its sync, comes back with what the
// page cache kept, and vouches for it. Then it loses power, and with it whatever
// it had not made durable before it spoke.
// Property: R31 (red: open goes on behind the last round that it read)
func TestKilledBeforeTheSync(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := startCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.must(1, "before")
		c.settle(1)
		time.Sleep(election) // the journals have written all they had
		leader := c.leader(1)
		follower, away := c.nodes[int(leader.id)%3], c.nodes[(int(leader.id)+1)%3]
		c.stop(away)
		follower.disk.SetHook(func(op simfs.Op) error {
			if op.Kind == simfs.OpSync && strings.Contains(op.Path, "/journal/") {
				return simfs.ErrCrashed
			}
			return nil
		})
		done := make(chan raftlog.Proposal, 1)
		leader.groups[1].Propose([]byte("vouched for"), func(p raftlog.Proposal) { done <- p })
		time.Sleep(tick)
		require.Empty(t, done)
		c.crash(follower, simfs.Kill)
		require.NoError(t, c.start(follower))
		require.NoError(t, (<-done).Err)
		c.crash(follower, simfs.Strict)
		c.stop(leader)
		require.NoError(t, c.start(follower))
		require.NoError(t, c.start(away))
		c.must(1, "after")
		require.Equal(t, []string{"before", "vouched for", "after"}, c.settle(1))
	})
}

// A process is killed, comes back from the page cache, answers, and then the
// machine loses power: what was said after the first restart is not lost.
func TestKillThenPowerLoss(t *testing.T) {
	for seed := range uint64(seeds(8, 2)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 3))
				c := newCluster(t, seed, 3, 2)
				defer c.stopAll()
				acked := &acknowledged{}
				for _, how := range []simfs.Survival{simfs.Kill, simfs.Strict, simfs.Kill, simfs.Random} {
					for _, n := range c.nodes {
						n.disk.SetHook(simfs.CrashAt(n.disk.Ops() + 40 + rng.Int64N(300)))
					}
					var wg sync.WaitGroup
					stop := make(chan struct{})
					running := true
					for _, n := range c.nodes {
						running = c.start(n) == nil && running
					}
					if running {
						c.load(acked, stop, &wg)
						time.Sleep(3 * time.Second)
					}
					close(stop)
					for _, n := range c.nodes {
						c.crash(n, how)
					}
					wg.Wait()
				}
				c.startAll()
				t.Logf("seed %d: %d acknowledged records", seed, acked.check(t, c))
			})
		})
	}
}
