package stele_test

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
)

// badOpen is a way to open a node that fails, and what is said then.
type badOpen struct {
	what    string
	change  func(c *testcluster.Cluster, cfg *stele.Config)
	as      any // a pointer to the type of error, or nil
	is      error
	outcome stele.Outcome
	says    []string // what, where, and what would be right
}

// reopened are directories that were a node's before.
var reopened = []badOpen{
	{"of another node", func(_ *testcluster.Cluster, cfg *stele.Config) {
		cfg.Name = "other"
		cfg.InitialMembers = []stele.Peer{{Name: "other", Addr: "host-1:7942"}}
	}, new(*stele.IdentityError), nil, stele.OutcomeRefused, []string{"data/IDENTITY", "node name", `"node-1"`, `"other"`}},
	{"of another cluster", func(_ *testcluster.Cluster, cfg *stele.Config) { cfg.Cluster = "other" },
		new(*stele.IdentityError), nil, stele.OutcomeRefused, []string{"data/IDENTITY", "cluster name", `"test"`, `"other"`}},
	{"of a newer release", func(c *testcluster.Cluster, _ *stele.Config) {
		writeFile(c, "/data/FORMAT", sealed("stele directory 2\nshape round\n"))
	}, new(*stele.FormatError), nil, stele.OutcomeRefused, []string{"data/FORMAT", "version 2", "knows 1"}},
	{"whose settings are of a newer release", func(c *testcluster.Cluster, _ *stele.Config) {
		writeFile(c, "/data/meta/SETTINGS", sealed("stele settings 2\nshape round\n"))
	}, new(*stele.FormatError), nil, stele.OutcomeRefused, []string{"data/meta/SETTINGS", "version 2", "knows 1"}},
	{"whose settings are damaged", func(c *testcluster.Cluster, _ *stele.Config) {
		require.NoError(c.T, c.Member(0).FS.Flip("/data/meta/SETTINGS", 30, 1))
	}, new(*stele.DamageError), nil, stele.OutcomeRefused, []string{"data/meta/SETTINGS", "not a whole text"}},
	{"with segments of another size", func(_ *testcluster.Cluster, cfg *stele.Config) { cfg.SegmentBytes *= 2 },
		new(*stele.ConfigError), nil, stele.OutcomeRefused, []string{"Config.SegmentBytes = 131072", "want 65536", "data"}},
	{"with other members", func(_ *testcluster.Cluster, cfg *stele.Config) {
		cfg.InitialMembers = []stele.Peer{{Name: "node-1", Addr: "host-1:7942"}, {Name: "node-2", Addr: "host-2:7942"}}
	}, new(*stele.ConfigError), nil, stele.OutcomeRefused, []string{`Config.InitialMembers = "node-1, node-2"`, "data was founded with, node-1;", "addresses may change"}},
	{"that may not be written", func(c *testcluster.Cluster, _ *stele.Config) { failChanges(c, syscall.EROFS) },
		new(*fs.PathError), syscall.EROFS, stele.OutcomeRefused, []string{"/data", "read-only file system"}},
	{"on a full disk", func(c *testcluster.Cluster, _ *stele.Config) { failChanges(c, syscall.ENOSPC) },
		nil, syscall.ENOSPC, stele.OutcomeRetry, []string{"/data", "no space left on device"}},
	{"that is open", func(c *testcluster.Cluster, _ *stele.Config) { c.Start(0) },
		nil, stele.ErrLocked, stele.OutcomeRetry, []string{"/data/LOCK"}},
}

func TestADirectoryThatDoesNotFit(t *testing.T) {
	for _, bad := range reopened {
		t.Run(bad.what, func(t *testing.T) {
			testcluster.Run(t, testcluster.Options{Nodes: 1}, func(c *testcluster.Cluster) {
				c.StartAll()
				c.Close(0)
				cfg := c.Config(0)
				bad.change(c, &cfg)
				_, err := stele.Open(c.T.Context(), cfg)
				bad.check(c.T, err)
				c.Member(0).FS.SetHook(nil)
			})
		})
	}
}

