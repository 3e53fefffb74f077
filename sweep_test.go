package stele_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/storage"
)

// sweeps keeps what nodes told of what they reclaimed.
type sweeps struct {
	mu       sync.Mutex
	bytes    map[string]int64
	refused  map[string][]stele.ConfirmReason
	registry *prometheus.Registry
}

func newSweeps() *sweeps {
	return &sweeps{bytes: map[string]int64{}, refused: map[string][]stele.ConfirmReason{}, registry: prometheus.NewRegistry()}
}

func (s *sweeps) config(cfg *stele.Config) {
	name := cfg.Name
	cfg.Metrics = s.registry
	cfg.Events.Reclaimed = func(r stele.Reclaimed) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.bytes[name] += r.Bytes
	}
	cfg.Events.ReclaimRefused = func(r stele.ReclaimRefusal) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refused[name] = append(s.refused[name], r.Reason)
	}
}

func (s *sweeps) reclaimed(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes[name]
}

func (s *sweeps) reasons(name string) []stele.ConfirmReason {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused[name])
}

// segments counts the bytes in files of records of a topic's life on a member,
// wherever they are below its directory.
func segments(t *testing.T, fs *simfs.FS, inc storage.Incarnation) (bytes int64) {
	t.Helper()
	var walk func(dir string, inside bool)
	walk = func(dir string, inside bool) {
		names, err := fs.List(dir)
		if err != nil {
			return // a file
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			if info, err := fs.Stat(path); err == nil && !info.IsDir() && inside && strings.HasSuffix(name, ".seg") {
				bytes += info.Size()
			}
			walk(path, inside || strings.Contains(name, inc.String()))
		}
	}
	walk(testcluster.Dir+"/topics", false)
	walk(testcluster.Dir+"/quarantine", false)
	return bytes
}

// A topic is deleted, and another one gets its name, while a node is down. When the
// node is back its bytes of the first are moved aside, and gone once the others have
// confirmed it; the second is whole.
//
// Property: I4, X1 (red: the sweeper did not run)
func TestBytesOfADeletedTopicAreGivenBack(t *testing.T) {
	s := newSweeps()
	testcluster.Run(t, testcluster.Options{Seed: 141, Config: s.config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		first := created(c, "orders")
		produceMany(c, "orders", 40)
		c.Eventually(func() bool { return segments(t, c.Member(2).FS, first.Incarnation) > 0 }, "written")
		c.PowerLoss(2)
		require.NoError(t, c.Node(0).DeleteTopic(t.Context(), "orders"))
		second := created(c, "orders")
		l := c.NewLedger("orders")
		load := l.StartLoad(2, 1, 50*time.Millisecond)
		c.Sleep(5 * time.Second)
		c.Start(2)
		c.WaitReady()
		c.Eventually(func() bool { return s.reclaimed(c.Member(2).Name) > 0 }, "reclaimed")
		load.Stop()
		for i := range 3 {
			c.Eventually(func() bool { return segments(t, c.Member(i).FS, first.Incarnation) == 0 }, "given back")
			require.Positive(t, segments(t, c.Member(i).FS, second.Incarnation))
			l.Verify(i)
		}
		require.Positive(t, gathered(t, s.registry, "stele_reclaimed_bytes_total"))
		require.GreaterOrEqual(t, gathered(t, s.registry, "stele_reclaimed_directories_total"), 3.0)
		require.GreaterOrEqual(t, gathered(t, s.registry, "stele_confirmations_total"), 3.0)
	})
}

// created creates a topic with two partitions and returns it.
func created(c *testcluster.Cluster, name string) stele.Topic {
	c.T.Helper()
	t, err := c.Node(0).CreateTopic(c.T.Context(), name, stele.TopicConfig{Partitions: 2})
	require.NoError(c.T, err)
	return t
}

func produceMany(c *testcluster.Cluster, name string, n int) {
	c.T.Helper()
	p, err := c.Node(0).NewProducer(stele.ProducerConfig{})
	require.NoError(c.T, err)
	for i := range n {
		_, err := p.ProduceTo(c.T.Context(), name, uint32(i%2), stele.Record{Value: []byte(fmt.Sprint("record ", i))})
		require.NoError(c.T, err)
	}
	require.NoError(c.T, p.Close(c.T.Context()))
}

// The node that leads the metadata is cut off with a topic that it has just deleted:
// as long as it is, it destroys nothing, though it knows that the topic is dead.
//
// Property: X3 (red: Confirm without its barrier)
func TestALeaderThatIsCutOffDestroysNothing(t *testing.T) {
	s := newSweeps()
	testcluster.Run(t, testcluster.Options{Seed: 142, Config: s.config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		first := created(c, "orders")
		produceMany(c, "orders", 40)
		old := c.MetadataLeader()
		c.Eventually(func() bool { return segments(t, c.Member(old).FS, first.Incarnation) > 0 }, "written")
		require.NoError(t, c.Node(old).DeleteTopic(t.Context(), "orders"))
		c.Isolate(old)
		c.Sleep(2 * time.Minute)
		name := c.Member(old).Name
		require.Positive(t, segments(t, c.Member(old).FS, first.Incarnation))
		require.Zero(t, s.reclaimed(name))
		require.Contains(t, s.reasons(name), stele.ConfirmUnread)
		for i := range 3 {
			if i != old {
				require.Zero(t, segments(t, c.Member(i).FS, first.Incarnation), "the others are a majority")
			}
		}
		c.Rejoin(old)
		c.Eventually(func() bool { return segments(t, c.Member(old).FS, first.Incarnation) == 0 }, "given back")
	})
}

