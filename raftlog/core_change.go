package raftlog

import (
	"math"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"
)

// ChangeEvent ends a change of the configuration. Err is nil when it is applied
// here, left if it was joint, and durably known to a quorum of the new
// configuration: whom it removed may be shut down, the others elect without it. Else nothing
// happened, now (Retry) or ever (Refused), or leadership was lost first and
// Status.Conf tells (Unknown).
type ChangeEvent struct {
	ID  ProposalID
	Err error
}

// changeTracker follows the change of the configuration that is under way on a
// leader: queued, placed in its log, applied, left, known to a quorum.
//
// raft drops a change that comes while another one is not applied, without a
// word, and puts an empty entry in its place. So there is one at a time here,
// and its place is looked at.
type changeTracker struct {
	wish    ChangeID // of the newest that was queued; zero: a leave
	queued  bool     // it is, or its place was not seen yet
	index   Index    // its place
	applied int      // tick at which the configuration last changed
	offered bool     // it takes this leader out, and leadership was offered
	waiting []waitingChange
	events  []ChangeEvent
}

// wishesKept is how many wishes a replica knows to be fulfilled.
const wishesKept = 32

type waitingChange struct {
	id   ProposalID
	wish ChangeID
}

// In the queue of proposals these two stand for entries that nobody proposed:
// an empty one, and one that changes the configuration.
const (
	emptyEntry  ProposalID = 0
	changeEntry ProposalID = math.MaxUint64
)

// Change proposes a change of the configuration; id is as in Propose. What
// becomes of it comes as a ChangeEvent. A leader that has applied an entry of
// its term takes one at a time. A wish that is under way, or is among the last
// that were applied here, is followed and not proposed again.
func (c *Core) Change(id ProposalID, ch Change) {
	k := &c.changes
	if err := c.mayChange(); err != nil {
		k.end(id, err)
		return
	}
	wait := waitingChange{id, ch.ID}
	if known := ch.ID != (ChangeID{}); known && (slices.Contains(c.wishes, ch.ID) || k.pending(c) && k.wish == ch.ID) {
		k.waiting = append(k.waiting, wait)
		k.settle(c) // perhaps it is done
		return
	}
	if c.applied < c.termStart || !c.leaderActive() { // raft itself waits for what its log held when it won
		k.end(id, Retry(ErrNotActive))
		return
	}
	if k.pending(c) || isJoint(c.conf) {
		k.end(id, Retry(ErrChangePending))
		return
	}
	data, err := c.encodeChange(&ch)
	if err != nil {
		k.end(id, err)
		return
	}
	// Not bounded by MaxUncommittedBytes: a change is small and there is one.
	k.waiting = append(k.waiting, wait)
	c.queueChange(ch.ID, data)
}

// mayChange says why this replica takes no change at all, or nil.
func (c *Core) mayChange() error {
	switch {
	case c.failed != nil:
		return Retry(c.failed)
	case c.retired:
		return Retry(ErrRemoved)
	case !c.isLeader():
		return c.notLeader()
	case c.disk == DiskStalled:
		return Retry(ErrDiskStalled)
	case c.handingOver():
		return Retry(ErrTransferring)
	}
	return nil
}

// encodeChange makes the entry of a change that is valid in the configuration
// as it is, by our rules and by raft's.
func (c *Core) encodeChange(ch *Change) ([]byte, error) {
	if err := ch.check(c.state.Group, c.conf, c.self); err != nil {
		return nil, err
	}
	data, err := ch.encode()
	if err == nil {
		var cc *pb.ConfChangeV2
		if cc, err = decodeConfChange(&pb.Entry{Type: pb.EntryConfChangeV2.Enum(), Data: data}); err == nil {
			_, err = changeConf(c.conf, c.last, cc)
		}
	}
	if err != nil {
		return nil, &ChangeError{Group: c.state.Group, Reason: err.Error()}
	}
	return data, nil
}

func (c *Core) queueChange(wish ChangeID, data []byte) {
	c.changes.wish, c.changes.queued = wish, true
	c.proposals.queue(changeEntry, &pb.Entry{Type: pb.EntryConfChangeV2.Enum(), Data: data})
}

// pending reports whether a change that this leader queued is not applied.
func (k *changeTracker) pending(c *Core) bool { return k.queued || k.index > c.applied }