func (b *badOpen) check(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	if b.as != nil {
		require.ErrorAs(t, err, b.as)
	}
	if b.is != nil {
		require.ErrorIs(t, err, b.is)
	}
	require.Equal(t, b.outcome, stele.OutcomeOf(err), "%v", err)
	for _, s := range b.says {
		require.ErrorContains(t, err, s)
	}
}

func failChanges(c *testcluster.Cluster, errno syscall.Errno) { failChangesAfter(c, 0, errno) }

// failChangesAfter makes what needs space fail, after so many changes.
func failChangesAfter(c *testcluster.Cluster, after int64, errno syscall.Errno) {
	c.Member(0).FS.SetHook(func(op simfs.Op) error {
		switch op.Kind {
		case simfs.OpCreate, simfs.OpMkdir, simfs.OpWrite, simfs.OpPreallocate:
			if op.Seq > after {
				return &fs.PathError{Op: "write", Path: op.Path, Err: errno}
			}
		}
		return nil
	})
}

// A first Open on such a disk leaves nothing behind that a later one minds,
// whichever of its changes is the first to fail.
func TestAFullOrReadOnlyDiskOnTheFirstDay(t *testing.T) {
	for errno, outcome := range map[syscall.Errno]stele.Outcome{syscall.EROFS: stele.OutcomeRefused, syscall.ENOSPC: stele.OutcomeRetry} {
		opened := false
		for after := int64(0); !opened; after++ {
			testcluster.Run(t, testcluster.Options{Nodes: 1}, func(c *testcluster.Cluster) {
				t := c.T
				failChangesAfter(c, after, errno)
				node, err := stele.Open(t.Context(), c.Config(0))
				if opened = err == nil; opened {
					require.Greater(t, after, int64(10))
					node.Abort()
					return
				}
				require.ErrorIs(t, err, errno)
				require.ErrorContains(t, err, "data")
				require.Equal(t, outcome, stele.OutcomeOf(err), "%v", err)
				c.Member(0).FS.SetHook(nil)
				c.StartAll()
			})
		}
	}
}

// onThisMachine is a configuration of one node on real files and TCP.
func onThisMachine(t *testing.T) stele.Config {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	return stele.Config{Cluster: "test", Name: "a", Dir: filepath.Join(t.TempDir(), "data"), InitialMembers: []stele.Peer{{Name: "a", Addr: addr}}}
}

func TestAMachineThatDoesNotFit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "thesis.tex"), []byte("mine"), 0o600))
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()

	for _, bad := range []badOpen{
		{"unwritable directory", func(_ *testcluster.Cluster, cfg *stele.Config) { cfg.Dir = "/proc/stele" },
			new(*fs.PathError), nil, stele.OutcomeRefused, []string{"/proc/stele"}},
		{"file in place of the directory", func(_ *testcluster.Cluster, cfg *stele.Config) { cfg.Dir = file },
			nil, syscall.ENOTDIR, stele.OutcomeRefused, []string{file, "not a directory"}},
		{"file in place of the directory above", func(_ *testcluster.Cluster, cfg *stele.Config) { cfg.Dir = filepath.Join(file, "data") },
			nil, syscall.ENOTDIR, stele.OutcomeRefused, []string{file, "not a directory"}},
		{"directory of something else", func(_ *testcluster.Cluster, cfg *stele.Config) { cfg.Dir = foreign },
			new(*stele.ForeignError), nil, stele.OutcomeRefused, []string{foreign, "thesis.tex"}},
		{"address in use", func(_ *testcluster.Cluster, cfg *stele.Config) {
			cfg.Listen = busy.Addr().String()
		}, new(*net.OpError), syscall.EADDRINUSE, stele.OutcomeRetry, []string{busy.Addr().String(), "address already in use"}},
		{"address of another machine", func(_ *testcluster.Cluster, cfg *stele.Config) { cfg.Listen = "192.0.2.1:7942" },
			new(*net.OpError), nil, stele.OutcomeRetry, []string{"192.0.2.1:7942"}},
	} {
		t.Run(bad.what, func(t *testing.T) {
			cfg := onThisMachine(t)
			bad.change(nil, &cfg)
			_, err := stele.Open(t.Context(), cfg)
			bad.check(t, err)
		})
	}
}

