package stele_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	crashSeeds = flag.Uint64("crash.seeds", 24, "whole-cluster crashes to try")
	crashFrom  = flag.Uint64("crash.from", 1, "first seed")
)

func seeds(t *testing.T) (from, to uint64) {
	n := *crashSeeds
	if testing.Short() {
		n = max(1, n/6)
	}
	return *crashFrom, *crashFrom + n
}

func mustCreate(c *testcluster.Cluster, i int, name string, partitions uint32) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), time.Minute)
	defer cancel()
	_, err := c.Node(i).CreateTopic(ctx, name, stele.TopicConfig{Partitions: partitions})
	require.NoError(c.T, err)
}

func TestOneNode(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 1}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 2, 10*time.Millisecond)
		c.Sleep(time.Second)
		load.Stop()
		require.Positive(t, l.Acked())
		l.Verify(0)
		c.Close(0)
		c.StartAll()
		l.Verify(0)
		c.PowerLoss(0)
		c.StartAll()
		l.Verify(0)
	})
}

func TestEveryNodeServes(t *testing.T) {
	testcluster.Run(t, testcluster.Options{}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 1, "orders", 3)
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 3, 5*time.Millisecond)
		c.Sleep(2 * time.Second)
		load.Stop()
		require.Greater(t, l.Acked(), 500)
		for i := range c.Size() {
			l.Verify(i)
		}
		for i := range c.Size() {
			c.Close(i)
		}
		require.GreaterOrEqual(t, c.CompareOffline(), l.Acked())
	})
}

func TestWholeClusterPowerLoss(t *testing.T) {
	from, to := seeds(t)
	acked := 0
	for seed := from; seed < to; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			faults := transport.Faults{MinLatency: 100 * time.Microsecond, MaxLatency: 5 * time.Millisecond}
			if seed%2 == 0 {
				faults.Loss, faults.Duplicate, faults.Reorder = 0.02, 0.02, 0.1
			}
			testcluster.Run(t, testcluster.Options{Seed: seed, Faults: faults}, func(c *testcluster.Cluster) {
				t := c.T
				c.StartAll()
				mustCreate(c, 0, "orders", 2)
				l := c.NewLedger("orders")
				for range 2 {
					load := l.StartLoad(2, 2, time.Duration(rng.IntN(20))*time.Millisecond)
					await := c.PowerLossAllAt(rng.IntN(c.Size()), 1+rng.Int64N(600))
					await(20 * time.Second)
					load.Stop()
					c.StartAll()
					l.Verify(rng.IntN(c.Size()))
				}
				acked += l.Acked()
				for i := range c.Size() {
					c.Close(i)
				}
				require.GreaterOrEqual(t, c.CompareOffline(), l.Acked())
			})
		})
	}
	require.Positive(t, acked)
}

func TestLeadersDieOneAfterTheOther(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 5}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 4)
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 4, 5*time.Millisecond)
		for range 3 {
			c.Sleep(time.Second)
			leader := c.MetadataLeader()
			require.GreaterOrEqual(t, leader, 0)
			before := l.Acked()
			c.PowerLoss(leader)
			c.Eventually(func() bool { return l.Acked() > before+50 }, "the others go on")
			load.Stop()
			c.Start(leader)
			c.WaitReady()
			load = l.StartLoad(2, 4, 5*time.Millisecond)
		}
		load.Stop()
		for i := range c.Size() {
			l.Verify(i)
		}
	})
}

func TestReadinessSaysWhatIsMissing(t *testing.T) {
	testcluster.Run(t, testcluster.Options{}, func(c *testcluster.Cluster) {
		t := c.T
		c.Start(0)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := c.Node(0).WaitReady(ctx)
		cancel()
		require.ErrorIs(t, err, stele.ErrNotReady)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err))
		require.Contains(t, err.Error(), "node-2 (host-2:7942) no answer")
		_, err = c.Node(0).NewProducer(stele.ProducerConfig{})
		require.ErrorIs(t, err, stele.ErrNotReady)

		c.StartAll()
		for i := range c.Size() {
			require.True(t, c.Node(i).Readiness().Ready())
			require.Len(t, c.Node(i).Members(), 3)
		}
		c.Isolate(2)
		c.Eventually(func() bool { return c.Node(2).Readiness().Code == stele.NoLeader }, "the isolated node says so")
		c.Rejoin(2)
		c.Eventually(func() bool { return c.Node(2).Readiness().Ready() }, "it comes back")
	})
}

