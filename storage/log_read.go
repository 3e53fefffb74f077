package storage

import (
	"errors"
	"fmt"
	"slices"
	"sort"
)

// ErrCompacted is the error of asking for entries that the log no longer has.
var ErrCompacted = errors.New("storage: the entry is below the start of the log")

// ErrBeyond is the error of asking for entries that the log does not have yet.
var ErrBeyond = errors.New("storage: the entry is beyond the end of the log")

// OutOfRangeError says that a log has no record at an offset.
type OutOfRangeError struct {
	Offset     Offset
	Start, End Offset // the log has the records from Start to before End
}

func (e *OutOfRangeError) Error() string {
	return fmt.Sprintf("storage: offset %d is not in [%d, %d)", e.Offset, e.Start, e.End)
}

// Read is what ReadAt found. Its payloads alias Buf.
type Read struct {
	Buf    []byte
	Frames []FrameView
}

// ReadAt reads whole frames, from the one that holds the offset from on, and
// appends their bytes to buf, which is grown if they do not fit: about maxBytes
// of frames, but at least one if there is any, and none beyond the end of a
// segment. Frames without records are among them. At NextOffset there are
// none; outside of the log it is an *OutOfRangeError. Every checksum is
// verified: what fails it is a *DamageError. The caller owns Buf and Frames.
// Safe for concurrent use.
func (l *Log) ReadAt(from Offset, maxBytes int, buf []byte) (Read, error) {
	v, err := l.view()
	if err != nil {
		return Read{Buf: buf}, err
	}
	if start := v.start.offset; from < start || from > v.pos.NextOffset {
		return Read{Buf: buf}, &OutOfRangeError{Offset: from, Start: start, End: v.pos.NextOffset}
	}
	if from == v.pos.NextOffset {
		return Read{Buf: buf}, nil
	}
	r := reading{view: v, log: l, maxBytes: int64(max(maxBytes, 1)), buf: buf, skipTo: from, limit: v.pos.LastIndex + 1}
	err = r.run(func(p waypoint) bool { return p.offset > from })
	if errors.Is(err, ErrCompacted) { // trimmed meanwhile
		err = &OutOfRangeError{Offset: from, Start: l.StartOffset(), End: v.pos.NextOffset}
	}
	return Read{Buf: r.buf, Frames: r.frames}, err
}

// Entries returns the entries of [lo, hi): about maxBytes of frames, but at
// least one, and none beyond the end of a segment, so there may be fewer than
// would fit. Entries that are below the start are ErrCompacted, beyond the end
// ErrBeyond. The entries are the caller's; they share one buffer. Safe for
// concurrent use.
func (l *Log) Entries(lo, hi Index, maxBytes int) ([]Entry, error) {
	v, err := l.view()
	switch {
	case err != nil:
		return nil, err
	case lo <= v.pos.StartIndex:
		return nil, ErrCompacted
	case hi > v.pos.LastIndex+1:
		return nil, ErrBeyond
	case lo >= hi:
		return nil, nil
	}
	r := reading{view: v, log: l, maxBytes: int64(max(maxBytes, 1)), from: lo, limit: hi}
	if err := r.run(func(p waypoint) bool { return p.index > lo }); err != nil {
		return nil, err
	}
	entries := make([]Entry, len(r.frames))
	for i := range r.frames {
		f := &r.frames[i]
		entries[i] = Entry{Index: f.Index, Term: f.Term, Kind: f.Kind}
		if len(f.Payload) > 0 {
			entries[i].Data = f.Payload
		}
	}
	return entries, nil
}

// reading is one ReadAt or Entries.
type reading struct {
	view
	log      *Log
	maxBytes int64
	skipTo   Offset // frames that end at or before it come before the first
	from     Index  // and those below it; 0: any
	limit    Index  // no frame at or beyond it

	buf    []byte
	frames []FrameView
}

// before reports whether a frame comes before the first that is wanted.
func (r *reading) before(f *FrameView) bool {
	return f.Index < r.from || r.from == 0 && f.NextOffset() <= r.skipTo
}

// run reads from the frame that is wanted first. after reports whether a
// waypoint lies behind the start of that frame.
func (r *reading) run(after func(waypoint) bool) error {
	k := sort.Search(len(r.segments), func(k int) bool { return after(r.segments[k].first) }) - 1
	kept := len(r.buf)
	for {
		err := r.readSegment(k, after)
		var damage *DamageError
		if errors.As(err, &damage) && r.segments[k].forgetIndex() {
			r.buf, r.frames = r.buf[:kept], nil
			continue
		}
		if err != nil || len(r.frames) > 0 || k+1 == len(r.segments) {
			r.log.met(err, r.segments[k])
			return err
		}
		k++ // there were only frames before the first
	}
}

func (r *reading) readSegment(k int, after func(waypoint) bool) error {
	s := r.segments[k]
	hd, end, err := r.pin(k)
	if err != nil {
		return err
	}
	defer r.log.logs.files.unpin(hd)
	at, exact := r.log.hints.take(s, r.skipTo, r.from)
	if !exact {
		at = s.lookup(after, end)
		if at.index != r.from && (r.from != 0 || at.offset != r.skipTo) {
			if at, err = s.walk(hd.file, at, end, r.before); err != nil {
				return err
			}
		}
	}
	for len(r.frames) == 0 && at.pos < end && at.index < r.limit {
		if at, err = r.readChunk(hd, at, end); err != nil {
			return err
		}
	}
	if err := r.checkEnd(k, at, end); err != nil {
		return err
	}
	r.log.hints.add(s, at)
	return nil
}

