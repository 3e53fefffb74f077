package storage

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// logSet is what the partition logs of a store share: their file handles, their
// buffers, and who is open.
//
// Lock order: destroying, topics, Log.writing, Log.syncing, then any of the small ones (mu
// of logSet, Log, segment, handles), which are leaves.
type logSet struct {
	fs          FS
	root        string // the node's directory
	segmentSize int64
	files       *handles
	buffers     sync.Pool // of *[]byte

	// topics is held for writing while a topic directory is made or moved, and
	// for reading while a log in one is opened.
	topics sync.RWMutex
	// destroying is held while something in quarantine is unlinked. It is taken
	// before all others.
	destroying sync.Mutex

	mu struct {
		sync.Mutex
		open    map[ReplicaID]*Log
		staged  map[ReplicaID]*Log      // being staged, or waiting for their reset
		failed  map[ReplicaID]failedLog // closed with an error: not to be opened again
		durable map[string]bool         // directories whose names this process synced
		named   map[ReplicaID]named
		use     quarantineUse
		closed  bool
	}
}

// failedLog is a log whose files nobody knows any more, and the reset that began it.
type failedLog struct {
	reset uint64
	err   error
}

func newLogSet(fsys FS, root string, segmentSize int64, maxOpenFiles int) *logSet {
	s := &logSet{fs: fsys, root: root, segmentSize: segmentSize, files: newHandles(fsys, maxOpenFiles)}
	s.mu.open = map[ReplicaID]*Log{}
	s.mu.staged = map[ReplicaID]*Log{}
	s.mu.failed = map[ReplicaID]failedLog{}
	s.mu.durable = map[string]bool{}
	return s
}

// borrow returns a buffer of at least size bytes of capacity.
func (s *logSet) borrow(size int) *[]byte {
	if b, ok := s.buffers.Get().(*[]byte); ok && cap(*b) >= size {
		*b = (*b)[:size]
		return b
	}
	b := make([]byte, size)
	return &b
}

// maxKeptBuffer keeps one large batch from holding its memory for ever.
const maxKeptBuffer = 2 << 20

func (s *logSet) giveBack(b *[]byte) {
	if cap(*b) <= maxKeptBuffer {
		s.buffers.Put(b)
	}
}

func (s *logSet) allOpen() []*Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.mu.open))
}

// path turns a directory of a ReplicaState into one of the file system.
func (s *logSet) path(rel string) (string, error) {
	parts := strings.Split(rel, "/")
	for _, p := range parts {
		if p == "" || p == "." || p == ".." || strings.ContainsAny(p, "\\\x00") {
			return "", fmt.Errorf("storage: %q is not a directory below the node's", rel)
		}
	}
	return s.fs.PathJoin(slices.Insert(parts, 0, s.root)...), nil
}

// logDir is where the files of a replica's log are: its directory, or, since a
// reset, the one below it that is named after the reset.
func (s *logSet) logDir(st ReplicaState) (string, error) {
	dir, err := s.path(st.Dir)
	if err != nil || st.Log.Reset == 0 {
		return dir, err
	}
	return s.fs.PathJoin(dir, resetName(st.Log.Reset)), nil
}

const resetSuffix = ".reset"

// resetName is what the log of a reset is called in its replica's directory.
func resetName(reset uint64) string { return fmt.Sprintf("%020d%s", reset, resetSuffix) }

// unlinkOthers removes the logs in a replica's directory that its state does not
// name. The state is durable, so nothing will ever ask for them. What cannot be
// removed costs its space until the next open, and what a crash brings back too.
// names are those in the directory of the log that the state names.
func (s *logSet) unlinkOthers(st ReplicaState, names []string) {
	dir, err := s.path(st.Dir)
	if err == nil && st.Log.Reset != 0 {
		names, err = s.fs.List(dir)
	}
	if err != nil {
		return
	}
	for _, name := range names {
		path := s.fs.PathJoin(dir, name)
		if isOtherLog(name, st.Log.Reset) && !s.isStaged(st.Replica, path) {
			_ = s.fs.RemoveAll(path)
		}
	}
}

