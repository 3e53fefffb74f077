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
// them back, and a later sync would claim what is not so. Only those who write
// or sync a log close such a file: a reader may be one who cannot wait for a
// sync, and has its own file to close if there is no other.
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
	sync bool          // when it was taken out: before it is closed
}

// needsSync reports whether a sync that is still to come will claim bytes of
// the file.
func (hd *handle) needsSync() bool { return hd.seg.dirty() && !hd.seg.log.ended.Load() }

func newHandles(fsys FS, max int) *handles {
	h := &handles{fs: fsys, max: max}
	h.mu.used.Init()
	return h
}

// pin returns the open file of the segment for reading, and never syncs; the
// caller must unpin it.
func (h *handles) pin(s *segment) (*handle, error) { return h.pinFor(s, false) }

// pinWriter returns the open file of the segment for writing or for a sync, and
// may sync other files; the caller must unpin it.
func (h *handles) pinWriter(s *segment) (*handle, error) { return h.pinFor(s, true) }

func (h *handles) pinFor(s *segment, maySync bool) (*handle, error) {
	if hd, err := h.kept(s); hd != nil || err != nil {
		return hd, err
	}
	file, err := s.open(h.fs)
	if err != nil {
		if _, retired := h.kept(s); retired != nil {
			err = retired // it was removed meanwhile
		}
		return nil, err
	}
	h.mu.Lock()
	if s.handle != nil || s.retired { // another was faster
		h.mu.Unlock()
		file.Close()
		return h.pinFor(s, maySync)
	}
	hd := &handle{file: file, seg: s, pins: 1}
	hd.elem = h.mu.used.PushFront(hd)
	s.handle = hd
	victims := h.evictLocked(maySync)
	h.mu.Unlock()
	closeAll(victims)
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

// unpin lets go of a file and syncs none. A writer that opens the next file
// makes up for those that are too many.
func (h *handles) unpin(hd *handle) {
	h.mu.Lock()
	hd.pins--
	var victims []*handle
	if hd.elem == nil {
		if hd.pins == 0 {
			victims = append(victims, hd)
		}
	} else {
		victims = h.evictLocked(false)
		if h.mu.used.Len() > h.max && hd.elem != nil && hd.pins == 0 && !hd.needsSync() {
			h.removeLocked(hd)
			victims = append(victims, hd)
		}
	}
	h.mu.Unlock()
	closeAll(victims)
}

// searchDepth bounds the search for a file that can be closed without a sync.
const searchDepth = 32

// evictLocked takes out the files that are too many: the least used of those
// that need no sync; if there is none among the least used, and maySync, the
// least used.
func (h *handles) evictLocked(maySync bool) []*handle {
	var victims []*handle
	for h.mu.used.Len() > h.max {
		victim := h.victimLocked(maySync)
		if victim == nil {
			break
		}
		victim.sync = victim.needsSync()
		h.removeLocked(victim)
		victims = append(victims, victim)
	}
	return victims
}

func (h *handles) victimLocked(maySync bool) *handle {
	var dirty *handle
	e := h.mu.used.Back()
	for depth := 0; e != nil && depth < searchDepth; {
		hd := e.Value.(*handle)
		e = e.Prev()
		switch {
		case hd.pins > 0:
			continue
		case !hd.needsSync():
			return hd
		case dirty == nil:
			dirty = hd
		}
		depth++
		if !maySync { // the next reader finds the clean ones sooner
			h.mu.used.MoveToFront(hd.elem)
		}
	}
	if maySync {
		return dirty
	}
	return nil
}

func (h *handles) removeLocked(hd *handle) {
	h.mu.used.Remove(hd.elem)
	hd.elem = nil
	hd.seg.handle = nil
}

func closeAll(victims []*handle) {
	for _, hd := range victims {
		if hd.sync {
			_ = hd.seg.syncFile(hd.file) // a failure is the log's from now on
		}
		hd.file.Close()
	}
}

// renew closes the file of the segment, once it is not pinned: the next pin opens
// what is there by then.
func (h *handles) renew(s *segment) {
	h.mu.Lock()
	var victims []*handle
	if hd := s.handle; hd != nil {
		h.removeLocked(hd)
		if hd.pins == 0 {
			victims = append(victims, hd)
		}
	}
	h.mu.Unlock()
	closeAll(victims)
}

// isRetired reports whether the segment is no longer of its log.
func (s *segment) isRetired() bool {
	h := s.log.logs.files
	h.mu.Lock()
	defer h.mu.Unlock()
	return s.retired
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
	closeAll(victims)
}
