package simfs

import (
	"errors"
	"io"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// file is an open file or directory. The file system's lock guards it.
type file struct {
	fs     *FS
	node   *inode
	name   string // absolute, as it was opened
	write  bool
	counts *Counts

	pos    int64 // of Read and Write
	closed bool
}

// Close returns nil on a crashed file system too: the process is gone.
func (f *file) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, os.ErrClosed)
	}
	f.closed = true
	return nil
}

// begin is FS.begin with the checks that all operations of a handle need.
func (f *file) begin(what string, op Op, onError func(error)) error {
	op.Path = f.name
	if err := f.fs.begin(op, onError); err != nil {
		return pathError(what, f.name, err)
	}
	var err error
	switch op.Kind {
	case OpWrite, OpPreallocate, OpRead:
		if f.node.isDir() {
			err = syscall.EISDIR
		} else if op.Kind != OpRead && !f.write {
			err = os.ErrPermission
		}
	}
	if f.closed {
		err = os.ErrClosed
	} else if op.Offset < 0 || op.Length < 0 {
		err = syscall.EINVAL
	}
	if err != nil {
		f.fs.mu.Unlock()
		return pathError(what, f.name, err)
	}
	return nil
}

// Read reads at the position of the handle, which Write shares.
func (f *file) Read(p []byte) (int, error) {
	n, err := f.ReadAt(p, f.position())
	f.advance(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// Write writes at the position of the handle.
func (f *file) Write(p []byte) (int, error) {
	n, err := f.WriteAt(p, f.position())
	f.advance(n)
	return n, err
}

func (f *file) position() int64 {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.pos
}

func (f *file) advance(n int) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.pos += int64(n)
}

// ReadAt reads from the page cache.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	op := Op{Kind: OpRead, Offset: off, Length: int64(len(p))}
	if err := f.begin("read", op, nil); err != nil {
		return 0, err
	}
	defer f.fs.mu.Unlock()
	n, err := f.node.readAt(p, off)
	f.counts.Reads++
	f.counts.BytesRead += int64(n)
	return n, err
}

// WriteAt writes to the page cache. If a Hook fails it, the first n bytes are
// written all the same.
func (f *file) WriteAt(p []byte, off int64) (n int, err error) {
	op := Op{Kind: OpWrite, Offset: off, Length: int64(len(p))}
	err = f.begin("write", op, func(error) {
		if f.write && !f.closed && !f.node.isDir() && off >= 0 && len(p) > 0 {
			end := off + f.fs.rng.Int64N(int64(len(p)))
			n = int(max(off, end-end%pageSize) - off)
			f.writeLocked(p[:n], off)
		}
	})
	if err != nil {
		return n, err
	}
	defer f.fs.mu.Unlock()
	if fits := f.fs.fitsLocked(f.node, off+int64(len(p))); fits < off+int64(len(p)) {
		n = int(max(0, fits-off))
		f.writeLocked(p[:n], off)
		return n, pathError("write", f.name, syscall.ENOSPC)
	}
	f.writeLocked(p, off)
	return len(p), nil
}

func (f *file) writeLocked(p []byte, off int64) {
	if len(p) == 0 {
		return
	}
	f.node.write(p, off)
	f.fs.touchLocked(f.node)
	f.counts.Writes++
	f.counts.BytesWritten += int64(len(p))
}

// Sync makes the content and size of a file durable, or the entries of a
// directory.
func (f *file) Sync() error {
	if f.node.isDir() {
		return f.syncDir()
	}
	err := f.begin("sync", Op{Kind: OpSync}, func(err error) {
		if !errors.Is(err, ErrCrashed) {
			f.node.failSync()
		}
	})
	if err != nil {
		return err
	}
	defer f.fs.mu.Unlock()
	f.counts.Syncs++
	f.counts.BytesSynced += f.node.sync()
	return nil
}

func (f *file) syncDir() error {
	err := f.begin("sync", Op{Kind: OpSyncDir}, func(err error) {
		if !errors.Is(err, ErrCrashed) {
			f.node.syncErr = err
		}
	})
	if err != nil {
		return err
	}
	defer f.fs.mu.Unlock()
	if f.node.syncErr != nil {
		return pathError("sync", f.name, f.node.syncErr)
	}
	f.counts.Syncs++
	f.fs.syncDirLocked(f.node)
	return nil
}

// SyncData is Sync: the size, which reading the data needs, is part of it.
func (f *file) SyncData() error { return f.Sync() }

// SyncTo starts a write-back on a real disk and promises nothing, so here
// nothing is durable: whoever relies on it is found.
func (f *file) SyncTo(int64) (fullSync bool, err error) { return false, nil }

// Preallocate reserves space and leaves the size: only a Hook can fail it.
func (f *file) Preallocate(off, length int64) error {
	op := Op{Kind: OpPreallocate, Offset: off, Length: length}
	if err := f.begin("preallocate", op, nil); err != nil {
		return err
	}
	f.fs.mu.Unlock()
	return nil
}

// Stat describes the file, whether it still has a name or not.
func (f *file) Stat() (vfs.FileInfo, error) {
	if err := f.begin("stat", Op{Kind: OpStat}, nil); err != nil {
		return nil, err
	}
	defer f.fs.mu.Unlock()
	return f.node.info(f.name), nil
}

// Prefetch does nothing.
func (f *file) Prefetch(int64, int64) error { return nil }

// Fd returns vfs.InvalidFd.
func (f *file) Fd() uintptr { return vfs.InvalidFd }

// info is a vfs.FileInfo.
type info struct {
	name    string
	size    int64
	dir     bool
	modTime time.Time
}

func (n *inode) info(name string) *info {
	return &info{path.Base(name), n.size, n.isDir(), n.modTime}
}

func (i *info) Name() string           { return i.name }
func (i *info) Size() int64            { return i.size }
func (i *info) ModTime() time.Time     { return i.modTime }
func (i *info) IsDir() bool            { return i.dir }
func (i *info) Sys() any               { return nil }
func (i *info) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

func (i *info) Mode() os.FileMode {
	if i.dir {
		return os.ModeDir | 0o755
	}
	return 0o644
}

// usage is the disk space of the tree below n, each file once.
func (n *inode) usage(seen map[*inode]bool) int64 {
	if seen[n] {
		return 0
	}
	seen[n] = true
	sum := pagesOf(n.size)
	for _, child := range n.entries {
		sum += child.usage(seen)
	}
	return sum
}
