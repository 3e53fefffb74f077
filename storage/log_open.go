package storage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// cut makes the files what pos says: later segments and side files are removed,
// the last segment is truncated. Only names and sizes are looked at. It returns
// the names that it found.
func (l *Log) cut(pos LogPosition) (names []string, err error) {
	if err := checkPosition(pos); err != nil {
		return nil, fmt.Errorf("storage: log of %v: %w", l.replica, err)
	}
	names, err = listSorted(l.logs.fs, l.dir)
	if err != nil && !isMissing(err) {
		return nil, fmt.Errorf("storage: list %s: %w", l.dir, err)
	}
	if isMissing(err) && (pos.Exists || pos.AuxIndex != 0) {
		return nil, lostError(l.dir, "the log's directory is missing", err)
	}
	if pos.Exists && onlyStaged(names) {
		return nil, lostError(l.dir, "its files are missing, and a copy of them was begun", nil)
	}
	plan, err := planCut(names, pos)
	if err != nil {
		return nil, &DamageError{Path: l.dir, Reason: err.Error()}
	}
	if pos.Exists {
		if err := l.cutActive(pos); err != nil {
			return nil, err
		}
	}
	for _, name := range plan.remove {
		if err := l.logs.fs.Remove(l.logs.fs.PathJoin(l.dir, name)); err != nil {
			return nil, fmt.Errorf("storage: cut: %w", err)
		}
	}
	l.begin(pos, plan)
	return names, nil
}

// onlyStaged reports whether a log's directory holds none of its segments, and a log
// that was staged to take its place: what was lost is still lost if that ended halfway.
func onlyStaged(names []string) (staged bool) {
	for _, name := range names {
		if _, _, ok := parseSegmentName(name); ok {
			return false
		}
		staged = staged || strings.HasSuffix(name, resetSuffix)
	}
	return staged
}

// fillActive makes the last segment as long as it was, with zeros.
func (l *Log) fillActive(pos LogPosition) error {
	names, err := l.logs.fs.List(l.dir)
	if !pos.Exists || isMissing(err) || onlyStaged(names) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("storage: open log: %w", err)
	}
	path := l.logs.fs.PathJoin(l.dir, segmentName(pos.SegIndex, pos.SegOffset))
	f, err := l.logs.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("storage: open log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Size() < pos.SegBytes {
		err = l.logs.fs.Truncate(path, pos.SegBytes)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = syncDir(l.logs.fs, l.dir)
	}
	if err != nil {
		return fmt.Errorf("storage: open log: %w", err)
	}
	return nil
}

// cutActive truncates the last segment.
func (l *Log) cutActive(pos LogPosition) error {
	path := l.logs.fs.PathJoin(l.dir, segmentName(pos.SegIndex, pos.SegOffset))
	info, err := l.logs.fs.Stat(path)
	if err != nil {
		return fmt.Errorf("storage: open log: %w", err)
	}
	if info.Size() < pos.SegBytes {
		return &DamageError{Path: path, Offset: info.Size(),
			Reason: fmt.Sprintf("the file ends where %d bytes more belong", pos.SegBytes-info.Size())}
	}
	if info.Size() == pos.SegBytes {
		return nil
	}
	if err := l.logs.fs.Truncate(path, pos.SegBytes); err != nil {
		return fmt.Errorf("storage: cut: %w", err)
	}
	return nil
}