func TestConfigsThatCannotBe(t *testing.T) {
	for _, bad := range []struct {
		what   string
		change func(*stele.Config)
		says   string
	}{
		{"nothing set", func(cfg *stele.Config) { *cfg = stele.Config{} }, `Config.Cluster = "": want 1 to 179 letters`},
		{"no name", func(cfg *stele.Config) { cfg.Name = "" }, `Config.Name = "": want 1 to 179 letters`},
		{"no directory", func(cfg *stele.Config) { cfg.Dir = "" }, `Config.Dir = "": want a directory`},
		{"nobody", func(cfg *stele.Config) { cfg.InitialMembers = nil }, "Config.InitialMembers = 0: want 1 to 5 members"},
		{"too many", func(cfg *stele.Config) {
			cfg.InitialMembers = nil
			for i := range 6 {
				cfg.InitialMembers = append(cfg.InitialMembers, stele.Peer{Name: fmt.Sprint(i), Addr: fmt.Sprint("h:", i+1)})
			}
		}, "Config.InitialMembers = 6: want 1 to 5 members"},
		{"a name twice", func(cfg *stele.Config) {
			cfg.InitialMembers = append(cfg.InitialMembers, stele.Peer{Name: "a", Addr: "b:1"})
		}, `Config.InitialMembers[1].Name = "a": want a name that differs`},
		{"a name twice but for its case", func(cfg *stele.Config) {
			cfg.InitialMembers = append(cfg.InitialMembers, stele.Peer{Name: "A", Addr: "b:1"})
		}, `Config.InitialMembers[1].Name = "A": want a name that differs from the others in more than the case of letters, and "a" is one of them`},
		{"members beside a cluster to join", func(cfg *stele.Config) { cfg.Join = []string{"b:1"} }, "Config.InitialMembers = 1: want none beside Join"},
		{"a cluster to join without a port", func(cfg *stele.Config) {
			cfg.InitialMembers, cfg.Join, cfg.Advertise = nil, []string{"b:1", "b"}, "a:1"
		}, `Config.Join[1] = "b": want host:port`},
		{"too many places to join", func(cfg *stele.Config) {
			cfg.InitialMembers, cfg.Join, cfg.Advertise = nil, slices.Repeat([]string{"b:1"}, 65), "a:1"
		}, "Config.Join = 65: want 1 to 64 addresses"},
		{"a beginning for a cluster to join", func(cfg *stele.Config) {
			cfg.InitialMembers, cfg.Join, cfg.Advertise = nil, []string{"b:1"}, "a:1"
			cfg.InitialState.Topics = []stele.TopicSpec{{Name: "orders"}}
		}, "Config.InitialState"},
		{"nowhere to be reached", func(cfg *stele.Config) {
			cfg.InitialMembers, cfg.Join, cfg.Listen = nil, []string{"b:1"}, ":7942"
		}, `Config.Advertise = ":7942": want host:port`},
		{"itself in another case", func(cfg *stele.Config) { cfg.Name = "A" }, `Config.Name = "A": want the name of one of InitialMembers`},
		{"an address twice", func(cfg *stele.Config) {
			cfg.InitialMembers = append(cfg.InitialMembers, stele.Peer{Name: "b", Addr: cfg.InitialMembers[0].Addr})
		}, "want addresses that occur once"},
		{"an address without a port", func(cfg *stele.Config) { cfg.InitialMembers[0].Addr = "a" }, `Config.InitialMembers[0].Addr = "a": want host:port`},
		{"a name of 300 bytes", func(cfg *stele.Config) { cfg.Name = strings.Repeat("a", 300) }, "want 1 to 179 letters"},
		{"negative bytes", func(cfg *stele.Config) { cfg.JournalBytes = -1 }, "Config.JournalBytes = -1: want 16 KiB to 1 GiB"},
		{"negative time", func(cfg *stele.Config) { cfg.Tick = -time.Second }, "Config.Tick = -1s: want 5ms to 10s"},
	} {
		t.Run(bad.what, func(t *testing.T) {
			cfg := onThisMachine(t)
			bad.change(&cfg)
			_, err := stele.Open(t.Context(), cfg)
			var configError *stele.ConfigError
			require.ErrorAs(t, err, &configError)
			require.ErrorContains(t, err, bad.says)
			require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
			require.NoDirExists(t, cfg.Dir)
		})
	}
}

