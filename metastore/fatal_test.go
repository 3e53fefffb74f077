package metastore

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
)

// fatalChild names the environment variable with the fault of a child process.
const fatalChild = "STELE_METASTORE_FATAL"

// A database that Pebble gave up leaves goroutines behind, for good. So each
// fault has a process of its own, which shows that it lives on.
//
// Property: L1 (red: Fatalf exited as Pebble's own logger does; start waited for its goroutine; failed writes returned to Pebble; raft's panics are in raftlog)
func TestPebblesFatalErrorsFailTheStoreAlone(t *testing.T) {
	for _, fault := range []string{"write", "sync", "create", "manifest", "table", "corruption"} {
		t.Run(fault, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestFatalChild$", "-test.v")
			cmd.Env = append(os.Environ(), fatalChild+"="+fault)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "alive")
		})
	}
}

func TestFatalChild(t *testing.T) {
	fault := os.Getenv(fatalChild)
	if fault == "" {
		t.Skip("runs in a child process")
	}
	c := newFakeCluster(t, 2)
	other := c.start(2, simfs.New(2))
	fs := simfs.New(1)
	n := c.start(1, fs)
	c.elect(1)
	_, err := n.store.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
	require.NoError(t, err)

	var broken atomic.Bool
	fs.SetHook(func(op simfs.Op) error {
		name := fs.PathBase(op.Path)
		log, table := strings.HasSuffix(name, ".log"), strings.HasSuffix(name, ".sst")
		hit := map[string]bool{
			"write":    log && op.Kind == simfs.OpWrite,
			"sync":     log && op.Kind == simfs.OpSync,
			"create":   strings.HasSuffix(op.To, ".log") || log && op.Kind == simfs.OpCreate,
			"manifest": strings.HasPrefix(name, "MANIFEST") && op.Kind == simfs.OpWrite,
			"table":    table && op.Kind == simfs.OpWrite,
		}[fault]
		if broken.Load() && hit {
			return syscall.EIO
		}
		return nil
	})
	if fault == "corruption" {
		n, fs = reopenDamaged(t, c, n, fs)
	}
	leader, stopped := n.store.Leader()
	require.NotZero(t, leader)
	broken.Store(true)
	m := n.store.machine
	big := strings.Repeat("x", maxSettingValue)
	for i := 0; n.store.Failed() == nil; i++ {
		require.Less(t, i, 1000, "it never failed")
		c.append(setSetting{fmt.Sprint("key-", i%100), big})
		_ = n.catchUp()
		if i%10 == 0 {
			_, _, _ = n.store.Setting("key-1")
			_ = m.db.run(m.db.pebble.Flush)
		}
	}
	t.Log("failed as it should:", n.store.Failed())

	c.append(noop{})
	require.Error(t, n.catchUp(), "nothing is applied any more")
	requireOneOutcome(t, raftlog.OutcomeRetry, n.store.Barrier(canceled(t)))
	_, err = n.store.TopicByIncarnation(inc(1))
	requireOneOutcome(t, raftlog.OutcomeRetry, err)
	_, err = n.store.Topic("orders")
	require.ErrorIs(t, err, ErrUnavailable, "it may have been deleted meanwhile")
	<-stopped
	leader, _ = n.store.Leader()
	require.Zero(t, leader)
	require.ErrorIs(t, n.store.Close(), n.store.Failed())
	require.ErrorIs(t, n.store.Close(), n.store.Failed())
	delete(c.nodes, 1)
	require.NoError(t, other.catchUp())
	require.NoError(t, other.store.Failed(), "another store of the process goes on")
	fmt.Println("alive")
}

// reopenDamaged closes a node, damages its tables, and opens it again.
func reopenDamaged(t *testing.T, c *fakeCluster, n *fakeNode, fs *simfs.FS) (*fakeNode, *simfs.FS) {
	big := strings.Repeat("x", maxSettingValue/2)
	for i := range 100 {
		c.append(setSetting{fmt.Sprint("key-", i), big + fmt.Sprint(i)})
	}
	require.NoError(t, n.catchUp())
	require.NoError(t, n.store.machine.db.run(n.store.machine.db.pebble.Flush))
	require.NoError(t, n.store.Close())
	fs = fs.Image(simfs.Kill)
	files, err := fs.List("db")
	require.NoError(t, err)
	tables := 0
	n = c.start(1, fs)
	for _, f := range files {
		if strings.HasSuffix(f, ".sst") {
			tables++
			info, err := fs.Stat("db/" + f)
			require.NoError(t, err)
			for off := int64(0); off+4096 < info.Size()*9/10; off += 4096 {
				require.NoError(t, fs.ZeroPage("db/"+f, off))
			}
		}
	}
	require.Positive(t, tables)
	return n, fs
}

// canceled is a context that has ended.
func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
