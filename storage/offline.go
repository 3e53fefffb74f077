package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
)

// Offline is what a closed directory, or a copy of one, holds: for tools, and
// for tests that check what a crash left. Nothing is locked, repaired, cut or
// written, so the directory must not be open anywhere.
type Offline struct {
	Identity    Identity
	Replicas    []ReplicaState // as the journal has them, Tail included; by replica
	TopicDirs   []TopicDir
	Quarantined []QuarantinedDir
	Tables      [2]OfflineTable  // the copies of the checkpoint table
	Journal     []OfflineJournal // its files, by name

	fs   FS
	root string
}

// OfflineTable is one copy of the checkpoint table.
type OfflineTable struct {
	Path       string
	Generation uint64 // of the journal, where replay begins
	Err        error  // why the copy is not whole: a crash while it was written, or damage; the other one is whole
}

// OfflineJournal is one file of the journal.
type OfflineJournal struct {
	Path       string
	Bytes      int64
	Generation uint64 // that it holds; 0: none that is needed and whole
}

// ReadOffline reads what all of a directory rests on: format, identity, table
// and journal, with every checksum. The logs are read by Frames. Errors: those
// of Open, but for ErrLocked.
func ReadOffline(fsys FS, dir string) (*Offline, error) {
	if err := readFormat(fsys, dir); err != nil {
		return nil, offlineError(dir, err)
	}
	id, err := readIdentity(fsys, dir)
	if err != nil {
		return nil, offlineError(dir, err)
	}
	r, err := readJournal(fsys, fsys.PathJoin(dir, journalDir), breakage{})
	if err != nil {
		return nil, offlineError(dir, err)
	}
	o := &Offline{Identity: id, Replicas: r.states, fs: fsys, root: dir}
	o.noteJournal(r)
	if o.TopicDirs, err = newLogSet(fsys, dir, 0, 0).topicDirs(); err != nil {
		return nil, offlineError(dir, err)
	}
	if o.Quarantined, err = listQuarantined(fsys, dir); err != nil {
		return nil, offlineError(dir, err)
	}
	return o, nil
}

func offlineError(dir string, err error) error { return fmt.Errorf("storage: read %s: %w", dir, err) }

// noteJournal notes what the journal's directory holds.
func (o *Offline) noteJournal(r *recovered) {
	path := func(name string) string { return o.fs.PathJoin(o.root, journalDir, name) }
	for slot, c := range r.copies {
		o.Tables[slot] = OfflineTable{Path: path(tableName(slot)), Err: r.torn[slot]}
		if c != nil {
			o.Tables[slot].Generation = c.generation
		}
	}
	for _, f := range r.files {
		o.Journal = append(o.Journal, OfflineJournal{path(journalName(f.number)), f.size, f.generation})
	}
}

// SideFiles reads the side files of a replica's log that the table vouches for,
// and returns what is wrong with them: *DamageErrors, joined.
func (o *Offline) SideFiles(r ReplicaID) error {
	i := slices.IndexFunc(o.Replicas, func(st ReplicaState) bool { return st.Replica == r })
	if i < 0 {
		return fmt.Errorf("storage: no replica %v in %s", r, o.root)
	}
	st := o.Replicas[i]
	if o.succeeded(st) {
		return nil
	}
	dir, err := newLogSet(o.fs, o.root, 0, 0).logDir(st)
	if err != nil {
		return err
	}
	names, err := listSorted(o.fs, dir)
	if err != nil && !isMissing(err) { // a missing directory is told by Frames
		return err
	}
	var errs []error
	found := st.Log.AuxIndex == 0 || isMissing(err)
	for _, name := range names {
		at, ok := parseAuxName(name)
		if !ok || at > st.Log.AuxIndex {
			continue
		}
		found = found || at == st.Log.AuxIndex
		path := o.fs.PathJoin(dir, name)
		b, err := readSmall(o.fs, path, auxHeader+MaxAux)
		if err == nil {
			_, err = decodeAux(b, st.Group, at)
		}
		if err != nil {
			errs = append(errs, &DamageError{Path: path, Reason: err.Error()})
		}
	}
	if !found {
		errs = append(errs, &DamageError{Path: o.fs.PathJoin(dir, auxName(st.Log.AuxIndex)), Reason: "it is missing"})
	}
	return errors.Join(errs...)
}

// succeeded reports whether the directory of a replica's log is another's by now.
// That of group 1 is always the same: where a forced recovery set a replica aside, its
// files went into quarantine, and the next one begins in their place.
func (o *Offline) succeeded(st ReplicaState) bool {
	return st.Status == ReplicaSetAside && slices.ContainsFunc(o.Replicas, func(other ReplicaState) bool {
		return other.Replica != st.Replica && other.Dir == st.Dir
	})
}

// OfflineFrame is a frame of a log as it was found.
type OfflineFrame struct {
	FrameView // its Payload is the caller's
	// Proven: it is below the position in the checkpoint table, so it was
	// durable. Others were in the files, valid and in order, though nothing was
	// promised of the files there: what was promised is in the Tail too.
	Proven bool
}

