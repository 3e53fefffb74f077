package topic

import "time"

// recoverLocked begins to send again what failed, once all is answered.
func (l *lane) recoverLocked() {
	l.mu.recovering = true
	l.trouble.Store(l.p.m.cfg.Clock.Now().UnixNano())
	if l.mu.out > 0 || l.mu.running {
		return
	}
	l.mu.running = l.p.spawn(l.recover)
}

// recover waits and sends again, until something is on its way or there is
// nothing left to send.
func (l *lane) recover() {
	for {
		l.mu.Lock()
		pause := l.mu.pause.next()
		l.mu.Unlock()
		l.rest(pause)
		l.mu.Lock()
		if l.mu.ended != nil || l.p.life.Err() != nil {
			l.mu.running = false
			l.mu.Unlock()
			return
		}
		out := l.settleLocked(nil)
		l.mu.recovering = false
		out = l.pumpLocked(out)
		done := !l.mu.recovering || l.mu.out > 0
		if done {
			l.mu.running = false
		}
		l.unlock(out)
		if done {
			return
		}
	}
}

// rest waits, or until this node hears of a change of leader.
func (l *lane) rest(d time.Duration) {
	var changed <-chan struct{}
	if r := l.p.m.replica(l.address); r != nil {
		changed = r.changed.wait()
		if r.leads() {
			changed = nil // it refused for another reason
		}
	}
	timer := l.p.m.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C():
	case <-l.p.life.Done():
	}
}

// settleLocked does what can be done only while nothing is on its way: it ends
// what has waited too long, and numbers flight anew where that is needed.
func (l *lane) settleLocked(out []ending) []ending {
	if l.mu.renew {
		for i := 0; i < len(l.mu.flight); {
			if b := l.mu.flight[i]; b.unknown {
				out = l.removeLocked(out, b, NoOffset, l.mu.last)
			} else {
				i++
			}
		}
		l.renumberLocked(0)
		l.mu.renew = false
		l.mu.identity.used = true
	}
	return l.expireLocked(out)
}

// renumberLocked has all of flight numbered anew when it is sent.
func (l *lane) renumberLocked(next Sequence) {
	l.mu.next = next
	for _, b := range l.mu.flight {
		b.numbered = false
	}
}

// expireLocked ends calls that have waited for a leader for CallTimeout and
// certainly were not appended.
func (l *lane) expireLocked(out []ending) []ending {
	if l.mu.last == nil {
		return out
	}
	limit := l.p.m.cfg.Clock.Now().Add(-l.p.m.cfg.CallTimeout)
	err := l.notTakenLocked(nil)
	out = l.expireFlightLocked(out, limit, err)
	for _, c := range l.mu.queue {
		switch {
		case c == nil || c.isMark():
			continue
		case !c.since.Before(limit):
			return out
		case c.async && len(l.mu.flight) > 0:
			continue // it is not to hear of its end before those
		}
		c.state = callEnded
		out = append(out, ending{c, ended{NoOffset, err}})
		out = append(out, l.leaveLocked(c)...)
	}
	return out
}

// expireFlightLocked is for what was numbered; a batch whose outcome is in doubt
// holds up those behind it.
func (l *lane) expireFlightLocked(out []ending, limit time.Time, err error) []ending {
	for _, b := range l.mu.flight {
		if b.unknown || b.flying {
			return out
		}
	}
	if len(l.mu.flight) == 0 || !l.mu.flight[0].since.Before(limit) {
		return out
	}
	first := l.mu.next
	if b := l.mu.flight[0]; b.numbered { // else all of flight begins at next
		first = b.first
	}
	for len(l.mu.flight) > 0 && l.mu.flight[0].since.Before(limit) {
		out = l.removeLocked(out, l.mu.flight[0], NoOffset, err)
	}
	if l.mu.identity.id != 0 {
		l.renumberLocked(first)
	}
	return out
}
