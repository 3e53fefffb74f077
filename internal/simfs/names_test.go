package simfs_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
)

func TestASyncedFileInAnUnsyncedDirectoryIsLost(t *testing.T) {
	fs := simfs.New(1)
	require.NoError(t, fs.MkdirAll("a/b", 0o755))
	save(t, fs, "a/b/f", "content", false)
	require.Empty(t, list(t, fs.Image(simfs.Strict), "/"))
	syncDir(t, fs, "a/b")
	require.Empty(t, list(t, fs.Image(simfs.Strict), "/"), "nothing names a")
	syncDir(t, fs, "/")
	require.Empty(t, list(t, fs.Image(simfs.Strict), "a"), "nothing names b")
	syncDir(t, fs, "a")
	require.Equal(t, "content", read(t, fs.Crash(simfs.Strict), "a/b/f"))
}

func TestANameWithoutItsContent(t *testing.T) {
	fs := simfs.New(1)
	create(t, fs, "f", "content")
	syncDir(t, fs, "/")
	require.Empty(t, read(t, fs.Crash(simfs.Strict), "f"))
}

func TestUnsyncedRemoveComesBack(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "f", "content", true)
	require.NoError(t, fs.Remove("f"))
	require.Equal(t, "content", read(t, fs.Image(simfs.Strict), "f"))
	require.Empty(t, list(t, fs.Image(simfs.Lucky), "/"))
	syncDir(t, fs, "/")
	require.Empty(t, list(t, fs.Crash(simfs.Strict), "/"))
}

// The usual way to replace a file: whatever is lost, the name leads to the
// whole old or the whole new content.
func TestRenameIsAtomic(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "current", "old", true)
	save(t, fs, "tmp", "new", false)
	require.NoError(t, fs.Rename("tmp", "current"))
	seen := map[string]int{}
	for range 200 {
		img := fs.Image(simfs.Random)
		seen[list(t, img, "/")+" "+read(t, img, "current")]++
	}
	require.Len(t, seen, 3)
	for _, outcome := range []string{"current old", "current tmp old", "current new"} {
		require.Positive(t, seen[outcome], "%s in %v", outcome, seen)
	}
	syncDir(t, fs, "/")
	require.Equal(t, "new", read(t, fs.Crash(simfs.Strict), "current"))
}

// What a rename replaces was linked elsewhere before: the link comes first.
func TestRenameOverALinkedFile(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "current", "old", true)
	save(t, fs, "tmp", "new", true)
	require.NoError(t, fs.Link("current", "backup"))
	require.NoError(t, fs.Rename("tmp", "current"))
	for range 100 {
		require.Contains(t, dump(t, fs.Image(simfs.Random), "/"), "old")
	}
}

// a was below b, then b below a. Neither is ever lost below the other.
func TestMovedDirectoriesMakeNoCycle(t *testing.T) {
	fs := simfs.New(1)
	for _, dir := range []string{"a", "b"} {
		require.NoError(t, fs.MkdirAll(dir, 0o755))
		save(t, fs, dir+"/f", "content of "+dir, true)
	}
	syncDir(t, fs, "/")
	require.NoError(t, fs.Rename("a", "b/a"))
	require.NoError(t, fs.Rename("b/a", "a"))
	require.NoError(t, fs.Rename("b", "a/b"))
	for range 200 {
		all := dump(t, fs.Image(simfs.Random), "/")
		require.Contains(t, all, "content of a")
		require.Contains(t, all, "content of b")
	}
}

func TestRenameBetweenDirectories(t *testing.T) {
	for _, synced := range []string{"a", "b"} {
		fs := simfs.New(1)
		require.NoError(t, fs.MkdirAll("a", 0o755))
		require.NoError(t, fs.MkdirAll("b", 0o755))
		syncDir(t, fs, "/")
		save(t, fs, "a/f", "x", true)
		require.NoError(t, fs.Rename("a/f", "b/g"))
		for range 100 {
			img := fs.Image(simfs.Random)
			require.Contains(t, []string{"f", "g"}, list(t, img, "a")+list(t, img, "b"))
		}
		syncDir(t, fs, synced)
		require.Equal(t, "x", read(t, fs.Crash(simfs.Strict), "b/g"))
	}
}

// Creations reach the disk in any order, but not against each other's.
func TestEntriesAreLostIndependently(t *testing.T) {
	fs := simfs.New(1)
	for _, name := range []string{"a", "b", "c"} {
		create(t, fs, name, "")
	}
	seen := map[string]bool{}
	for range 300 {
		seen[list(t, fs.Image(simfs.Random), "/")] = true
	}
	require.Len(t, seen, 8, "all subsets")
}

