package raftlog

import (
	"sync"

	pb "go.etcd.io/raft/v3/raftpb"
)

// inbox is what reached the loop since it last looked. The order between the
// lists means nothing; within a list it is the order of arrival.
type inbox struct {
	messages  []inboundMessage
	notices   []inboundNotice
	proposals []*proposal
	reads     []*read
	applied   []applyDone
	round     *round   // written; at most one is outstanding
	calls     []func() // rare requests, run by the loop
	due       []dueCall
}

// dueCall is a call of Group.OnTurn.
type dueCall struct {
	group *Group
	f     func()
}

// inboundMessage is one raft message for one group of this node.
type inboundMessage struct {
	group *Group
	m     *pb.Message
	size  int64 // bytes of its entries, as counted in Group.unwritten
	node  NodeID
}

// inboundNotice is a notice about a replica of this node or, without a group, a
// stranger to be told of its end: it addressed a replica that is not here.
type inboundNotice struct {
	group *Group
	notice
	node NodeID
}

func (b *inbox) empty() bool {
	return len(b.messages) == 0 && len(b.notices) == 0 && len(b.proposals) == 0 && len(b.reads) == 0 &&
		len(b.applied) == 0 && b.round == nil && len(b.calls) == 0 && len(b.due) == 0
}

// reset forgets everything and keeps the memory.
func (b *inbox) reset() {
	clear(b.messages)
	clear(b.notices)
	clear(b.proposals)
	clear(b.reads)
	clear(b.applied)
	clear(b.calls)
	b.messages, b.notices = b.messages[:0], b.notices[:0]
	b.proposals, b.reads = b.proposals[:0], b.reads[:0]
	b.applied, b.round, b.calls = b.applied[:0], nil, b.calls[:0]
}

// mailbox hands inboxes to the loop: many goroutines fill one while the loop
// works on the other. One signal wakes the loop for all that came meanwhile.
type mailbox struct {
	signal chan struct{} // capacity 1
	mu     struct {
		sync.Mutex
		closed bool
		filled *inbox
	}
}

func newMailbox() *mailbox {
	m := &mailbox{signal: make(chan struct{}, 1)}
	m.mu.filled = new(inbox)
	return m
}

// post lets add put something into the inbox. It reports false, without
// calling add, if nobody will look any more.
func (m *mailbox) post(add func(*inbox)) bool {
	m.mu.Lock()
	if m.mu.closed {
		m.mu.Unlock()
		return false
	}
	first := m.mu.filled.empty()
	add(m.mu.filled)
	m.mu.Unlock()
	if first {
		m.wake()
	}
	return true
}

// wake has the loop take a turn.
func (m *mailbox) wake() {
	select {
	case m.signal <- struct{}{}:
	default:
	}
}

// take returns what came and gives spare, which is empty, in exchange. What
// became due since takeDue stays for the next turn.
func (m *mailbox) take(spare *inbox) *inbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	full := m.mu.filled
	spare.due, full.due = full.due, nil
	m.mu.filled = spare
	if len(spare.due) > 0 { // and whoever posts next does not come first
		m.wake()
	}
	return full
}

// takeDue returns what is to be called before the rest is taken, and gives spare,
// which is empty, in exchange.
func (m *mailbox) takeDue(spare []dueCall) []dueCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	due := m.mu.filled.due
	m.mu.filled.due = spare
	return due
}

// close refuses all later posts and returns what was not looked at.
func (m *mailbox) close() *inbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.closed = true
	rest := m.mu.filled
	m.mu.filled = new(inbox)
	return rest
}
