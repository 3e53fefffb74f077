package stele_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
)

// diary is what a node told, in order.
type diary struct {
	mu      sync.Mutex
	lines   []string
	running atomic.Int32
	before  func(line string) // in the function, before the line is written
}

func (d *diary) write(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if d.running.Add(1) != 1 {
		line += " BESIDE ANOTHER"
	}
	defer d.running.Add(-1)
	if d.before != nil {
		d.before(line)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) events() stele.Events {
	return stele.Events{
		ReadinessChanged: func(c stele.ReadinessChange) { d.write("%s -> %s", c.From.Code, c.To.Code) },
		LeaderChanged: func(c stele.LeaderChange) {
			if c.Topic == "" {
				c.Topic = "metadata"
			}
			d.write("%v: leader %d, term %d", c.TopicPartition, c.Leader, c.Term)
		},
		ReplicaFailed: func(f stele.ReplicaFailure) { d.write("%v failed: %v", f.TopicPartition, f.Err) },
		NodeFailed:    func(err error) { d.write("node failed: %v", err) },
		TopicCreated:  func(t stele.Topic) { d.write("created %s", t.Name) },
		TopicDeleted:  func(t stele.Topic) { d.write("deleted %s", t.Name) },
	}
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.lines...)
}

// index returns where a line with the prefix is first, or -1.
func (d *diary) index(prefix string) int {
	for i, line := range d.read() {
		if strings.HasPrefix(line, prefix) {
			return i
		}
	}
	return -1
}

func (d *diary) has(prefix string) func() bool { return func() bool { return d.index(prefix) >= 0 } }

// withDiaries gives each member a diary, by name.
func withDiaries(n int, more func(*stele.Config)) (map[string]*diary, testcluster.Options) {
	diaries := map[string]*diary{}
	for i := range n {
		diaries[fmt.Sprint("node-", i+1)] = &diary{}
	}
	return diaries, testcluster.Options{Nodes: n, Config: func(cfg *stele.Config) {
		cfg.Events = diaries[cfg.Name].events()
		if more != nil {
			more(cfg)
		}
	}}
}

func TestEventsTellWhatHappens(t *testing.T) {
	diaries, opts := withDiaries(3, nil)
	testcluster.Run(t, opts, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		for _, d := range diaries {
			c.Eventually(d.has("orders/0: leader"), "told")
			c.Eventually(d.has("orders/1: leader"), "told")
			require.Less(t, d.index("metadata/0: leader"), d.index("created orders"))
			require.Less(t, d.index("created orders"), d.index("orders/0: leader"))
			require.True(t, d.has("waiting-for-members -> ")())
		}

		victim := c.MetadataLeader()
		c.PowerLoss(victim)
		witness := diaries[c.Member((victim+1)%3).Name]
		c.Eventually(witness.has("metadata/0: leader 0, term"), "the loss is told")
		c.Eventually(func() bool {
			s := c.Node((victim + 1) % 3).Status()
			return s.MetadataLeader != 0 && witness.has(fmt.Sprintf("metadata/0: leader %d, term %d", s.MetadataLeader, s.Metadata.Term))()
		}, "the next leader is told")
		c.Eventually(witness.has("ready -> no-leader"), "told")

		c.Start(victim)
		c.WaitReady()
		c.Close(victim)
		before := len(diaries[c.Member(victim).Name].read())
		c.Start(victim)
		c.WaitReady()
		require.NoError(t, c.Node(victim).DeleteTopic(t.Context(), "orders"))
		mustCreate(c, victim, "orders", 1)
		back := func() []string { return diaries[c.Member(victim).Name].read()[before:] }
		c.Eventually(func() bool { return strings.Contains(strings.Join(back(), "\n"), "created orders") }, "told")
		for _, line := range back() { // what the node knew is not told, but its end
			if strings.HasSuffix(line, " orders") {
				require.Equal(t, "deleted orders", line)
				break
			}
		}
		for name, d := range diaries {
			checkDiary(t, name, d.read())
		}
	})
}

