package raftlog

import "slices"

// yieldAgain is how long a leader with a full disk stays, in election timeouts,
// after everybody refused to take over.
const yieldAgain = 20

// yielding is the way out of leadership: of a leader that resigned, or whose
// disk is in no state to lead.
//
// A leader needs no disk to hand over: that its followers' logs are at the end
// of its own is what they said, and MsgTimeoutNow speaks of nothing that has to
// be durable here. It asks one voter after the other, each for an election
// timeout. Then one that resigned falls silent, so that the others elect whom
// they like; as nobody answers it any more its own check of the quorum makes it
// step down. So does one with a stalled disk, already after the first voter that
// did not take over, because it is dead or has troubles of its own; it would
// otherwise lead for ever, since its heartbeats need no disk either. A full
// leader stays for a while, and asks again.
type yielding struct {
	resigned   bool
	successors []ReplicaID // of one that resigned: asked first, in order
	tried      []ReplicaID
	muted      bool
	until      int // tick before which nobody is asked again
}

// Resign ends this replica's leadership of its term. From now on it accepts
// nothing. It hands over to the first of the successors that votes, is not dead
// and takes over, then to the voters that are heard from, the most caught-up
// first. If nobody takes over it falls silent, so that the others elect. It
// leads no more after at most an election timeout for each voter and two more.
//
// The error is *NotLeaderError or, in a group with one voter, ErrNoTarget, both
// Retry. Without one there is no way back.
func (c *Core) Resign(successors ...ReplicaID) error {
	switch {
	case c.failed != nil:
		return Retry(c.failed)
	case !c.status.Role.IsLeader() || c.retired:
		return c.notLeader()
	case !c.othersVote():
		return Retry(ErrNoTarget)
	case c.yielding.resigned:
		return nil
	}
	c.yielding = yielding{resigned: true, successors: slices.Clone(successors), tried: c.yielding.tried[:0]}
	c.dirty = true
	c.yield()
	return nil
}

// handingOver reports whether a leader accepts nothing because it is on its way
// out.
func (c *Core) handingOver() bool { return c.proposals.transferee != 0 || c.yielding.resigned }

// yield takes the next step on the way out of leadership, if there is one to
// take.
func (c *Core) yield() {
	y := &c.yielding
	if c.failed != nil || !c.status.Role.IsLeader() || !y.resigned && c.disk == DiskGood {
		*y = yielding{tried: y.tried[:0]}
		return
	}
	if (y.muted || y.resigned) && !c.othersVote() {
		// A change that was under way took out the last other voter: nobody is left
		// who could elect another leader, or be missed by this one.
		y.muted, y.resigned = false, false
	}
	if y.muted || c.proposals.transferee != 0 || c.ticks < y.until {
		return
	}
	stalled := c.disk == DiskStalled
	if to := c.nextSuccessor(); to != 0 && (!stalled || len(y.tried) == 0) {
		y.tried = append(y.tried, to)
		_ = c.Transfer(to) // refused: the next tick asks another
		return
	}
	if y.resigned && !stalled && len(c.contacts.peers) == 0 {
		return // it has just won, and nobody has answered yet; raft's own check ends that
	}
	if stalled || y.resigned {
		y.muted = c.othersVote()
		y.resigned = y.resigned && y.muted // the last other voter may have gone since
		return
	}
	y.tried, y.until = y.tried[:0], c.ticks+yieldAgain*c.opts.ElectionTicks
}

// nextSuccessor is whom to ask next.
func (c *Core) nextSuccessor() ReplicaID {
	y := &c.yielding
	if len(y.successors) > 0 {
		able := c.able()
		for _, r := range y.successors {
			if !slices.Contains(y.tried, r) && slices.ContainsFunc(able, func(p Progress) bool { return p.Replica == r }) {
				return r
			}
		}
	}
	return c.bestSuccessor(y.tried...)
}

// bestSuccessor is the most caught-up of those that could take over, but for
// some.
func (c *Core) bestSuccessor(except ...ReplicaID) ReplicaID {
	var best Progress
	for _, p := range c.able() {
		if !slices.Contains(except, p.Replica) && (best.Replica == 0 || p.Match > best.Match) {
			best = p
		}
	}
	return best.Replica
}

// able lists who could take over: voters that will stay ones, and were heard
// from lately.
func (c *Core) able() []Progress {
	return slices.DeleteFunc(c.progress(), func(p Progress) bool {
		lively := p.SinceContact >= 0 && p.SinceContact <= c.opts.ElectionTicks
		return p.Replica == c.self || !lively || !slices.Contains(c.conf.Voters, p.Replica)
	})
}

// othersVote reports whether this replica is not the only voter.
func (c *Core) othersVote() bool {
	other := func(r ReplicaID) bool { return r != c.self }
	return slices.ContainsFunc(c.conf.Voters, other) || slices.ContainsFunc(c.conf.VotersOutgoing, other)
}
