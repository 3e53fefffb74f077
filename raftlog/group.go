package raftlog

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/stelelog/stele/storage"
	"go.uber.org/zap"
)

// Group is one replica of one raft group, open on a host. Its methods are safe
// for concurrent use.
type Group struct {
	host     *Host
	id       GroupID
	replica  ReplicaID
	machine  StateMachine
	ownState bool
	// machineAt is what the state machine had applied when the group was
	// opened; 0 if the log is the state.
	machineAt Index
	onStatus  func(Status)
	onBehind  func(NodeID)
	essential func([]byte) bool
	log       *storage.Log

	peers   atomic.Pointer[[]place] // few, and asked for each message: not a map
	status  atomic.Pointer[Status]
	wanted  atomic.Bool   // somebody looked at status: refresh it at the next tick
	applied atomic.Uint64 // Index: applied, in the log and readable

	uncommitted atomic.Int64 // bytes of proposals that did not end
	unwritten   atomic.Int64 // bytes of entries that are in the mailbox or wait for the journal
	unapplied   atomic.Int64 // bytes of durable, committed entries that wait for the state machine

	applier applier
	loop    groupLoop // of the loop alone
}

// proposalOverhead is what a proposal counts beyond its data, so that many
// small ones are bounded too.
const proposalOverhead = 64

// proposal is a call of Propose on its way. One owner at a time: the mailbox,
// the loop, a batch that is applied. Whoever owns it ends it.
type proposal struct {
	group *Group
	data  []byte
	term  Term  // in which this replica has to lead; 0: in any
	size  int64 // reserved in the budgets
	done  func(Proposal)
	err   error          // refused before it reached the loop
	full  *DiskFullError // refused if this replica leads: the disk is full
}

// end tells the proposer and gives the bytes back.
func (p *proposal) end(r Proposal) {
	g := p.group
	if p.size != 0 {
		g.uncommitted.Add(-p.size)
		g.host.stats.uncommitted.Add(-p.size)
	}
	if r.Err != nil {
		g.host.stats.proposalsFailed.Add(1)
	}
	var err error
	defer func() {
		if err != nil {
			g.failSoon(err)
		}
	}()
	defer recoverInto(&err, "the callback of a proposal")
	p.done(r)
}

// ID is the group's id.
func (g *Group) ID() GroupID { return g.id }

// Replica is the id of this replica.
func (g *Group) Replica() ReplicaID { return g.replica }

// Log is the group's log: committed and applied entries, readable while the
// group is open.
func (g *Group) Log() *storage.Log { return g.log }

// Propose proposes data, which must not change until done was called. It never
// blocks. done is called exactly once, from a goroutine of the host and never
// from within Propose, as soon as the outcome is known: with Err nil once the
// entry was applied here, and so is durable on a quorum. It must not block.
//
// Refused at once with ErrOverloaded, *NotLeaderError, ErrTransferring,
// *DiskFullError or ErrDiskStalled (Retry), and with *TooLargeError beyond MaxProposalBytes or ErrEmptyProposal
// (Refused): nothing happened. After a leadership is lost what waited ends as
// Unknown.
func (g *Group) Propose(data []byte, done func(Proposal)) { g.ProposeIn(0, data, done) }

// ProposeIn is Propose for what is right in one leadership of this replica only: in
// any other term it ends with ErrLeadershipLost (Retry), and nothing happened. Term 0
// is any.
func (g *Group) ProposeIn(term Term, data []byte, done func(Proposal)) {
	p := &proposal{group: g, data: data, term: term, done: done}
	size := int64(len(data) + proposalOverhead)
	p.err = checkSize(data)
	if full := g.host.full.Load(); p.err == nil && full != nil && (g.essential == nil || !g.essential(data)) {
		p.full = full
	}
	if p.err == nil {
		if g.reserve(size) {
			p.size = size
		} else {
			g.host.stats.overloads.Add(1)
			p.err = Retry(ErrOverloaded)
		}
	}
	if !g.host.mailbox.post(func(in *inbox) { in.proposals = append(in.proposals, p) }) {
		// Nobody is left to call back but the caller itself, who may hold
		// locks that done takes.
		go p.end(Proposal{Err: Retry(ErrClosed)})
	}
}

// reserve takes size bytes of the budgets of the group and of the node. What
// comes alone always fits.
func (g *Group) reserve(size int64) bool {
	cfg, node := &g.host.cfg, &g.host.stats.uncommitted
	mine := g.uncommitted.Add(size)
	if mine > cfg.MaxUncommittedBytes && mine != size {
		g.uncommitted.Add(-size)
		return false
	}
	if all := node.Add(size); all > cfg.MaxUncommittedBytesPerNode && all != size {
		node.Add(-size)
		g.uncommitted.Add(-size)
		return false
	}
	return true
}