// checkDiary: nothing ran beside another, nothing was told twice, and no term
// goes back.
func checkDiary(t *testing.T, name string, lines []string) {
	t.Helper()
	terms := map[string]int{}
	for i, line := range lines {
		require.NotContains(t, line, "BESIDE", "%s: %d", name, i)
		if i > 0 && !strings.HasPrefix(line, "created") && !strings.HasPrefix(line, "deleted") {
			require.NotEqual(t, lines[i-1], line, "%s: told twice", name)
		}
		if topic, ok := strings.CutPrefix(line, "created "); ok { // another life of the name
			maps.DeleteFunc(terms, func(at string, _ int) bool { return strings.HasPrefix(at, topic+"/") })
		}
		var at string
		var leader, term int
		if n, _ := fmt.Sscanf(strings.Replace(line, ":", "", 1), "%s leader %d, term %d", &at, &leader, &term); n == 3 {
			require.GreaterOrEqual(t, term, terms[at], "%s: %s", name, line)
			terms[at] = term
		}
	}
}

func TestEventsOfASlowHost(t *testing.T) {
	var release, held chan struct{}
	registry := prometheus.NewRegistry()
	diaries, opts := withDiaries(3, func(cfg *stele.Config) {
		if cfg.Name == "node-1" {
			cfg.Metrics = registry
		}
	})
	slow := diaries["node-1"]
	slow.before = func(line string) {
		if line == "created orders" {
			close(held)
			<-release
		}
	}
	testcluster.Run(t, opts, func(c *testcluster.Cluster) {
		t := c.T
		release, held = make(chan struct{}), make(chan struct{}) // of this bubble
		let := sync.OnceFunc(func() { close(release) })
		defer let()
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		<-held
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 2, 10*time.Millisecond)
		for i := range 8 {
			name := fmt.Sprint("topic-", i)
			mustCreate(c, 0, name, 1)
			require.NoError(t, c.Node(0).DeleteTopic(t.Context(), name))
		}
		for range 3 {
			c.Isolate(0) // leads nothing any more, and sees no leader
			c.Sleep(3 * time.Second)
			c.Rejoin(0)
			c.WaitReady()
			c.Sleep(time.Second)
		}
		load.Stop()
		require.Positive(t, l.Acked(), "the node goes on")
		l.Verify(0)
		require.NotContains(t, slow.read(), "created orders")
		require.Greater(t, gathered(t, registry, "stele_events_running_seconds"), 10.0)
		superseded := gathered(t, registry, "stele_events_superseded_total")
		require.Positive(t, superseded)
		let()
		c.Sleep(time.Second)
		require.False(t, slow.has("created topic-")(), "they came and went")
		checkDiary(t, "node-1", slow.read())
		for _, s := range c.Node(0).Status().Partitions { // what is told last is what is
			require.Contains(t, slow.read(), fmt.Sprintf("%s/%d: leader %d, term %d", s.Topic, s.Partition, s.Leader, s.Term))
		}
		t.Logf("%v leaders were never told, %d lines were", superseded, len(slow.read()))
	})
}

