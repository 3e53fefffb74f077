package raftlog

import (
	"fmt"

	"github.com/stelelog/stele/storage"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// HasEffects reports whether Effects has something to say.
func (c *Core) HasEffects() bool {
	if len(c.out) > 0 || c.proposals.waiting() || c.reads.waiting(c) ||
		len(c.changes.events) > 0 || len(c.behind.now) > 0 || c.failed != nil && c.status.Role != RoleResigned {
		return true
	}
	if c.failed != nil || !c.dirty {
		return !c.told
	}
	ready := false
	c.guard("ready", func() error {
		ready = c.node.HasReady()
		return nil
	})
	if !ready && c.failed == nil {
		c.dirty = false
		now := c.now()
		return !c.told || c.status.changed(&now)
	}
	return true
}

// Effects collects what is to be done since the last call into e.
func (c *Core) Effects(e *Effects) {
	e.reset()
	c.proposals.flush(c)
	c.reads.start(c)
	c.guard("ready", func() error {
		c.dirty = false
		if c.node.HasReady() {
			return c.collect(e, c.node.Ready())
		}
		return nil
	})
	c.proposals.settle(c)
	c.changes.settle(c)
	c.reads.settle(c)
	c.findBehind()
	if c.failed != nil {
		*e = Effects{Send: e.Send[:0], Proposals: e.Proposals, Reads: e.Reads, Changes: e.Changes, Behind: e.Behind}
	}
	if !c.retired {
		e.Send = append(e.Send, c.out...)
	}
	clear(c.out)
	c.out = c.out[:0]
	e.Proposals = append(e.Proposals, c.proposals.events...)
	c.proposals.events = c.proposals.events[:0]
	e.Reads = append(e.Reads, c.reads.events...)
	c.reads.events = c.reads.events[:0]
	e.Changes = append(e.Changes, c.changes.events...)
	c.changes.events = c.changes.events[:0]
	e.Behind = append(e.Behind, c.behind.now...)
	c.behind.now = c.behind.now[:0]
	e.OlderErr = c.tail.takeOlderErr()
	if now := c.now(); !c.told || c.status.changed(&now) {
		c.told, c.status = true, now
		e.Status = new(now) // a copy, so that now itself needs no memory: most looks change nothing
	}
}

// collect turns one Ready into effects.
func (c *Core) collect(e *Effects, rd raft.Ready) error {
	before := c.hard
	if rd.SoftState != nil {
		c.soft = *rd.SoftState
	}
	if !raft.IsEmptyHardState(rd.HardState) {
		c.hard = fromRaftHard(rd.HardState)
	}
	if n := len(rd.Entries); n > 0 {
		c.last = Index(rd.Entries[n-1].GetIndex())
		c.doubt = min(c.doubt, Index(rd.Entries[0].GetIndex())-1)
	}
	if !raft.IsEmptySnap(rd.Snapshot) {
		return fmt.Errorf("raftlog: raft installed a snapshot that nobody sent")
	}
	c.countBacklog()
	c.noteTermStart(rd.Entries)
	c.taught = c.taught || c.leaderActive()
	c.proposals.place(c, rd.Entries)

	var write, apply *pb.Message
	send := rd.Messages[:0]
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			write = m
		case raft.LocalApplyThread:
			apply = m
		default:
			if !c.yielding.muted {
				send = append(send, m)
			}
		}
	}
	voted := c.hard.Term != before.Term || c.hard.Vote != before.Vote
	if len(rd.Entries) > 0 || c.hard != before {
		c.writeFrame(e, rd.Entries, voted)
	}
	if err := c.release(send, func(p *pendingAppend) bool { return p.vote }); err != nil {
		return err
	}
	if write != nil {
		if err := c.release(write.GetResponses(), func(p *pendingAppend) bool { return p.sync }); err != nil {
			return err
		}
	}
	if apply != nil {
		c.handOut(e, apply.GetEntries())
	}
	for _, rs := range rd.ReadStates {
		c.reads.confirmed(rs)
	}
	return nil
}

// noteTermStart finds the empty entry with which a leader opens its term.
func (c *Core) noteTermStart(entries []*pb.Entry) {
	if !c.isLeader() {
		c.termStart, c.echo = 0, 0
		c.contacts.reset()
		c.behind.reset()
		return
	}
	if c.termStart != 0 {
		return
	}
	for _, en := range entries {
		if Term(en.GetTerm()) == c.hard.Term {
			c.termStart = Index(en.GetIndex())
			c.echo = c.termStart // what was applied before is committed for who has this
			return
		}
	}
}

func (c *Core) writeFrame(e *Effects, entries []*pb.Entry, voted bool) {
	c.seq++
	sync := voted || len(entries) > 0
	e.Append = &Append{
		Seq: c.seq,
		Frame: storage.Frame{
			Kind: storage.FrameAppend, Group: c.state.Group, Replica: c.self,
			Hard: c.hard, Entries: fromRaftEntries(entries),
		},
		Sync: sync,
	}
	c.pending = append(c.pending, pendingAppend{seq: c.seq, hard: c.hard, entries: entries, sync: sync, vote: voted})
}

// release lets messages go once the last pending append that they wait for is
// durable, at once if there is none.
func (c *Core) release(ms []*pb.Message, waits func(*pendingAppend) bool) error {
	if len(ms) == 0 {
		return nil
	}
	if err := c.checkVotes(ms); err != nil {
		return err
	}
	for i := len(c.pending) - 1; i >= 0; i-- {
		if p := &c.pending[i]; waits(p) {
			p.then = append(p.then, ms...)
			return nil
		}
	}
	c.deliver(ms)
	return nil
}

// checkVotes asserts that a vote request finds its own vote durable or on its
// way to the disk, so that release can hold it back: raft hands both out in
// one Ready.
func (c *Core) checkVotes(ms []*pb.Message) error {
	for _, m := range ms {
		if m.GetType() == pb.MsgVote && (Term(m.GetTerm()) != c.hard.Term || c.hard.Vote != c.self) {
			return fmt.Errorf("raftlog: asks for votes in term %d without having voted for itself: %+v", m.GetTerm(), c.hard)
		}
	}
	return nil
}

// deliver sends messages on, those to this replica itself straight to raft.
func (c *Core) deliver(ms []*pb.Message) {
	for _, m := range ms {
		if ReplicaID(m.GetTo()) != c.self {
			c.out = append(c.out, m)
			continue
		}
		c.guard("local step", func() error {
			_ = c.node.Step(m) // refused: this replica is no longer in the configuration
			return nil
		})
	}
}

// Appended tells that the append effects up to seq are durable.
func (c *Core) Appended(seq Seq) {
	for c.failed == nil && len(c.pending) > 0 && c.pending[0].seq <= seq {
		p := c.pending[0]
		c.pending[0] = pendingAppend{}
		c.pending = c.pending[1:]
		c.durable = p.hard
		c.tail.append(p.entries)
		c.countBacklog()
		c.deliver(p.then)
	}
}
