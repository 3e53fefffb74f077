package storage

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"slices"
	"sort"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A Verifier reads a log from a place on, checks every frame, and writes what is
// damaged again from frames that another replica has.
//
// # Why what it writes is what was there
//
//  1. The place of the first frame that is not right is known: the verifier went
//     there from the start of a segment, whose name says which entry begins it, over
//     frames that were all right. What the index of waypoints says is not used.
//  2. The entries of a log are committed, and each is the same on all replicas, as
//     are the verdict and the base offset in its frame, and where a segment ends. So
//     the frame of an entry is the same bytes, and has the same place in its
//     segment, on all replicas that have it.
//  3. What comes is checked as what was there: group, checksums, and that index,
//     term and base offset continue the frame before the place. It is written over
//     what is at that place and nowhere else, then synced.
//  4. A crash, or a reader in between, meets frames whose checksums are right or
//     wrong, as before. So nothing is made worse, and the repair begins again.
//
// A file that is missing is made again, one that ends too early is filled, one that
// goes on behind its last entry is cut there. A segment whose name is missing begins
// where the one before it has no room for its first entry, as it did.
//
// A Verifier is used by one goroutine at a time, beside all others that use the log.
type Verifier struct {
	log *Log
	in  Index    // first entry of the segment that is read
	at  waypoint // of the next frame; all frames before it in the segment are right
	buf []byte
	sum hash.Hash // of the segment's bytes before at
	fix Index     // the last entry that Repair wrote

	// OnSealed, if it is set before the first Step, is called by Step for each segment
	// that was read whole and is not written any more.
	OnSealed func(SegmentSum)
}

// SegmentSum is a digest of a whole segment. Replicas of a partition whose segments
// hold the same entries have the same digests of them.
type SegmentSum struct {
	First, Last Index
	Sum         [sha256.Size]byte
}

// Verify returns a verifier that begins with the segment of entry from, or with the
// log's start if that is later.
func (l *Log) Verify(from Index) *Verifier {
	v := &Verifier{log: l, sum: sha256.New()}
	v.seek(from)
	return v
}

// seek goes to the start of the segment that an entry belongs to.
func (v *Verifier) seek(i Index) {
	l := v.log
	l.mu.RLock()
	defer l.mu.RUnlock()
	v.at = l.mu.start
	if k := segmentOf(l.mu.segments, i); k >= 0 {
		v.at = l.mu.segments[k].first
	}
	v.begin(v.at)
}

// begin goes to the start of a segment.
func (v *Verifier) begin(first waypoint) {
	v.at, v.in, v.fix = first, first.index, 0
	v.sum.Reset()
}

// segmentOf returns which of the segments an entry belongs to: the last that begins
// at or before it; -1: none.
func segmentOf(segments []*segment, i Index) int {
	return sort.Search(len(segments), func(k int) bool { return segments[k].first.index > i }) - 1
}

// Next is the entry that is read next: behind an error, the first that is not right.
func (v *Verifier) Next() Index { return v.at.index }

// Repaired is the last entry that Repair wrote, which Step has to read.
func (v *Verifier) Repaired() Index { return v.fix }

// Segment is the first entry of the segment that is read.
func (v *Verifier) Segment() Index { return v.in }

// Step reads on, about maxBytes, and returns how many bytes were right. At the end
// of the log that is 0, without an error; more may be appended. It goes on with the
// log's start if its place was trimmed meanwhile. A *DamageError says that the frame
// of entry Next is not what was written, or not there: Repair, or Skip. ErrClosed:
// the log is.
func (v *Verifier) Step(maxBytes int) (n int64, err error) { return v.step(maxBytes, math.MaxUint64) }

// Reread reads what Repair wrote, and no more. The errors are those of Step.
func (v *Verifier) Reread() (n int64, err error) {
	until := v.fix + 1
	for v.at.index < until {
		read, err := v.step(rereadChunk, until)
		if n += read; read == 0 || err != nil {
			return n, err
		}
	}
	return n, nil
}

const rereadChunk = 128 << 10