// The metadata of one node are damaged on its disk, so that a topic that lives is
// dead in them, and it leads. It moves its own copy aside, as it would a deleted
// one. It destroys nothing, nor does any other node, and says so; the topic is read
// from the others.
//
// Property: X5 (red: neither a majority nor a dissent counted; a dissent was no reason)
func TestDamagedMetadataDestroyNothing(t *testing.T) {
	s := newSweeps()
	// That they are damaged is not looked for: it shows when they are acted upon.
	config := func(cfg *stele.Config) { s.config(cfg); cfg.MetadataCheckInterval = 24 * time.Hour }
	testcluster.Run(t, testcluster.Options{Seed: 143, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		made := created(c, "orders")
		produceMany(c, "orders", 40)
		const bad = 1
		c.Eventually(func() bool { return segments(t, c.Member(bad).FS, made.Incarnation) > 0 }, "written")
		before := segments(t, c.Member(bad).FS, made.Incarnation)
		c.Close(bad)
		c.Damaged(bad)
		bury(t, c.Member(bad).FS, made.Incarnation, "orders")
		c.Start(bad)
		leads := func() bool { return c.MetadataLeader() == bad }
		for range 20 {
			if leads() {
				break
			}
			_ = c.Node(0).TransferLeadership(t.Context(), stele.TopicPartition{}, c.Member(bad).Name)
			c.Sleep(2 * time.Second)
		}
		require.True(t, leads())
		name := c.Member(bad).Name
		c.Eventually(func() bool { return slices.Contains(s.reasons(name), stele.ConfirmDissent) }, "a dissent")
		c.Sleep(5 * time.Minute)
		require.GreaterOrEqual(t, segments(t, c.Member(bad).FS, made.Incarnation), before, "its copy is there, aside")
		require.Zero(t, s.reclaimed(name))
		for _, i := range []int{0, 2} {
			require.Zero(t, s.reclaimed(c.Member(i).Name))
			require.Positive(t, segments(t, c.Member(i).FS, made.Incarnation))
		}
	})
}

// quietPebble says nothing of an open by hand.
type quietPebble struct{}

func (quietPebble) Infof(string, ...any)  {}
func (quietPebble) Errorf(string, ...any) {}
func (quietPebble) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

// stateOf returns what the keys of the state in use begin with: 'S' and its generation.
func stateOf(t *testing.T, db *pebble.DB) (prefix []byte) {
	it, err := db.NewIter(nil)
	require.NoError(t, err)
	for it.First(); it.Valid(); it.Next() {
		if k := it.Key(); k[0] == 'S' && len(k) > 5 {
			prefix = slices.Clone(k[:5])
		}
	}
	require.NoError(t, it.Close())
	return prefix
}

// bury writes into the metadata of a closed node that a topic is dead.
func bury(t *testing.T, fs *simfs.FS, inc storage.Incarnation, name string) {
	t.Helper()
	db, err := pebble.Open(testcluster.Dir+"/meta/db", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quietPebble{}})
	require.NoError(t, err)
	prefix := stateOf(t, db)
	key := func(table byte, rest ...byte) []byte { return append(append(slices.Clone(prefix), table), rest...) }
	for i := range byte(2) {
		require.NoError(t, db.Delete(key('p', append(inc[:], 0, 0, 0, i)...), nil))
	}
	require.NoError(t, db.Delete(key('t', inc[:]...), nil))
	require.NoError(t, db.Delete(key('n', []byte(name)...), nil))
	require.NoError(t, db.Set(key('d', inc[:]...), append([]byte{1, byte(len(name))}, name...), pebble.Sync))
	require.NoError(t, db.Close())
}

// After a forced recovery nothing is destroyed until a person has looked at what was
// kept, though what is deleted then is confirmed by all that are left.
//
// Property: R33, X2 (red: examine without held; proofs of the epoch before, which storage refused)
func TestARecoveryHoldsWhatIsDeleted(t *testing.T) {
	s := newSweeps()
	testcluster.Run(t, testcluster.Options{Seed: 144, Config: s.config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		made := created(c, "orders")
		produceMany(c, "orders", 40)
		c.Sleep(5 * time.Second)
		c.PowerLossAll()
		recoverFrom(c, 2)
		c.Start(2)
		c.WaitReady()
		require.NoError(t, c.Node(2).DeleteTopic(t.Context(), "orders"))
		name := c.Member(2).Name
		c.Eventually(func() bool { return slices.Contains(s.reasons(name), stele.ConfirmHeld) }, "held")
		c.Sleep(5 * time.Minute)
		require.Positive(t, segments(t, c.Member(2).FS, made.Incarnation))
		require.Zero(t, s.reclaimed(name))
		require.NoError(t, c.Node(2).EndHold(t.Context(), 1))
		c.Eventually(func() bool { return segments(t, c.Member(2).FS, made.Incarnation) == 0 }, "given back")
		require.Positive(t, s.reclaimed(name))
	})
}
