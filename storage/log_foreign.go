package storage

import (
	"errors"
	"fmt"
)

// A topic's directory may turn out to be another one than was made here: copied,
// restored, renamed, or without its marker. The marker is compared when the
// directory is made or found, when a log in it is opened, and whenever a file of an
// open log is: files are opened lazily and closed again, so a log that was right
// when it was opened need not be later. It is compared, too, before anything is
// removed or repaired by name. A marker that cannot be read says nothing: that call
// fails, and no more.
//
// Then all logs of the directory are disowned: every call of them, from that moment
// on, is a *LogClosedError, and no byte of the directory is read, written or removed.
// Their owner closes them and moves the directory to quarantine. What they had is
// lost to this node, and a log that is opened in a new directory says so: it is
// damage (ErrLogLost), unless there was nothing in it. So a replica never goes on
// with less than it vouched for.

// ErrLogClosed is matched by the *LogClosedError of a log that was disowned. It is
// no statement about records: they are to be read elsewhere, or later.
var ErrLogClosed = errors.New("storage: the log was closed: its directory is not what was made here")

// ErrLogLost is matched by the *DamageError of opening a log of which nothing is
// there, though there should be. It has to come from another replica as a whole.
var ErrLogLost = errors.New("the log is lost")

// LogClosedError is the error of all calls of a log that was disowned. It matches
// ErrLogClosed, and ErrClosed.
type LogClosedError struct {
	Replica ReplicaID
	Err     *MarkerError
}

func (e *LogClosedError) Error() string {
	return fmt.Sprintf("storage: the log of %v was closed: %v", e.Replica, e.Err)
}

func (e *LogClosedError) Unwrap() error { return e.Err }

// Is matches what a closed log is, too.
func (e *LogClosedError) Is(target error) bool { return target == ErrLogClosed || target == ErrClosed }

// CheckTopicDir compares the marker of a directory of topics/ with its name. A
// *MarkerError with a Kind says that it is another one; all open logs in it are
// disowned then.
// Safe for concurrent use.
func (s *Store) CheckTopicDir(relDir string) error { return s.logs.own(relDir) }

// OnForeign has f told, once, when the log is disowned: with a *LogClosedError; nil:
// nobody is. It is called by whoever noticed, so it must not block. Safe for
// concurrent use.
func (l *Log) OnForeign(f func(error)) {
	if f == nil {
		l.onForeign.Store(nil)
		return
	}
	l.onForeign.Store(&f)
	if e := l.foreign.Load(); e != nil { // before it was asked for
		f(e)
	}
}

// own compares the marker of the directory that the log is in. The error is what the
// caller of the log gets.
func (l *Log) own() error {
	if err := l.logs.own(l.rel); err != nil {
		if e := l.foreign.Load(); e != nil {
			return e
		}
		return err
	}
	return nil
}

// own is checkMarker, and disowns the logs of a directory that it refuses.
func (s *logSet) own(rel string) error {
	err := s.checkMarker(rel)
	var marker *MarkerError
	if errors.As(err, &marker) && marker.Kind != "" {
		s.disown(marker)
	}
	return err
}

// disown ends all that is open or staged in a topic's directory. Nothing is closed
// yet: whoever notices may be in the middle of a call of one of the logs.
func (s *logSet) disown(marker *MarkerError) {
	s.mu.Lock()
	var logs []*Log
	for _, all := range [...]map[ReplicaID]*Log{s.mu.open, s.mu.staged} {
		for _, l := range all {
			if topic, _, ok := topicOf(l.rel); ok && topic == marker.Dir {
				logs = append(logs, l)
			}
		}
	}
	s.mu.Unlock()
	for _, l := range logs {
		e := &LogClosedError{l.replica, marker}
		if !l.foreign.CompareAndSwap(nil, e) {
			continue
		}
		_ = l.fail(e)
		if f := l.onForeign.Load(); f != nil {
			(*f)(e)
		}
	}
}

// lost is what a log is that was written to a directory which was not its own: what of
// it is durable, and where, nobody knows.
func (l *Log) lost() error {
	if l.foreign.Load() == nil || !l.Position().Exists {
		return nil
	}
	return lostError(l.dir, "its directory was another one's", nil)
}

func lostError(path, reason string, err error) *DamageError {
	if err == nil {
		err = ErrLogLost
	} else {
		err = fmt.Errorf("%w: %w", ErrLogLost, err)
	}
	return &DamageError{Path: path, Reason: reason, Err: err}
}