// step reads on, but no entry at or beyond until.
func (v *Verifier) step(maxBytes int, until Index) (n int64, err error) {
	for n < int64(maxBytes) && v.at.index < until {
		view, err := v.log.view()
		if err != nil {
			return n, err
		}
		k := segmentOf(view.segments, v.in)
		switch {
		case len(view.segments) == 0 || v.at.index > view.pos.LastIndex && v.in == view.segments[len(view.segments)-1].first.index:
			return n, nil
		case k < 0 || view.segments[k].first.index != v.in: // it was trimmed
			v.seek(v.at.index)
			continue
		}
		r := reading{view: view, log: v.log, maxBytes: int64(maxBytes) - n, buf: v.buf, limit: view.pos.LastIndex + 1, skipTo: -1}
		if k+1 < len(view.segments) {
			r.limit = view.segments[k+1].first.index
		}
		whole := r.limit
		r.limit = min(r.limit, until)
		read, err := v.segment(&r, k, whole)
		n, v.buf = n+read, r.buf
		if err != nil && !errors.Is(err, ErrCompacted) {
			return n, err
		}
	}
	return n, nil
}

// segment reads on in segment k, up to the reading's limit, and goes to the next one
// behind its end, where the entry last begins.
func (v *Verifier) segment(r *reading, k int, last Index) (n int64, err error) {
	hd, end, err := r.pin(k)
	if err != nil {
		return 0, err
	}
	defer r.log.logs.files.unpin(hd)
	// What others remember of the file's size, or have open, is not what is there.
	size, err := hd.seg.fileSize()
	switch {
	case err != nil:
		return 0, &DamageError{Path: hd.seg.path, Reason: "its size cannot be read", Err: err}
	case size < 0 && hd.seg.isRetired():
		return 0, ErrCompacted
	case size < 0:
		return 0, &DamageError{Path: hd.seg.path, Reason: "is missing"}
	case k+1 < len(r.segments):
		end = size
	}
	for v.at.pos < end && v.at.index < r.limit {
		if n >= r.maxBytes {
			return n, nil
		}
		r.buf = r.buf[:0]
		next, err := r.readChunk(hd, v.at, end)
		right := next.pos - v.at.pos
		v.sum.Write(r.buf[:cap(r.buf)][:right])
		n, v.at = n+right, next
		if err != nil {
			return n, err
		}
	}
	if v.at.index == r.limit && r.limit < last {
		return n, nil
	}
	if err := r.checkEnd(k, v.at, end); err != nil {
		return n, err
	}
	if k+1 < len(r.segments) {
		if v.OnSealed != nil {
			s := SegmentSum{First: v.in, Last: v.at.index - 1}
			v.sum.Sum(s.Sum[:0])
			v.OnSealed(s)
		}
		next := v.at
		next.pos = 0
		v.begin(next)
	}
	return n, nil
}

// Repair writes frames, as Log.Frames of another replica returned them, from that of
// entry Next on: over what is there, as far as they belong to its segment. They are
// durable on return; Step reads them and goes on behind. Of a segment that goes on
// behind its last entry it needs none.
//
// If the file was shortened or removed meanwhile it does nothing, and Step begins with
// the segment again. After an error of the frames nothing has changed, after one of the disk it is as
// before or repaired. ErrCompacted: the place was trimmed meanwhile. Between the
// damage and Repair nothing else may be called.
func (v *Verifier) Repair(frames []byte) error {
	l := v.log
	l.writing.Lock() // nothing is trimmed, and the log not closed, meanwhile
	defer l.writing.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	if err := l.own(); err != nil {
		return err
	}
	err := v.repair(frames)
	if err != nil && !errors.Is(err, ErrCompacted) {
		err = fmt.Errorf("storage: repair entry %d in %s: %w", v.at.index, l.dir, err)
	}
	return err
}

