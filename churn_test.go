package stele_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/transport"
)

var (
	churn      = flag.Int("churn", 32, "topics to create and delete")
	churnEvery = flag.Int("churn.every", 0, "after how many of them to look at what is left; default: at the end")
)

// churnRow is what is left after so many topics were created and deleted.
type churnRow struct {
	Topics     int
	HeapBytes  uint64
	Goroutines int
	Series     int
	Files      int // of all nodes, but for those of the metadata's database
	Bytes      int64
	TopicFiles int // in topics/ and in quarantine/
	DBFiles    int
	DBBytes    int64
}

// churnCluster is three nodes with their data on the machine's disk, in virtual time, and
// nothing beside them that remembers what they did.
type churnCluster struct {
	t        *testing.T
	dir      string
	nodes    []*stele.Node
	registry *prometheus.Registry
}

func startChurn(t *testing.T, dir string) *churnCluster {
	c := &churnCluster{t: t, dir: dir, registry: prometheus.NewRegistry()}
	net := transport.NewNetwork(1, clock.System())
	net.SetFaults(transport.Faults{MinLatency: 200 * time.Microsecond, MaxLatency: 2 * time.Millisecond})
	var peers []stele.Peer
	for i := range 3 {
		peers = append(peers, stele.Peer{Name: fmt.Sprint("node-", i+1), Addr: fmt.Sprintf("host-%d:7942", i+1)})
	}
	for _, p := range peers {
		n, err := stele.Open(t.Context(), stele.Config{
			Cluster: "test", Name: p.Name, Dir: filepath.Join(dir, p.Name), InitialMembers: peers, DiskReserve: -1,
			Transport: net.Transport(p.Addr), Metrics: c.registry, JournalBytes: 256 << 10, SegmentBytes: 64 << 10,
		})
		require.NoError(t, err)
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		require.NoError(t, n.WaitReady(t.Context()))
	}
	c.until("the version", func() bool {
		at, err := c.nodes[0].DescribeCluster(t.Context())
		require.NoError(t, err)
		return at.Version == 3
	})
	return c
}

func (c *churnCluster) until(what string, holds func() bool) {
	for range 1200 {
		if holds() {
			return
		}
		restFor(c.t.Context(), 100*time.Millisecond)
	}
	require.FailNow(c.t, "never", what)
}

// turn creates and deletes topics of distinct names, side by side, each with a record.
func (c *churnCluster) turn(from, to int) {
	const atOnce = 64
	var group sync.WaitGroup
	for w := range atOnce {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(c.t.Context(), time.Hour)
			defer cancel()
			node := c.nodes[w%len(c.nodes)]
			p, err := node.NewProducer(stele.ProducerConfig{})
			if err != nil {
				c.t.Error(err)
				return
			}
			defer p.Close(ctx)
			for i := from + w; i < to; i += atOnce {
				name := fmt.Sprint("topic-", i)
				_, err := node.CreateTopic(ctx, name, stele.TopicConfig{})
				if err == nil {
					_, err = p.Produce(ctx, name, stele.Record{Value: []byte(name)})
				}
				if err == nil {
					err = node.DeleteTopic(ctx, name)
				}
				if err != nil {
					c.t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// row waits until all is given back, and a while longer, and looks.
func (c *churnCluster) row(topics int) (r churnRow) {
	c.until("given back", func() bool { return c.files(&churnRow{}).TopicFiles == 0 })
	restFor(c.t.Context(), 5*time.Minute)
	r.Topics, r.Goroutines = topics, runtime.NumGoroutine()
	c.files(&r)
	families, err := c.registry.Gather()
	require.NoError(c.t, err)
	for _, f := range families {
		r.Series += len(f.GetMetric())
	}
	families = nil
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.HeapBytes = m.HeapAlloc
	line, err := json.Marshal(r)
	require.NoError(c.t, err)
	c.t.Logf("%s", line)
	return r
}

func (c *churnCluster) files(r *churnRow) *churnRow {
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == c.dir {
			return nil // it went meanwhile
		}
		parent := filepath.Base(filepath.Dir(path))
		switch info, err := d.Info(); {
		case parent == "topics" || parent == "quarantine":
			r.TopicFiles++
		case err != nil || d.IsDir():
		case strings.Contains(path, "/meta/"): // what the metadata remember, and their log
			r.DBFiles++
			r.DBBytes += info.Size()
		default:
			r.Files++
			r.Bytes += info.Size()
		}
		return nil
	})
	require.NoError(c.t, err)
	return r
}

// Topics of distinct names are created, written and deleted. Nothing is left of them on
// any node but what the metadata remember: no goroutine, no metric, no file, no row of a
// journal, and no memory. What 100,000 left is in internal/testcluster/churn.jsonl.
//
//	go test . -run TestChurn -churn=100000 -churn.every=5000 -timeout 0 -v
//
// Property: I10 (red: nothing was reclaimed; with 10,000 of them: the directories of replicas were remembered)
func TestChurn(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := startChurn(t, dir)
		const before = 32 // topics after which all is as it ever was
		c.turn(0, before)
		first := c.row(before)
		every := *churnEvery
		if every == 0 {
			every = *churn
		}
		last := first
		for n := before; n < before+*churn; n += every {
			end := min(n+every, before+*churn)
			c.turn(n, end)
			last = c.row(end)
		}
		require.Equal(t, first.Series, last.Series)
		require.LessOrEqual(t, last.Goroutines, first.Goroutines+6)
		require.LessOrEqual(t, last.Files, first.Files+6, "the journal has some files more or less")
		// 8,192 destroyed ids, a map of replicas as large as it once was, and 630 bytes for
		// each segment of the metadata's log, which is trimmed at 64 MiB.
		require.Less(t, last.HeapBytes, first.HeapBytes+2<<20+16*uint64(*churn))
		for _, n := range c.nodes {
			require.NoError(t, n.Close(t.Context()))
		}
		for i := range c.nodes {
			o, err := storage.ReadOffline(storage.DiskFS(), filepath.Join(dir, fmt.Sprint("node-", i+1)))
			require.NoError(t, err)
			require.Len(t, o.Replicas, 1, "the metadata's")
		}
	})
	require.NoError(t, os.RemoveAll(dir))
}