func TestAPeerThatCannotBeResolved(t *testing.T) {
	cfg := onThisMachine(t)
	cfg.InitialMembers = append(cfg.InitialMembers, stele.Peer{Name: "b", Addr: "nowhere.invalid:7942"})
	cfg.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if host, _, _ := net.SplitHostPort(addr); host == "nowhere.invalid" {
			return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}}
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	node, err := stele.Open(t.Context(), cfg)
	require.NoError(t, err, "the network may come later")
	defer node.Abort()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !strings.Contains(node.Readiness().Reason, "no such host") {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%v", node.Readiness())
		}
	}
	r := node.Readiness()
	require.Equal(t, stele.WaitingForMembers, r.Code)
	require.Contains(t, r.Reason, "b (nowhere.invalid:7942) no answer")
	require.Contains(t, r.Reason, "lookup nowhere.invalid: no such host")
	ended, end := context.WithCancel(ctx)
	end()
	err = node.WaitReady(ended)
	require.ErrorContains(t, err, "lookup nowhere.invalid: no such host")
	require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err))
}

// calls are all that a node can be asked with a context.
var calls = map[string]func(ctx context.Context, n *stele.Node) error{
	"Node.CreateTopic": func(ctx context.Context, n *stele.Node) error {
		_, err := n.CreateTopic(ctx, "x", stele.TopicConfig{})
		return err
	},
	"Node.DescribeTopic": func(ctx context.Context, n *stele.Node) error { _, err := n.DescribeTopic(ctx, "x"); return err },
	"Node.ListTopics":    func(ctx context.Context, n *stele.Node) error { _, err := n.ListTopics(ctx); return err },
	"Node.DeleteTopic":   func(ctx context.Context, n *stele.Node) error { return n.DeleteTopic(ctx, "x") },
	"Node.NewReader": func(ctx context.Context, n *stele.Node) error {
		_, err := n.NewReader(ctx, stele.TopicPartition{Topic: "x"}, stele.FromStart())
		return err
	},
	"Node.WaitReady": func(ctx context.Context, n *stele.Node) error { return n.WaitReady(ctx) },
}

func TestNoContext(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 1}, func(c *testcluster.Cluster) {
		t := c.T
		refused := func(call string, err error) {
			t.Helper()
			var none *stele.NilContextError
			require.ErrorAs(t, err, &none)
			require.Equal(t, call, none.Call)
			require.ErrorContains(t, err, call+": ctx is nil")
			require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
		}
		var none context.Context
		_, err := stele.Open(none, c.Config(0))
		refused("Open", err)
		c.StartAll()
		for name, call := range calls {
			refused(name, call(none, c.Node(0)))
		}
		refused("Node.Close", c.Node(0).Close(none))
		require.True(t, c.Node(0).Readiness().Ready(), "nothing was closed")
	})
}

func TestUseAfterClose(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 1}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "x", 1)
		node := c.Node(0)
		p, err := node.NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		r, err := node.NewReader(t.Context(), stele.TopicPartition{Topic: "x"}, stele.FromStart())
		require.NoError(t, err)
		c.Close(0)
		require.NoError(t, node.Close(t.Context()))
		node.Abort()
		closed := func(what string, err error) {
			t.Helper()
			require.ErrorIs(t, err, stele.ErrClosed, what)
			require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err), "%s: %v", what, err)
		}
		for name, call := range calls {
			closed(name, call(t.Context(), node))
		}
		_, err = node.NewProducer(stele.ProducerConfig{})
		closed("Node.NewProducer", err)
		_, err = p.Produce(t.Context(), "x", stele.Record{})
		closed("Producer.Produce", err)
		_, err = r.Fetch(t.Context(), 1)
		closed("Reader.Fetch", err)
		require.NoError(t, p.Close(t.Context()))
		r.Close()
		require.Equal(t, "node-1", node.Name())
		require.NotEmpty(t, node.Addr())
		require.Len(t, node.Members(), 1)
		require.Equal(t, stele.Closed, node.Status().Readiness.Code)
	})
}

