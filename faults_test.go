package stele_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
)

// What follows are faults of machines: disks that fail, fill up and stall. In
// each the rest of the cluster goes on, and after it every acknowledged record
// is read through every node.

// bound is within which the others go on, and all after the last fault healed.
const bound = 10 * time.Second

// within waits until cond holds, no longer than bound.
func within(c *testcluster.Cluster, cond func() bool, what string) {
	c.T.Helper()
	for start := time.Now(); !cond(); c.Sleep(20 * time.Millisecond) {
		require.Less(c.T, time.Since(start), bound, what)
	}
}

// goesOn says that records are acknowledged from now on.
func goesOn(c *testcluster.Cluster, l *testcluster.Ledger, what string) {
	c.T.Helper()
	before := l.Acked()
	within(c, func() bool { return l.Acked() > before+20 }, what)
}

// leadsOne returns a member that leads a partition of a topic, and the partition.
func leadsOne(c *testcluster.Cluster, topic string) (member int, partition uint32) {
	c.T.Helper()
	member = -1
	within(c, func() bool {
		for i := range c.Size() {
			if c.Node(i) == nil {
				continue
			}
			for _, p := range c.Node(i).Status().Partitions {
				if p.Topic == topic && p.Role.IsLeader() {
					member, partition = i, p.Partition
					return true
				}
			}
		}
		return false
	}, "somebody leads")
	return member, partition
}

// failOnce makes one operation of a kind, on a path with a part, fail.
func failOnce(kind simfs.OpKind, part string) (hook simfs.Hook, failed func() bool) {
	var once atomic.Bool
	return func(op simfs.Op) error {
		if op.Kind == kind && strings.Contains(op.Path, part) && once.CompareAndSwap(false, true) {
			return syscall.EIO
		}
		return nil
	}, once.Load
}

// verifyAll ends the load, and reads everything through every node.
func verifyAll(c *testcluster.Cluster, l *testcluster.Ledger, load *testcluster.Load) {
	c.T.Helper()
	load.Stop()
	c.WaitReady()
	for i := range c.Size() {
		l.Verify(i)
	}
}

// One write or sync of the journal fails, and the disk is well again at once.
// The node is done for all the same: what it wrote may be gone.
//
// Property: S5, P7 (red: the error of a round taken for a success; a failed sync tried again)
func TestJournalFailsOnTheLeader(t *testing.T) {
	for seed, kind := range []simfs.OpKind{simfs.OpWrite, simfs.OpSync} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			testcluster.Run(t, testcluster.Options{Seed: uint64(seed)}, func(c *testcluster.Cluster) {
				t := c.T
				c.StartAll()
				mustCreate(c, 0, "orders", 3)
				l := c.NewLedger("orders")
				load := l.StartLoad(2, 3, 5*time.Millisecond)
				c.Sleep(time.Second)
				sick, _ := leadsOne(c, "orders")
				if seed < 2 {
					sick = c.MetadataLeader()
				}
				node := c.Node(sick)
				hook, failed := failOnce(kind, "/journal/")
				c.Member(sick).FS.SetHook(hook)
				within(c, failed, "the journal is written")
				within(c, func() bool { return node.Readiness().Code == stele.Failed }, "it says so")
				require.Contains(t, node.Readiness().Reason, syscall.EIO.Error())
				goesOn(c, l, "the others go on")
				s := node.Status()
				require.False(t, s.Metadata.Role.IsLeader())
				for _, p := range s.Partitions {
					require.False(t, p.Role.IsLeader())
				}
				_, err := node.CreateTopic(t.Context(), "more", stele.TopicConfig{Partitions: 1})
				require.Error(t, err)
				require.NotEqual(t, stele.OutcomeUnknown, stele.OutcomeOf(err), "%v", err)
				c.Sleep(10 * time.Second)
				require.Equal(t, stele.Failed, node.Readiness().Code, "for good")

				c.PowerLoss(sick)
				c.Start(sick)
				verifyAll(c, l, load)
			})
		})
	}
}

