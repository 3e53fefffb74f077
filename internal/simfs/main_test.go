package simfs_test

import (
	"fmt"
	"io"
	"iter"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stelelog/stele/internal/simfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seeds yields n seeds, a tenth of them with -short.
func seeds(t *testing.T, n uint64) iter.Seq[uint64] {
	t.Helper()
	if testing.Short() {
		n = max(1, n/10)
	}
	return func(yield func(uint64) bool) {
		for s := range n {
			if !yield(s) {
				return
			}
		}
	}
}

func create(t *testing.T, fs *simfs.FS, name, content string) vfs.File {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write([]byte(content))
	require.NoError(t, err)
	return f
}

// save writes a file, syncs it and, if asked, its directory.
func save(t *testing.T, fs *simfs.FS, name, content string, withName bool) {
	t.Helper()
	f := create(t, fs, name, content)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	if withName {
		syncDir(t, fs, path.Dir(name))
	}
}

func syncDir(t *testing.T, fs *simfs.FS, name string) {
	t.Helper()
	d, err := fs.OpenDir(name)
	require.NoError(t, err)
	require.NoError(t, d.Sync())
	require.NoError(t, d.Close())
}

func openRW(t *testing.T, fs *simfs.FS, name string) vfs.File {
	t.Helper()
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	return f
}

func read(t *testing.T, fs *simfs.FS, name string) string {
	t.Helper()
	f, err := fs.Open(name)
	require.NoError(t, err)
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return string(b)
}

// list is List joined with spaces.
func list(t *testing.T, fs *simfs.FS, dir string) string {
	t.Helper()
	names, err := fs.List(dir)
	require.NoError(t, err)
	return strings.Join(names, " ")
}

// dump is all that a process can see of the tree below dir.
func dump(t *testing.T, fs *simfs.FS, dir string) string {
	t.Helper()
	names, err := fs.List(dir)
	require.NoError(t, err)
	var out strings.Builder
	for _, name := range names {
		name = path.Join(dir, name)
		st, err := fs.Stat(name)
		require.NoError(t, err)
		if st.IsDir() {
			fmt.Fprintf(&out, "%s/\n%s", name, dump(t, fs, name))
		} else {
			fmt.Fprintf(&out, "%s %d %q\n", name, st.ModTime().UnixNano(), read(t, fs, name))
		}
	}
	return out.String()
}
