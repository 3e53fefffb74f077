package raftlog

import "go.uber.org/zap"

// failHost ends all groups: their journal is not to be trusted any more.
func (l *loop) failHost(cause error) {
	err := l.h.fail(cause)
	l.journal.filling.end(err)
	for _, g := range l.groups {
		l.failGroup(g, err)
	}
}

// failGroup takes one group out of service.
func (l *loop) failGroup(g *Group, cause error) {
	if g.loop.open(l) {
		g.loop.core.Fail(cause)
		l.touch(g)
	}
}

// groupFailed ends what waits for a group whose core has failed.
func (l *loop) groupFailed(g *Group, err error) {
	g.loop.freeze()
	g.loop.ended = true
	g.setUnapplied(0)
	g.applier.halt(err)
	l.endWaiting(g, err)
	l.h.stats.groups.Add(-1)
	l.h.stats.groupsFailed.Add(1)
	g.logger().Error("the group failed on this node", zap.Error(err))
}

// endWaiting ends all calls that wait for a group which takes no part any
// more. Proposals that reached its core may be in the log.
func (l *loop) endWaiting(g *Group, err error) {
	for id, p := range g.loop.proposals {
		delete(g.loop.proposals, id)
		p.end(Proposal{Err: Unknown(err)})
	}
	for id, r := range g.loop.reads {
		delete(g.loop.reads, id)
		g.loop.confirmed = append(g.loop.confirmed, r)
	}
	for i, r := range g.loop.confirmed {
		g.loop.confirmed[i] = nil
		r.end(0, Retry(err))
	}
	g.loop.confirmed = g.loop.confirmed[:0]
	for id, ch := range g.loop.changes {
		delete(g.loop.changes, id)
		ch.done <- Unknown(err)
	}
	for i, t := range g.loop.transfers {
		g.loop.transfers[i] = nil
		t.done <- Retry(err)
	}
	g.loop.transfers = g.loop.transfers[:0]
}