// A log of one partition cannot be written on the node that leads it: that
// replica ends, and another leads; the node goes on with all else.
//
// Property: S5 (red: a failed log that fails the node)
func TestSegmentFailsOnTheLeader(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 2}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 3)
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 3, 5*time.Millisecond)
		c.Sleep(time.Second)
		sick, partition := leadsOne(c, "orders")
		of := func(op simfs.Op) bool {
			return strings.Contains(op.Path, "/topics/orders@") && strings.Contains(op.Path, fmt.Sprintf("/%d.", partition))
		}
		c.Member(sick).FS.SetHook(func(op simfs.Op) error {
			if op.Kind == simfs.OpWrite && of(op) {
				return syscall.EIO
			}
			return nil
		})
		within(c, func() bool {
			leader, other := false, false
			for i := range c.Size() {
				for _, p := range c.Node(i).Status().Partitions {
					if p.Role.IsLeader() && p.Partition == partition {
						leader, other = true, i != sick
					}
				}
			}
			return leader && other
		}, "another leads")
		goesOn(c, l, "all go on")
		require.True(t, c.Node(sick).Readiness().Ready(), "the node has other groups")
		served := 0
		for _, p := range c.Node(sick).Status().Partitions {
			if p.Partition != partition && p.Err == nil {
				served++
			}
		}
		require.Equal(t, 2, served)
		c.Member(sick).FS.SetHook(nil)
		verifyAll(c, l, load)
	})
}

// stallJournal makes syncs of a member's journal wait.
func stallJournal(c *testcluster.Cluster, i int) (release func()) {
	gate := make(chan struct{})
	c.Member(i).FS.SetHook(func(op simfs.Op) error {
		if op.Kind == simfs.OpSync && strings.Contains(op.Path, "/journal/") {
			<-gate
		}
		return nil
	})
	return sync.OnceFunc(func() { c.Member(i).FS.SetHook(nil); close(gate) })
}

// A node whose disk stops answering leads on as far as its followers can tell.
// It hands everything over, says so, and comes back by itself.
//
// Property: S7, P7 (red: rounds under way not watched; a stalled node that is ready)
func TestTheDiskOfALeaderStalls(t *testing.T) {
	registry := prometheus.NewRegistry()
	testcluster.Run(t, testcluster.Options{Seed: 3, Config: func(cfg *stele.Config) { cfg.Metrics = registry }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 3)
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 3, 5*time.Millisecond)
		c.Sleep(time.Second)
		sick := c.MetadataLeader()
		node := c.Node(sick)
		release := stallJournal(c, sick)
		defer release()
		within(c, func() bool { return node.Readiness().Code == stele.DiskStalled }, "it says so")
		require.GreaterOrEqual(t, node.Status().Disk.Stalled, 2*time.Second)
		require.Equal(t, 1.0, gauge(t, registry, "stele_disk_stalled", c.Member(sick).Name))
		waited := make(chan error, 1)
		go func() { waited <- node.WaitReady(context.Background()) }()
		c.Sleep(time.Second)
		require.GreaterOrEqual(t, c.MetadataLeader(), 0)
		require.NotEqual(t, sick, c.MetadataLeader())
		for _, p := range node.Status().Partitions {
			require.False(t, p.Role.IsLeader())
		}
		goesOn(c, l, "the others go on")
		c.Sleep(10 * time.Second)
		require.Equal(t, stele.DiskStalled, node.Readiness().Code)
		require.Empty(t, waited)
		release()
		require.NoError(t, <-waited)
		goesOn(c, l, "all go on")
		verifyAll(c, l, load)
		require.Zero(t, gauge(t, registry, "stele_disk_stalled", c.Member(sick).Name))
	})
}

// One node after the other loses power, while another one is cut off or waits
// for its disk: what a quorum acknowledged may have been durable on the one that
// was not reached meanwhile, and on the one that lost power.
//
// Property: S2 (red: the sync of the journal skipped)
func TestPowerLossInTurn(t *testing.T) {
	from, to := seeds(t)
	acked := 0
	for seed := from; seed < from+(to-from+11)/12; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			testcluster.Run(t, testcluster.Options{Seed: seed}, func(c *testcluster.Cluster) {
				c.StartAll()
				mustCreate(c, 0, "orders", 2)
				l := c.NewLedger("orders")
				for range 4 {
					powerLossBeside(c, l, rng)
				}
				acked += l.Acked()
				for i := range c.Size() {
					c.Close(i)
				}
				require.GreaterOrEqual(c.T, c.CompareOffline(), l.Acked())
			})
		})
	}
	require.Positive(t, acked)
}

