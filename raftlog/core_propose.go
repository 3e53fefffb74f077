package raftlog

import (
	"errors"

	"github.com/stelelog/stele/storage"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

var (
	// ErrTransferring refuses proposals while leadership is being handed over.
	// It comes as Retry.
	ErrTransferring = errors.New("raftlog: leadership is being handed over")
	// ErrNoTarget says that no voter could take over leadership. It comes as Retry.
	ErrNoTarget = errors.New("raftlog: no voter to hand leadership to")
	// ErrEmptyProposal refuses a proposal without data: entries without data
	// are raft's own. It comes as Refused.
	ErrEmptyProposal = errors.New("raftlog: empty proposal")
)

// MaxProposalBytes is the largest proposal, in bytes. An entry that is in a
// leader's log must reach every replica, and every replica must be able to
// apply it, so it has to fit, alone, into a transport's frame (32 MiB) and a
// partition log's (storage.MaxFramePayload). Larger ones are refused where they
// are proposed, and not taken in from other nodes.
const MaxProposalBytes = 24 << 20

// checkSize refuses what is too large, for good.
func checkSize(data []byte) error {
	if len(data) > MaxProposalBytes {
		return Refused(&TooLargeError{Size: len(data), Max: MaxProposalBytes})
	}
	return nil
}

// proposalTracker follows what this replica proposed from its acceptance to its
// place in the log, and from there to its application.
//
// An id moves from queued to unplaced to placed, and leaves through an event
// or as an owner in Effects. Placing needs no guess: entries of the leader's
// term above its last Ready can only be its own, in the order of proposal.
type proposalTracker struct {
	entries  []*pb.Entry  // accepted, to be stepped together by flush
	ids      []ProposalID // of entries; emptyEntry and changeEntry are nobody's
	unplaced []ProposalID // in raft's log, index not yet seen
	base     Index        // end of the log before the first of unplaced
	term     Term         // of unplaced
	placed   []placement  // by index

	// uncommitted counts the bytes proposed in the term that this replica leads
	// and not yet applied, so that what is over the limit is refused before it
	// is copied. raft's own count is never higher.
	uncommitted int
	leading     Term // 0: not a leader

	transferee ReplicaID
	events     []ProposalEvent
}

type placement struct {
	id    ProposalID
	index Index
	term  Term
}

func (p *proposalTracker) waiting() bool { return len(p.entries) > 0 || len(p.events) > 0 }

// queue has flush append an entry.
func (p *proposalTracker) queue(id ProposalID, e *pb.Entry) {
	p.uncommitted += len(e.GetData())
	p.entries, p.ids = append(p.entries, e), append(p.ids, id)
}

// nobodys reports whether an id stands for an entry that nobody proposed.
func nobodys(id ProposalID) bool { return id == emptyEntry || id == changeEntry }

func (p *proposalTracker) refuse(id ProposalID, err error) {
	if nobodys(id) {
		return
	}
	p.events = append(p.events, ProposalEvent{ID: id, State: ProposalRefused, Err: err})
}

func (p *proposalTracker) lose(id ProposalID, at placement, err error) {
	if nobodys(id) {
		return
	}
	p.events = append(p.events, ProposalEvent{ID: id, State: ProposalLost, Index: at.index, Term: at.term, Err: err})
}

// Propose proposes data, which must not change until the proposal ended.
// What becomes of it comes as ProposalEvents and in Effects.Owners.
func (c *Core) Propose(id ProposalID, data []byte) {
	p := &c.proposals
	switch {
	case c.failed != nil:
		p.refuse(id, Retry(c.failed))
	case len(data) == 0:
		p.refuse(id, Refused(ErrEmptyProposal))
	case len(data) > MaxProposalBytes:
		p.refuse(id, checkSize(data))
	case c.retired:
		p.refuse(id, Retry(ErrRemoved))
	case !c.isLeader():
		p.refuse(id, c.notLeader())
	case c.disk == DiskStalled:
		p.refuse(id, Retry(ErrDiskStalled))
	case c.handingOver():
		p.refuse(id, Retry(ErrTransferring))
	case p.uncommitted > 0 && p.uncommitted+len(data) > c.opts.MaxUncommittedBytes:
		p.refuse(id, Retry(ErrOverloaded))
	default:
		p.queue(id, &pb.Entry{Data: data})
	}
}

// flush gives everything that was proposed since the last Ready to raft at
// once: one append message per follower instead of one per proposal.
func (p *proposalTracker) flush(c *Core) {
	if len(p.entries) == 0 {
		return
	}
	entries, ids := p.entries, p.ids
	p.entries, p.ids = nil, nil
	size := 0
	for _, e := range entries {
		size += len(e.GetData())
	}
	var err error
	c.guard("propose", func() error {
		if c.yielding.resigned {
			err = raft.ErrProposalDropped // what it accepted since the last look, too
			return nil
		}
		err = c.node.Step(&pb.Message{Type: pb.MsgProp.Enum(), From: new(uint64(c.self)), Entries: entries})
		return nil
	})
	switch {
	case c.failed != nil:
		for _, id := range ids {
			p.lose(id, placement{}, Unknown(c.failed))
		}
	case err != nil:
		// Nothing of it is in the log.
		why := p.whyDropped(c)
		p.uncommitted -= size
		for _, id := range ids {
			p.refuse(id, why)
			if id == changeEntry {
				c.changes.refused(why)
			}
		}
	default:
		for i, id := range ids {
			if id == changeEntry && EntryKind(entries[i].GetType()) == storage.EntryNormal {
				// raft put an empty entry in its place, without a word.
				ids[i] = emptyEntry
				c.changes.refused(Retry(ErrChangePending))
			}
		}
		p.unplaced, p.base, p.term = append(p.unplaced, ids...), c.last, c.hard.Term
	}
}

func (p *proposalTracker) whyDropped(c *Core) error {
	st := c.node.BasicStatus()
	switch {
	case st.RaftState != raft.StateLeader:
		return &NotLeaderError{Group: c.state.Group, Leader: ReplicaID(st.Lead)}
	case st.LeadTransferee != raft.None || c.yielding.resigned:
		return Retry(ErrTransferring)
	default:
		return Retry(ErrOverloaded)
	}
}

// place finds the unplaced proposals among the entries of a Ready. Those that
// are not there were cut off by another leader before they were written.
func (p *proposalTracker) place(c *Core, entries []*pb.Entry) {
	for _, e := range entries {
		if len(p.unplaced) == 0 {
			return
		}
		at := placement{id: p.unplaced[0], index: Index(e.GetIndex()), term: Term(e.GetTerm())}
		theirs := len(e.GetData()) > 0 && EntryKind(e.GetType()) == storage.EntryNormal
		if at.index <= p.base || at.term != p.term || theirs == nobodys(at.id) {
			continue
		}
		p.unplaced = p.unplaced[1:]
		switch at.id {
		case emptyEntry:
		case changeEntry:
			c.changes.placed(e)
		default:
			p.placed = append(p.placed, at)
			p.events = append(p.events, ProposalEvent{ID: at.id, State: ProposalPlaced, Index: at.index, Term: at.term})
		}
	}
	for _, id := range p.unplaced {
		p.lose(id, placement{term: p.term}, Unknown(ErrLeadershipLost))
	}
	p.unplaced = nil
}

// settle ends what lost its leader. Placed proposals at or below commit stay:
// the state machine is about to tell what stands in their places. But while the
// disk is stalled that may be never: what is not durable here is not applied.
func (p *proposalTracker) settle(c *Core) {
	if !c.isLeader() || c.failed != nil {
		p.uncommitted, p.leading, p.transferee = 0, 0, 0
		c.yielding.resigned = false
	} else if p.leading != c.hard.Term {
		p.uncommitted, p.leading = 0, c.hard.Term
	}
	if p.transferee != 0 {
		p.noteTransfer(c)
	}
	if c.isLeader() {
		return // it lost nothing of this term, and earlier ones were settled
	}
	cause, stalled := ErrLeadershipLost, c.disk == DiskStalled
	if stalled {
		cause = ErrDiskStalled
	}
	kept := p.placed[:0]
	for _, at := range p.placed {
		if at.index <= c.hard.Commit && !stalled {
			kept = append(kept, at)
		} else {
			p.lose(at.id, at, Unknown(cause))
		}
	}
	p.placed = kept
}

// noteTransfer learns who is to take over, and that nobody is any more.
func (p *proposalTracker) noteTransfer(c *Core) {
	c.guard("status", func() error {
		p.transferee = ReplicaID(c.node.BasicStatus().LeadTransferee)
		return nil
	})
}

// owner returns the proposal that became the entry, or 0.
func (p *proposalTracker) owner(index Index, term Term) ProposalID {
	for len(p.placed) > 0 && p.placed[0].index <= index {
		at := p.placed[0]
		p.placed = p.placed[1:]
		if at.index == index && at.term == term {
			return at.id
		}
		p.lose(at.id, at, Retry(ErrReplaced))
	}
	return 0
}

// applied gives bytes back.
func (p *proposalTracker) applied(entries []*pb.Entry) {
	for _, e := range entries {
		if Term(e.GetTerm()) == p.leading {
			p.uncommitted -= len(e.GetData())
		}
	}
}

// fail ends everything: what is in the log may yet be committed by others.
func (p *proposalTracker) fail(err error) {
	for _, id := range p.ids {
		p.refuse(id, Retry(err))
	}
	for _, id := range p.unplaced {
		p.lose(id, placement{term: p.term}, Unknown(err))
	}
	for _, at := range p.placed {
		p.lose(at.id, at, Unknown(err))
	}
	p.entries, p.ids, p.unplaced, p.placed = nil, nil, nil, nil
}
