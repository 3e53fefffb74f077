package topic_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// strangerOf makes the directory of a topic, with logs of other bytes for the replicas
// that a node has of t, on a disk of its own.
func strangerOf(t *testing.T, of metastore.Topic, name string, inc storage.Incarnation, id raftlog.NodeID) *simfs.FS {
	fs := simfs.New(77)
	s, err := storage.Open(storage.Config{FS: fs, Dir: "data", Name: "x", Cluster: "other", JournalFileSize: 256 << 10, SegmentSize: 16 << 10})
	require.NoError(t, err)
	dir, err := s.CreateTopicDir(name, inc)
	require.NoError(t, err)
	for _, p := range of.Partitions {
		for _, at := range p.Replicas {
			if at.Node != id {
				continue
			}
			l, err := s.OpenLog(storage.ReplicaState{Group: p.Group, Replica: at.Replica, Status: storage.ReplicaLive,
				Dir: storage.ReplicaDir(dir, p.Index, at.Replica),
				Log: storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 1, LastTerm: 1}})
			require.NoError(t, err)
			for i := range storage.Index(200) {
				require.NoError(t, l.Append([]storage.LogEntry{{Entry: storage.Entry{Index: i + 2, Term: 1, Data: make([]byte, 900)},
					Verdict: storage.VerdictData, Count: 1, BaseOffset: storage.Offset(i)}}))
			}
			require.NoError(t, l.Close())
		}
	}
	require.NoError(t, s.Close())
	return fs
}

func dirOf(t metastore.Topic) string { return fmt.Sprintf("data/topics/%s@%v", t.Name, t.Incarnation) }

// contents returns the bytes of all files below a directory.
func contents(t *testing.T, fs storage.FS, dir string) map[string]string {
	all := map[string]string{}
	names, err := fs.List(dir)
	require.NoError(t, err)
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		require.NoError(t, err)
		if info.IsDir() {
			for below, b := range contents(t, fs, path) {
				all[name+"/"+below] = b
			}
			continue
		}
		f, err := fs.Open(path)
		require.NoError(t, err)
		b, err := io.ReadAll(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		all[name] = string(b)
	}
	return all
}

// The directory of a topic is another one: a copy of another cluster's, another
// topic's by rename, with a marker of another name, without one, or with a damaged
// one; on a node that is down, and under replicas that are open. Nothing of it is
// shown, whoever reads through that node; it goes to quarantine as it was found, with
// its kind, and the replicas get copies of the others', so that in the end all are
// equal, also when the topic goes on meanwhile.
//
// Property: I3 (red: the reconciler left foreign directories where they were; it was not told of those of open logs; a copy was refused because the journal's tail has its last entry)
func TestADirectoryThatIsAnothersIsReplaced(t *testing.T) {
	type swap struct {
		kinds map[string]storage.ReasonKind // by the topic's name
		do    func(t *testing.T, fs *simfs.FS, orders, bills metastore.Topic)
	}
	replaceBy := func(name string, inc func(metastore.Topic) storage.Incarnation) func(*testing.T, *simfs.FS, metastore.Topic, metastore.Topic) {
		return func(t *testing.T, fs *simfs.FS, orders, _ metastore.Topic) {
			other := strangerOf(t, orders, name, inc(orders), 2)
			require.NoError(t, fs.Rename(dirOf(orders), "data/elsewhere"))
			from := fmt.Sprintf("data/topics/%s@%v", name, inc(orders))
			_, err := vfs.Clone(other, fs, from, dirOf(orders))
			require.NoError(t, err)
			require.NoError(t, fs.RemoveAll("data/elsewhere"))
		}
	}
	only := func(k storage.ReasonKind) map[string]storage.ReasonKind {
		return map[string]storage.ReasonKind{"orders": k}
	}
	for name, s := range map[string]swap{
		"a copy of another cluster's": {only(storage.ReasonForeign),
			replaceBy("orders", func(metastore.Topic) storage.Incarnation { return storage.Incarnation{0xab} })},
		"a marker of another name": {only(storage.ReasonForeign),
			replaceBy("invoices", func(t metastore.Topic) storage.Incarnation { return t.Incarnation })},
		"two that changed places": {map[string]storage.ReasonKind{"orders": storage.ReasonForeign, "bills": storage.ReasonForeign},
			func(t *testing.T, fs *simfs.FS, orders, bills metastore.Topic) {
				require.NoError(t, fs.Rename(dirOf(orders), "data/elsewhere"))
				require.NoError(t, fs.Rename(dirOf(bills), dirOf(orders)))
				require.NoError(t, fs.Rename("data/elsewhere", dirOf(bills)))
			}},
		"without a marker": {only(storage.ReasonUnmarked), func(t *testing.T, fs *simfs.FS, orders, _ metastore.Topic) {
			require.NoError(t, fs.Remove(dirOf(orders)+"/INCARNATION"))
		}},
		"with a damaged marker": {only(storage.ReasonDamaged), func(t *testing.T, fs *simfs.FS, orders, _ metastore.Topic) {
			require.NoError(t, fs.Flip(dirOf(orders)+"/INCARNATION", 30, 2))
		}},
	} {
		for _, open := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, open %v", name, open), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { replaced(t, s.kinds, s.do, open) })
			})
		}
	}
}

