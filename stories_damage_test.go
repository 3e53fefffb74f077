package stele_test

import (
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/metastore"
)

// files returns the files below a directory with a suffix, and what is in them.
func files(t *testing.T, fs *simfs.FS, dir, suffix string) map[string]string {
	t.Helper()
	all := map[string]string{}
	names, err := fs.List(dir)
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		f, err := fs.Open(path.Join(dir, name))
		require.NoError(t, err)
		info, err := f.Stat()
		require.NoError(t, err)
		b := make([]byte, info.Size())
		if len(b) > 0 {
			_, err = f.ReadAt(b, 0)
		}
		require.NoError(t, errors.Join(err, f.Close()))
		all[path.Join(dir, name)] = string(b)
	}
	return all
}

// A member's journal, or both copies of its table, are damaged while it is down. It
// does not start, says what to do, and leaves everything; with an empty directory it
// comes back as a wiped one. Nothing that was acknowledged is lost.
//
// Property: S4 (red: the error gave no advice)
func TestAMembersJournalIsDamaged(t *testing.T) {
	for what, spoil := range map[string]func(t *testing.T, fs *simfs.FS){
		"the journal": func(t *testing.T, fs *simfs.FS) {
			for name, content := range files(t, fs, "/data/journal", ".journal") {
				if len(strings.Trim(content, "\x00")) > 0 {
					require.NoError(t, fs.Flip(name, 200, 2), name)
				}
			}
		},
		"both copies of the table": func(t *testing.T, fs *simfs.FS) {
			for _, name := range []string{"/data/journal/checkpoint.0", "/data/journal/checkpoint.1"} {
				require.NoError(t, fs.Flip(name, 40, 5), name)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			testcluster.Run(t, testcluster.Options{Seed: 71}, func(c *testcluster.Cluster) {
				t := c.T
				c.StartAll()
				mustCreate(c, 0, "orders", 4)
				l := c.NewLedger("orders")
				load := l.StartLoad(1, 4, 100*time.Millisecond)
				c.Sleep(10 * time.Second)
				const hit = 2
				old := c.Node(hit).Status().Node
				c.Kill(hit)
				fs := c.Member(hit).FS
				spoil(t, fs)
				before := files(t, fs, "/data/journal", "")
				for range 2 {
					err := c.Open(hit)
					var damage *stele.DamageError
					require.ErrorAs(t, err, &damage)
					require.ErrorIs(t, err, stele.ErrRefused)
					require.ErrorContains(t, err, "move the directory away")
					require.Contains(t, damage.Path, "data/journal")
				}
				require.True(t, equalFiles(before, files(t, fs, "/data/journal", "")), "nothing was changed")
				c.Wipe(hit) // that is what moving it away does
				c.Start(hit)
				c.EventuallyLong(func() bool { return c.Node(hit).Readiness().Ready() }, "it is taken in")
				c.EventuallyLong(func() bool { now := lives(c, 0, hit); return len(now) == 1 && now[0] != old }, "as a new node")
				c.EventuallyLong(func() bool { return holds(c, hit, "orders") == 4 }, "it has its replicas again")
				load.Stop()
				for i := range c.Size() {
					l.Verify(i)
				}
			})
		})
	}
}

// A member starts with a journal that somebody restored from an older copy, under
// metadata that are newer: it refuses, says what to do, and leaves everything.
//
// Property: C8 (red: the refusal had no name and no advice)
func TestAMembersJournalIsAnOlderCopy(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Seed: 72}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		const hit = 2
		older := c.Member(hit).FS.Image(simfs.Kill)
		for _, name := range []string{"one", "two", "three"} {
			mustCreate(c, 0, name, 1)
		}
		c.Sleep(time.Second)
		c.Close(hit)
		fs := c.Member(hit).FS
		for _, dir := range []string{"/data/journal", "/data/meta/log"} {
			require.NoError(t, fs.RemoveAll(dir))
			_, err := vfs.Clone(older, fs, dir, dir, vfs.CloneSync)
			require.NoError(t, err)
		}
		for range 2 {
			err := c.Open(hit)
			require.ErrorIs(t, err, metastore.ErrLogLost)
			require.ErrorIs(t, err, stele.ErrRefused)
			require.ErrorContains(t, err, "move this node's directory away")
		}
		c.Wipe(hit)
		c.Start(hit)
		c.EventuallyLong(func() bool { return c.Node(hit).Readiness().Ready() }, "it is taken in as a new node")
	})
}

func equalFiles(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if a[name] != b[name] {
			return false
		}
	}
	return true
}