// Frames reads a replica's log from its start: every frame up to the position
// in the table, and after that as many as are whole, up to the commit; none of a
// replica that was set aside and whose place another one has. At most
// one error, the last: a *DamageError where a proven frame is not as it was
// written, or one that says that log and journal have different entries.
func (o *Offline) Frames(r ReplicaID) iter.Seq2[OfflineFrame, error] {
	return func(yield func(OfflineFrame, error) bool) {
		i := slices.IndexFunc(o.Replicas, func(st ReplicaState) bool { return st.Replica == r })
		if i < 0 {
			yield(OfflineFrame{}, fmt.Errorf("storage: no replica %v in %s", r, o.root))
			return
		}
		s := offlineScan{o: o, st: o.Replicas[i], yield: yield}
		if err := s.run(); err != nil {
			yield(OfflineFrame{}, err)
		}
	}
}

// offlineScan reads the files of one log by itself, not as a Log does, so that
// neither hides the other's mistakes.
type offlineScan struct {
	o       *Offline
	st      ReplicaState
	yield   func(OfflineFrame, error) bool
	at      waypoint // of the next frame; its pos is in the segment
	stopped bool     // by the caller, or at the end of what is whole
}

func (s *offlineScan) run() error {
	if s.o.succeeded(s.st) {
		return nil
	}
	pos := s.st.Log
	logs := newLogSet(s.o.fs, s.o.root, 0, 0)
	dir, err := logs.logDir(s.st)
	if err != nil {
		return err
	}
	names, err := listSorted(s.o.fs, dir)
	switch {
	case isMissing(err) && (!pos.Exists || s.st.Status == ReplicaSetAside):
		return nil
	case isMissing(err):
		return &DamageError{Path: dir, Reason: "the log's directory is missing", Err: err}
	case err != nil:
		return err
	}
	if err := logs.checkMarker(s.st.Dir); err != nil {
		return err
	}
	s.at = waypoint{index: pos.StartIndex + 1, offset: pos.NextOffset, termBefore: pos.StartTerm}
	first := true
	for _, name := range names {
		i, offset, ok := parseSegmentName(name)
		if !ok || i <= pos.StartIndex || s.stopped {
			continue
		}
		if first && pos.Exists {
			s.at.offset = offset
		}
		first = false
		if err := s.segment(s.o.fs.PathJoin(dir, name), i, offset); err != nil {
			return err
		}
	}
	if s.proven() && !s.stopped {
		return &DamageError{Path: dir, Reason: fmt.Sprintf("the log ends before entry %d, the table has it to %d",
			s.at.index, pos.LastIndex)}
	}
	return nil
}

// proven reports whether the next frame was durable.
func (s *offlineScan) proven() bool { return s.st.Log.Exists && s.at.index <= s.st.Log.LastIndex }

func (s *offlineScan) segment(path string, i Index, offset Offset) error {
	if i != s.at.index || offset != s.at.offset {
		s.stopped = !s.proven()
		if s.stopped {
			return nil
		}
		return &DamageError{Path: path, Reason: fmt.Sprintf("entry %d at offset %d should begin it", s.at.index, s.at.offset)}
	}
	f, err := s.o.fs.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	s.at.pos = 0
	for s.at.pos < info.Size() && !s.stopped {
		proven := s.proven()
		frame, err := s.frame(path, f, info.Size())
		if err != nil && !proven {
			s.stopped = true
			return nil
		}
		if err == nil {
			err = s.compare(path, frame)
		}
		if err != nil {
			return err
		}
		if frame.Index > s.st.Hard.Commit || !s.yield(OfflineFrame{FrameView: *frame, Proven: proven}, nil) {
			s.stopped = true
		}
	}
	return nil
}

// frame reads the frame at s.at and goes behind it.
func (s *offlineScan) frame(path string, f io.ReaderAt, end int64) (*FrameView, error) {
	damage := func(err error) error { return &DamageError{Path: path, Offset: s.at.pos, Reason: err.Error()} }
	b := make([]byte, min(frameHeader, end-s.at.pos))
	if _, err := f.ReadAt(b, s.at.pos); err != nil {
		return nil, &DamageError{Path: path, Offset: s.at.pos, Reason: "cannot be read", Err: err}
	}
	frame, size, err := decodeHeader(b, s.st.Group)
	if err == nil {
		err = frame.follows(s.at)
	}
	if err == nil && int64(frameHeader+size) > end-s.at.pos {
		err = fmt.Errorf("entry %d is cut off", frame.Index)
	}
	if err != nil {
		return nil, damage(err)
	}
	b = append(b, make([]byte, size)...)
	if _, err := f.ReadAt(b[frameHeader:], s.at.pos+frameHeader); err != nil && size > 0 {
		return nil, &DamageError{Path: path, Offset: s.at.pos, Reason: "cannot be read", Err: err}
	}
	if err := frame.setPayload(b, size); err != nil {
		return nil, damage(err)
	}
	s.at = s.at.behind(&frame, size)
	return &frame, nil
}

// compare holds a frame against the journal's entry of the same index.
func (s *offlineScan) compare(path string, f *FrameView) error {
	tail := s.st.Tail
	if len(tail) == 0 || f.Index < tail[0].Index || f.Index > tail[len(tail)-1].Index || f.Index > s.st.Hard.Commit {
		return nil
	}
	e := tail[f.Index-tail[0].Index]
	if e.Term != f.Term || e.Kind != f.Kind || !bytes.Equal(e.Data, f.Payload) {
		return fmt.Errorf("storage: %s: entry %d of term %d is another than the journal's of term %d",
			path, f.Index, f.Term, e.Term)
	}
	return nil
}
