package storage

import (
	"errors"
	"fmt"
)

// A staged log is a copy of a partition log, made beside a replica's own while
// that goes on:
//
//	<the replica's directory>/<reset, 20 digits>.reset/<segments, side files>
//
// It becomes the replica's log by one frame of the journal, the reset, that
// names it and says where it ends. Its files hold what they would if the entries
// had been applied here, since segments are a function of the entries alone.
//
// # Why a crash leaves the old log or the new one
//
//  1. The reset frame is written after Finish returned, and Finish returns after
//     all files of the staged log, its directory, and all names above it were
//     synced.
//  2. A crash before the frame is durable leaves the old log, which staging
//     never touched; the directory is a leftover then, which OpenLog removes.
//  3. Behind the frame, replay finds a log that ends where it was staged. What
//     was appended to it since is cut, and comes again from the journal, as with
//     any position of the table.
//  4. Until OpenLog has opened it, nobody in this process removes it: neither an
//     OpenLog of the old log, nor a quarantine of the topic.

// stageSyncEvery is how many bytes of frames are staged between two syncs, so
// that the last one does not have them all to write.
const stageSyncEvery = 16 << 20

// LogStart is where a log begins: it holds the entries above Index.
type LogStart struct {
	Index  Index
	Term   Term   // of Index
	Offset Offset // that the first record has
}

// Start returns where the log begins. Safe for concurrent use.
func (l *Log) Start() LogStart {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return LogStart{Index: l.mu.pos.StartIndex, Term: l.mu.pos.StartTerm, Offset: l.mu.start.offset}
}

// StagedLog is a log that is made to become a replica's by a reset. One
// goroutine at a time uses it, beside whoever uses the replica's own log.
type StagedLog struct {
	log      *Log
	next     waypoint // of the frame that continues it
	unsynced int      // bytes
}

// StageLog begins a log for a replica that lives, open or not. reset is random,
// never 0, and of no earlier log of it. Nothing is durable before Finish. The
// caller ends it with Abandon, or with an OpenLog behind the reset frame. A
// replica has one staged log at a time.
func (s *Store) StageLog(st ReplicaState, reset uint64, start LogStart) (*StagedLog, error) {
	g, err := s.logs.stage(st, reset, start)
	if err != nil {
		return nil, fmt.Errorf("storage: stage a log of %v: %w", st.Replica, err)
	}
	return g, nil
}

func (s *logSet) stage(st ReplicaState, reset uint64, start LogStart) (*StagedLog, error) {
	switch {
	case st.Status != ReplicaLive:
		return nil, errors.New("the replica is not live")
	case reset == 0 || reset == st.Log.Reset:
		return nil, fmt.Errorf("reset %d: want a new id that is not 0", reset)
	case start.Offset < 0:
		return nil, fmt.Errorf("start offset %d: want 0 or more", start.Offset)
	}
	st.Log = LogPosition{
		Reset: reset, StartIndex: start.Index, StartTerm: start.Term,
		LastIndex: start.Index, LastTerm: start.Term, NextOffset: start.Offset,
	}
	dir, err := s.logDir(st)
	if err != nil {
		return nil, err
	}
	l := &Log{logs: s, group: st.Group, replica: st.Replica, rel: st.Dir, dir: dir}
	l.begin(st.Log, cutPlan{})
	s.topics.RLock()
	defer s.topics.RUnlock()
	if err := s.checkMarker(st.Dir); err != nil {
		return nil, err
	}
	found, err := exists(s.fs, dir)
	if err != nil {
		return nil, err
	}
	if found {
		return nil, fmt.Errorf("there is a log of reset %d", reset)
	}
	if err := s.registerStaged(l); err != nil {
		return nil, err
	}
	return &StagedLog{log: l, next: l.writer.next()}, nil
}

func (s *logSet) registerStaged(l *Log) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.closed:
		return ErrClosed
	case s.mu.staged[l.replica] != nil:
		return errors.New("another one is staged")
	}
	s.mu.staged[l.replica] = l
	return nil
}

