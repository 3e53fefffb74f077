package simfs

import (
	"errors"
	"io/fs"
)

// ErrCrashed is the error of every operation on a file system that has
// crashed. A Hook returns it to crash now.
var ErrCrashed = errors.New("simfs: the file system has crashed")

// OpKind is the kind of an operation.
type OpKind int

// Operations that change something, or make a change durable.
const (
	OpCreate OpKind = iota
	OpMkdir
	OpLink
	OpRename
	OpRemove
	OpTruncate
	OpPreallocate
	OpLock
	OpWrite
	OpSync    // Sync or SyncData of a file
	OpSyncDir // Sync of a directory
)

// Operations that do not.
const (
	OpOpen OpKind = iota + 100
	OpStat
	OpList
	OpRead
)

func (k OpKind) changes() bool { return k < OpOpen }

// Op is one operation, about to happen.
type Op struct {
	// Seq numbers the operations that change something or sync, from 1. It is
	// 0 for the others: a crash before a read is a crash after the operation
	// before it.
	Seq    int64
	Kind   OpKind
	Path   string // absolute
	To     string // the new name, for OpRename and OpLink
	Offset int64  // bytes, for reads, writes, truncations and preallocations
	Length int64  // bytes, likewise
}

// Hook is called before each operation, without any lock held, from any
// goroutine. The operation fails with the error that it returns:
//
//   - An OpWrite has then written a prefix of whole pages, drawn by the seed, and
//     returns its length, as a disk that fills up or a signal in mid-write do.
//   - An OpSync has made nothing durable, and the system counts the dirty
//     sectors as clean: reads see them, a second sync succeeds and does not
//     write them, a power loss loses them (Random may keep some).
//   - An OpSyncDir has made nothing durable, and all later ones of that
//     directory fail with the same error: a journal that failed stays failed.
//   - ErrCrashed crashes the file system before the operation.
type Hook func(Op) error

// SetHook makes h the hook; nil takes it away. An image starts with none.
func (fs *FS) SetHook(h Hook) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.hook = h
}

// CrashAt crashes before the operation with Seq n.
func CrashAt(n int64) Hook {
	return func(op Op) error {
		if op.Seq == n {
			return ErrCrashed
		}
		return nil
	}
}

// Ops returns how many operations with a Seq there were.
func (fs *FS) Ops() int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.ops
}

// begin announces op to the hook and returns with the lock held and the file
// system alive, or with an error and the lock free. In the second case
// onError, which may be nil, has run under the lock if it was the hook's error.
func (fs *FS) begin(op Op, onError func(error)) error {
	fs.mu.Lock()
	if fs.crashed {
		fs.mu.Unlock()
		return ErrCrashed
	}
	if op.Kind.changes() {
		fs.ops++
		op.Seq = fs.ops
	}
	if fs.hook == nil {
		return nil
	}
	hook := fs.hook
	fs.mu.Unlock()

	err := hook(op)

	fs.mu.Lock()
	if err == nil && !fs.crashed {
		return nil
	}
	defer fs.mu.Unlock()
	if fs.crashed {
		return ErrCrashed
	}
	if onError != nil {
		onError(err)
	}
	if errors.Is(err, ErrCrashed) {
		fs.crashed = true
	}
	return err
}

// Flip inverts one bit (0..7) of the byte at off, in the page cache and on the
// disk alike: damage at rest.
func (fs *FS) Flip(path string, off int64, bit uint) error {
	return fs.damage("flip", path, off, func(b *block) { b[off%pageSize] ^= 1 << (bit % 8) })
}

// ZeroPage clears the 4 KiB page that holds the byte at off, in the page cache
// and on the disk alike.
func (fs *FS) ZeroPage(path string, off int64) error {
	return fs.damage("zero page", path, off, func(b *block) { clear(b[:]) })
}

func (s *FS) damage(op, path string, off int64, f func(*block)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.lookupLocked(op, path)
	if err != nil {
		return err
	}
	if n.isDir() || off < 0 || off >= n.size {
		return &fs.PathError{Op: op, Path: path, Err: fs.ErrInvalid}
	}
	n.pageAt(off / pageSize).damage(f)
	return nil
}