func TestOutcomeOfNoError(t *testing.T) {
	require.Equal(t, stele.OutcomeUnknown, stele.OutcomeOf(nil))
	require.Equal(t, stele.OutcomeUnknown, stele.OutcomeOf(errors.New("of somebody else")))
}

// Nodes that were given different sizes form no cluster.
func TestMembersWithDifferentSegments(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 2, Config: func(cfg *stele.Config) {
		if cfg.Name == "node-2" {
			cfg.SegmentBytes *= 2
		}
	}}, func(c *testcluster.Cluster) {
		c.Start(0)
		c.Start(1)
		c.Sleep(time.Minute)
		require.Equal(c.T, stele.WaitingForMembers, c.Node(0).Readiness().Code)
		require.Contains(c.T, c.Node(0).Readiness().Reason, "node-2 (host-2:7942) lists other")
	})
}

// sealed ends a text with its checksum.
func sealed(text string) string {
	return text + fmt.Sprintf("crc32c %08x\n", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

func writeFile(c *testcluster.Cluster, path, text string) {
	f, err := c.Member(0).FS.Create(path, vfs.WriteCategoryUnspecified)
	require.NoError(c.T, err)
	_, err = f.Write([]byte(text))
	require.NoError(c.T, err)
	require.NoError(c.T, f.Close())
}

// What no topic can be, and no record, is refused by every node, with what, and
// what would be right.
func TestTopicsThatCannotBe(t *testing.T) {
	testcluster.Run(t, testcluster.Options{}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		for _, bad := range []struct {
			name string
			cfg  stele.TopicConfig
			says []string
		}{
			{"", stele.TopicConfig{}, []string{"Name", "1 to 179 of A-Z"}},
			{strings.Repeat("a", 300), stele.TopicConfig{}, []string{"Name", "1 to 179 of A-Z"}},
			{"../x", stele.TopicConfig{}, []string{"Name", `"../x"`, "1 to 179 of A-Z"}},
			{"..", stele.TopicConfig{}, []string{"Name", "neither . nor .."}},
			{"a@b", stele.TopicConfig{}, []string{"Name", `"a@b"`, "1 to 179 of A-Z"}},
			{"many", stele.TopicConfig{Partitions: 1_000_000}, []string{"Partitions", "1000000", "1 to 10"}},
			{"copies", stele.TopicConfig{Replicas: 4}, []string{"Replicas", "4", "1 to 3"}},
			{"large", stele.TopicConfig{MaxBatchBytes: 17 << 20}, []string{"MaxBatchBytes", "17825792", "16777216"}},
			{"Orders", stele.TopicConfig{}, []string{"exists"}},
			{"orders", stele.TopicConfig{}, []string{"exists"}},
		} {
			for i := range c.Size() {
				_, err := c.Node(i).CreateTopic(t.Context(), bad.name, bad.cfg)
				require.Error(t, err, bad.name)
				require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err), "%v", err)
				for _, s := range bad.says {
					require.ErrorContains(t, err, s)
				}
			}
		}
		topic, err := c.Node(1).CreateTopic(t.Context(), "defaults", stele.TopicConfig{})
		require.NoError(t, err)
		require.Len(t, topic.Partitions, 1, "0 means the default")

		p, err := c.Node(2).NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		_, err = p.Produce(t.Context(), "orders", stele.Record{Value: make([]byte, 17<<20)})
		var large *stele.TooLargeError
		require.ErrorAs(t, err, &large)
		require.Equal(t, 16<<20, large.Max)
		require.Equal(t, stele.OutcomeRefused, stele.OutcomeOf(err))
		_, err = p.ProduceTo(t.Context(), "orders", 7, stele.Record{})
		var none *stele.NoPartitionError
		require.ErrorAs(t, err, &none)
		_, err = p.Produce(t.Context(), "nobody", stele.Record{})
		require.ErrorIs(t, err, stele.ErrTopicNotFound)
	})
}