// isOtherLog reports whether a name in a replica's directory is of a log that
// another reset began, or none. Names that are not of logs are left alone.
func isOtherLog(name string, reset uint64) bool {
	if digits, ok := strings.CutSuffix(name, resetSuffix); ok {
		n, err := strconv.ParseUint(digits, 10, 64)
		return err == nil && resetName(n) == name && n != reset
	}
	if reset == 0 {
		return false // the log itself is here
	}
	_, _, segment := parseSegmentName(name)
	if stem, ok := strings.CutSuffix(name, indexSuffix); ok {
		_, _, segment = parseSegmentName(stem + segmentSuffix)
	}
	_, aux := parseAuxName(strings.TrimSuffix(name, tempSuffix))
	return segment || aux
}

func (s *logSet) register(l *Log, reset uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.closed:
		return ErrClosed
	case s.mu.failed[l.replica].err != nil && s.mu.failed[l.replica].reset == reset:
		if err := s.mu.failed[l.replica].err; errors.Is(err, ErrLogLost) {
			return err
		}
		return fmt.Errorf("storage: log of %v failed in this process: %w", l.replica, s.mu.failed[l.replica].err)
	case s.mu.open[l.replica] != nil:
		return fmt.Errorf("storage: log of %v is open already", l.replica)
	}
	delete(s.mu.failed, l.replica) // a reset put another log in its place
	s.mu.open[l.replica] = l
	return nil
}

func (s *logSet) unregister(l *Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.open[l.replica] != l {
		return
	}
	delete(s.mu.open, l.replica)
	if err := l.lost(); err != nil {
		s.mu.failed[l.replica] = failedLog{l.Position().Reset, err}
	} else if err := l.failed(); err != nil && !errors.Is(err, ErrClosed) {
		s.mu.failed[l.replica] = failedLog{l.Position().Reset, err}
	}
}

// lookup returns the replica's log if it is open, or the error that it was
// closed with.
func (s *logSet) lookup(r ReplicaID) (*Log, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.open[r], s.mu.failed[r].err
}

// sync makes durable what was appended to the replica's log in this process.
func (s *logSet) sync(r ReplicaID) error {
	l, err := s.lookup(r)
	if l == nil {
		return err // a log that was closed without an error was synced
	}
	if err := l.Sync(); !errors.Is(err, ErrClosed) || errors.Is(err, ErrLogClosed) {
		return err
	}
	_, err = s.lookup(r) // it was closed meanwhile
	return err
}

// openBelow returns a log that is open or staged in the directory or below it,
// or nil.
func (s *logSet) openBelow(rel string) *Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, logs := range [...]map[ReplicaID]*Log{s.mu.open, s.mu.staged} {
		for _, l := range logs {
			if strings.HasPrefix(l.rel, rel+"/") {
				return l
			}
		}
	}
	return nil
}

// nameDurable makes the name of the directory durable, and those of its
// parents up to the node's directory, unless this process did so before.
func (s *logSet) nameDurable(dir string) error {
	for ; dir != s.root; dir = s.fs.PathDir(dir) {
		s.mu.Lock()
		done := s.mu.durable[dir]
		s.mu.Unlock()
		if done {
			continue
		}
		if err := syncDir(s.fs, s.fs.PathDir(dir)); err != nil {
			return err
		}
		s.mu.Lock()
		s.mu.durable[dir] = true
		s.mu.Unlock()
	}
	return nil
}

// forgetName is called when a directory without others in it is renamed away or
// removed.
func (s *logSet) forgetName(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.durable, dir)
}

// forgetNames is called when a directory is renamed away, with all below it.
func (s *logSet) forgetNames(dir string) {
	below := strings.TrimSuffix(s.fs.PathJoin(dir, "x"), "x")
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.durable, dir)
	for name := range s.mu.durable {
		if strings.HasPrefix(name, below) {
			delete(s.mu.durable, name)
		}
	}
}

// close closes all logs without a sync: the next process starts from the table.
func (s *logSet) close() {
	s.mu.Lock()
	s.mu.closed = true
	open := make([]*Log, 0, len(s.mu.open))
	for _, l := range s.mu.open {
		open = append(open, l)
	}
	for _, l := range s.mu.staged {
		open = append(open, l)
	}
	s.mu.Unlock()
	for _, l := range open {
		l.abandon()
	}
}
