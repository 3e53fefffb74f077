package raftlog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stelelog/stele/storage"
	"go.uber.org/zap"
)

// CloseGroup takes a replica out of its group's work on this node until it is
// opened again; its journal state is carried on. It waits for the batch that
// its state machine is applying and syncs its log. Closing what is not open is
// no error. If ctx ends first, the group takes no part any more, and another
// call may finish.
func (h *Host) CloseGroup(ctx context.Context, r ReplicaID) error {
	return h.closeGroup(ctx, r, false)
}

// SetAside closes a replica for ever: it will never be opened again, and its
// directory may be moved away once SetAside returned nil, because that is
// durable then. It is idempotent.
func (h *Host) SetAside(ctx context.Context, r ReplicaID) error {
	return h.closeGroup(ctx, r, true)
}

func (h *Host) closeGroup(ctx context.Context, r ReplicaID, forEver bool) error {
	var g *Group
	if err := h.call(ctx, func() { g = h.loop.park(r) }); err != nil {
		return err
	}
	if g != nil {
		select {
		case <-g.applier.halt(ErrClosed):
		case <-ctx.Done():
			return UnknownCause(ctx)
		}
		if e := g.log.Close(); e != nil && !errors.Is(e, storage.ErrClosed) {
			g.logger().Error("the log could not be synced at its close", zap.Error(e))
		}
	}
	answer := make(chan error, 1)
	if err := h.call(ctx, func() { h.loop.settle(r, forEver, func(err error) { answer <- err }) }); err != nil {
		return err
	}
	settled, err := await(ctx, h, answer)
	if err != nil {
		return err
	}
	return settled
}

// Retire tells every replica that is open here that it was removed from its group, as
// Config.Removed does for one: somebody who knows said that this node is out of its
// cluster for good. They take no part any more, and their role is RoleRemoved. It
// returns at once, and does nothing on a host that is closed.
func (h *Host) Retire() {
	h.mailbox.post(func(in *inbox) {
		in.calls = append(in.calls, func() {
			for _, g := range h.loop.groups {
				g.loop.core.Remove()
				h.loop.touch(g)
			}
		})
	})
}

// park takes a group out of all work. It returns nil if it is not open.
func (l *loop) park(r ReplicaID) *Group {
	at := slices.IndexFunc(l.groups, func(g *Group) bool { return g.replica == r })
	if at < 0 {
		return l.parked[r]
	}
	g, end := l.groups[at], len(l.groups)-1
	l.groups[at] = l.groups[end]
	l.groups[at].loop.place = at
	l.groups[end] = nil
	l.groups = l.groups[:end]
	l.parked[r] = g
	l.h.mu.Lock()
	delete(l.h.mu.groups, r)
	l.h.mu.Unlock()
	if g.loop.ended {
		l.h.stats.groupsFailed.Add(-1)
	} else {
		l.h.stats.groups.Add(-1)
	}
	g.setUnapplied(0)
	g.applier.halt(ErrClosed)
	l.endWaiting(g, g.applier.halted()) // what failed just before is why, not the close
	return g
}

// leaving is a replica on its way out, or to another log, until its frames are
// durable. There is one per replica at most: who comes meanwhile joins it.
type leaving struct {
	forEver bool
	done    []func(error)
	then    []func() // that want more than this brings
}

// settle makes a parked replica dormant, or sets a parked or dormant one aside,
// once all its frames are durable.
func (l *loop) settle(r ReplicaID, forEver bool, done func(error)) {
	if under := l.leaving[r]; under != nil {
		if forEver && !under.forEver {
			under.then = append(under.then, func() { l.settle(r, true, done) })
		} else {
			under.done = append(under.done, done)
		}
		return
	}
	st, known := l.dormant[r]
	if g := l.parked[r]; g != nil {
		st, known = g.loop.state(), true
	}
	switch {
	case l.h.Failed() != nil:
		done(Retry(l.h.Failed()))
	case l.opening[r] != 0 || l.isOpen(r):
		// Opened since it was parked for this call, if it was.
		if forEver {
			done(Retry(fmt.Errorf("%w: %v", ErrReplicaOpen, r)))
		} else {
			done(nil)
		}
	case !known && forEver:
		done(Refused(fmt.Errorf("%w: %v", ErrUnknownReplica, r)))
	case !known || st.Status != storage.ReplicaLive || !forEver && l.parked[r] == nil:
		done(nil)
	default:
		l.leave(&st, forEver, done)
	}
}

func (l *loop) isOpen(r ReplicaID) bool {
	return slices.ContainsFunc(l.groups, func(g *Group) bool { return g.replica == r })
}

// leave writes that a replica is set aside, if it is, and waits for what is on
// its way to the disk.
func (l *loop) leave(st *storage.ReplicaState, forEver bool, done func(error)) {
	r, group := st.Replica, st.Group
	under := &leaving{forEver: forEver, done: []func(error){done}}
	l.leaving[r] = under
	if forEver {
		l.journal.filling.frames = append(l.journal.filling.frames, storage.Frame{
			Kind: storage.FrameSetAside, Group: group, Replica: r,
		})
	}
	l.afterAll(func(err error) {
		delete(l.leaving, r)
		if err == nil {
			l.left(r, forEver)
		} else {
			err = Unknown(err)
		}
		under.end(err)
	})
}

// end tells all who wait.
func (u *leaving) end(err error) {
	for _, f := range u.done {
		f(err)
	}
	for _, f := range u.then {
		f()
	}
}

// left makes a replica dormant whose frames are durable.
func (l *loop) left(r ReplicaID, forEver bool) {
	st := l.dormant[r]
	if g := l.parked[r]; g != nil {
		st = g.loop.state()
		delete(l.parked, r)
	}
	if forEver {
		st.Status, st.Tail = storage.ReplicaSetAside, nil
	}
	l.dormant[r] = st
}