// powerLossBeside has one node lose power while another one takes no part, for
// random times under load, and verifies what comes back.
func powerLossBeside(c *testcluster.Cluster, l *testcluster.Ledger, rng *rand.Rand) {
	c.T.Helper()
	upTo := func(d time.Duration) { c.Sleep(time.Duration(rng.Int64N(int64(d)))) }
	nodes := rng.Perm(c.Size())
	absent, victim := nodes[0], nodes[1]
	load := l.StartLoad(2, 2, time.Duration(rng.IntN(10))*time.Millisecond)
	upTo(time.Second)
	var back func()
	if rng.IntN(2) == 0 {
		c.Isolate(absent)
		back = func() { c.Rejoin(absent) }
	} else {
		back = stallJournal(c, absent)
	}
	defer back()
	upTo(3 * time.Second)
	c.PowerLoss(victim)
	upTo(time.Second)
	load.Stop()
	if rng.IntN(2) == 0 {
		back()
		upTo(time.Second)
	}
	c.Start(victim)
	upTo(3 * time.Second) // without the absent one, or with it
	back()
	c.WaitReady()
	l.Verify(rng.IntN(c.Size()))
}

// gauge reads a metric of a node.
func gauge(t *testing.T, r *prometheus.Registry, name, node string) float64 {
	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if f.GetName() == name && label.GetName() == "node" && label.GetValue() == node {
					return m.GetGauge().GetValue()
				}
			}
		}
	}
	require.FailNow(t, "no metric", "%s of %s", name, node)
	return 0
}

const (
	diskSize    = 256 << 20
	diskReserve = 16 << 20
)

// smallDisks is a cluster on disks of diskSize.
func smallDisks(t *testing.T, seed uint64, f func(c *testcluster.Cluster)) {
	config := func(cfg *stele.Config) { cfg.DiskReserve = diskReserve }
	testcluster.Run(t, testcluster.Options{Seed: seed, Config: config}, func(c *testcluster.Cluster) {
		for i := range c.Size() {
			c.Member(i).FS.SetSize(diskSize)
		}
		c.StartAll()
		c.Sleep(5 * time.Second)
		f(c)
	})
}

// fill leaves so many bytes on a member's disk: somebody else took the rest.
func fill(c *testcluster.Cluster, i int, left int64) {
	usage, err := c.Member(i).FS.GetDiskUsage("/")
	require.NoError(c.T, err)
	c.Member(i).FS.SetSize(int64(usage.UsedBytes) + left)
}