// A file that has a durable name, and keeps one for the process, has one after
// every crash, and after a sync of all directories the same ones.
func TestDurableFilesKeepAName(t *testing.T) {
	dirs := []string{"/d0", "/d1", "/d2"}
	for seed := range seeds(t, 200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		fs := simfs.New(seed)
		files := make([][]string, 4) // the names of each
		for i := range files {
			require.NoError(t, fs.MkdirAll(dirs[i%3], 0o755))
			files[i] = []string{fmt.Sprintf("%s/f%d", dirs[i%3], i)}
			save(t, fs, files[i][0], fmt.Sprint("content ", i), true)
		}
		syncDir(t, fs, "/")
		for step := range 30 {
			i, dir := rng.IntN(len(files)), dirs[rng.IntN(3)]
			k, fresh := rng.IntN(len(files[i])), fmt.Sprintf("%s/n%d", dir, step)
			switch op := rng.IntN(10); {
			case op < 5:
				require.NoError(t, fs.Rename(files[i][k], fresh))
				files[i][k] = fresh
			case op < 7:
				require.NoError(t, fs.Link(files[i][k], fresh))
				files[i] = append(files[i], fresh)
			case op < 9 && len(files[i]) > 1:
				require.NoError(t, fs.Remove(files[i][k]))
				files[i] = slices.Delete(files[i], k, k+1)
			default:
				syncDir(t, fs, dir)
			}
			after := dump(t, fs.Image(simfs.Random), "/")
			for i := range files {
				require.Contains(t, after, fmt.Sprint("content ", i), "seed %d, step %d", seed, step)
			}
		}
		require.Equal(t, dump(t, fs, "/"), dump(t, fs.Image(simfs.Lucky), "/"), "seed %d", seed)
		for _, d := range dirs {
			syncDir(t, fs, d)
		}
		require.Equal(t, dump(t, fs, "/"), dump(t, fs.Crash(simfs.Strict), "/"), "seed %d", seed)
	}
}

// A directory that was emptied by moving its files away does not take them
// along, whether the moves or the removal were lost.
func TestRemovedDirectoryDoesNotTakeMovedFiles(t *testing.T) {
	for seed := range seeds(t, 50) {
		fs := simfs.New(seed)
		require.NoError(t, fs.MkdirAll("from", 0o755))
		require.NoError(t, fs.MkdirAll("to", 0o755))
		save(t, fs, "from/f", "content", true)
		syncDir(t, fs, "/")
		require.NoError(t, fs.Rename("from/f", "to/f"))
		require.NoError(t, fs.Remove("from"))
		for range 20 {
			require.Contains(t, dump(t, fs.Image(simfs.Random), "/"), "content", "seed %d", seed)
		}
		syncDir(t, fs, "/") // the removal, and so the move
		require.Equal(t, "content", read(t, fs.Crash(simfs.Strict), "to/f"))
	}
}

func TestFailedDirectorySyncStaysFailed(t *testing.T) {
	fs := simfs.New(1)
	create(t, fs, "f", "")
	d, err := fs.OpenDir("/")
	require.NoError(t, err)
	fs.SetHook(func(op simfs.Op) error {
		if op.Kind == simfs.OpSyncDir {
			return syscall.EIO
		}
		return nil
	})
	require.ErrorIs(t, d.Sync(), syscall.EIO)
	fs.SetHook(nil)
	require.ErrorIs(t, d.Sync(), syscall.EIO)
	require.Empty(t, list(t, fs.Image(simfs.Strict), "/"))
	after := fs.Crash(simfs.Lucky)
	create(t, after, "g", "")
	syncDir(t, after, "/")
	require.Equal(t, "f g", list(t, after.Crash(simfs.Strict), "/"))
}

func TestErrorsAreTheUsualOnes(t *testing.T) {
	fs := simfs.New(1)
	_, err := fs.Open("none")
	require.True(t, oserror.IsNotExist(err))
	_, err = fs.Create("none/f", vfs.WriteCategoryUnspecified)
	require.True(t, oserror.IsNotExist(err))
	require.True(t, oserror.IsNotExist(fs.Remove("none")))
	require.True(t, oserror.IsNotExist(fs.Rename("none", "f")))
	require.True(t, oserror.IsNotExist(fs.Truncate("none", 0)))
	_, err = fs.Stat("none")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, fs.RemoveAll("none/at/all"))

	save(t, fs, "f", "x", false)
	save(t, fs, "dir-to-be", "x", false)
	require.True(t, oserror.IsExist(fs.Link("f", "dir-to-be")))
	require.ErrorIs(t, fs.MkdirAll("f/g", 0o755), syscall.ENOTDIR)
	_, err = fs.OpenDir("f")
	require.ErrorIs(t, err, syscall.ENOTDIR)
	require.NoError(t, fs.MkdirAll("d/e", 0o755))
	require.ErrorIs(t, fs.Remove("d"), syscall.ENOTEMPTY)
	require.ErrorIs(t, fs.Rename("d", "d/e/f"), syscall.EINVAL)
	require.ErrorIs(t, fs.Rename("f", "d"), syscall.EISDIR)
	require.ErrorIs(t, fs.Rename("d", "f"), syscall.ENOTDIR)
	require.NoError(t, fs.RemoveAll("d"))
	require.Equal(t, "dir-to-be f", list(t, fs, "/"))

	f, err := fs.Open("f")
	require.NoError(t, err)
	_, err = f.Write([]byte("x"))
	require.True(t, oserror.IsPermission(err))
	_, err = f.ReadAt(make([]byte, 2), 0)
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, f.Close())
	_, err = f.Stat()
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, f.Close(), os.ErrClosed)
}

func TestHandleOutlivesItsName(t *testing.T) {
	fs := simfs.New(1)
	f := create(t, fs, "f", "content")
	require.NoError(t, fs.Remove("f"))
	b := make([]byte, 7)
	_, err := f.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, "content", string(b))
	require.NoError(t, f.Sync())
}

func TestReuseForWriteKeepsTheContent(t *testing.T) {
	fs := simfs.New(1)
	save(t, fs, "old", "content", true)
	f, err := fs.ReuseForWrite("old", "new", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write([]byte("CON"))
	require.NoError(t, err)
	require.Equal(t, "CONtent", read(t, fs, "new"))
	require.Equal(t, "new", list(t, fs, "/"))
}
