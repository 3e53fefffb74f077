// Package simfs is a file system in memory that loses power.
//
// It is what the disk is to a crash test: every state that it returns from a
// crash is one that a careful reader of POSIX must expect, and the seed of New
// decides which. The same operations in the same order, with the same seed,
// give the same image to the byte. It implements storage.FS, so the metadata
// store and the segment files can share one instance and one crash covers both.
//
//	fs := simfs.New(seed)
//	fs.SetHook(simfs.CrashAt(17))  // or any other fault
//	run(fs)                        // until operations fail with ErrCrashed
//	fs = fs.Crash(simfs.Random)    // what the next process finds
//
// # What is durable when
//
//	written                                 durable after
//	content, 512-byte sectors               Sync or SyncData of any handle of the file
//	file size (writes, Truncate)            the same
//	an entry: create, link, mkdir,          Sync of the directory; a rename between
//	  rename, remove                        two directories: of either
//
// Sync of a file says nothing of its name, and Sync of a directory nothing of
// the name of that directory nor of the content of the files in it.
//
// A power loss takes each un-synced thing by itself:
//
//   - A sector is kept or lost as a whole; a write of many is torn anywhere.
//     A lost sector is what it was at the last sync.
//   - A file that grew has its old size, its new size or one in between, and
//     reads as zeros where the size was kept and the content was not.
//   - A truncation that is lost takes with it what was written behind it.
//   - Changes of directory entries are kept or lost one by one, as long as
//     that is no order that a journalling file system would forbid (see the
//     type change). A rename is one change: afterwards there is the old name or
//     the new one. Create over an existing file is two: remove and create.
//
// A killed process loses nothing, but what was un-synced is un-synced still.
//
// Not modelled: a sector that was written twice since its last sync is lost or
// has its last content, not the one in between; sectors tear nowhere;
// permissions; modification times are counted from 1970 in nanoseconds, one
// for each change. SyncTo and Preallocate promise nothing, and do nothing.
//
// There are no goroutines. One mutex guards a file system; it is held for no
// longer than a copy of the bytes, never while a Hook runs, so all of it works
// in a testing/synctest bubble.
package simfs

import (
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FS is a simulated disk with one file system, as one process sees it. It is
// safe for concurrent use. Relative paths start at the root.
type FS struct {
	mu      sync.Mutex
	rng     *rand.Rand
	root    *inode
	pending []*change // un-synced, oldest first
	locks   map[string]bool
	counts  map[string]*Counts // by absolute path
	hook    Hook
	ops     int64
	ticks   int64
	crashed bool
	size    int64 // of the disk, bytes; 0: 1 TiB, and nobody counts
}

var _ vfs.FS = (*FS)(nil)

// New returns an empty file system. The root directory is durable.
func New(seed uint64) *FS {
	return &FS{
		rng:    rand.New(rand.NewPCG(seed, 0)),
		root:   newDir(),
		locks:  map[string]bool{},
		counts: map[string]*Counts{},
	}
}

// Create makes an empty file; a file of that name is removed first.
func (fs *FS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	name = clean(name)
	if err := fs.begin(Op{Kind: OpCreate, Path: name}, nil); err != nil {
		return nil, pathError("create", name, err)
	}
	defer fs.mu.Unlock()
	n, err := fs.createLocked("create", name)
	if err != nil {
		return nil, err
	}
	return fs.handleLocked(n, name, true), nil
}

func (fs *FS) createLocked(op, name string) (*inode, error) {
	if fs.roomLocked() < pageSize {
		return nil, pathError(op, name, syscall.ENOSPC)
	}
	dir, base, err := fs.parentLocked(op, name)
	if err != nil {
		return nil, err
	}
	if old := dir.entries[base]; old != nil {
		if old.isDir() {
			return nil, pathError(op, name, syscall.EISDIR)
		}
		fs.changeLocked(&change{edits: []edit{{dir, base, nil}}, nodes: []*inode{old}})
	}
	n := newFile()
	fs.changeLocked(&change{edits: []edit{{dir, base, n}}, nodes: []*inode{n}})
	return n, nil
}

// changeLocked makes c visible to the process and notes that it is un-synced.
func (fs *FS) changeLocked(c *change) {
	for _, e := range c.edits {
		if e.node == nil {
			delete(e.dir.entries, e.name)
		} else {
			e.dir.entries[e.name] = e.node
		}
		fs.touchLocked(e.dir)
	}
	for _, n := range c.nodes {
		fs.touchLocked(n)
	}
	fs.pending = append(fs.pending, c)
}

func (fs *FS) touchLocked(n *inode) {
	fs.ticks++
	n.modTime = time.Unix(0, fs.ticks)
}

// Open opens a file, or a directory to be synced, for reading.
func (fs *FS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.open(clean(name), false)
	if err != nil {
		return nil, err
	}
	return withOptions(f, opts), nil
}

// OpenReadWrite opens a file, which is created if it does not exist.
func (fs *FS) OpenReadWrite(
	name string, _ vfs.DiskWriteCategory, opts ...vfs.OpenOption,
) (vfs.File, error) {
	f, err := fs.openOrCreate(clean(name))
	if err != nil {
		return nil, err
	}
	return withOptions(f, opts), nil
}

func (fs *FS) openOrCreate(name string) (*file, error) {
	f, err := fs.open(name, true)
	if !os.IsNotExist(err) {
		return f, err
	}
	if err := fs.begin(Op{Kind: OpCreate, Path: name}, nil); err != nil {
		return nil, pathError("open", name, err)
	}
	defer fs.mu.Unlock()
	n, err := fs.lookupLocked("open", name)
	if os.IsNotExist(err) {
		n, err = fs.createLocked("open", name)
	}
	if err != nil {
		return nil, err
	}
	return fs.handleLocked(n, name, true), nil
}

// OpenDir opens a directory to be synced.
func (fs *FS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.open(clean(name), false)
	if err != nil {
		return nil, err
	}
	if !f.node.isDir() {
		return nil, pathError("open", name, syscall.ENOTDIR)
	}
	return f, nil
}

func (fs *FS) open(name string, write bool) (*file, error) {
	if err := fs.begin(Op{Kind: OpOpen, Path: name}, nil); err != nil {
		return nil, pathError("open", name, err)
	}
	defer fs.mu.Unlock()
	n, err := fs.lookupLocked("open", name)
	if err != nil {
		return nil, err
	}
	if write && n.isDir() {
		return nil, pathError("open", name, syscall.EISDIR)
	}
	return fs.handleLocked(n, name, write), nil
}

func (fs *FS) handleLocked(n *inode, name string, write bool) *file {
	return &file{fs: fs, node: n, name: name, write: write, counts: fs.countsLocked(name)}
}

func withOptions(f *file, opts []vfs.OpenOption) vfs.File {
	for _, o := range opts {
		o.Apply(f)
	}
	return f
}

// Link makes newname, which does not exist, another name of the file oldname.
func (fs *FS) Link(oldname, newname string) error {
	oldname, newname = clean(oldname), clean(newname)
	fail := func(err error) error {
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: cause(err)}
	}
	if err := fs.begin(Op{Kind: OpLink, Path: oldname, To: newname}, nil); err != nil {
		return fail(err)
	}
	defer fs.mu.Unlock()
	n, err := fs.lookupLocked("link", oldname)
	if err != nil {
		return fail(err)
	}
	dir, base, err := fs.parentLocked("link", newname)
	switch {
	case err != nil:
		return fail(err)
	case n.isDir():
		return fail(os.ErrPermission)
	case dir.entries[base] != nil:
		return fail(os.ErrExist)
	}
	fs.changeLocked(&change{edits: []edit{{dir, base, n}}, nodes: []*inode{n}})
	return nil
}