func (k *changeTracker) end(id ProposalID, err error) {
	k.events = append(k.events, ChangeEvent{ID: id, Err: err})
}

// endWish ends all that wait for the change that is under way.
func (k *changeTracker) endWish(wish ChangeID, err error) {
	kept := k.waiting[:0]
	for _, w := range k.waiting {
		if w.wish == wish {
			k.end(w.id, err)
		} else {
			kept = append(kept, w)
		}
	}
	k.waiting = kept
}

// refused: nothing of it is in the log.
func (k *changeTracker) refused(err error) {
	k.queued = false
	k.endWish(k.wish, err)
}

// placed sees the entry that the change became.
func (k *changeTracker) placed(e *pb.Entry) { k.queued, k.index = false, Index(e.GetIndex()) }

// confPending reports whether the leader's log has, or may have, a change that
// is not applied.
func (c *Core) confPending() bool {
	return c.isLeader() && (c.termStart == 0 || c.applied < c.termStart || c.changes.pending(c))
}

// settle ends the changes that are done, or that lost their leader.
func (k *changeTracker) settle(c *Core) {
	switch {
	case c.failed != nil:
		return
	case !c.isLeader():
		k.lose(Unknown(ErrLeadershipLost))
		k.wish, k.queued, k.index, k.offered = ChangeID{}, false, 0, false
	case len(k.waiting) > 0 && c.confSafe():
		for _, wish := range c.wishes {
			k.endWish(wish, nil)
		}
	}
}

func (k *changeTracker) lose(err error) {
	for _, w := range k.waiting {
		k.end(w.id, err)
	}
	k.waiting = k.waiting[:0]
}

// confApplied notes that the configuration changed, or that an entry that was
// to change it was not valid where it came to be applied.
func (c *Core) confApplied(p *pendingConf) {
	if p.change == nil {
		if p.index == c.changes.index {
			err := &ChangeError{Group: c.state.Group, Reason: "it was not valid any more when it was applied"}
			c.changes.endWish(c.changes.wish, err)
		}
		return
	}
	c.conf, c.confIndex = p.conf, p.index
	c.changes.applied, c.changes.offered = c.ticks, false
	if p.wish != (ChangeID{}) {
		if len(c.wishes) == wishesKept {
			c.wishes = slices.Delete(c.wishes, 0, 1)
		}
		c.wishes = append(c.wishes, p.wish)
	}
	if c.isLeader() {
		// Whoever has the next entry knows that the change is committed: what
		// brings it there says so, and one frame holds both.
		c.echo = c.last + 1
	}
}

// confSafe reports whether a quorum has durably committed the entry that made
// the configuration, and it is not joint.
func (c *Core) confSafe() bool {
	return c.isLeader() && c.echo != 0 && c.hard.Commit >= c.echo && !isJoint(c.conf)
}

// unsettled calls see with each voter that is not known to have durably
// committed the entry that made the configuration.
func (c *Core) unsettled(see func(ReplicaID)) {
	for _, list := range [2][]ReplicaID{c.conf.Voters, c.conf.VotersOutgoing} {
		for _, r := range list {
			has := c.tail.last()
			if r != c.self {
				has = c.contacts.match(r)
			}
			if c.echo == 0 || has < c.echo {
				see(r)
			}
		}
	}
}

// tend has a leader append what nobody proposes: the end of a joint
// configuration, whoever began it, and an entry behind a change that tells
// others of it if no traffic does.
func (c *Core) tend() {
	k, p := &c.changes, &c.proposals
	if !c.leaderActive() || c.applied < c.termStart || k.pending(c) || c.mayChange() != nil {
		return
	}
	if !isJoint(c.conf) {
		if c.last < c.echo && len(p.entries) == 0 {
			p.queue(emptyEntry, &pb.Entry{})
		}
		return
	}
	// A leader that is on its way out hands over first, if somebody is there to
	// take over: raft's own way is to step down and to leave the rest to an
	// election. Nobody takes over who has not applied the change.
	if !slices.Contains(c.conf.Voters, c.self) && !k.offered {
		if c.ticks <= k.applied+1 {
			return
		}
		k.offered = true
		if to := c.bestSuccessor(); to != 0 && c.Transfer(to) == nil {
			return
		}
	}
	c.queueChange(ChangeID{}, nil)
}

func isJoint(c ConfState) bool { return len(c.VotersOutgoing) > 0 }
