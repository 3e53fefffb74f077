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
	pos := &l.writer.pos
	pos.StartIndex, pos.StartTerm = start.index-1, start.termBefore
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.trimmed = append(l.mu.trimmed, segments[:n]...)
	l.mu.segments = slices.Clone(segments[n:])
	l.mu.start, l.mu.pos = start, *pos
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
	for _, s := range drop {
		l.logs.files.retire(s)
		_ = l.logs.fs.Remove(s.path)
		_ = l.logs.fs.Remove(s.indexPath())
	}
}