// Rename renames a file or directory; it replaces a file, or an empty
// directory, of the new name.
func (fs *FS) Rename(oldname, newname string) error {
	oldname, newname = clean(oldname), clean(newname)
	fail := func(err error) error {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: cause(err)}
	}
	if err := fs.begin(Op{Kind: OpRename, Path: oldname, To: newname}, nil); err != nil {
		return fail(err)
	}
	defer fs.mu.Unlock()
	n, err := fs.lookupLocked("rename", oldname)
	if err != nil {
		return fail(err)
	}
	from, oldBase, err := fs.parentLocked("rename", oldname)
	if err != nil {
		return fail(err)
	}
	to, newBase, err := fs.parentLocked("rename", newname)
	if err != nil {
		return fail(err)
	}
	c := &change{edits: []edit{{from, oldBase, nil}, {to, newBase, n}}, nodes: []*inode{n}}
	switch old := to.entries[newBase]; {
	case old == n:
		return nil // the same file: nothing to do, as POSIX has it
	case n.isDir() && strings.HasPrefix(newname, oldname+"/"):
		return fail(syscall.EINVAL)
	case old == nil:
	case old.isDir() && !n.isDir():
		return fail(syscall.EISDIR)
	case !old.isDir() && n.isDir():
		return fail(syscall.ENOTDIR)
	case len(old.entries) > 0:
		return fail(syscall.ENOTEMPTY)
	default:
		c.nodes = append(c.nodes, old)
		if old.isDir() {
			c.emptied = old
		}
	}
	if n.isDir() && from != to {
		// As the kernel does: moves of directories wait for each other, or two
		// that were never true at once could put each below the other.
		c.nodes = append(c.nodes, fs.root)
	}
	fs.changeLocked(c)
	return nil
}

// ReuseForWrite renames oldname to newname and opens it with its content.
func (fs *FS) ReuseForWrite(
	oldname, newname string, category vfs.DiskWriteCategory,
) (vfs.File, error) {
	if err := fs.Rename(oldname, newname); err != nil {
		return nil, err
	}
	return fs.OpenReadWrite(newname, category)
}

