package raftlog

import (
	"encoding/binary"

	"go.etcd.io/raft/v3"
)

const (
	readRetryTicks = 4  // a round without an answer is asked again, under a new name
	readGiveUp     = 4  // election timeouts after which a read fails
	readNameBytes  = 16 // nonce of the process, number of the round
)

// readRounds runs ReadIndex rounds: at most one at a time, for all reads that came
// before it started, each try under a name of its own, because an answer that
// was delayed must not confirm a later read.
type readRounds struct {
	nonce   uint64
	round   uint64
	active  bool
	asked   int // tick of the last try
	leader  ReplicaID
	term    Term
	inRound []waitingRead
	queued  []waitingRead
	events  []ReadEvent
}

type waitingRead struct {
	id    ReadID
	since int // tick
}

// Read asks for an index that covers everything acknowledged before the call.
// The answer comes as a ReadEvent.
func (c *Core) Read(id ReadID) {
	r := &c.reads
	if c.failed != nil {
		r.events = append(r.events, ReadEvent{ID: id, Err: Retry(c.failed)})
		return
	}
	if c.retired {
		r.events = append(r.events, ReadEvent{ID: id, Err: Retry(ErrRemoved)})
		return
	}
	r.queued = append(r.queued, waitingRead{id: id, since: c.ticks})
}

func (r *readRounds) waiting(c *Core) bool {
	return len(r.events) > 0 || !r.active && len(r.queued) > 0 && r.mayAsk(c)
}

// mayAsk: a leader answers only once it has committed in its own term, for it
// may be behind what was acknowledged before; raft itself skips that check
// with one voter. Others need a leader to ask.
func (r *readRounds) mayAsk(c *Core) bool {
	if c.isLeader() {
		return c.leaderActive()
	}
	return c.soft.Lead != raft.None
}

// start begins a round if reads wait and none is under way.
func (r *readRounds) start(c *Core) {
	if c.failed != nil || r.active || len(r.queued) == 0 || !r.mayAsk(c) {
		return
	}
	r.inRound, r.queued = append(r.inRound, r.queued...), r.queued[:0]
	r.ask(c)
}

func (r *readRounds) ask(c *Core) {
	r.active, r.asked = true, c.ticks
	r.leader, r.term = ReplicaID(c.soft.Lead), c.hard.Term
	r.round++
	c.guard("read index", func() error {
		c.node.ReadIndex(r.name())
		return nil
	})
}

func (r *readRounds) name() []byte {
	b := make([]byte, 0, readNameBytes)
	b = binary.BigEndian.AppendUint64(b, r.nonce)
	return binary.BigEndian.AppendUint64(b, r.round)
}

// confirmed takes an answer, if it is one to the round under way.
func (r *readRounds) confirmed(rs raft.ReadState) {
	if !r.active || string(rs.RequestCtx) != string(r.name()) {
		return
	}
	for _, rd := range r.inRound {
		r.events = append(r.events, ReadEvent{ID: rd.id, Index: Index(rs.Index)})
	}
	r.active, r.inRound = false, r.inRound[:0]
}

// settle puts a round back whose leader is gone.
func (r *readRounds) settle(c *Core) {
	if r.active && (r.leader != ReplicaID(c.soft.Lead) || r.term != c.hard.Term) {
		r.active = false
		r.queued = append(r.inRound, r.queued...)
		r.inRound = nil
	}
}

// tick asks again and gives up. A leader never asks itself twice: its round is
// in every heartbeat already, and raft would keep each try.
func (r *readRounds) tick(c *Core) {
	if r.active && !c.isLeader() && c.ticks-r.asked >= readRetryTicks {
		r.active = false
		r.queued = append(r.inRound, r.queued...)
		r.inRound = nil
	}
	limit := c.ticks - readGiveUp*c.opts.ElectionTicks
	r.inRound = r.expire(c, r.inRound, limit)
	r.queued = r.expire(c, r.queued, limit)
	if len(r.inRound) == 0 && !c.isLeader() {
		r.active = false
	}
}

func (r *readRounds) expire(c *Core, list []waitingRead, limit int) []waitingRead {
	kept := list[:0]
	for _, rd := range list {
		if rd.since > limit {
			kept = append(kept, rd)
			continue
		}
		r.events = append(r.events, ReadEvent{ID: rd.id, Err: c.notLeader()})
	}
	return kept
}

func (r *readRounds) fail(err error) {
	for _, list := range [][]waitingRead{r.inRound, r.queued} {
		for _, rd := range list {
			r.events = append(r.events, ReadEvent{ID: rd.id, Err: Retry(err)})
		}
	}
	r.inRound, r.queued, r.active = nil, nil, false
}
