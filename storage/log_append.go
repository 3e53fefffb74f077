package storage

import (
	"fmt"
	"io"
)

// maxPending is how many encoded bytes an Append holds before it writes them.
const maxPending = 1 << 20

// writer is the state of the one who appends. It runs ahead of what is
// published, by at most one Append.
type writer struct {
	log    *Log
	pos    LogPosition
	sealed []*segment // made by this Append, not published yet; the last is active
	mark   int64      // position of the last waypoint in the active segment
}

// Append writes entries behind the last one, which they continue in index,
// term and offset. They are readable on return, not durable. Payloads are
// copied. One call at a time; it may run beside all other methods.
func (l *Log) Append(entries []LogEntry) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	if len(entries) == 0 {
		return nil
	}
	if err := l.writer.append(entries); err != nil {
		return l.fail(fmt.Errorf("storage: append to %s: %w", l.dir, err))
	}
	l.publish()
	return nil
}

// publish shows the readers what the writer wrote.
func (l *Log) publish() {
	w := &l.writer
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.segments = append(l.mu.segments, w.sealed...)
	l.mu.pos = w.pos
	clear(w.sealed)
	w.sealed = w.sealed[:0]
}

func (w *writer) append(entries []LogEntry) error {
	b := w.log.logs.borrow(0)
	defer func() { w.log.logs.giveBack(b) }()
	buf := *b
	defer func() { *b = buf[:0] }()
	for i := range entries {
		e := &entries[i]
		f := FrameView{Index: e.Index, Term: e.Term, Kind: e.Kind, Verdict: e.Verdict,
			BaseOffset: e.BaseOffset, Count: e.Count, Payload: e.Data}
		if err := w.check(&f); err != nil {
			return err
		}
		size := int64(frameHeader + len(f.Payload))
		if !w.pos.Exists || w.pos.SegBytes+size > w.log.logs.segmentSize {
			if err := w.flush(buf); err != nil {
				return err
			}
			buf = buf[:0]
			if err := w.roll(); err != nil {
				return err
			}
		}
		w.place(&f, size)
		buf = appendFrame(buf, w.log.group, &f)
		if len(buf) >= maxPending {
			if err := w.flush(buf); err != nil {
				return err
			}
			buf = buf[:0]
		}
	}
	return w.flush(buf)
}

// check refuses an entry that does not continue the log.
func (w *writer) check(f *FrameView) error {
	if err := f.checkShape(); err != nil {
		return err
	}
	return f.follows(w.next())
}

// next is where the next frame goes.
func (w *writer) next() waypoint {
	return waypoint{w.pos.LastIndex + 1, w.pos.NextOffset, w.pos.SegBytes, w.pos.LastTerm}
}

// active is the segment that is written; nil if there is none yet.
func (w *writer) active() *segment {
	if n := len(w.sealed); n > 0 {
		return w.sealed[n-1]
	}
	// Only the writer changes the list, so it may read it without the lock.
	if n := len(w.log.mu.segments); n > 0 {
		return w.log.mu.segments[n-1]
	}
	return nil
}

// place moves the position behind the frame.
func (w *writer) place(f *FrameView, size int64) {
	if at := w.next(); at.pos-w.mark >= waypointDistance {
		w.active().addWritten(at)
		w.mark = at.pos
	}
	w.pos.LastIndex, w.pos.LastTerm = f.Index, f.Term
	w.pos.NextOffset = f.NextOffset()
	w.pos.SegBytes += size
}

// roll seals the active segment and begins the next one.
func (w *writer) roll() error {
	if !w.pos.Exists {
		if err := w.log.makeDir(); err != nil {
			return err
		}
	} else {
		w.active().size.Store(w.pos.SegBytes)
	}
	first := w.next()
	first.pos = 0
	s := newSegment(w.log, first, true)
	s.mu.loaded = true
	w.sealed = append(w.sealed, s)
	w.pos.SegIndex, w.pos.SegOffset, w.pos.SegBytes, w.pos.Exists = first.index, first.offset, 0, true
	w.mark = 0
	return nil
}

// makeDir makes the log's directory. The one that it is in is there: a topic's
// directory that was moved away must not come back without its marker.
func (l *Log) makeDir() error {
	if err := l.own(); err != nil {
		return err
	}
	return l.logs.fs.MkdirAll(l.dir, 0o755)
}

// flush writes the frames that end at the position.
func (w *writer) flush(frames []byte) error {
	if len(frames) == 0 {
		return nil
	}
	s := w.active()
	hd, err := w.log.logs.files.pinWriter(s)
	if err != nil {
		return err
	}
	defer w.log.logs.files.unpin(hd)
	n, err := hd.file.WriteAt(frames, w.pos.SegBytes-int64(len(frames)))
	if err == nil && n < len(frames) {
		err = io.ErrShortWrite
	}
	if err == nil {
		w.log.noteWrite(s, w.pos.SegBytes)
	}
	return err
}

// noteWrite notes what the next Sync has to do, while the file is still pinned:
// a sync that began before the write must not count for it.
func (l *Log) noteWrite(s *segment, upTo int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.written.Load() == 0 {
		l.mu.newNames = true
	}
	s.written.Store(upTo)
	if n := len(l.mu.unsynced); n == 0 || l.mu.unsynced[n-1] != s {
		l.mu.unsynced = append(l.mu.unsynced, s)
	}
}