// pin returns the open file of segment k, to be unpinned, and where its frames end.
func (r *reading) pin(k int) (hd *handle, end int64, err error) {
	s := r.segments[k]
	if hd, err = r.log.logs.files.pin(s); err != nil {
		if errors.Is(err, ErrClosed) && !errors.Is(err, ErrLogClosed) && !r.log.abandoned.Load() {
			err = ErrCompacted // trimmed since the view was taken, and its file is gone
		}
		return nil, 0, err
	}
	if k+1 == len(r.segments) {
		return hd, r.pos.SegBytes, nil
	}
	if end, err = s.end(hd.file); err != nil {
		r.log.logs.files.unpin(hd)
		return nil, 0, err
	}
	return hd, end, nil
}

// minRead is the least that is read at a time: a header alone is not worth it.
const minRead = 4 << 10

// readChunk reads frames at the place at, at least one, and returns the place
// behind the last one.
func (r *reading) readChunk(hd *handle, at waypoint, end int64) (waypoint, error) {
	base := len(r.buf)
	size := min(max(r.maxBytes, minRead), r.boundary(hd.seg, at, end)-at.pos)
	r.buf = grow(r.buf, size)
	if err := hd.seg.readAt(hd.file, r.buf[base:], at.pos); err != nil {
		return at, err
	}
	first, payload, err := decodeHeader(r.buf[base:], r.log.group)
	if err != nil {
		return at, hd.seg.damage(at.pos, err)
	}
	if need := int64(frameHeader + payload); need > size {
		if need > end-at.pos {
			return at, hd.seg.damage(at.pos, fmt.Errorf("entry %d is cut off", first.Index))
		}
		r.buf = grow(r.buf, need-size)
		if err := hd.seg.readAt(hd.file, r.buf[base+int(size):], at.pos+size); err != nil {
			return at, err
		}
	}
	next, err := r.take(hd.seg, r.buf[base:], at, end)
	if len(r.frames) == 0 {
		r.buf = r.buf[:base]
	} else {
		r.buf = r.buf[:base+int(next.pos-at.pos)]
	}
	return next, err
}

// boundary is a place at or behind the last frame that is wanted.
func (r *reading) boundary(s *segment, at waypoint, end int64) int64 {
	_, next, ok := s.pointBefore(func(p waypoint) bool { return p.index >= r.limit })
	if ok && next.pos > at.pos && next.pos < end {
		return next.pos
	}
	return end
}

// take verifies the frames of b, which begins at the place at, and keeps those
// that are wanted and whole.
func (r *reading) take(s *segment, b []byte, at waypoint, end int64) (waypoint, error) {
	r.frames = make([]FrameView, 0, countFrames(b, r.maxBytes))
	var taken int64
	for at.index < r.limit && len(b) > 0 {
		if len(b) < frameHeader && at.pos+int64(len(b)) < end {
			break // the rest of it is in the next chunk
		}
		f, size, err := decodeHeader(b, r.log.group)
		if err == nil {
			err = f.follows(at)
		}
		if err != nil {
			return at, s.damage(at.pos, err)
		}
		whole := int64(frameHeader + size)
		if taken > 0 && taken+whole > r.maxBytes {
			break
		}
		if int64(len(b)) < whole {
			if at.pos+whole > end {
				return at, s.damage(at.pos, fmt.Errorf("entry %d is cut off", f.Index))
			}
			break
		}
		if err := f.setPayload(b, size); err != nil {
			return at, s.damage(at.pos, err)
		}
		if !r.before(&f) {
			r.frames = append(r.frames, f)
			taken += whole
		}
		b = b[whole:]
		at = at.behind(&f, size)
	}
	return at, nil
}

// countFrames counts the frames that begin in the first maxBytes of b, by their
// sizes alone, which nobody vouches for yet.
func countFrames(b []byte, maxBytes int64) (n int) {
	b = b[:min(int64(len(b)), maxBytes)]
	for len(b) >= frameHeader {
		n++
		b = b[min(len(b), frameHeader+payloadSize(b)):]
	}
	return max(n, 1)
}

// checkEnd compares the end of a sealed segment with the start of the next.
func (r *reading) checkEnd(k int, at waypoint, end int64) error {
	if k+1 == len(r.segments) {
		return nil
	}
	next := r.segments[k+1].first
	whole := at.index == next.index && at.offset == next.offset
	if (at.pos == end) != whole {
		return r.segments[k].damage(at.pos, fmt.Errorf("entry %d follows at byte %d of %d, the next segment begins with %d",
			at.index, at.pos, end, next.index))
	}
	return nil
}

// grow makes b longer by n bytes, whose values are not defined.
func grow(b []byte, n int64) []byte {
	return slices.Grow(b, int(n))[:len(b)+int(n)]
}
