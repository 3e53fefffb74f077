package raftlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/stelelog/stele/storage"
)

// ErrResetHeld is returned by ResetGroup when the replica's log holds the
// snapshot's entry already: the log stays, and leads the state machine there. It
// comes as Refused.
var ErrResetHeld = errors.New("raftlog: the log of the replica holds the snapshot's entry")

// ResetGroup begins the log of a replica anew at a snapshot of its group, which
// its owner has and made durable: at b.Index, with the configuration as of
// exactly that entry. b.Reset is a random id. If the snapshot is files of the
// log, they are staged under that id, and b.Log says where they end. term is
// that of the replica that the snapshot came from, read after it was taken: it
// knew the entry to be committed in that term, so this replica, which will vouch
// for the entry, follows no leader of an earlier one any more.
//
// The replica is closed, if it is open, and has to be opened again. If the
// snapshot is refused before that, it is still open, and OpenGroup says
// ErrReplicaOpen. On nil the reset is durable: a node that is opened again finds
// the replica at b. What its log had is unlinked when it is opened. A term and a
// vote in it are kept, and nothing of the committed log is ever dropped.
//
// Errors: *ResetError, ErrResetHeld, ErrUnknownReplica (Refused: the log is as it
// was); ErrReplicaOpen (Retry: somebody opened it meanwhile); Unknown: ctx, or
// the node, ended before it was known. Then Replicas tells, or the next start.
func (h *Host) ResetGroup(ctx context.Context, r ReplicaID, b Begin, term Term) error {
	if err := h.inLoop(ctx, func(answer chan<- error) { answer <- h.loop.mayReset(r, &b) }); err != nil {
		return err
	}
	if err := h.CloseGroup(ctx, r); err != nil {
		return err
	}
	return h.inLoop(ctx, func(answer chan<- error) {
		h.loop.reset(r, &b, term, func(err error) { answer <- err })
	})
}

// RestoreLog makes a copy of another replica's log, staged like that of a reset, the
// log of a replica that is not open because its own is lost: see CheckRestore. Unlike
// ResetGroup it does not take entries of the journal's tail for a log that leads
// there. On nil the copy is durably the replica's log, which is to be opened then.
//
// Errors: *ResetError, ErrUnknownReplica (Refused: nothing has changed); ErrReplicaOpen
// (Retry); Unknown: ctx, or the node, ended before it was known.
func (h *Host) RestoreLog(ctx context.Context, r ReplicaID, b Begin, term Term) error {
	return h.inLoop(ctx, func(answer chan<- error) {
		h.loop.replaceLog(r, &b, term, true, func(err error) { answer <- err })
	})
}

// inLoop runs f in the loop and waits for the one answer that it gives, then or
// later.
func (h *Host) inLoop(ctx context.Context, f func(answer chan<- error)) error {
	answer := make(chan error, 1)
	if err := h.call(ctx, func() { f(answer) }); err != nil {
		return err
	}
	got, err := await(ctx, h, answer)
	if err != nil {
		return err
	}
	return got
}

// mayReset looks whether a reset would be refused, before anything is closed for
// it. It is asked again once all that is on its way to the disk is there.
func (l *loop) mayReset(r ReplicaID, b *Begin) error {
	st, known := l.dormant[r]
	if g := l.h.group(r); g != nil {
		st, known = g.loop.state(), true
	} else if g := l.parked[r]; g != nil {
		st, known = g.loop.state(), true
	}
	if !known {
		return Refused(fmt.Errorf("%w: %v", ErrUnknownReplica, r))
	}
	held, err := checkReset(st, b)
	if err == nil && held && b.Index <= st.Hard.Commit {
		err = heldError(r, b)
	}
	return err
}

// checkReset is CheckReset and what the journal asks of any reset: what it refuses
// ends the node.
func checkReset(st storage.ReplicaState, b *Begin) (held bool, err error) {
	if err := b.Validate(); err != nil {
		return false, &ResetError{Group: st.Group, Replica: st.Replica, Index: b.Index, Reason: err.Error()}
	}
	return CheckReset(st, *b)
}

func heldError(r ReplicaID, b *Begin) error {
	return Refused(fmt.Errorf("%w: %v at %d", ErrResetHeld, r, b.Index))
}

// reset writes the frames of a reset of a dormant replica; done is called once,
// now or when they are durable.
func (l *loop) reset(r ReplicaID, b *Begin, term Term, done func(error)) {
	l.replaceLog(r, b, term, false, done)
}

// replaceLog is reset; lost: the replica has no log any more.
func (l *loop) replaceLog(r ReplicaID, b *Begin, term Term, lost bool, done func(error)) {
	st, known := l.dormant[r]
	switch {
	case l.h.Failed() != nil:
		done(Retry(l.h.Failed()))
		return
	case l.leaving[r] != nil || l.opening[r] != 0 || l.parked[r] != nil || l.isOpen(r):
		done(Retry(fmt.Errorf("%w: %v", ErrReplicaOpen, r)))
		return
	case !known:
		done(Refused(fmt.Errorf("%w: %v", ErrUnknownReplica, r)))
		return
	}
	held, err := checkReset(st, b)
	if err != nil {
		done(err)
		return
	}
	var after storage.ReplicaState
	var frames []storage.Frame
	if lost {
		held = false
		after, frames = restoreFrames(st, b, term)
	} else {
		after, frames = resetFrames(st, b, term, held)
	}
	l.leaving[r] = &leaving{}
	l.journal.filling.frames = append(l.journal.filling.frames, frames...)
	l.afterAll(func(err error) {
		under := l.leaving[r]
		delete(l.leaving, r)
		if err != nil {
			done(Unknown(err))
			under.end(Unknown(err))
			return
		}
		l.dormant[r] = after
		if held {
			err = heldError(r, b)
		}
		done(err)
		under.end(nil)
	})
}

// resetFrames returns what is to be journalled of a reset, in one round, and what
// it makes of the replica: first the term that it rests on, then the reset; or,
// if the log holds the entry, that it is committed.
func resetFrames(st storage.ReplicaState, b *Begin, term Term, held bool) (storage.ReplicaState, []storage.Frame) {
	var frames []storage.Frame
	hard := st.Hard
	hard.Commit = max(hard.Commit, st.Log.LastIndex)
	if term > hard.Term {
		hard.Term, hard.Vote = term, 0
	}
	if held {
		hard.Commit = max(hard.Commit, b.Index)
	}
	if hard != st.Hard {
		st.Hard = hard
		frames = append(frames, storage.Frame{Kind: storage.FrameAppend, Group: st.Group, Replica: st.Replica, Hard: hard})
	}
	if held {
		return st, frames
	}
	return st.After(b), append(frames, storage.Frame{Kind: storage.FrameReset, Group: st.Group, Replica: st.Replica, Begin: b})
}