// begin sets the state of a log whose files are at pos.
func (l *Log) begin(pos LogPosition, plan cutPlan) {
	l.mu.start = waypoint{index: pos.StartIndex + 1, offset: pos.NextOffset, termBefore: pos.StartTerm}
	for i, first := range plan.segments {
		if i == 0 {
			first.termBefore = pos.StartTerm
			l.mu.start = first
		}
		last := i == len(plan.segments)-1
		s := newSegment(l, first, last)
		s.found = -1
		if last {
			end := waypoint{pos.LastIndex + 1, pos.NextOffset, pos.SegBytes, pos.LastTerm}
			s.found = pos.SegBytes
			s.written.Store(pos.SegBytes)
			s.synced.Store(pos.SegBytes)
			s.mu.points = append(s.mu.points, end)
		}
		l.mu.segments = append(l.mu.segments, s)
	}
	// A log may be opened again in the process that trimmed it, before both copies of
	// the table name the new start: see Trim.
	for _, first := range plan.trimmed {
		l.mu.trimmed = append(l.mu.trimmed, newSegment(l, first, false))
	}
	if !pos.Exists {
		pos.SegIndex, pos.SegOffset, pos.SegBytes = 0, 0, 0
	}
	l.mu.pos = pos
	l.mu.newNames = len(plan.remove) > 0
	l.writer = writer{log: l, pos: pos}
}

// checkPosition refuses a position that no log can have.
func checkPosition(p LogPosition) error {
	ok := p.LastIndex >= p.StartIndex && p.LastTerm >= p.StartTerm && p.NextOffset >= 0 && p.AuxIndex <= p.LastIndex
	if p.Exists {
		ok = ok && p.SegIndex > p.StartIndex && p.SegIndex <= p.LastIndex &&
			p.SegOffset >= 0 && p.SegOffset <= p.NextOffset && p.SegBytes >= frameHeader
	} else {
		ok = ok && p.LastIndex == p.StartIndex
	}
	if !ok {
		return fmt.Errorf("no log can be at %+v", p)
	}
	return nil
}

// cutPlan says what to do with the files of a log's directory.
type cutPlan struct {
	segments []waypoint // that stay, oldest first
	trimmed  []waypoint // below the start: a copy of the table may still name them
	remove   []string
}

// planCut decides by name (they are sorted) which files of a directory belong to the log at pos.
// Names that are not the log's are left alone.
func planCut(names []string, pos LogPosition) (cutPlan, error) {
	var plan cutPlan
	for _, name := range names {
		stem := strings.TrimSuffix(name, indexSuffix)
		if i, o, ok := parseSegmentName(name); ok {
			if pos.Exists && i > pos.StartIndex && i <= pos.SegIndex {
				plan.segments = append(plan.segments, waypoint{index: i, offset: o})
			} else if pos.Exists && i <= pos.StartIndex {
				plan.trimmed = append(plan.trimmed, waypoint{index: i, offset: o})
			} else {
				plan.remove = append(plan.remove, name)
			}
		} else if i, _, ok := parseSegmentName(stem + segmentSuffix); ok && stem != name {
			if !pos.Exists || i > pos.SegIndex {
				plan.remove = append(plan.remove, name)
			}
		} else if i, ok := parseAuxName(strings.TrimSuffix(name, tempSuffix)); ok {
			if i > pos.AuxIndex || strings.HasSuffix(name, tempSuffix) {
				plan.remove = append(plan.remove, name)
			}
		}
	}
	return plan, plan.check(pos)
}

// check compares the segments that stay with the position. The names' order is
// that of the indexes, since they are padded with zeros.
func (plan *cutPlan) check(pos LogPosition) error {
	if !pos.Exists {
		return nil
	}
	n := len(plan.segments)
	if n == 0 || plan.segments[n-1].index != pos.SegIndex || plan.segments[n-1].offset != pos.SegOffset {
		return fmt.Errorf("the segment %s is missing", segmentName(pos.SegIndex, pos.SegOffset))
	}
	if first := plan.segments[0]; first.index != pos.StartIndex+1 {
		return fmt.Errorf("the first segment begins with entry %d, not %d", first.index, pos.StartIndex+1)
	}
	for i := 1; i < n; i++ {
		if a, b := plan.segments[i-1], plan.segments[i]; a.index >= b.index || a.offset > b.offset {
			return fmt.Errorf("the segments of entries %d and %d overlap", a.index, b.index)
		}
	}
	return nil
}
