package storage

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// The reserve is the last bytes of the disk, which are for the node's own needs.
// Half of it is held in ballast files, in pieces, because whoever else fills the
// disk does not wait for a poll:
//
//	           Free                         ballast
//	+------------------------------+--+--+--+--+--+--+--+--+
//	|      producers write         |  |  |  |  |  |  |  |  |     Space.Low while both
//	+------------------------------+--+--+--+--+--+--+--+--+     together are below Reserve
//	                                 reserve/16 each, 8 of them
//
// A piece is given back when less than one is free, and when a write of the
// node's, the journal's, a log's or Pebble's, finds no room: the rest of it is
// then written again. That is no second try of a failed write, which must never
// be believed (S5): a write that finds no room has put a prefix of its bytes, or
// none, into the page cache, has lost nothing, and says so. An error of a sync
// is passed on, of whatever kind.
//
// The naive way is to poll and to refuse producers below a threshold. A disk of
// which others write a gigabyte a second is full before the next poll; then the
// journal fails, and the node with it. To give the ballast back at the threshold
// is no better: those others take that too.
const (
	reserveDir     = "reserve"
	ballastSuffix  = ".ballast"
	ballastPieces  = 8  // that make up half of the reserve
	rebuildPatient = 10 // polls without a new piece after a write found no room
)

// Space is what is left of the file system for a node.
type Space struct {
	Free    int64 // bytes that the file system would give now
	Ballast int64 // bytes in files that are given back when there is no room
	Reserve int64 // Config.Reserve
	// Low: Free and Ballast together are below Reserve, or a write found no room
	// and the ballast is not whole again. It ends at an eighth above Reserve.
	Low bool
}

// Left is how many bytes the node can still write.
func (s Space) Left() int64 { return s.Free + s.Ballast }

type reserve struct {
	fs     FS // without a reserve
	root   string
	size   int64 // 0: none
	piece  int64
	onFull func()
	logger *zap.Logger

	mu struct {
		sync.Mutex
		pieces  []int // numbers of the files that exist
		found   bool  // pieces was read from the directory
		met     bool  // a write found no room since the ballast was whole
		patient int   // polls before the next piece is made
		low     bool
	}
}

func newReserve(cfg Config) *reserve {
	return &reserve{
		fs: cfg.FS, root: cfg.Dir, size: cfg.Reserve, piece: cfg.Reserve / (2 * ballastPieces) &^ (pageSize - 1),
		onFull: cfg.OnFull, logger: cfg.Logger,
	}
}

func (r *reserve) path(piece int) string {
	return r.fs.PathJoin(r.root, reserveDir, strconv.Itoa(piece)+ballastSuffix)
}

// poll keeps the ballast and says what is left.
func (r *reserve) poll() (Space, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	free, err := r.free()
	if err != nil || r.size == 0 {
		return Space{Free: free}, err
	}
	r.findLocked()
	switch have := len(r.mu.pieces); {
	case free < r.piece && have > 0:
		r.dropLocked()
	case have == ballastPieces || free < r.size/2+2*r.piece:
	case r.mu.patient > 0:
		r.mu.patient--
	default:
		if err := r.addLocked(); err != nil {
			r.mu.patient = rebuildPatient
			r.logger.Warn("cannot make ballast", zap.String("dir", r.root), zap.Error(err))
		}
	}
	if free, err = r.free(); err != nil {
		return Space{}, err
	}
	s := Space{Free: free, Ballast: int64(len(r.mu.pieces)) * r.piece, Reserve: r.size}
	r.mu.met = r.mu.met && len(r.mu.pieces) < ballastPieces
	r.mu.low = s.Left() < s.Reserve || r.mu.met || r.mu.low && s.Left() < s.Reserve+s.Reserve/8
	s.Low = r.mu.low
	return s, nil
}

func (r *reserve) free() (int64, error) {
	usage, err := r.fs.GetDiskUsage(r.root)
	if err != nil {
		return 0, fmt.Errorf("storage: free space of %s: %w", r.root, err)
	}
	return int64(min(usage.AvailBytes, 1<<62)), nil
}

// giveBack removes a piece because a write found no room, and reports whether
// there was one.
func (r *reserve) giveBack() bool {
	if r.size == 0 {
		return false
	}
	r.mu.Lock()
	r.findLocked()
	r.mu.met, r.mu.patient = true, rebuildPatient
	gave := r.dropLocked()
	r.mu.Unlock()
	if r.onFull != nil {
		r.onFull()
	}
	return gave
}

// findLocked finds the ballast of an earlier process. Pieces that a crash left
// half made, or that are of another size, are removed.
func (r *reserve) findLocked() {
	if r.mu.found {
		return
	}
	r.mu.found = true
	for i := range ballastPieces {
		info, err := r.fs.Stat(r.path(i))
		switch {
		case err != nil:
		case info.Size() == r.piece:
			r.mu.pieces = append(r.mu.pieces, i)
		default:
			_ = r.fs.Remove(r.path(i)) // else it is written over
		}
	}
}