func replaced(t *testing.T, kinds map[string]storage.ReasonKind, do func(*testing.T, *simfs.FS, metastore.Topic, metastore.Topic), open bool) {
	c := newCluster(t, 3, 5)
	c.segment = 16 << 10
	c.config = func(cfg *topic.Config) { cfg.NoBalance, cfg.NoHandBack = true, true }
	c.startAll()
	orders, bills := c.create("orders", 2), c.create("bills", 1)
	want := map[topic.TopicPartition][]string{}
	produce := func(n int) {
		p := producer(t, c.node(1), topic.ProducerConfig{})
		for i := range n {
			for _, to := range []topic.TopicPartition{at("orders", 0), at("orders", 1), at("bills", 0)} {
				value := fmt.Sprintf("%v %d %s", to, len(want[to]), strings.Repeat("x", 900))
				_, err := p.ProduceTo(t.Context(), to.Topic, to.Partition, record(value))
				require.NoError(t, err, "%d", i)
				want[to] = append(want[to], value)
			}
		}
		require.NoError(t, p.Close(t.Context()))
	}
	produce(60)
	opened := func(n *node) bool {
		for _, tp := range []metastore.Topic{orders, bills} {
			for i := range tp.Partitions {
				g := n.topics.OpenGroup(tp.Incarnation, uint32(i))
				if g == nil || g.Log().NextOffset() < storage.Offset(len(want[at(tp.Name, uint32(i))])) {
					return false
				}
			}
		}
		return true
	}
	settle(t, "all have all", func() bool { return opened(c.node(1)) && opened(c.node(2)) && opened(c.node(3)) })
	for id := raftlog.NodeID(1); id <= 3; id++ { // the tables have it
		_ = c.node(id).host.Close(t.Context())
		c.crash(id, simfs.Kill)
	}
	for _, id := range []raftlog.NodeID{1, 3} {
		c.start(id)
	}
	found := map[string]map[string]string{}
	swap := func() {
		do(t, c.disks[2], orders, bills)
		for _, tp := range []metastore.Topic{orders, bills} {
			found[tp.Name] = contents(t, c.disks[2], dirOf(tp))
		}
	}
	if open {
		settle(t, "it is open", func() bool { return c.node(2) != nil && opened(c.node(2)) || c.node(2) == nil && c.start(2) == nil })
	}
	swap()
	if !open {
		c.start(2)
		produce(5) // else it is to be filled with what its journal has already
	}
	show := func(n *node) {
		for to, values := range want {
			require.Equal(t, values, n.dump(to.Topic, to.Partition), "%v", to)
		}
	}
	show(c.node(2))
	pass(2 * time.Minute) // a round of the verification reads what nobody has read
	settle(t, "replaced", func() bool {
		all, err := c.node(2).store.Quarantined()
		require.NoError(t, err)
		return len(all) == len(kinds) && opened(c.node(2))
	})
	produce(5)
	settle(t, "all have all again", func() bool { return opened(c.node(1)) && opened(c.node(2)) && opened(c.node(3)) })
	show(c.node(2))
	one := c.read(1, c.segments(1))
	require.Equal(t, one, c.read(3, c.segments(3)))
	require.Equal(t, one, c.read(2, c.segments(2)))

	all, err := c.node(2).store.Quarantined()
	require.NoError(t, err)
	for _, d := range all {
		name, _, _ := strings.Cut(d.From, "@")
		require.Equal(t, kinds[name], d.Reason.Kind, d.Dir)
		require.True(t, d.Reason.Kind.HeldForPerson())
		require.False(t, d.Reason.At.IsZero())
		have := contents(t, c.disks[2], "data/"+d.Dir)
		delete(have, "REASON")
		require.Equal(t, found[name], have, "as it was found")
	}
	// It takes part as before: with another one down, what it says counts.
	c.crash(3, simfs.Strict)
	produce(5)
	show(c.node(2))
}
