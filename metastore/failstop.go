package metastore

import (
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failStopFS is the file system that Pebble gets. The first write, sync or
// change of a directory that fails also is the last thing that Pebble does
// with it: the database fails, and the call does not return, nor does any
// later one. To Pebble the disk hangs.
//
// The naive way is to return the error. But Pebble panics on some of them
// (DB.rotateWAL, on a log that cannot be closed or made) while its callers
// have an Unlock deferred of a mutex that is not locked then: no recover
// helps, the process dies. Others it calls Fatalf for, again others it
// tries again for ever. None of that is needed: a failed write is the end of
// this database in any case.
//
// While the database is being opened errors are returned, as its caller is
// there to hear of them. Reads and removals return theirs always.
type failStopFS struct {
	vfs.FS
	d     *database
	armed *atomic.Bool
}

// pass returns err while the file system is not armed; armed it returns only
// nil.
func (fs failStopFS) pass(what, name string, err error) error {
	if !fs.armed.Load() {
		return err
	}
	if err != nil {
		fs.d.fail(fmt.Errorf("metastore: %s %s: %w", what, name, err))
	}
	select {
	case <-fs.d.failed:
		select {}
	default:
		return nil
	}
}

func (fs failStopFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.file("create", name, f, err)
}

func (fs failStopFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.OpenReadWrite(name, c, opts...)
	return fs.file("open", name, f, err)
}

func (fs failStopFS) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	return fs.file("open", name, f, err)
}

func (fs failStopFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(from, to, c)
	return fs.file("reuse", from, f, err)
}

func (fs failStopFS) Link(from, to string) error {
	return fs.pass("link", from, fs.FS.Link(from, to))
}

func (fs failStopFS) Rename(from, to string) error {
	return fs.pass("rename", from, fs.FS.Rename(from, to))
}

func (fs failStopFS) Unwrap() vfs.FS { return fs.FS }

func (fs failStopFS) file(what, name string, f vfs.File, err error) (vfs.File, error) {
	if err = fs.pass(what, name, err); err != nil {
		return nil, err
	}
	return failStopFile{f, fs, name}, nil
}

// failStopFile is a file of it that can be written or synced.
type failStopFile struct {
	vfs.File
	fs   failStopFS
	name string
}

func (f failStopFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	return n, f.fs.pass("write", f.name, err)
}

func (f failStopFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(b, off)
	return n, f.fs.pass("write", f.name, err)
}

func (f failStopFile) Sync() error { return f.fs.pass("sync", f.name, f.File.Sync()) }

func (f failStopFile) SyncData() error { return f.fs.pass("sync", f.name, f.File.SyncData()) }

func (f failStopFile) SyncTo(n int64) (bool, error) {
	full, err := f.File.SyncTo(n)
	return full, f.fs.pass("sync", f.name, err)
}

func (f failStopFile) Close() error { return f.fs.pass("close", f.name, f.File.Close()) }
