package storage_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

// A directory is locked under all of its names, and a path with detours names
// the same one.
func TestADirectoryIsLockedUnderAllItsNames(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "a")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Symlink(dir, filepath.Join(base, "link")))
	t.Chdir(base)
	open := func(dir string) (*storage.Store, error) {
		return storage.Open(storage.Config{Dir: dir, Name: "n", Cluster: "c", JournalFileSize: 64 << 10})
	}
	names := []string{dir, "a", "link", base + "/link/../a/./", base + "//a"}
	for _, name := range names {
		s, err := open(name)
		require.NoError(t, err, name)
		for _, other := range names {
			_, err := open(other)
			require.ErrorIs(t, err, storage.ErrLocked, "%s beside %s", other, name)
		}
		_, err = s.CreateTopicDir("orders", storage.Incarnation{1})
		require.NoError(t, err)
		require.True(t, filepath.IsAbs(s.Dir()))
		require.NoError(t, s.Close())
	}
}