// read is a call of ReadIndex.
type read struct {
	group     *Group
	index     Index
	err       error
	done      chan struct{} // closed when index or err is set
	abandoned atomic.Bool
}

func (r *read) end(index Index, err error) {
	r.index, r.err = index, err
	close(r.done)
}

// ReadIndex waits until everything that was acknowledged anywhere before the
// call is applied here, and returns an index that covers it. A leader confirms
// with a quorum that it still leads; any other replica asks the leader. It
// fails with Retry when no leader answered within a few election timeouts; if
// ctx ends first the error matches ctx.Err().
func (g *Group) ReadIndex(ctx context.Context) (Index, error) {
	r := &read{group: g, done: make(chan struct{})}
	if !g.host.mailbox.post(func(in *inbox) { in.reads = append(in.reads, r) }) {
		return 0, Retry(ErrClosed)
	}
	select {
	case <-r.done:
		return r.index, r.err
	case <-ctx.Done():
		r.abandoned.Store(true)
		return 0, UnknownCause(ctx)
	}
}

// Status is a snapshot. Role, term, leader and Applied are fresh; what raft
// knows of other replicas may be a tick old, more if nobody asked lately.
// Slices in it are not to be changed.
func (g *Group) Status() Status {
	g.wanted.Store(true)
	s := *g.status.Load()
	s.Applied = Index(g.applied.Load())
	s.Commit, s.Durable, s.Last = max(s.Commit, s.Applied), max(s.Durable, s.Applied), max(s.Last, s.Applied)
	return s
}

// Readable returns the applied index, and whether it may be shown to readers:
// not on a leader that has not committed in its term, nor after a restart
// before a leader taught this replica, because it may be lower than what was
// shown before.
func (g *Group) Readable() (Index, bool) {
	ok := g.status.Load().Readable
	return Index(g.applied.Load()), ok
}

// UpdatePeers replaces the map of who is where. Of replicas that are not in it
// the host learns from their messages: one that joins knows nobody.
func (g *Group) UpdatePeers(peers map[ReplicaID]NodeID) {
	places := make([]place, 0, len(peers))
	for r, node := range peers {
		places = append(places, place{r, node})
	}
	g.peers.Store(&places)
}

// place is where a replica is.
type place struct {
	replica ReplicaID
	node    NodeID
}

// maxPlaces bounds the places of a group's replicas that are learnt.
const maxPlaces = 64

// learnPlace notes where a replica is of which that is not known.
func (g *Group) learnPlace(r ReplicaID, node NodeID) {
	for {
		old := g.peers.Load()
		if r == 0 || len(*old) >= maxPlaces || g.node(r) != 0 {
			return
		}
		places := append(slices.Clone(*old), place{r, node})
		if g.peers.CompareAndSwap(old, &places) {
			return
		}
	}
}

// node returns where a replica is, 0 if that is not known.
func (g *Group) node(r ReplicaID) NodeID {
	for _, p := range *g.peers.Load() {
		if p.replica == r {
			return p.node
		}
	}
	return 0
}

// TransferLeadership hands leadership to another voter, 0: the best prepared.
// It returns nil once this replica leads no more. The error is Retry:
// *NotLeaderError, ErrNoTarget, or ErrTransferFailed when the other did not
// take over within an election timeout. If ctx ends first the hand-over may
// still happen.
func (g *Group) TransferLeadership(ctx context.Context, to ReplicaID) error {
	t := &transfer{done: make(chan error, 1)}
	if err := g.host.call(ctx, func() { g.host.loop.transfer(g, to, t) }); err != nil {
		return err
	}
	return g.awaitEnd(ctx, t.done)
}

// transfer is a call of TransferLeadership or Resign.
type transfer struct {
	done   chan error
	resign bool // it does not end before this replica leads no more
}

// failSoon has the loop fail the group. It may be called from anywhere.
func (g *Group) failSoon(cause error) {
	g.host.mailbox.post(func(in *inbox) {
		in.calls = append(in.calls, func() { g.host.loop.failGroup(g, cause) })
	})
}

func (g *Group) logger() *zap.Logger {
	return g.host.cfg.Logger.With(zap.Stringer("group", g.id), zap.Stringer("replica", g.replica))
}

func (g *Group) String() string { return fmt.Sprintf("%v/%v", g.id, g.replica) }
