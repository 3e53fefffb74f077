package storage

import (
	"container/list"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// handles keeps the files of all segments of a store that were used last open,
// so that ten thousand logs need few descriptors. Safe for concurrent use.
//
// A file with bytes that are not synced is synced before it is closed: once
// the last descriptor is gone, the system may forget that it failed to write
// them back, and a later sync would claim what is not so.
type handles struct {
	fs  FS
	max int // open files that are kept; pinned ones may exceed it

	mu struct {
		sync.Mutex
		used list.List // of *handle, the last used in front
	}
}

// handle is an open segment file. Its file stays open while it is pinned.
type handle struct {
	file vfs.File
	seg  *segment

	// Guarded by handles.mu.
	pins int
	elem *list.Element // nil: no longer kept; the last pin closes it
}

func newHandles(fsys FS, max int) *handles {
	h := &handles{fs: fsys, max: max}
	h.mu.used.Init()
	return h
}

// pin returns the open file of the segment; the caller must unpin it.
func (h *handles) pin(s *segment) (*handle, error) {
	if hd, err := h.kept(s); hd != nil || err != nil {
		return hd, err
	}
	file, err := s.open(h.fs)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	if s.handle != nil || s.retired { // another was faster
		h.mu.Unlock()
		file.Close()
		return h.pin(s)
	}
	hd := &handle{file: file, seg: s, pins: 1}
	hd.elem = h.mu.used.PushFront(hd)
	s.handle = hd
	victims := h.evictLocked()
	h.mu.Unlock()
	h.closeAll(victims)
	return hd, nil
}

func (h *handles) kept(s *segment) (*handle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.retired {
		return nil, ErrClosed
	}
	hd := s.handle
	if hd != nil {
		hd.pins++
		h.mu.used.MoveToFront(hd.elem)
	}
	return hd, nil
}

func (h *handles) unpin(hd *handle) {
	h.mu.Lock()
	hd.pins--
	var victims []*handle
	if hd.elem == nil && hd.pins == 0 {
		victims = append(victims, hd)
	} else {
		victims = h.evictLocked()
	}
	h.mu.Unlock()
	h.closeAll(victims)
}

// searchDepth bounds the search for a file that can be closed without a sync.
const searchDepth = 32

// evictLocked takes out the files that are too many: the least used of those
// that need no sync, else the least used.
func (h *handles) evictLocked() []*handle {
	var victims []*handle
	for h.mu.used.Len() > h.max {
		var victim *handle
		depth := 0
		for e := h.mu.used.Back(); e != nil && depth < searchDepth; e = e.Prev() {
			hd := e.Value.(*handle)
			if hd.pins > 0 {
				continue
			}
			depth++
			if victim == nil || !hd.seg.dirty() {
				victim = hd
			}
			if !hd.seg.dirty() {
				break
			}
		}
		if victim == nil {
			break
		}
		h.removeLocked(victim)
		victims = append(victims, victim)
	}
	return victims
}

func (h *handles) removeLocked(hd *handle) {
	h.mu.used.Remove(hd.elem)
	hd.elem = nil
	hd.seg.handle = nil
}

func (h *handles) closeAll(victims []*handle) {
	for _, hd := range victims {
		if hd.seg.dirty() && !hd.seg.log.abandoned.Load() {
			_ = hd.seg.syncFile(hd.file) // a failure is the log's from now on
		}
		hd.file.Close()
	}
}

// retire closes the file of the segment, once it is not pinned, for good.
func (h *handles) retire(s *segment) {
	h.mu.Lock()
	s.retired = true
	var victims []*handle
	if hd := s.handle; hd != nil {
		h.removeLocked(hd)
		if hd.pins == 0 {
			victims = append(victims, hd)
		}
	}
	h.mu.Unlock()
	h.closeAll(victims)
}