// gathered returns the sum of a metric.
func gathered(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
			return sum
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestEventsThatPanic(t *testing.T) {
	core, logs := observer.New(zapcore.ErrorLevel)
	registry := prometheus.NewRegistry()
	diaries, opts := withDiaries(1, func(cfg *stele.Config) {
		cfg.Logger, cfg.Metrics = zap.New(core), registry
	})
	diaries["node-1"].before = func(line string) {
		if line == "created bad" {
			panic("the host's own")
		}
	}
	testcluster.Run(t, opts, func(c *testcluster.Cluster) {
		c.StartAll()
		mustCreate(c, 0, "bad", 1)
		mustCreate(c, 0, "good", 1)
		c.Eventually(diaries["node-1"].has("created good"), "the node goes on")
		require.Equal(c.T, 1.0, gathered(c.T, registry, "stele_events_panicked_total"))
	})
	entries := logs.FilterMessage("a function of Events panicked").All()
	require.Len(t, entries, 1)
	require.Equal(t, "TopicCreated", entries[0].ContextMap()["event"])
	require.Equal(t, "the host's own", entries[0].ContextMap()["panic"])
	require.Contains(t, entries[0].ContextMap()["stack"], "TestEventsThatPanic")
}

// Property: L3 (red: a Close that waits for the function that calls it; no wait for the function that runs)
func TestEventsAndClose(t *testing.T) {
	for _, how := range []string{"close", "abort", "close beside another"} {
		t.Run(how, func(t *testing.T) {
			diaries, opts := withDiaries(1, nil)
			testcluster.Run(t, opts, func(c *testcluster.Cluster) {
				t := c.T
				d := diaries["node-1"]
				var node atomic.Pointer[stele.Node]
				inside, ended := make(chan struct{}), make(chan struct{})
				d.before = func(line string) {
					if line != "created last" {
						return
					}
					close(inside)
					switch how {
					case "close":
						require.NoError(t, node.Load().Close(context.Background()))
					case "abort":
						node.Load().Abort()
					default:
						c.Sleep(time.Second) // until the other Close has begun
						require.NoError(t, node.Load().Close(context.Background()))
					}
					require.Equal(t, stele.Closed, node.Load().Readiness().Code)
					c.Sleep(time.Second)
					close(ended)
				}
				c.StartAll()
				node.Store(c.Node(0))
				created := make(chan error, 1)
				go func() {
					_, err := c.Node(0).CreateTopic(context.Background(), "last", stele.TopicConfig{})
					created <- err
				}()
				<-inside
				if how == "close beside another" {
					require.NoError(t, node.Load().Close(context.Background()))
				} else {
					<-ended
				}
				select {
				case <-ended:
				default:
					t.Error("Close returned before the function that ran")
				}
				<-created
				lines := d.read()
				require.NoError(t, node.Load().Close(context.Background()))
				c.Sleep(time.Minute)
				require.Equal(t, lines, d.read()[:len(lines)])
				require.Equal(t, "created last", d.read()[len(d.read())-1], "nothing is told after it")
			})
		})
	}
}

// A Close waits for a function that runs, as long as its context allows.
func TestCloseWaitsForEvents(t *testing.T) {
	diaries, opts := withDiaries(1, nil)
	testcluster.Run(t, opts, func(c *testcluster.Cluster) {
		t := c.T
		release, inside := make(chan struct{}), make(chan struct{})
		diaries["node-1"].before = func(line string) {
			if line == "created last" {
				close(inside)
				<-release
			}
		}
		c.StartAll()
		node := c.Node(0)
		mustCreate(c, 0, "last", 1)
		<-inside
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := node.Close(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "a function of Events still runs")
		require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err))
		close(release)
		require.NoError(t, node.Close(context.Background()))
		require.Zero(t, diaries["node-1"].running.Load())
	})
}

func TestEventsOfFailures(t *testing.T) {
	registry := prometheus.NewRegistry()
	diaries, opts := withDiaries(3, func(cfg *stele.Config) { cfg.Metrics = registry })
	testcluster.Run(t, opts, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		victim := (c.MetadataLeader() + 1) % 3
		d := diaries[c.Member(victim).Name]

		// A replica whose log cannot be written fails, and cannot be opened again.
		failFiles(c, victim, "/topics/")
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 1, 10*time.Millisecond)
		c.Eventually(d.has("orders/0 failed: "), "the replica's failure is told")
		c.Sleep(20 * time.Second)
		require.Less(t, len(d.read()), 40, "and not at every try")
		require.Equal(t, 1.0, gathered(t, registry, "stele_replicas_failed"))
		first := d.read()[d.index("orders/0 failed: ")]
		require.Contains(t, first, "EIO")
		c.Member(victim).FS.SetHook(nil)
		load.Stop()

		failFiles(c, victim, "/meta/log/")
		mustCreate(c, (victim+1)%3, "more", 1)
		c.Eventually(d.has("node failed: "), "the node's failure is told")
		require.True(t, d.has("ready -> failed")() || d.has("no-leader -> failed")(), "%v", d.read())
		require.Contains(t, d.read()[d.index("node failed: ")], "EIO")
		checkDiary(t, "victim", d.read())
		c.Member(victim).FS.SetHook(nil)
	})
}

// failFiles makes everything but reading fail below a path of a member.
func failFiles(c *testcluster.Cluster, i int, path string) {
	c.Member(i).FS.SetHook(func(op simfs.Op) error {
		if strings.Contains(op.Path, path) && op.Kind != simfs.OpRead {
			return errors.New("EIO")
		}
		return nil
	})
}