func (v *Verifier) repair(frames []byte) error {
	l := v.log
	segments, pos := l.mu.segments, l.writer.pos // only who holds writing changes them
	k := segmentOf(segments, v.in)
	if k < 0 || segments[k].first.index != v.in || v.at.index <= pos.StartIndex {
		return ErrCompacted
	}
	s, last := segments[k], pos.LastIndex
	if k+1 < len(segments) {
		last = segments[k+1].first.index - 1
	}
	size, err := s.fileSize()
	if err != nil {
		return err
	}
	if v.at.pos > max(size, 0) { // what was read there is in a file that has no name any more
		l.logs.files.renew(s)
		v.begin(s.first)
		return nil
	}
	first, end, err := fitting(frames, l.group, v.at, last, l.logs.segmentSize)
	switch {
	case err != nil:
		return err
	case len(first) == 0 && v.at.index <= last && len(frames) > 0:
		if err := s.rewrite(l.logs.fs, nil, v.at.pos, true, size); err != nil {
			return err
		}
		s.size.Store(v.at.pos)
		return v.insert(k, frames)
	case len(first) == 0 && v.at.index <= last:
		return fmt.Errorf("no frame of entry %d", v.at.index)
	case len(first) == 0 && size <= v.at.pos:
		return errors.New("the segment holds all of its entries: what follows it is not what belongs there")
	case last == pos.LastIndex && (end.pos > pos.SegBytes || end.index > last && end.pos != pos.SegBytes):
		return fmt.Errorf("entry %d would end at byte %d of %d", end.index-1, end.pos, pos.SegBytes)
	}
	sealed := end.index > last && last != pos.LastIndex
	if err := s.rewrite(l.logs.fs, first, v.at.pos, sealed, size); err != nil {
		return err
	}
	v.fix = end.index - 1
	if size < 0 {
		l.logs.files.renew(s)
	}
	if last != pos.LastIndex {
		s.size.Store(max(size, end.pos))
		if sealed {
			s.size.Store(end.pos)
		}
	}
	return nil
}

// Fits reports why frames do not continue what is before entry Next; nil: they do, so
// that Repair would take the first of them.
func (v *Verifier) Fits(frames []byte) error {
	first, _, err := fitting(frames, v.log.group, v.at, math.MaxUint64, math.MaxInt64)
	if err == nil && len(first) == 0 {
		err = fmt.Errorf("no frame of entry %d", v.at.index)
	}
	if err != nil {
		err = fmt.Errorf("storage: frames for %s: %w", v.log.dir, err)
	}
	return err
}

// insert puts a segment in behind segment k whose name is missing, and repairs it.
func (v *Verifier) insert(k int, frames []byte) error {
	l := v.log
	first := v.at
	first.pos = 0
	s := newSegment(l, first, false)
	l.mu.Lock()
	l.mu.segments = slices.Insert(slices.Clone(l.mu.segments), k+1, s)
	l.mu.Unlock()
	v.begin(first)
	return v.repair(frames)
}

// fileSize returns the size of the segment's file, -1 if it is missing.
func (s *segment) fileSize() (int64, error) {
	info, err := s.log.logs.fs.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return -1, nil
	case err != nil:
		return 0, err
	}
	return info.Size(), nil
}

// fitting checks the frames of b, which continue a place, and returns those up to the
// entry last or where the segment has no room, and the place behind them.
func fitting(b []byte, g GroupID, at waypoint, last Index, room int64) ([]byte, waypoint, error) {
	rest := b
	for len(rest) > 0 && at.index <= last {
		f, size, err := nextFrame(rest, g, at)
		if err != nil {
			return nil, at, err
		}
		if at.pos > 0 && at.pos+int64(frameHeader+size) > room {
			break
		}
		rest = rest[frameHeader+size:]
		at = at.behind(&f, size)
	}
	return b[:len(b)-len(rest)], at, nil
}

// rewrite writes frames at a place of the file, which is made if it is missing (its
// size is -1), and ends it behind them if it is sealed there.
func (s *segment) rewrite(fsys FS, frames []byte, pos int64, sealed bool, size int64) error {
	f, err := fsys.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if len(frames) > 0 {
		var n int
		if n, err = f.WriteAt(frames, pos); err == nil && n < len(frames) {
			err = io.ErrShortWrite
		}
	}
	if end := pos + int64(len(frames)); err == nil && sealed && size > end {
		err = fsys.Truncate(s.path, end)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil && size < 0 {
		err = syncDir(fsys, s.log.dir)
	}
	return err
}

// Skip leaves what is damaged behind: it goes on with the next segment. It reports
// whether there is one.
func (v *Verifier) Skip() bool {
	l := v.log
	l.mu.RLock()
	defer l.mu.RUnlock()
	k := segmentOf(l.mu.segments, v.in) + 1
	if k >= len(l.mu.segments) {
		return false
	}
	v.begin(l.mu.segments[k].first)
	return true
}
