package raftlog

import (
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// transfer begins a hand-over.
func (l *loop) transfer(g *Group, to ReplicaID, t *transfer) {
	if !g.loop.open(l) {
		t.done <- Retry(ErrClosed)
		return
	}
	if err := g.loop.core.Transfer(to); err != nil {
		t.done <- l.withNode(g, err)
		return
	}
	g.loop.transfers = append(g.loop.transfers, t)
	l.touch(g)
}

// resign begins the end of a leadership.
func (l *loop) resign(g *Group, successors []ReplicaID, t *transfer) {
	if !g.loop.open(l) {
		t.done <- Retry(ErrClosed)
		return
	}
	if err := g.loop.core.Resign(successors...); err != nil {
		t.done <- l.withNode(g, err)
		return
	}
	g.loop.transfers = append(g.loop.transfers, t)
	l.touch(g)
}

// checkTransfers ends hand-overs that succeeded or were given up.
func (l *loop) checkTransfers(g *Group) {
	s := g.loop.core.Status()
	var err error
	switch {
	case s.Role == RoleResigned:
		err = Retry(g.loop.core.Failed())
	case s.Role.IsLeader() && s.Transferee != 0:
		return
	case s.Role.IsLeader():
		err = Retry(ErrTransferFailed)
	}
	kept := g.loop.transfers[:0]
	for _, t := range g.loop.transfers {
		switch {
		case !t.resign || !s.Role.IsLeader():
			t.done <- err
		case g.loop.core.yielding.resigned:
			kept = append(kept, t)
		default: // no other voter is left
			t.done <- Retry(ErrNoTarget)
		}
	}
	clear(g.loop.transfers[len(kept):])
	g.loop.transfers = kept
}

// changeCall is a call of ChangeMembers.
type changeCall struct{ done chan error }

// changeMembers gives a change to the core.
func (l *loop) changeMembers(g *Group, ch Change, call *changeCall) {
	if !g.loop.open(l) {
		call.done <- Retry(ErrClosed)
		return
	}
	g.loop.lastProposal++
	g.loop.changes[g.loop.lastProposal] = call
	g.loop.core.Change(g.loop.lastProposal, ch)
	l.touch(g)
}

func (l *loop) changeEvent(g *Group, e ChangeEvent) {
	if call := g.loop.changes[e.ID]; call != nil {
		delete(g.loop.changes, e.ID)
		call.done <- l.withNode(g, e.Err)
	}
}

// behind tells a replica that it needs a snapshot.
func (l *loop) behind(g *Group, r ReplicaID) {
	if node := g.node(r); node != 0 {
		core := g.loop.core
		l.out.notify(node, notice{
			kind: noticeBehind, group: g.id, from: g.replica, to: r, term: core.hard.Term, start: core.tail.start,
		})
	}
}

// notice takes in what another node says about a replica here.
func (l *loop) notice(n inboundNotice) {
	g := n.group
	if g == nil {
		l.stranger(n.node, n.notice)
		return
	}
	if !g.loop.open(l) {
		return
	}
	switch core := g.loop.core; {
	case n.kind == noticeBehind:
		l.touch(g)
		if !core.NeedsSnapshot(n.from, n.term, n.start) || g.onBehind == nil {
			return
		}
		var err error
		func() {
			defer recoverInto(&err, "OnBehind")
			g.onBehind(n.node)
		}()
		if err != nil {
			l.failGroup(g, err)
		}
	case n.kind == noticeRemoved && !core.retired && core.Failed() == nil && l.believes(g):
		g.logger().Info("this replica was removed from its group", zap.Stringer("told by", n.node))
		core.Remove()
		l.touch(g)
	}
}

// believes reports whether what a replica is told of its removal is enough. It is not
// for that of a partition: who tells may go by metadata that are damaged. This node's
// own will say so, too, if it is true. Of the metadata's own group a node that was
// removed hears nothing more by itself.
func (l *loop) believes(g *Group) bool {
	return g.id == MetadataGroup || l.h.cfg.Removed == nil || l.h.cfg.Removed(g.id, g.replica)
}

// askAgain is how long a stranger is not asked about again, and askedAtMost how
// many are remembered.
const (
	askAgain    = time.Second
	askedAtMost = 1024
)

// stranger has a replica that is in no configuration known here told that it
// was removed, if it was.
func (l *loop) stranger(node NodeID, n notice) {
	every := int((askAgain + l.h.cfg.Tick - 1) / l.h.cfg.Tick)
	if at, ok := l.asked[n.to]; ok && l.ticks-at < every {
		return
	}
	if len(l.asked) >= askedAtMost {
		clear(l.asked)
	}
	l.asked[n.to] = l.ticks
	if l.h.cfg.Removed(n.group, n.to) {
		l.out.notify(node, n)
	}
}

// stray notes that a message came for a replica that is not here, if somebody
// can say whether its sender was removed.
func (h *Host) stray(strays []inboundNotice, from NodeID, group GroupID, m *pb.Message) []inboundNotice {
	if h.cfg.Removed == nil || len(strays) > 0 {
		return strays // one for each frame will do
	}
	return append(strays, inboundNotice{
		notice: notice{kind: noticeRemoved, group: group, from: ReplicaID(m.GetTo()), to: ReplicaID(m.GetFrom())}, node: from,
	})
}

// handleNotices takes in a frame of notices.
func (h *Host) handleNotices(from NodeID, frame []byte) {
	all, err := readNotices(frame)
	if err != nil {
		h.stats.framesMalformed.Add(1)
		h.cfg.Logger.Warn("dropped a malformed frame", zap.Stringer("from", from), zap.Error(err))
	}
	for _, n := range all {
		g := h.group(n.to)
		if g == nil || g.id != n.group {
			continue
		}
		if lives := g.node(n.from); n.kind == noticeBehind && lives != 0 && lives != from {
			continue
		}
		h.mailbox.post(func(in *inbox) { in.notices = append(in.notices, inboundNotice{group: g, notice: n, node: from}) })
	}
}
