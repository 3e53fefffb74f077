package storage

import "sync"

// hintCount is how many readers of one log can go on without a lookup.
const hintCount = 8

// hints remember where the last reads ended: one that goes on from there finds
// its place at once. What is forgotten costs a lookup.
type hints struct {
	mu   sync.Mutex
	last []hint // made by the first read: most logs are never read
	next int    // slot of the next one
}

type hint struct {
	seg *segment // nil: free
	at  waypoint
}

func (h *hints) add(s *segment, at waypoint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == nil {
		h.last = make([]hint, hintCount)
	}
	h.last[h.next] = hint{s, at}
	h.next = (h.next + 1) % hintCount
}

// take returns the place in the segment where the entry index begins, or, if
// index is 0, a frame of the offset. The reader's next hint takes its slot, so
// that a fast reader does not drive out the others'.
func (h *hints) take(s *segment, offset Offset, index Index) (waypoint, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, hint := range h.last {
		if hint.seg == s && (index != 0 && hint.at.index == index || index == 0 && hint.at.offset == offset) {
			h.next = i
			return hint.at, true
		}
	}
	return waypoint{}, false
}
