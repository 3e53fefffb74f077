package raftlog

import (
	"errors"
	"slices"
)

// DiskState is what a node's disk is good for at the moment, as the driver of
// its cores sees it.
type DiskState uint8

const (
	// DiskGood is a disk that answers and has room.
	DiskGood DiskState = iota
	// DiskFull is a disk whose reserve is touched: it takes what keeps the group
	// alive, and should not take more. The replica hands leadership to one that
	// has room, if there is any, and is no target of a hand-over; it leads if no
	// other does.
	DiskFull
	// DiskStalled is a disk that has not answered a write for long. Nothing that
	// this replica says of its log can leave it, so it must not lead: a leader
	// hands over, or falls silent; any other replica does not campaign, and wins
	// no election.
	DiskStalled
)

// ErrDiskStalled refuses proposals of a leader whose disk does not answer, and
// ends those that it accepted before, once another replica leads. It comes as
// Retry or, for what is in the log, as Unknown.
var ErrDiskStalled = errors.New("raftlog: the disk of the leader does not answer")

// yieldAgain is how long a leader with a full disk stays, in election timeouts,
// after everybody refused to take over.
const yieldAgain = 20

// yielding is the way out of leadership of a replica whose disk is in no state
// to lead.
//
// A leader needs no disk to hand over: that its followers' logs are at the end
// of its own is what they said, and MsgTimeoutNow speaks of nothing that has to
// be durable here. If the chosen one does not take over within an election
// timeout, because it is dead or has troubles of its own, a stalled leader
// falls silent, so that the others elect whom they like; as nobody answers it any
// more its own check of the quorum makes it step down. It would
// otherwise lead for ever, since its heartbeats need no disk either. A full
// leader asks one voter after the other and then stays for a while.
type yielding struct {
	tried []ReplicaID
	muted bool
	until int // tick before which nobody is asked again
}

// SetDisk tells what the disk is good for. It takes effect at once.
func (c *Core) SetDisk(s DiskState) {
	c.disk, c.dirty = s, true
	c.yielding.muted = c.yielding.muted && s == DiskStalled
	c.yield()
}

// yield takes the next step on the way out of leadership, if there is one to
// take.
func (c *Core) yield() {
	y := &c.yielding
	if c.disk == DiskGood || c.failed != nil || !c.status.Role.IsLeader() {
		*y = yielding{tried: y.tried[:0]}
		return
	}
	if y.muted || c.proposals.transferee != 0 || c.ticks < y.until {
		return
	}
	stalled := c.disk == DiskStalled
	if to := c.bestSuccessor(y.tried...); to != 0 && (!stalled || len(y.tried) == 0) {
		y.tried = append(y.tried, to)
		_ = c.Transfer(to) // refused: the next tick asks another
		return
	}
	if stalled {
		y.muted = slices.ContainsFunc(c.progress(), func(p Progress) bool { return p.Replica != c.self && !p.Learner })
		return
	}
	y.tried, y.until = y.tried[:0], c.ticks+yieldAgain*c.opts.ElectionTicks
}
