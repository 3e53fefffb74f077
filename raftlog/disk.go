package raftlog

import (
	"fmt"
	"time"

	"go.uber.org/zap"
)

// DiskFullError refuses a proposal of a leader on whose disk less than the
// reserve is left. Nothing happened; it ends when there is room again. It comes
// as Retry.
type DiskFullError struct {
	Left    int64 // bytes that the node can still write
	Reserve int64 // bytes below which it takes no more
}

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("raftlog: the disk is full: %d bytes are left, fewer than the reserve of %d", e.Left, e.Reserve)
}

// Unwrap gives the outcome.
func (e *DiskFullError) Unwrap() error { return ErrRetry }

// scarce: so little is left that appends of other nodes are not taken in either.
func (e *DiskFullError) scarce() bool { return e != nil && e.Left < e.Reserve/4 }

// SetDiskFull tells the host that less than a reserve is left on the node's
// disk, or with nil that there is room again. It does not block; who polls the
// disk calls it at each change.
//
// While it is full, groups refuse proposals with that error, but for those that
// GroupOptions.Essential lets through; each leadership is handed over to a
// voter that has room, if one is found; all else goes on: reads, elections,
// what other leaders send. Below a quarter of the reserve entries of other
// leaders are dropped too: a follower then stands still, and goes on by itself
// when there is room, while a node that fills its disk to the end fails.
func (h *Host) SetDiskFull(full *DiskFullError) {
	h.full.Store(full)
	h.mailbox.post(func(in *inbox) { in.calls = append(in.calls, h.loop.diskChanged) })
}

// Stalled returns for how long, at least, the round of the journal that is
// under way has not returned: 0 if it is not longer than Config.StallTimeout.
func (h *Host) Stalled() time.Duration { return time.Duration(h.stalled.Load()) }

// watchJournal is called at each tick: a round that is under way for too long
// stalls the disk. Ticks are counted, not time, so that a process that was
// stopped does not blame its disk.
func (l *loop) watchJournal() {
	q := &l.journal
	if !q.flying {
		return
	}
	q.flyingTicks++
	late := time.Duration(q.flyingTicks) * l.h.cfg.Tick
	if late < l.h.cfg.StallTimeout {
		return
	}
	first := l.h.stalled.Swap(int64(late)) == 0
	if first {
		l.h.stats.stalls.Add(1)
		l.h.cfg.Logger.Warn("the journal's disk does not answer: the node hands its leaderships over", zap.Duration("for", late))
		l.diskChanged()
	}
}

// journalAnswers is called when a round returned.
func (l *loop) journalAnswers() {
	l.journal.flyingTicks = 0
	if late := l.h.stalled.Swap(0); late != 0 {
		l.h.cfg.Logger.Info("the journal's disk answers again", zap.Duration("after", time.Duration(late)))
		l.diskChanged()
	}
}

// SetDamaged tells the group that some of its log cannot be read on this node, or
// that it can again: meanwhile the replica hands leadership over, and is no target of
// a hand-over; it leads if no other does. It does not block.
func (g *Group) SetDamaged(damaged bool) {
	l := g.host.loop
	g.host.mailbox.post(func(in *inbox) {
		in.calls = append(in.calls, func() {
			if g.loop.damaged = damaged; g.loop.open(l) {
				g.loop.core.SetDisk(l.diskOf(g))
				l.touch(g)
			}
		})
	})
}

// diskOf is what a group's core is told.
func (l *loop) diskOf(g *Group) DiskState {
	if g.loop.damaged && l.disk == DiskGood {
		return DiskDamaged
	}
	return l.disk
}

// diskState is what all cores are told, but for damage.
func (l *loop) diskState() DiskState {
	switch {
	case l.h.stalled.Load() != 0:
		return DiskStalled
	case l.h.full.Load() != nil:
		return DiskFull
	default:
		return DiskGood
	}
}

// diskChanged tells the cores, and the node, what the disk is good for.
func (l *loop) diskChanged() {
	if now := l.diskState(); now != l.disk {
		l.disk = now
		for _, g := range l.groups {
			g.loop.core.SetDisk(l.diskOf(g))
			l.touch(g)
		}
	}
	if f := l.h.cfg.OnDisk; f != nil {
		f()
	}
}
