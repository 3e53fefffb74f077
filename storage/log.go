package storage

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// Log is the partition log of one replica: its committed and applied entries,
// and nothing else, so it is only ever appended to. What is appended is in the
// files but not durable before Sync: after a crash a log is cut at the position
// in the checkpoint table and written again from the journal.
//
// One writer at a time, and any number of readers, which never see half a
// frame: they read below the position that the writer published. A reader that
// meets bytes that are not what was written gets a *DamageError and the log
// goes on; after any error of Append, WriteAux or Sync the log has failed, and
// all later calls of those three return that error.
type Log struct {
	logs    *logSet
	group   GroupID
	replica ReplicaID
	rel     string // its directory, as in ReplicaState.Dir
	dir     string // its directory in the file system

	writing sync.Mutex // held by Append and WriteAux; guards writer
	writer  writer
	syncing sync.Mutex // held by Sync
	named   bool       // guarded by syncing: the directory's own name is durable

	abandoned atomic.Bool // closed without a sync
	ended     atomic.Bool // mu.err is set: no sync claims anything any more
	hints     hints
	onDamage  atomic.Pointer[func(Index)]
	onForeign atomic.Pointer[func(error)]
	foreign   atomic.Pointer[LogClosedError] // not nil: disowned

	mu struct {
		sync.RWMutex
		segments []*segment // oldest first; a reader may keep it, so what it holds never changes
		start    waypoint   // of the first one, or where that will begin
		trimmed  []*segment // oldest first: no longer of the log, and their files wait for the table
		pos      LogPosition
		unsynced []*segment // written since the last sync, oldest first
		newNames bool       // files were made, renamed or removed since then
		aux      []Index    // side files that have no final name yet
		err      error      // sticky
	}
}

// view is what a reader sees: everything up to pos.
type view struct {
	segments []*segment
	start    waypoint
	pos      LogPosition
}

func (l *Log) view() (view, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if e := l.foreign.Load(); e != nil {
		return view{}, e
	}
	if l.abandoned.Load() {
		return view{}, ErrClosed
	}
	return view{l.mu.segments, l.mu.start, l.mu.pos}, nil
}

// OpenLog opens the partition log of a live replica at st.Log: everything
// beyond it is cut. No frame is read, whatever the log's size, and no side file:
// one that is missing is for who reads it. A log that is shorter, or missing though it exists, is a *DamageError; a topic directory
// without the marker of its name a *MarkerError. A replica's log can be open
// once. Files and directories are made by the first Append that needs them.
// Logs of the replica that st.Log.Reset does not name are unlinked: those that a
// reset replaced, and those that were staged for one that did not come.
// Safe for concurrent use.
func (s *Store) OpenLog(st ReplicaState) (*Log, error) { return s.logs.openLog(st, false) }

// OpenDamagedLog opens a log that OpenLog refuses because the segment that is written
// last is missing or ends too early: what is missing is damage that a Verifier finds.
// Until it was repaired nothing may be appended. All else is as with OpenLog.
func (s *Store) OpenDamagedLog(st ReplicaState) (*Log, error) { return s.logs.openLog(st, true) }

func (s *logSet) openLog(st ReplicaState, damaged bool) (*Log, error) {
	if st.Status != ReplicaLive {
		return nil, fmt.Errorf("storage: replica %v is not live", st.Replica)
	}
	dir, err := s.logDir(st)
	if err != nil {
		return nil, err
	}
	l := &Log{logs: s, group: st.Group, replica: st.Replica, rel: st.Dir, dir: dir}
	s.topics.RLock()
	defer s.topics.RUnlock()
	// Once it is registered a checkpoint may sync it: not before it is made.
	l.syncing.Lock()
	defer l.syncing.Unlock()
	if err := s.register(l, st.Log.Reset); err != nil {
		return nil, err
	}
	err = s.own(st.Dir)
	var names []string
	if err == nil && damaged {
		err = l.fillActive(st.Log)
	}
	if err == nil {
		names, err = l.cut(st.Log)
	}
	if err != nil {
		s.unregister(l)
		return nil, err
	}
	s.unstage(st.Replica, dir) // if that is the log which is open now
	s.unlinkOthers(st, names)
	return l, nil
}

// Position returns the log's position after the last Append and WriteAux.
// Safe for concurrent use.
func (l *Log) Position() LogPosition {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.pos
}

// StartOffset is the offset of the first record, NextOffset the one behind the
// last. Safe for concurrent use.
func (l *Log) StartOffset() Offset {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.start.offset
}

// NextOffset is the offset that the next record gets.
func (l *Log) NextOffset() Offset { return l.Position().NextOffset }

// OnDamage has f told when a read meets bytes that are not what was written, with the
// first entry of their segment; nil: nobody is. It comes again with each such read. It
// is called by readers, so it must not block. Safe for concurrent use.
func (l *Log) OnDamage(f func(first Index)) {
	if f == nil {
		l.onDamage.Store(nil)
		return
	}
	l.onDamage.Store(&f)
}

// met tells of an error of a read in a segment, if that is of damage.
func (l *Log) met(err error, s *segment) {
	var damage *DamageError
	if f := l.onDamage.Load(); f != nil && errors.As(err, &damage) {
		(*f)(s.first.index)
	}
}

// failed returns the error that ended the writing of this log.
func (l *Log) failed() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.err
}

// fail records the first error and returns it.
func (l *Log) fail(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.err == nil {
		l.mu.err = err
		l.ended.Store(true)
	}
	return l.mu.err
}

// Close syncs what was appended and closes the files, once no reader uses them.
// Every later call fails with ErrClosed. After a failed Close the log cannot
// be opened again by this Store: what its files hold is not known.
func (l *Log) Close() error {
	err := l.Sync()
	l.abandon()
	return err
}

// abandon closes the files without a sync.
func (l *Log) abandon() {
	l.abandoned.Store(true)
	l.writing.Lock() // no Append is under way, and no later one begins
	defer l.writing.Unlock()
	l.logs.unregister(l)
	_ = l.fail(ErrClosed)
	l.mu.RLock()
	segments := slices.Concat(l.mu.trimmed, l.mu.segments, l.writer.sealed) // the last of a failed Append
	l.mu.RUnlock()
	for _, s := range segments {
		l.logs.files.retire(s)
	}
}