// A node that misses a deletion must not go on serving the topic: what it has
// of the metadata is old, and gets older.
func TestANodeWhoseMetadataFailedSaysSo(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 3}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		victim := (c.MetadataLeader() + 1) % 3
		other := (victim + 1) % 3
		node := c.Node(victim)
		failMetadataLog(c, victim, nil)
		mustCreate(c, other, "more", 1)
		c.Eventually(func() bool { return node.Readiness().Code == stele.Failed }, "it says so")
		require.Contains(t, node.Readiness().Reason, "EIO")
		err := node.WaitReady(context.Background())
		require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
		require.ErrorContains(t, err, "EIO")

		require.NoError(t, c.Node(other).DeleteTopic(t.Context(), "orders"))
		_, err = node.DescribeTopic(t.Context(), "orders")
		require.ErrorIs(t, err, stele.ErrUnavailable)
		_, err = node.NewReader(t.Context(), stele.TopicPartition{Topic: "orders"}, stele.FromStart())
		require.ErrorIs(t, err, stele.ErrUnavailable)
		_, err = node.CreateTopic(t.Context(), "new", stele.TopicConfig{})
		require.ErrorIs(t, err, stele.ErrUnavailable)
	})
}

// Property: L4 (red: WaitReady of a node that catches up waiting for that alone)
func TestWaitReadyEndsWhenANodeFailsWhileItCatchesUp(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 3}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		victim := (c.MetadataLeader() + 1) % 3
		c.Kill(victim)
		for i := range 5 {
			mustCreate(c, (victim+1)%3, fmt.Sprint("without-it-", i), 1)
		}
		require.NoError(t, c.Open(victim))
		fail := make(chan struct{})
		failMetadataLog(c, victim, fail)
		waited := make(chan error)
		go func() { waited <- c.Node(victim).WaitReady(context.Background()) }()
		c.Sleep(3 * time.Second)
		require.Equal(t, stele.CatchingUp, c.Node(victim).Readiness().Code)
		close(fail)
		err := <-waited
		require.ErrorContains(t, err, "EIO")
		require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
	})
}

// failMetadataLog makes writes to the metadata's log fail, once when is closed.
func failMetadataLog(c *testcluster.Cluster, i int, when <-chan struct{}) {
	c.Member(i).FS.SetHook(func(op simfs.Op) error {
		if !strings.Contains(op.Path, "/meta/log/") || op.Kind != simfs.OpWrite && op.Kind != simfs.OpSync {
			return nil
		}
		if when != nil {
			<-when
		}
		return errors.New("EIO")
	})
}

// Property: L3 (red: a second Close waited inside sync.Once: the bubble hung)
func TestCloseAtAnyMoment(t *testing.T) {
	testcluster.Run(t, testcluster.Options{}, func(c *testcluster.Cluster) {
		t := c.T
		// While forming.
		c.Start(0)
		node := c.Node(0)
		waiting := make(chan error, 1)
		go func() { waiting <- node.WaitReady(context.Background()) }()
		c.Sleep(time.Second)
		c.Close(0)
		require.ErrorIs(t, <-waiting, stele.ErrClosed)
		require.NoError(t, node.Close(t.Context()), "again")
		node.Abort()
		require.Equal(t, stele.Closed, node.Readiness().Code)
		_, err := node.CreateTopic(t.Context(), "x", stele.TopicConfig{})
		require.ErrorIs(t, err, stele.ErrClosed)
		require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err))

		// Under load, all methods at once.
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 2, time.Millisecond)
		c.Sleep(500 * time.Millisecond)
		for i := range c.Size() {
			var wg sync.WaitGroup
			node := c.Node(i)
			for range 3 {
				wg.Go(func() { require.NoError(t, node.Close(t.Context())) })
			}
			wg.Wait()
			c.Close(i)
		}
		load.Stop()
		c.StartAll()
		l.Verify(0)
	})
}

