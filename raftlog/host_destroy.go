package raftlog

import (
	"context"
	"fmt"

	"github.com/stelelog/stele/internal/proof"
	"github.com/stelelog/stele/storage"
)

// Destroy unlinks the directory of a replica that was set aside, and lets the
// journal forget the replica. p says that it is no more: see package storage,
// which compares. What it returns is what was unlinked, also with an error. The
// replica's id must never be assigned again, which the proof vouches for.
//
// ErrUnknownReplica (Refused): there is nothing to destroy, or no longer. Refused
// too: the proof does not speak of this replica (proof.ErrRefused), or the replica
// was not set aside. Any other error is Retry, or Unknown: then the files are
// gone, and the call is to be repeated until the journal says so, too.
func (h *Host) Destroy(ctx context.Context, r ReplicaID, p proof.Proof) (storage.Destroyed, error) {
	var st storage.ReplicaState
	var err error
	if e := h.call(ctx, func() { st, err = h.loop.setAsideReplica(r) }); e != nil {
		return storage.Destroyed{}, e
	}
	if err != nil {
		return storage.Destroyed{}, err
	}
	done, err := h.cfg.Store.DestroyReplica(p, st, h.cfg.Clock.Now())
	switch {
	case proof.IsRefused(err):
		return done, Refused(err)
	case err != nil:
		return done, Retry(err)
	case len(done.Kept) > 0:
		return done, Retry(fmt.Errorf("raftlog: the files of %v are kept: %s: %s", r, done.Kept[0].Dir, done.Kept[0].Reason))
	}
	answer := make(chan error, 1)
	if err := h.call(ctx, func() { h.loop.destroy(r, func(err error) { answer <- err }) }); err != nil {
		return done, err
	}
	settled, err := await(ctx, h, answer)
	if err != nil {
		return done, err
	}
	return done, settled
}

// setAsideReplica returns a replica that may be destroyed as far as this node is
// concerned.
func (l *loop) setAsideReplica(r ReplicaID) (storage.ReplicaState, error) {
	st, known := l.dormant[r]
	switch {
	case l.parked[r] != nil || l.opening[r] != 0 || l.isOpen(r):
		return st, Refused(fmt.Errorf("%w: %v", ErrReplicaOpen, r))
	case !known:
		return st, Refused(fmt.Errorf("%w: %v", ErrUnknownReplica, r))
	case st.Status != storage.ReplicaSetAside:
		return st, Refused(fmt.Errorf("raftlog: %v was not set aside", r))
	}
	return st, nil
}

// destroy ends a replica in the journal, whose files are gone.
func (l *loop) destroy(r ReplicaID, done func(error)) {
	if under := l.leaving[r]; under != nil {
		under.then = append(under.then, func() { l.destroy(r, done) })
		return
	}
	st, err := l.setAsideReplica(r)
	if err == nil && l.h.Failed() != nil {
		err = Retry(l.h.Failed())
	}
	if err != nil {
		done(err)
		return
	}
	under := &leaving{forEver: true, done: []func(error){done}}
	l.leaving[r] = under
	l.journal.filling.frames = append(l.journal.filling.frames, storage.Frame{
		Kind: storage.FrameDestroyed, Group: st.Group, Replica: r,
	})
	l.afterAll(func(err error) {
		delete(l.leaving, r)
		if err == nil {
			delete(l.dormant, r)
		} else {
			err = Unknown(err)
		}
		under.end(err)
	})
}
