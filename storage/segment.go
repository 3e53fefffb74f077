package storage

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// waypoint is a place in a segment where a frame begins, or where the next one
// will.
type waypoint struct {
	index      Index // of the frame
	offset     Offset
	pos        int64
	termBefore Term // of the entry before it; 0: not known
}

// waypointDistance is how far apart waypoints are, in bytes: what a lookup
// walks at most, unless frames are larger. A full segment of 64 MiB has 1,024
// waypoints of 32 bytes.
const waypointDistance = 64 << 10

// segment is one file of a log.
type segment struct {
	log      *Log
	name     string
	path     string
	first    waypoint // its start
	writable bool     // it is, or was in this process, the one that is written
	found    int64    // bytes that were there when the log was opened; -1: its size

	size    atomic.Int64 // once it is sealed; -1: not looked up yet
	written atomic.Int64 // by this process, up to
	synced  atomic.Int64
	syncing sync.Mutex // held from the sync to the record of its failure

	handle  *handle // guarded by handles.mu
	retired bool    // guarded by handles.mu

	mu struct {
		sync.Mutex
		points  []waypoint // sorted, the first is the start
		unsaved []waypoint // not in the index file yet
		loaded  bool       // the index file was read, or there is none
		hinted  bool       // some points are from the index file
	}
}

func newSegment(l *Log, first waypoint, writable bool) *segment {
	name := segmentName(first.index, first.offset)
	s := &segment{log: l, name: name, path: l.logs.fs.PathJoin(l.dir, name), first: first, writable: writable}
	s.size.Store(-1)
	s.mu.points = []waypoint{first}
	return s
}

// open opens the file. Only the writer's first use of a new segment makes it.
func (s *segment) open(fsys FS) (vfs.File, error) {
	if err := s.log.own(); err != nil {
		return nil, err
	}
	if !s.writable {
		return s.opened(fsys.Open(s.path))
	}
	if s.written.Load() > 0 {
		if _, err := fsys.Stat(s.path); err != nil {
			return s.opened(nil, err)
		}
	}
	return s.opened(fsys.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified))
}

func (s *segment) opened(f vfs.File, err error) (vfs.File, error) {
	if isMissing(err) {
		return nil, &DamageError{Path: s.path, Reason: "is missing", Err: err}
	}
	return f, err
}

func (s *segment) dirty() bool { return s.written.Load() > s.synced.Load() }

// syncFile makes durable what was written before the call. A failure is final.
func (s *segment) syncFile(f vfs.File) error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if err := s.log.failed(); err != nil {
		return err
	}
	upTo := s.written.Load()
	if upTo == s.synced.Load() {
		return nil
	}
	if err := f.SyncData(); err != nil {
		return s.log.fail(fmt.Errorf("storage: sync %s: %w", s.path, err))
	}
	s.synced.Store(upTo)
	return nil
}

// end returns where the frames of a sealed segment end.
func (s *segment) end(f vfs.File) (int64, error) {
	if size := s.size.Load(); size >= 0 {
		return size, nil
	}
	info, err := f.Stat()
	if err != nil {
		return 0, &DamageError{Path: s.path, Reason: "its size cannot be read", Err: err}
	}
	s.size.Store(info.Size())
	return info.Size(), nil
}

// damage makes the error of a segment that is not as it was written.
func (s *segment) damage(pos int64, err error) error {
	return &DamageError{Path: s.path, Offset: pos, Reason: err.Error()}
}

// readAt fills b with the bytes at pos, which are there unless it is damaged.
func (s *segment) readAt(f io.ReaderAt, b []byte, pos int64) error {
	n, err := f.ReadAt(b, pos)
	switch {
	case n == len(b):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return s.damage(pos+int64(n), fmt.Errorf("the file ends where %d bytes more belong", len(b)-n))
	default:
		return &DamageError{Path: s.path, Offset: pos, Reason: "cannot be read", Err: err}
	}
}

// walkChunk is how much a walk reads at a time.
const walkChunk = 32 << 10

// walk goes from header to header, from the waypoint p up to end, until visit
// returns false. It returns the frame's place where it stopped.
func (s *segment) walk(f io.ReaderAt, p waypoint, end int64, visit func(*FrameView) bool) (waypoint, error) {
	chunk := s.log.logs.borrow(walkChunk)
	defer s.log.logs.giveBack(chunk)
	var b []byte // what is left of the chunk: the bytes at p.pos
	last := p.pos
	for p.pos < end {
		if len(b) < frameHeader {
			b = (*chunk)[:min(walkChunk, end-p.pos)]
			if err := s.readAt(f, b, p.pos); err != nil {
				return p, err
			}
		}
		frame, size, err := decodeHeader(b, s.log.group)
		if err == nil {
			err = frame.follows(p)
		}
		if err == nil && int64(frameHeader+size) > end-p.pos {
			err = fmt.Errorf("entry %d is cut off", frame.Index)
		}
		if err != nil {
			return p, s.damage(p.pos, err)
		}
		if p.pos-last >= waypointDistance {
			s.addPoint(p)
			last = p.pos
		}
		if !visit(&frame) {
			return p, nil
		}
		b = b[min(len(b), frameHeader+size):]
		p = p.behind(&frame, size)
	}
	return p, nil
}

// behind is the place behind the frame at p.
func (p waypoint) behind(f *FrameView, size int) waypoint {
	return waypoint{
		index:      f.Index + 1,
		offset:     f.NextOffset(),
		pos:        p.pos + int64(frameHeader+size),
		termBefore: f.Term,
	}
}

// pointBefore returns the last waypoint for which after is false, and the one
// behind it, if any. after is monotonic, and false for the start.
func (s *segment) pointBefore(after func(waypoint) bool) (at, next waypoint, hasNext bool) {
	s.mu.Lock()
	points := s.mu.points
	s.mu.Unlock()
	i := sort.Search(len(points), func(i int) bool { return after(points[i]) })
	if i < len(points) {
		return points[max(i-1, 0)], points[i], true
	}
	return points[i-1], waypoint{}, false
}

// addPoint notes a waypoint. Readers may hold the old slice: what it holds is
// never overwritten.
func (s *segment) addPoint(p waypoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	points := s.mu.points
	i := sort.Search(len(points), func(i int) bool { return points[i].index >= p.index })
	switch {
	case i == len(points):
		s.mu.points = append(points, p)
	case points[i].index != p.index:
		s.mu.points = slices.Insert(slices.Clone(points), i, p)
	}
}

// addWritten is addPoint by the writer.
func (s *segment) addWritten(p waypoint) {
	s.addPoint(p)
	s.mu.Lock()
	s.mu.unsaved = append(s.mu.unsaved, p)
	s.mu.Unlock()
}
