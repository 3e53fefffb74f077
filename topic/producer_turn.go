package topic

// pumpSoonLocked has what may be sent to a leader on this node sent in the next
// turn of the node's loop, and not at once: what is produced until then joins the
// batch. A loop with nothing to do takes its turn right away, so one record alone
// does not wait; a busy one has more in each batch. Forming a batch as soon as
// one might be sent makes batches that then wait for the loop with what they
// have: a half to a quarter as many records each, it was measured, with 512 in
// flight over 1, 16 and 128 partitions.
//
// To another node a batch is sent at once: there is one on its way at a time, and
// the next one fills behind it.
func (l *lane) pumpSoonLocked(out []ending) []ending {
	if l.mu.ended != nil || l.mu.recovering {
		return out // the end has told all, and recover pumps
	}
	out = l.passLocked(out)
	if l.mu.due || l.fullLocked() || len(l.mu.queue) == 0 && l.unsentLocked() == nil {
		return out
	}
	if to := l.p.m.leaderOf(l.address, l.place); to.here != nil && to.here.group.OnTurn(l.onTurn) {
		l.mu.due = true
		return out
	}
	return l.pumpLocked(out)
}

// turn is called by the loop, which must not wait until a batch is compressed,
// nor for the lock of a lane that does that.
func (l *lane) turn() {
	if l.p.cfg.Codec == CodecNone || !l.p.spawn(l.pump) {
		l.pump()
	}
}

func (l *lane) pump() {
	l.mu.Lock()
	l.mu.due = false
	l.unlock(l.pumpLocked(nil))
}