// Property: L2 (red: a collector that describes nothing: closed nodes stayed in the host's registry)
func TestNodesShareNothing(t *testing.T) {
	registry := prometheus.NewRegistry()
	testcluster.Run(t, testcluster.Options{Config: func(cfg *stele.Config) { cfg.Metrics = registry }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		families, err := registry.Gather()
		require.NoError(t, err)
		nodes := map[string]bool{}
		names := map[string]bool{}
		for _, f := range families {
			names[f.GetName()] = true
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "node" {
						nodes[l.GetValue()] = true
					}
				}
			}
		}
		require.Len(t, nodes, 3)
		for _, name := range []string{"stele_ready", "stele_journal_sync_seconds", "stele_proposals_total", "stele_groups_led", "stele_produced_records_total"} {
			require.True(t, names[name], name)
		}
		c.Kill(1)
		c.Start(1) // registers again
	})
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Empty(t, families, "closed nodes leave nothing behind")
}

func TestAbortCutsACloseShort(t *testing.T) {
	testcluster.Run(t, testcluster.Options{}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		leader := c.MetadataLeader()
		node := c.Node(leader)
		c.Isolate(leader) // it finds nobody to hand over to
		closed := make(chan error)
		go func() { closed <- node.Close(context.Background()) }()
		c.Sleep(time.Millisecond)
		start := clock.System().Now()
		node.Abort()
		require.Less(t, clock.System().Now().Sub(start), 100*time.Millisecond, "in virtual time")
		<-closed
	})
}

// withTCP makes cfg use the built-in network, with one member at addr.
func withTCP(cfg *stele.Config, addr string) {
	cfg.Transport = nil
	cfg.InitialMembers = []stele.Peer{{Name: cfg.Name, Addr: addr}}
}

func TestOpenRefuses(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 1}, func(c *testcluster.Cluster) {
		t := c.T
		good := c.Config(0)
		for _, bad := range []struct {
			field  string
			change func(*stele.Config)
		}{
			{"Cluster", func(cfg *stele.Config) { cfg.Cluster = "a@b" }},
			{"Name", func(cfg *stele.Config) { cfg.Name = "nobody" }},
			{"Name", func(cfg *stele.Config) { cfg.Name = "../x" }},
			{"Dir", func(cfg *stele.Config) { cfg.Dir = "" }},
			{"InitialMembers", func(cfg *stele.Config) { cfg.InitialMembers = nil }},
			{"InitialMembers", func(cfg *stele.Config) {
				cfg.InitialMembers = append(cfg.InitialMembers[:1:1], cfg.InitialMembers[0])
			}},
			{"InitialMembers[0].Addr", func(cfg *stele.Config) { withTCP(cfg, ":7942") }},
			{"InitialMembers[0].Addr", func(cfg *stele.Config) { withTCP(cfg, "0.0.0.0:7942") }},
			{"InitialMembers[0].Addr", func(cfg *stele.Config) { withTCP(cfg, "a:99999") }},
			{"Listen", func(cfg *stele.Config) { withTCP(cfg, "a:1"); cfg.Listen = "nonsense" }},
			{"Listen", func(cfg *stele.Config) { withTCP(cfg, "a:1"); cfg.Listen, cfg.Listener = "a:1", &net.TCPListener{} }},
			{"Tick", func(cfg *stele.Config) { cfg.Tick = time.Hour }},
			{"ElectionTicks", func(cfg *stele.Config) { cfg.ElectionTicks = -1 }},
			{"HeartbeatTicks", func(cfg *stele.Config) { cfg.HeartbeatTicks = 9 }},
			{"JournalBytes", func(cfg *stele.Config) { cfg.JournalBytes = 1 }},
			{"SegmentBytes", func(cfg *stele.Config) { cfg.SegmentBytes = 1 }},
			{"UncommittedBytes", func(cfg *stele.Config) { cfg.UncommittedBytes = 1 }},
			{"ContactTimeout", func(cfg *stele.Config) { cfg.ContactTimeout = 1 }},
			{"CallTimeout", func(cfg *stele.Config) { cfg.CallTimeout = 1 }},
		} {
			cfg := good
			bad.change(&cfg)
			_, err := stele.Open(t.Context(), cfg)
			var configError *stele.ConfigError
			require.ErrorAs(t, err, &configError, bad.field)
			require.True(t, strings.HasPrefix(configError.Field, bad.field), "%v", configError)
			require.NotEmpty(t, configError.Allowed)
			require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
		}
		c.Start(0)
		_, err := stele.Open(t.Context(), c.Config(0))
		require.ErrorIs(t, err, stele.ErrLocked)
		require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err))
		c.Close(0)

		other := c.Config(0)
		other.Name = "other"
		other.InitialMembers = []stele.Peer{{Name: "other", Addr: "host-1:7942"}}
		_, err = stele.Open(t.Context(), other)
		var identity *stele.IdentityError
		require.ErrorAs(t, err, &identity)

		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = stele.Open(canceled, c.Config(0))
		require.True(t, errors.Is(err, context.Canceled) && stele.OutcomeOf(err) == stele.OutcomeRetry)
	})
}