// The disks of all nodes are full, from one moment to the next: nothing breaks,
// producers hear why, reading and electing goes on, topics can be deleted; and
// when there is room the same producers write again.
//
// Property: S6, P7 (red: writes that find no room not written again; producers not refused; deletions refused in the metadata; seals refused)
func TestAllDisksAreFull(t *testing.T) {
	smallDisks(t, 4, func(c *testcluster.Cluster) {
		t := c.T
		mustCreate(c, 0, "orders", 3)
		mustCreate(c, 0, "old", 2)
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 3, 5*time.Millisecond)
		c.Sleep(time.Second)
		for i := range c.Size() {
			require.EqualValues(t, diskReserve/2, c.Node(i).Status().Disk.Ballast)
			fill(c, i, 0)
		}
		within(c, func() bool {
			for i := range c.Size() {
				if !c.Node(i).Status().Disk.Full {
					return false
				}
			}
			return true
		}, "they say so")
		c.Sleep(time.Second)
		before := l.Acked()
		c.Sleep(10 * time.Second)
		require.Equal(t, before, l.Acked(), "producers are refused")
		r := c.Node(0).Readiness()
		require.True(t, r.Ready(), "%v", r)
		require.Contains(t, r.Reason, "the disk is full")
		leader, partition := leadsOne(c, "orders")
		p, err := c.Node(leader).NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		// Now and then leaders with full disks ask each other to take over, and
		// refuse for that reason.
		refusedAsFull(c, func(ctx context.Context) error {
			_, err := p.ProduceTo(ctx, "orders", partition, stele.Record{Value: []byte("x")})
			return err
		})
		require.NoError(t, p.Close(t.Context()))
		here := false // the one that refused is this node itself
		err = refusedAsFull(c, func(ctx context.Context) error {
			before := c.MetadataLeader()
			_, err := c.Node(0).CreateTopic(ctx, "more", stele.TopicConfig{Partitions: 1})
			here = before == 0 && c.MetadataLeader() == 0
			return err
		})
		if here {
			var full *stele.DiskFullError
			require.ErrorAs(t, err, &full)
		}
		require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err))

		load.Stop()
		l.Verify(1)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		require.NoError(t, c.Node(0).DeleteTopic(ctx, "old"))
		c.Kill(leader)
		within(c, func() bool { return c.MetadataLeader() >= 0 }, "elections go on")
		leadsOne(c, "orders")
		l.Verify((leader + 1) % 3)
		c.Start(leader)
		c.WaitReady()
		for i := range c.Size() {
			require.NotEqual(t, stele.Failed, c.Node(i).Readiness().Code)
		}

		load = l.StartLoad(2, 3, 5*time.Millisecond)
		c.Sleep(time.Second)
		for i := range c.Size() {
			c.Member(i).FS.SetSize(diskSize)
		}
		goesOn(c, l, "they write again by themselves")
		c.Sleep(5 * time.Second)
		for i := range c.Size() {
			d := c.Node(i).Status().Disk
			require.False(t, d.Full)
			require.EqualValues(t, diskReserve/2, d.Ballast)
		}
		verifyAll(c, l, load)
	})
}

// One disk is full: its node gives its leaderships away and follows as long as
// there is anything left.
//
// Property: S6, P7 (red: a node with a full disk that goes on leading)
func TestOneDiskIsFull(t *testing.T) {
	smallDisks(t, 5, func(c *testcluster.Cluster) {
		t := c.T
		mustCreate(c, 0, "orders", 3)
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 3, 5*time.Millisecond)
		c.Sleep(time.Second)
		full := c.MetadataLeader()
		fill(c, full, diskReserve/4)
		within(c, func() bool { return c.Node(full).Status().Disk.Full }, "it says so")
		c.Sleep(time.Second)
		require.NotEqual(t, full, c.MetadataLeader())
		for _, p := range c.Node(full).Status().Partitions {
			require.False(t, p.Role.IsLeader())
		}
		for range 5 {
			goesOn(c, l, "the others write")
		}
		fill(c, full, 0)
		c.Sleep(5 * time.Second)
		goesOn(c, l, "the others write")
		require.True(t, c.Node(full).Readiness().Ready(), "it neither fails nor stops serving what it has: %v", c.Node(full).Readiness())
		c.Member(full).FS.SetSize(diskSize)
		verifyAll(c, l, load)
	})
}

func TestDiskConfig(t *testing.T) {
	for _, bad := range []stele.Config{
		{DiskReserve: 1<<20 - 1}, {DiskReserve: 1<<40 + 1}, {DiskStallTimeout: time.Millisecond}, {DiskStallTimeout: 2 * time.Hour},
	} {
		bad.Cluster, bad.Name, bad.Dir = "c", "n", "/data"
		bad.InitialMembers, bad.FS = []stele.Peer{{Name: "n", Addr: "localhost:7942"}}, simfs.New(1)
		_, err := stele.Open(t.Context(), bad)
		var field *stele.ConfigError
		require.ErrorAs(t, err, &field)
		require.Contains(t, field.Field, "Disk")
		require.ErrorIs(t, err, stele.ErrRefused)
	}
}

// refusedAsFull has a call refused, one of ten because the disk is full, and
// returns that error.
func refusedAsFull(c *testcluster.Cluster, call func(ctx context.Context) error) (err error) {
	c.T.Helper()
	for range 10 {
		ctx, cancel := context.WithTimeout(c.T.Context(), 30*time.Second)
		err = call(ctx)
		cancel()
		require.Error(c.T, err)
		if strings.Contains(err.Error(), "the disk is full") {
			return err
		}
	}
	require.ErrorContains(c.T, err, "the disk is full")
	return err
}
