package raftlog

import (
	"fmt"
	"math"

	"github.com/stelelog/stele/storage"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// OlderLog reads entries that are no longer in memory: the partition log.
type OlderLog interface {
	// Entries returns entries of [lo, hi), at least one, and no more once they
	// exceed maxBytes.
	Entries(lo, hi Index, maxBytes int) ([]storage.Entry, error)
	// Term returns the term of entry i.
	Term(i Index) (Term, error)
	// Position says where the log begins by now.
	Position() storage.LogPosition
}

// tail is the durable end of a replica's log in memory, and raft's view of its
// storage. It holds exactly what a restart would find, never what is still on
// its way to the disk: raft itself keeps that.
//
// Invariants: entries are contiguous and end at the last durable index; every
// entry above floor is here; at least the term of the last index is known.
type tail struct {
	start     Index // the log holds entries above it
	startTerm Term
	floor     Index // applied and in the log: what is at or below may go

	entries []*pb.Entry
	prev    Index // index before entries[0]
	prevTrm Term  // its term
	below   int   // bytes of the entries at or below floor
	keep    int   // of which this many may stay

	asked    bool // raft wanted a snapshot for a follower, until looked at
	older    OlderLog
	maxRead  int
	olderErr error // last failure to read older entries, until taken

	hard storage.HardState // for raft's start only
	conf ConfState         // for raft's start only
}

func (t *tail) last() Index { return t.prev + Index(len(t.entries)) }

// append adds what just became durable: entries at i discard all from i on.
func (t *tail) append(entries []*pb.Entry) {
	if len(entries) == 0 {
		return
	}
	at := Index(entries[0].GetIndex())
	if at <= t.last() {
		t.entries = t.entries[: at-t.prev-1 : at-t.prev-1]
	}
	t.entries = append(t.entries, entries...)
}

// applied lets entries at or below index go, except for the newest few.
func (t *tail) applied(index Index) {
	for ; t.floor < index; t.floor++ {
		if i := t.floor + 1; i > t.prev {
			t.below += entrySize(t.entries[i-t.prev-1])
		}
	}
	n := 0
	for t.below > t.keep && t.prev+Index(n) < t.floor {
		t.below -= entrySize(t.entries[n])
		n++
	}
	if n == 0 {
		return
	}
	t.prevTrm = Term(t.entries[n-1].GetTerm())
	t.prev += Index(n)
	clear(t.entries[:n]) // nobody else sees this array: Entries copies
	t.entries = t.entries[n:]
}

// trimmed notes that the log begins after start now: what is at or below is not
// there for others any more.
func (t *tail) trimmed(start Index, term Term) {
	if start > t.start {
		t.start, t.startTerm = start, term
	}
}

// above returns the entries above index.
func (t *tail) above(index Index) []*pb.Entry {
	if index < t.prev {
		index = t.prev
	}
	return t.entries[index-t.prev:]
}

// InitialState implements raft.Storage.
func (t *tail) InitialState() (*pb.HardState, *pb.ConfState, error) {
	return toRaftHard(t.hard), toRaftConf(t.conf), nil
}

// Entries implements raft.Storage. A failure to read older entries answers
// "compacted": raft then wants to send a snapshot, is told that there is none
// yet, and comes back at the follower's next heartbeat response.
func (t *tail) Entries(lo, hi, maxSize uint64) ([]*pb.Entry, error) {
	if Index(lo) <= t.start {
		return nil, raft.ErrCompacted
	}
	if Index(hi) > t.last()+1 || lo >= hi {
		return nil, raft.ErrUnavailable
	}
	if Index(lo) <= t.prev {
		return t.readOlder(Index(lo), min(Index(hi), t.prev+1), maxSize)
	}
	from := t.entries[Index(lo)-t.prev-1 : Index(hi)-t.prev-1]
	n, size := 1, uint64(entrySize(from[0]))
	for ; n < len(from); n++ {
		if size += uint64(entrySize(from[n])); size > maxSize {
			break
		}
	}
	out := make([]*pb.Entry, n)
	copy(out, from)
	return out, nil
}

func (t *tail) readOlder(lo, hi Index, maxSize uint64) ([]*pb.Entry, error) {
	limit := t.maxRead
	if maxSize < uint64(math.MaxInt) {
		limit = min(limit, int(maxSize))
	}
	entries, err := t.older.Entries(lo, hi, limit)
	if err != nil || len(entries) == 0 || entries[0].Index != lo {
		t.failed(lo, err)
		return nil, raft.ErrCompacted
	}
	return toRaftEntries(entries), nil
}

// Term implements raft.Storage.
func (t *tail) Term(i uint64) (uint64, error) {
	switch index := Index(i); {
	case index > t.last():
		return 0, raft.ErrUnavailable
	case index > t.prev:
		return t.entries[index-t.prev-1].GetTerm(), nil
	case index == t.prev:
		return uint64(t.prevTrm), nil
	case index == t.start:
		return uint64(t.startTerm), nil
	case index < t.start:
		return 0, raft.ErrCompacted
	default:
		term, err := t.older.Term(index)
		if err != nil {
			t.failed(index, err)
			return 0, raft.ErrCompacted
		}
		return uint64(term), nil
	}
}

// failed notes why entry i could not be read: it may have been let go since
// this was last told where the log begins, which is when something is applied.
// That may never come: a leader may need the follower that wants the entry.
func (t *tail) failed(i Index, cause error) {
	pos := t.older.Position()
	t.trimmed(pos.StartIndex, pos.StartTerm)
	if i > t.start {
		t.olderErr = &OlderReadError{Index: i, Cause: cause}
	}
}

// LastIndex implements raft.Storage.
func (t *tail) LastIndex() (uint64, error) { return uint64(t.last()), nil }

// FirstIndex implements raft.Storage.
func (t *tail) FirstIndex() (uint64, error) { return uint64(t.start + 1), nil }

// Snapshot implements raft.Storage: there is none to give inside a step. That it
// was asked for one is how a follower that is too far behind is noticed.
func (t *tail) Snapshot() (*pb.Snapshot, error) {
	t.asked = true
	return nil, raft.ErrSnapshotTemporarilyUnavailable
}

// takeOlderErr returns the last failed read once.
func (t *tail) takeOlderErr() error {
	err := t.olderErr
	t.olderErr = nil
	return err
}

// OlderReadError says that entries of the partition log could not be read for
// a follower or for a re-application. Cause is nil if the log answered with
// other entries than those asked for.
type OlderReadError struct {
	Index Index
	Cause error
}

func (e *OlderReadError) Error() string {
	return fmt.Sprintf("raftlog: reading the log at %d: %v", e.Index, e.Cause)
}

func (e *OlderReadError) Unwrap() error { return e.Cause }