// An address may change, on all nodes: they serve, and say where they are.
func TestANodeThatMoved(t *testing.T) {
	moved := false
	config := func(cfg *stele.Config) {
		if moved {
			cfg.InitialMembers = slices.Clone(cfg.InitialMembers)
			cfg.InitialMembers[2].Addr = "elsewhere:7942"
		}
	}
	testcluster.Run(t, testcluster.Options{Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		for i := range c.Size() {
			c.Close(i)
		}
		moved = true
		c.Member(2).Addr = "elsewhere:7942"
		c.StartAll()
		for i := range c.Size() {
			require.Equal(t, "elsewhere:7942", c.Node(i).Members()[2].Addr)
		}
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 1, 10*time.Millisecond)
		c.Eventually(func() bool { return l.Acked() > 0 }, "records are taken once the partition has elected")
		load.Stop()
		l.Verify(2)
	})
}

// Property: S10 (red: the log of each partition read through when it was opened)
func TestReopenReadsNoLog(t *testing.T) {
	read := func(records int) (topics, journal int64) {
		testcluster.Run(t, testcluster.Options{Nodes: 1}, func(c *testcluster.Cluster) {
			t := c.T
			c.StartAll()
			mustCreate(c, 0, "orders", 1)
			p, err := c.Node(0).NewProducer(stele.ProducerConfig{})
			require.NoError(t, err)
			for n := 0; n < records; n += 100 {
				batch := make([]stele.Record, 100)
				for i := range batch {
					batch[i].Value = make([]byte, 200)
				}
				_, err := p.ProduceTo(t.Context(), "orders", 0, batch...)
				require.NoError(t, err)
			}
			require.NoError(t, p.Close(t.Context()))
			c.Close(0)
			m := c.Member(0)
			topicsBefore, journalBefore := m.FS.Counts("/"+testcluster.Dir+"/topics").BytesRead, m.FS.Counts("/"+testcluster.Dir+"/journal").BytesRead
			c.StartAll()
			c.Eventually(func() bool { s := c.Node(0).Status().Partitions; return len(s) == 1 && s[0].Readable }, "the partition opens")
			topics = m.FS.Counts("/"+testcluster.Dir+"/topics").BytesRead - topicsBefore
			journal = m.FS.Counts("/"+testcluster.Dir+"/journal").BytesRead - journalBefore
		})
		return topics, journal
	}
	// Beside the marker, a partition that applies something reads the entries
	// since its last side file again, at most 4 MiB of them.
	const bound = 4<<20 + 256<<10
	topics, journal := read(40_000)
	topicsLater, journalLater := read(120_000)
	t.Logf("topics: %d bytes after 40,000 records, %d after 120,000; journal: %d, %d", topics, topicsLater, journal, journalLater)
	require.LessOrEqual(t, topics, int64(bound))
	require.LessOrEqual(t, topicsLater, int64(bound))
	// The journal's files are as large as what was written while a checkpoint
	// was made; the log is 24 MB.
	require.LessOrEqual(t, max(journal, journalLater), int64(6<<20))
}