// Remove removes a file or an empty directory. Open handles stay usable.
func (fs *FS) Remove(name string) error {
	name = clean(name)
	if err := fs.begin(Op{Kind: OpRemove, Path: name}, nil); err != nil {
		return pathError("remove", name, err)
	}
	defer fs.mu.Unlock()
	dir, base, err := fs.parentLocked("remove", name)
	if err != nil {
		return err
	}
	n := dir.entries[base]
	switch {
	case n == nil:
		return pathError("remove", name, os.ErrNotExist)
	case len(n.entries) > 0:
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	fs.removeLocked(dir, base, n)
	return nil
}

// RemoveAll removes name and all below it, each as a change of its own. It is
// one operation for the Hook.
func (fs *FS) RemoveAll(name string) error {
	name = clean(name)
	if err := fs.begin(Op{Kind: OpRemove, Path: name}, nil); err != nil {
		return pathError("remove", name, err)
	}
	defer fs.mu.Unlock()
	dir, base, err := fs.parentLocked("remove", name)
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		return err
	}
	if n := dir.entries[base]; n != nil {
		fs.removeTreeLocked(dir, base, n)
	}
	return nil
}

func (fs *FS) removeTreeLocked(dir *inode, base string, n *inode) {
	for _, name := range sortedKeys(n.entries) {
		fs.removeTreeLocked(n, name, n.entries[name])
	}
	fs.removeLocked(dir, base, n)
}

func (fs *FS) removeLocked(dir *inode, base string, n *inode) {
	c := &change{edits: []edit{{dir, base, nil}}, nodes: []*inode{n}}
	if n.isDir() {
		c.emptied = n
	}
	fs.changeLocked(c)
}

// MkdirAll makes dir and its missing parents, each as a change of its own.
func (fs *FS) MkdirAll(dir string, _ os.FileMode) error {
	dir = clean(dir)
	if err := fs.begin(Op{Kind: OpMkdir, Path: dir}, nil); err != nil {
		return pathError("mkdir", dir, err)
	}
	defer fs.mu.Unlock()
	at := fs.root
	for _, name := range split(dir) {
		next := at.entries[name]
		if next == nil {
			if fs.roomLocked() < pageSize {
				return pathError("mkdir", dir, syscall.ENOSPC)
			}
			next = newDir()
			fs.changeLocked(&change{edits: []edit{{at, name, next}}, nodes: []*inode{next}})
		}
		if !next.isDir() {
			return pathError("mkdir", dir, syscall.ENOTDIR)
		}
		at = next
	}
	return nil
}

// Truncate is storage.FS's.
func (fs *FS) Truncate(name string, size int64) error {
	name = clean(name)
	err := fs.begin(Op{Kind: OpTruncate, Path: name, Offset: size}, nil)
	if err != nil {
		return pathError("truncate", name, err)
	}
	defer fs.mu.Unlock()
	n, err := fs.lookupLocked("truncate", name)
	if err != nil {
		return err
	}
	if n.isDir() || size < 0 {
		return pathError("truncate", name, syscall.EINVAL)
	}
	if fs.fitsLocked(n, size) < size {
		return pathError("truncate", name, syscall.ENOSPC)
	}
	n.truncate(size)
	fs.touchLocked(n)
	return nil
}

// List returns the names in dir, sorted.
func (fs *FS) List(dir string) ([]string, error) {
	dir = clean(dir)
	if err := fs.begin(Op{Kind: OpList, Path: dir}, nil); err != nil {
		return nil, pathError("list", dir, err)
	}
	defer fs.mu.Unlock()
	n, err := fs.lookupLocked("list", dir)
	if err != nil {
		return nil, err
	}
	if !n.isDir() {
		return nil, pathError("list", dir, syscall.ENOTDIR)
	}
	return sortedKeys(n.entries), nil
}

// Stat describes the file or directory at name.
func (fs *FS) Stat(name string) (vfs.FileInfo, error) {
	name = clean(name)
	if err := fs.begin(Op{Kind: OpStat, Path: name}, nil); err != nil {
		return nil, pathError("stat", name, err)
	}
	defer fs.mu.Unlock()
	n, err := fs.lookupLocked("stat", name)
	if err != nil {
		return nil, err
	}
	return n.info(name), nil
}

// GetDiskUsage reports a disk of 1 TiB, or of SetSize, on which files take what
// their size needs in pages.
func (fs *FS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.crashed {
		return vfs.DiskUsage{}, ErrCrashed
	}
	total := uint64(1 << 40)
	if fs.size != 0 {
		total = uint64(fs.size)
	}
	used := min(uint64(fs.root.usage(map[*inode]bool{})), total)
	return vfs.DiskUsage{AvailBytes: total - used, TotalBytes: total, UsedBytes: used}, nil
}

// PathBase is path.Base.
func (fs *FS) PathBase(p string) string { return path.Base(p) }

// PathJoin is path.Join.
func (fs *FS) PathJoin(elem ...string) string { return path.Join(elem...) }

// PathDir is path.Dir.
func (fs *FS) PathDir(p string) string { return path.Dir(p) }

// Unwrap returns nil: there is nothing below.
func (fs *FS) Unwrap() vfs.FS { return nil }
