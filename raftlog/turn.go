package raftlog

import "time"

// OnTurn has the host's loop call f once, right before it next takes in
// proposals: what f proposes is taken in by that same turn. So who has more to
// propose all the time can wait with putting it together until somebody is ready
// to take it, and meanwhile put more into it. The way over a timer, or over
// proposing at once what there is, was measured to make more and smaller
// entries, and each costs a frame in every journal and an apply on every
// replica.
//
// False, and f is never called, once the host has ended; what was accepted
// before is called even then, and also if the group has failed or was closed.
// All groups of the node wait for f: it must not block, and take
// microseconds. One that panics fails the group.
func (g *Group) OnTurn(f func()) bool {
	return g.host.mailbox.post(func(in *inbox) { in.due = append(in.due, dueCall{g, f}) })
}

// maxDue is how long a turn goes on calling what is due: ticks and heartbeats
// of other groups wait behind it. The rest comes in the next turn.
const maxDue = 2 * time.Millisecond

// callDue calls what waits for this turn.
func (l *loop) callDue() {
	if len(l.due) == 0 {
		l.due = l.h.mailbox.takeDue(l.due)
		if len(l.due) == 0 {
			return
		}
	}
	began := l.h.cfg.Clock.Now()
	for i := range l.due {
		d := l.due[i]
		l.due[i] = dueCall{}
		l.callOne(d)
		if i+1 < len(l.due) && l.h.cfg.Clock.Now().Sub(began) > maxDue {
			n := copy(l.due, l.due[i+1:])
			clear(l.due[n:])
			l.due = l.due[:n]
			l.h.mailbox.wake()
			return
		}
	}
	l.due = l.due[:0]
}

func (l *loop) callOne(d dueCall) {
	var err error
	func() {
		defer recoverInto(&err, "OnTurn")
		d.f()
	}()
	if err != nil {
		l.failGroup(d.group, err)
	}
}