func (r *reserve) dropLocked() bool {
	n := len(r.mu.pieces)
	if n == 0 {
		return false
	}
	piece := r.mu.pieces[n-1]
	r.mu.pieces = r.mu.pieces[:n-1]
	if err := r.fs.Remove(r.path(piece)); err != nil && !isMissing(err) {
		r.logger.Error("cannot give ballast back", zap.String("file", r.path(piece)), zap.Error(err))
		return false
	}
	return true
}

// addLocked makes a piece. It is synced, and so is its name: after a power loss
// a file of that size must really take that space, and a node that starts on a
// full disk needs its ballast most.
func (r *reserve) addLocked() error {
	dir := r.fs.PathJoin(r.root, reserveDir)
	if err := r.fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	piece := 0
	for slices.Contains(r.mu.pieces, piece) {
		piece++
	}
	f, err := r.fs.Create(r.path(piece), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	err = r.fill(f, piece)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, r.fs.Remove(r.path(piece)))
	}
	r.mu.pieces = append(r.mu.pieces, piece)
	return errors.Join(syncDir(r.fs, dir), syncDir(r.fs, r.root))
}

// fill makes the file take a piece's space. Where space cannot be had without
// writing it is written, with bytes that no file system compresses.
func (r *reserve) fill(f vfs.File, piece int) error {
	if runtime.GOOS == "linux" {
		err := f.Preallocate(0, r.piece)
		if err == nil {
			return r.fs.Truncate(r.path(piece), r.piece)
		}
		if isNoSpace(err) {
			return err
		}
	}
	buf := make([]byte, 64<<10)
	x := uint64(piece)*0x9e3779b97f4a7c15 + 1
	for left := r.piece; left > 0; {
		for i := range buf { // xorshift
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			buf[i] = byte(x)
		}
		n, err := f.Write(buf[:min(left, int64(len(buf)))])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

// isNoSpace reports whether err says that there is no room on the disk, or none
// of the owner's quota.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, errQuota)
}

// reserveFS is a file system whose writes get room from the reserve. Whoever
// writes in the node's directory goes through it.
type reserveFS struct {
	FS
	reserve *reserve
}

// again runs f until it found room or there is none left to give back.
func (fs reserveFS) again(f func() error) {
	for isNoSpace(f()) && fs.reserve.giveBack() {
	}
}

func (fs reserveFS) Create(name string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.again(func() error { f, err = fs.FS.Create(name, c); return err })
	return fs.file(f, err)
}

func (fs reserveFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (f vfs.File, err error) {
	fs.again(func() error { f, err = fs.FS.OpenReadWrite(name, c, opts...); return err })
	return fs.file(f, err)
}

func (fs reserveFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (f vfs.File, err error) {
	fs.again(func() error { f, err = fs.FS.ReuseForWrite(from, to, c); return err })
	return fs.file(f, err)
}

func (fs reserveFS) Link(from, to string) (err error) {
	fs.again(func() error { err = fs.FS.Link(from, to); return err })
	return err
}

func (fs reserveFS) Rename(from, to string) (err error) {
	fs.again(func() error { err = fs.FS.Rename(from, to); return err })
	return err
}

func (fs reserveFS) Truncate(name string, size int64) (err error) {
	fs.again(func() error { err = fs.FS.Truncate(name, size); return err })
	return err
}

func (fs reserveFS) MkdirAll(dir string, perm os.FileMode) (err error) {
	fs.again(func() error { err = fs.FS.MkdirAll(dir, perm); return err })
	return err
}

func (fs reserveFS) Unwrap() vfs.FS { return fs.FS }

func (fs reserveFS) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return reserveFile{f, fs}, nil
}

type reserveFile struct {
	vfs.File
	fs reserveFS
}

// unreserved is f for writes that may find no room.
func unreserved(f vfs.File) vfs.File {
	if r, ok := f.(reserveFile); ok {
		return r.File
	}
	return f
}

// Write goes on behind what was written when the disk was full.
func (f reserveFile) Write(b []byte) (done int, err error) {
	f.fs.again(func() error {
		var n int
		n, err = f.File.Write(b[done:])
		done += n
		return err
	})
	return done, err
}

func (f reserveFile) WriteAt(b []byte, off int64) (done int, err error) {
	f.fs.again(func() error {
		var n int
		n, err = f.File.WriteAt(b[done:], off+int64(done))
		done += n
		return err
	})
	return done, err
}

func (f reserveFile) Preallocate(off, length int64) (err error) {
	f.fs.again(func() error { err = f.File.Preallocate(off, length); return err })
	return err
}