// unstage forgets the staged log of a replica that is in the directory.
func (s *logSet) unstage(r ReplicaID, dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.mu.staged[r]; l != nil && l.dir == dir {
		delete(s.mu.staged, r)
	}
}

// isStaged reports whether the directory holds a log of the replica that is
// being staged, or waits for its reset.
func (s *logSet) isStaged(r ReplicaID, dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.mu.staged[r]
	return l != nil && l.dir == dir
}

// Next returns the index of the entry that continues the log.
func (g *StagedLog) Next() Index { return g.next.index }

// Append appends whole frames, as Log.Frames returned them, that continue the
// log. Every checksum is verified, and group, index, term and offset of each
// frame are compared with where it goes: a frame that is not right is an error
// after which nothing of this call was appended, and the right ones may follow.
// An error of the disk is final.
func (g *StagedLog) Append(frames []byte) error {
	entries, next, err := g.decode(frames)
	if err != nil {
		return fmt.Errorf("storage: staged frames of %v: %w", g.log.replica, err)
	}
	if err := g.log.Append(entries); err != nil {
		return err
	}
	g.next = next
	if g.unsynced += len(frames); g.unsynced >= stageSyncEvery {
		g.unsynced = 0
		return g.log.Sync()
	}
	return nil
}

func (g *StagedLog) decode(b []byte) ([]LogEntry, waypoint, error) {
	entries := make([]LogEntry, 0, len(b)/walkChunk+1)
	at := g.next
	for len(b) > 0 {
		f, size, err := nextFrame(b, g.log.group, at)
		if err != nil {
			return nil, at, err
		}
		e := LogEntry{Entry: Entry{Index: f.Index, Term: f.Term, Kind: f.Kind, Data: f.Payload},
			Verdict: f.Verdict, BaseOffset: f.BaseOffset, Count: f.Count}
		entries = append(entries, e)
		b = b[frameHeader+size:]
		at = at.behind(&f, size)
	}
	return entries, at, nil
}

// nextFrame returns the frame at the start of b, which is whole, right, and continues
// a place; size is its payload's.
func nextFrame(b []byte, g GroupID, at waypoint) (f FrameView, size int, err error) {
	f, size, err = decodeHeader(b, g)
	if err == nil {
		err = f.follows(at)
	}
	if err == nil && len(b) < frameHeader+size {
		err = fmt.Errorf("entry %d is cut off", f.Index)
	}
	if err == nil {
		err = f.setPayload(b, size)
	}
	return f, size, err
}

// WriteAux is Log.WriteAux.
func (g *StagedLog) WriteAux(i Index, data []byte) error { return g.log.WriteAux(i, data) }

// TrimTo is Log.TrimTo: a sender may have begun later than the one before it.
func (g *StagedLog) TrimTo(start LogStart) error {
	_, err := g.log.TrimTo(start)
	return err
}

// Finish makes all of the log durable and closes it. It returns what a reset
// frame for it says, but for the configuration: that of its last entry. Nothing
// may be appended any more.
func (g *StagedLog) Finish() (Begin, error) {
	l := g.log
	if err := l.Sync(); err != nil {
		return Begin{}, err
	}
	pos := l.Position()
	begin := Begin{Reset: pos.Reset, Index: pos.LastIndex, Term: pos.LastTerm, NextOffset: pos.NextOffset}
	if pos.Exists {
		begin.Log = &pos
	}
	l.abandon()
	return begin, nil
}

// Abandon closes the log and removes its files. It must not be called once a
// reset frame that names the log was handed over. It is idempotent; a failure
// leaves files that the next OpenLog removes.
func (g *StagedLog) Abandon() error {
	l := g.log
	l.abandon()
	err := l.logs.fs.RemoveAll(l.dir)
	l.logs.forgetName(l.dir)
	l.logs.unstage(l.replica, l.dir)
	if err != nil {
		return fmt.Errorf("storage: abandon a staged log: %w", err)
	}
	return nil
}
