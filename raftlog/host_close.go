package raftlog

import (
	"context"
	"errors"
	"time"

	"github.com/stelelog/stele/storage"
	"go.uber.org/zap"
)

// flushGroups is up to how many replicas Close leaves a fresh checkpoint for:
// it syncs their logs, one by one.
const flushGroups = 128

// Close stops the host in good order: it resigns every leadership, all at once
// (see Group.Resign), which a dead voter cannot keep it from, for as long as ctx
// and for an election timeout for each voter and two more; writes what waits, and leaves a
// checkpoint if that is cheap, so that the next start reads little. What
// still waits then ends: proposals that reached a log as Unknown, all else as
// Retry, with ErrClosed.
//
// When it returns no goroutine is left and nothing writes to the store any
// more. It waits for a sync, a batch being applied and a callback that are
// under way, whatever ctx says. It is idempotent, and safe beside Abort. The
// error is that of the node, if it failed.
func (h *Host) Close(ctx context.Context) error {
	if h.Failed() == nil {
		h.handOver(ctx)
		h.flush(ctx)
	}
	h.end(ctx.Err() == nil)
	return h.Failed()
}

// Abort stops the host at once, as a crash would: no hand-over and no flush.
// It returns when no goroutine is left and nothing writes any more; a sync, an
// apply and a callback under way are waited for. It is idempotent.
func (h *Host) Abort() {
	h.aborted.Store(true)
	h.end(false)
}

// handOver resigns in every led group.
func (h *Host) handOver(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var waiting []*transfer
	voters := 0
	err := h.call(ctx, func() {
		for _, g := range h.loop.groups {
			if g.loop.leading {
				t := &transfer{done: make(chan error, 1), resign: true}
				voters = max(voters, len(g.loop.core.Status().Conf.Voters))
				h.loop.resign(g, nil, t)
				waiting = append(waiting, t)
			}
		}
	})
	if err != nil {
		return
	}
	limit := h.cfg.Tick * time.Duration(h.cfg.ElectionTicks+1) * time.Duration(voters+2)
	defer h.cfg.Clock.AfterFunc(limit, cancel).Stop()
	for _, t := range waiting {
		select {
		case <-t.done:
		case <-ctx.Done():
			return
		case <-h.loopDone:
			return
		}
	}
}

// flush writes what waits for a round to ride along with.
func (h *Host) flush(ctx context.Context) {
	written := make(chan struct{})
	err := h.call(ctx, func() { h.loop.afterAll(func(error) { close(written) }) })
	if err == nil {
		_, _ = await(ctx, h, written)
	}
}

// end stops the loop and waits for everything. The first one to come decides
// about the checkpoint; all others wait on a channel for it.
func (h *Host) end(flush bool) {
	if !h.ending.CompareAndSwap(false, true) {
		<-h.ended
		return
	}
	defer close(h.ended)
	close(h.stop)
	h.wg.Wait()
	if flush && !h.aborted.Load() && h.Failed() == nil {
		if err := h.loop.leaveCheckpoint(); err != nil {
			h.cfg.Logger.Warn("no checkpoint at the end", zap.Error(err))
		}
	}
}

// exit ends everything that waits, in the loop's last moment.
func (l *loop) exit() {
	defer close(l.h.loopDone)
	l.ticker.Stop()
	close(l.journal.rounds)
	l.rest = l.h.mailbox.close()
	for _, d := range append(l.due, l.rest.due...) {
		l.callOne(d) // all that it may do now is to hear that the host has ended
	}
	l.rest.refuse()
	if l.taken != nil {
		l.taken.refuse()
	}
	for _, g := range l.groups {
		g.applier.halt(ErrClosed)
		l.endWaiting(g, ErrClosed)
	}
	l.journal.filling.end(ErrClosed)
}

// refuse ends the calls that the loop did not come to.
func (b *inbox) refuse() {
	for _, p := range b.proposals {
		if p == nil {
			continue
		}
		err := Retry(ErrClosed)
		if p.err != nil {
			err = p.err
		}
		p.end(Proposal{Err: err})
	}
	for _, r := range b.reads {
		if r != nil {
			r.end(0, Retry(ErrClosed))
		}
	}
}

// leaveCheckpoint rotates and writes the table. Nothing else runs any more.
func (l *loop) leaveCheckpoint() error {
	if r := l.rest.round; r != nil && !r.rotate {
		l.roundDone(r)
	}
	for _, a := range l.rest.applied {
		l.applied(a)
	}
	if l.h.Failed() != nil || l.journal.flying || l.journal.checkpointing || len(l.groups) > flushGroups {
		return l.h.Failed()
	}
	states := l.capture()
	generation, err := l.h.cfg.Store.Rotate(states, nil)
	if err != nil {
		return err
	}
	err = l.h.cfg.Store.Checkpoint(generation, states)
	if logs := (*storage.LogsFailedError)(nil); errors.As(err, &logs) {
		return nil // it is made, and their groups have failed
	}
	return err
}
