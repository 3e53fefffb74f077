package raftlog

import (
	"fmt"
	"slices"

	"github.com/stelelog/stele/storage"
)

// ResetError refuses to begin a replica's log anew at a snapshot. Nothing
// happened: it matches ErrRefused. Another snapshot may do.
type ResetError struct {
	Group   GroupID
	Replica ReplicaID
	Index   Index // of the snapshot
	Reason  string
}

func (e *ResetError) Error() string {
	return fmt.Sprintf("raftlog: a snapshot at %d is nothing for %v of %v: %s", e.Index, e.Replica, e.Group, e.Reason)
}

// Unwrap gives the outcome.
func (e *ResetError) Unwrap() error { return ErrRefused }

// CheckReset decides what becomes of a closed replica that was given a snapshot
// of its group, taken at begin.Index by a replica that had applied it, with the
// configuration as of exactly that index. st is all that is durable of the
// replica, its tail included; its commit is not below what was applied.
//
//	held   the log has this very entry: it stays, and nothing is installed. But
//	       the entry is committed, which is worth a frame that says so: the
//	       replica may be asked for nothing else by a leader whose log begins
//	       above what the replica knows to be committed
//	else   the log is to begin anew at begin: term and vote stay, the rest goes
//	error  the snapshot is refused (*ResetError)
//
// A reset must lose nothing that this replica ever said that it has. What it
// acknowledged beyond its commit index may be committed since, thanks to it.
// If the snapshot's entry is not in its log, then nothing behind it is in the
// committed log, and what is before it is in the snapshot. If it is, what is
// behind it may be committed: so that log stays, however short it is.
func CheckReset(st storage.ReplicaState, begin Begin) (held bool, err error) {
	refuse := func(format string, args ...any) (bool, error) {
		return false, &ResetError{
			Group: st.Group, Replica: st.Replica, Index: begin.Index, Reason: fmt.Sprintf(format, args...),
		}
	}
	commit := max(st.Hard.Commit, st.Log.LastIndex)
	switch {
	case st.Status != storage.ReplicaLive:
		return refuse("it was set aside")
	case begin.Reset == 0 || begin.Reset == st.Log.Reset:
		return refuse("a reset has an id of its own, not %d", begin.Reset)
	case begin.Index == 0 || begin.Term == 0:
		return refuse("it has no entry (term %d)", begin.Term)
	case !listed(begin.Conf, st.Replica):
		return refuse("its configuration does not list the replica: it is older than the replica's part in the group")
	case begin.Index < commit:
		return refuse("entry %d is known to be committed here", commit)
	}
	if _, err := changeable(begin.Conf, begin.Index); err != nil {
		return refuse("its configuration is none: %v", err)
	}
	term, has := durableTerm(&st, begin.Index)
	if has && term != begin.Term && begin.Index == commit && commit > 0 {
		return refuse("it ends with term %d, the entry committed here has term %d", begin.Term, term)
	}
	return has && term == begin.Term, nil
}

// ResetFrames returns what is journalled, in one round, when a snapshot is to
// become the log of a closed replica: see CheckReset. There may be none. sender is the term that the
// sender was in after it took the snapshot; it becomes the replica's if that was
// lower. The last entry may be older, and committed in that term: in an earlier
// one the replica would vouch for it to a leader that never had it.
func ResetFrames(st storage.ReplicaState, begin Begin, sender Term) ([]storage.Frame, error) {
	held, err := CheckReset(st, begin)
	if err != nil {
		return nil, err
	}
	_, frames := resetFrames(st, &begin, sender, held)
	return frames, nil
}

// durableTerm returns the term of entry i, which is not below the log's end.
func durableTerm(st *storage.ReplicaState, i Index) (Term, bool) {
	end := st.Log.LastIndex
	switch {
	case i == end:
		return st.Log.LastTerm, end > 0
	case i > end && i <= end+Index(len(st.Tail)):
		return st.Tail[i-end-1].Term, true
	default:
		return 0, false
	}
}

// CheckRestore decides whether a copy of another replica's log, as of begin, may take
// the place of the log of a closed replica that is lost (storage.ErrLogLost); a
// *ResetError says why not. What the replica promised is in the journal still, but
// for what it had applied. That is committed, so a copy that reaches the commit has
// it. What is behind the copy's end may be committed thanks to this replica: it stays
// in the tail, if the tail has the copy's last entry; if it does not, nothing behind it
// is in the committed log (see CheckReset).
func CheckRestore(st storage.ReplicaState, begin Begin) error {
	_, err := CheckReset(st, begin)
	return err
}

// restoreFrames is resetFrames for a log that is lost: that the tail has the entry
// does not mean that the log has what is before it.
func restoreFrames(st storage.ReplicaState, b *Begin, term Term) (storage.ReplicaState, []storage.Frame) {
	var rest []storage.Entry
	if have, ok := durableTerm(&st, b.Index); ok && have == b.Term {
		rest = st.Tail[b.Index-st.Log.LastIndex:]
	}
	after, frames := resetFrames(st, b, term, false)
	if len(rest) == 0 {
		return after, frames
	}
	after.Tail = slices.Clone(rest)
	return after, append(frames, storage.Frame{
		Kind: storage.FrameAppend, Group: st.Group, Replica: st.Replica, Hard: after.Hard, Entries: after.Tail,
	})
}
