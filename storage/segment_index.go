package storage

import (
	"cmp"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// maxIndexFile bounds what is read of an index file: enough for the waypoints
// of a segment of 1 GiB, written a few times over.
const maxIndexFile = 8 << 20

func (s *segment) indexPath() string { return s.path[:len(s.path)-len(segmentSuffix)] + indexSuffix }

// saveIndex adds the new waypoints to the index file. Without it a lookup in
// an old segment is slower, so a failure is no failure. The file is opened by its
// name, which may lead to another directory by now.
func (s *segment) saveIndex() {
	s.mu.Lock()
	points := s.mu.unsaved
	s.mu.unsaved = nil
	s.mu.Unlock()
	if len(points) == 0 || s.log.own() != nil {
		return
	}
	var b []byte
	for _, p := range points {
		b = appendWaypoint(b, s.log.group, p)
	}
	f, err := s.log.logs.fs.OpenReadWrite(s.indexPath(), vfs.WriteCategoryUnspecified)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		_, _ = f.WriteAt(b, info.Size()/waypointSize*waypointSize)
	}
}

// lookup returns the last waypoint for which after is false. end is where the
// segment's frames end now.
func (s *segment) lookup(after func(waypoint) bool, end int64) waypoint {
	if s.found < 0 {
		s.loadIndex(end)
	} else {
		s.loadIndex(s.found)
	}
	at, _, _ := s.pointBefore(after)
	return at
}

// loadIndex reads the waypoints that an earlier process left below end, once.
func (s *segment) loadIndex(end int64) {
	s.mu.Lock()
	loaded := s.mu.loaded
	s.mu.loaded = true
	s.mu.Unlock()
	if loaded {
		return
	}
	b, err := readSmall(s.log.logs.fs, s.indexPath(), maxIndexFile)
	if err != nil {
		return
	}
	points := slices.DeleteFunc(decodeWaypoints(b, s.log.group), func(p waypoint) bool {
		return p.pos >= end || p.pos <= 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Concat(s.mu.points, points)
	slices.SortStableFunc(all, func(a, b waypoint) int { return cmp.Compare(a.index, b.index) })
	all = slices.CompactFunc(all, func(a, b waypoint) bool { return a.index == b.index })
	for i := 1; i < len(all); i++ {
		if all[i].pos <= all[i-1].pos || all[i].offset < all[i-1].offset {
			return // not of this segment: walk instead
		}
	}
	s.mu.points = all
	s.mu.hinted = len(points) > 0
}

// forgetIndex drops the waypoints if some came from an index file: what they
// led to was wrong, and it may be they who were. It reports whether it is worth
// another try.
func (s *segment) forgetIndex() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	hinted := s.mu.hinted
	if hinted {
		s.mu.points = []waypoint{s.first}
		s.mu.hinted = false
	}
	return hinted
}
