package storage

import (
	"fmt"
	"slices"
)

// Trim lets go the front of the log: if more than limit bytes of entries at or
// below upTo are there, as many whole segments as leave keep bytes of them, and
// never the one that is written. What is let go cannot be read any more, and the
// position's StartIndex says so; whoever relies on the log must not need entries
// at or below upTo. One call at a time, and none beside Append.
//
// The files are removed behind the checkpoint that makes both copies of the
// table name the new start, so whichever copy a crash leaves finds its segments.
func (l *Log) Trim(upTo Index, limit, keep int64) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	segments := l.mu.segments // only who holds writing changes the list
	whole, sizes, err := l.sizesUpTo(segments, upTo)
	if err != nil {
		return fmt.Errorf("storage: trim %s: %w", l.dir, err)
	}
	n := trimCount(sizes, whole, limit, keep)
	if n == 0 {
		return nil
	}
	start := segments[n].first
	if start.termBefore, err = l.Term(start.index - 1); err != nil {
		return fmt.Errorf("storage: trim %s: %w", l.dir, err)
	}
	l.letGo(n, start)
	return nil
}

// sizesUpTo returns how many segments hold nothing above upTo, but for the one
// that is written, and the sizes of all that hold nothing above it.
func (l *Log) sizesUpTo(segments []*segment, upTo Index) (whole int, sizes []int64, err error) {
	for whole+1 < len(segments) && segments[whole+1].first.index <= upTo+1 {
		size, err := segments[whole].sealedSize()
		if err != nil {
			return 0, nil, err
		}
		sizes = append(sizes, size)
		whole++
	}
	if pos := &l.writer.pos; whole+1 == len(segments) && pos.LastIndex <= upTo {
		sizes = append(sizes, pos.SegBytes)
	}
	return whole, sizes, nil
}

// trimCount decides how many of the first whole segments go.
func trimCount(sizes []int64, whole int, limit, keep int64) (n int) {
	total := int64(0)
	for _, s := range sizes {
		total += s
	}
	if total <= limit {
		return 0
	}
	for n < whole && total-sizes[n] >= keep {
		total -= sizes[n]
		n++
	}
	return n
}

// TrimTo lets go all segments that hold nothing but entries at or below
// start.Index, never the one that is written, and returns how many bytes those
// were. start is where a segment began in the log of a replica, as
// SegmentStart returned it, and is a segment's begin in all others': then
// all of them let go the same. What does not begin there, because its segments
// are of another size, lets go whole segments below, and needs their terms. A
// start that the log has passed changes nothing. For the rest see Trim.
//
// No frame of what goes is read: it may be damaged.
func (l *Log) TrimTo(start LogStart) (removed int64, err error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.failed(); err != nil {
		return 0, err
	}
	segments, n := l.mu.segments, 0
	for n+1 < len(segments) && segments[n+1].first.index <= start.Index+1 {
		n++
	}
	if n == 0 {
		return 0, nil
	}
	first := segments[n].first
	switch {
	case first.index != start.Index+1:
		if first.termBefore, err = l.Term(first.index - 1); err != nil {
			return 0, fmt.Errorf("storage: trim %s: %w", l.dir, err)
		}
	case first.offset != start.Offset:
		return 0, fmt.Errorf("storage: trim %s: entry %d has offset %d, not %d", l.dir, first.index, first.offset, start.Offset)
	default:
		first.termBefore = start.Term
	}
	for _, s := range segments[:n] {
		if size, err := s.sealedSize(); err == nil { // a missing one has none
			removed += size
		}
	}
	l.letGo(n, first)
	return removed, nil
}

// letGo makes the log begin with its segment n. Whoever calls it holds writing.
func (l *Log) letGo(n int, start waypoint) {
	pos := &l.writer.pos
	pos.StartIndex, pos.StartTerm = start.index-1, start.termBefore
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.trimmed = append(l.mu.trimmed, l.mu.segments[:n]...)
	l.mu.segments = slices.Clone(l.mu.segments[n:])
	l.mu.start, l.mu.pos = start, *pos
}

// SegmentInfo describes a segment of a log.
type SegmentInfo struct {
	First  Index  // its first entry
	Offset Offset // of its first record, or of the next one if it has none
	Bytes  int64
}

// Segments returns the segments of the log, oldest first; the last one is the
// one that is written. A segment whose size cannot be read, since it is damaged,
// counts nothing. Safe for concurrent use.
func (l *Log) Segments() ([]SegmentInfo, error) {
	v, err := l.view()
	if err != nil {
		return nil, err
	}
	all := make([]SegmentInfo, len(v.segments))
	for i, s := range v.segments {
		all[i] = SegmentInfo{First: s.first.index, Offset: s.first.offset, Bytes: v.pos.SegBytes}
		if i+1 < len(v.segments) {
			if all[i].Bytes, err = s.sealedSize(); err != nil {
				all[i].Bytes = 0
			}
		}
	}
	return all, nil
}

// SegmentStart is where the log would begin if it began with a segment. The
// errors are those of Term. Safe for concurrent use.
func (l *Log) SegmentStart(s SegmentInfo) (LogStart, error) {
	term, err := l.Term(s.First - 1)
	return LogStart{Index: s.First - 1, Term: term, Offset: s.Offset}, err
}

// sealedSize returns the size of a segment that is no longer written.
func (s *segment) sealedSize() (int64, error) {
	if size := s.size.Load(); size >= 0 {
		return size, nil
	}
	info, err := s.log.logs.fs.Stat(s.path)
	if err != nil {
		return 0, err
	}
	s.size.Store(info.Size())
	return info.Size(), nil
}

// TrimmedBytes returns how many bytes of files wait to be removed, of all open
// logs: they were let go, and a copy of the table still names them. Two
// checkpoints let them go. Safe for concurrent use.
func (s *Store) TrimmedBytes() (bytes int64) {
	for _, l := range s.logs.allOpen() {
		l.mu.RLock()
		for _, g := range l.mu.trimmed {
			bytes += max(g.size.Load(), 0)
		}
		l.mu.RUnlock()
	}
	return bytes
}

// dropTrimmed removes the files of trimmed segments at or below start.
func (l *Log) dropTrimmed(start Index) {
	l.mu.Lock()
	n := 0
	for n < len(l.mu.trimmed) && l.mu.trimmed[n].first.index <= start {
		n++
	}
	drop := l.mu.trimmed[:n]
	l.mu.trimmed = slices.Clone(l.mu.trimmed[n:])
	l.mu.Unlock()
	if n > 0 && l.own() != nil {
		return
	}
	for _, s := range drop {
		l.logs.files.retire(s)
		_ = l.logs.fs.Remove(s.path)
		_ = l.logs.fs.Remove(s.indexPath())
	}
}
