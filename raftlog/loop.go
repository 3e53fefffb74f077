package raftlog

import (
	"errors"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/storage"
	"go.uber.org/zap"
)

// loop steps the cores of all groups of a host. A turn takes in all that came
// since the last one, then looks once at each group that was touched, sends
// one frame to each peer and, if the journal is free, hands it everything that
// waits to be written: work that arrives while the journal syncs shares the
// next sync, without any timer. Nothing in a turn waits for a disk, except for
// bounded reads of entries that a follower far behind needs.
type loop struct {
	h       *Host
	ticker  clock.Ticker
	taken   *inbox    // being worked on
	spare   *inbox    // nil while one is
	due     []dueCall // of Group.OnTurn, to be called before the next inbox is taken
	out     *outbox
	effects Effects
	journal journalQueue
	disk    DiskState // as the cores were told

	groups  []*Group // open
	dirty   []*Group // to be looked at
	clean   []*Group // memory for the next dirty
	ticks   int
	asked   map[ReplicaID]int // strangers, and the tick when Config.Removed was asked
	dormant map[ReplicaID]storage.ReplicaState
	parked  map[ReplicaID]*Group  // closed, but their core still knows more than dormant
	opening map[ReplicaID]GroupID // claimed by an OpenGroup
	leaving map[ReplicaID]*leaving
	rest    *inbox // what came too late
}

// groupLoop is what the loop alone knows of a group.
type groupLoop struct {
	core  *Core
	place int // in loop.groups
	dirty bool
	// frozen is the durable state of a group that failed: its core follows no
	// more, but frames of it may still be on their way to the disk.
	frozen *storage.ReplicaState
	ended  bool // its failure was told to all who waited
	// damaged: see Group.SetDamaged.
	damaged bool

	proposals    map[ProposalID]*proposal
	lastProposal ProposalID
	reads        map[ReadID]*read // in the core
	lastRead     ReadID
	confirmed    []*read // not applied yet
	transfers    []*transfer
	changes      map[ProposalID]*changeCall
	leading      bool

	// Where the last frame of this group is, if it is in round number round.
	round      uint64
	frame, ack int
}

func newLoop(h *Host) *loop {
	l := &loop{
		h: h, ticker: h.cfg.Clock.NewTicker(h.cfg.Tick), spare: new(inbox),
		out:     newOutbox(h.cfg.Sender, h.cfg.MaxFrameBytes, &h.stats),
		journal: newJournalQueue(), asked: map[ReplicaID]int{},
		dormant: map[ReplicaID]storage.ReplicaState{}, parked: map[ReplicaID]*Group{}, opening: map[ReplicaID]GroupID{},
		leaving: map[ReplicaID]*leaving{},
	}
	for _, st := range h.cfg.Store.Replicas() {
		l.dormant[st.Replica] = st
	}
	return l
}

func (l *loop) run() {
	defer l.exit()
	for {
		select {
		case <-l.h.stop:
			return
		case <-l.ticker.C():
			l.safely(l.tick)
		case <-l.h.mailbox.signal:
		}
		l.safely(l.turn)
	}
}

// safely runs f. A panic in it is a bug of the host itself, or of a hook: what
// it left half done must not be written or sent, so the node stops. The next
// turn goes on behind what panicked, and ends everybody who waits.
func (l *loop) safely(f func()) {
	var err error
	func() {
		defer recoverInto(&err, "the loop")
		f()
	}()
	if err == nil {
		return
	}
	l.dirty, l.clean = nil, nil
	for _, g := range l.groups {
		g.loop.dirty = false
	}
	l.failHost(err)
	l.h.mailbox.wake()
}

func (l *loop) tick() {
	if l.h.failed.Load() != nil {
		return
	}
	l.ticks++
	l.journal.idleTicks++
	l.watchJournal()
	for _, g := range l.groups {
		g.loop.core.Tick()
		if g.loop.core.HasEffects() || len(g.loop.transfers) > 0 {
			l.touch(g)
		}
		if g.wanted.Swap(false) {
			s := g.loop.core.Status()
			g.status.Store(&s)
		}
	}
}

// touch has the group looked at in this turn.
func (l *loop) touch(g *Group) {
	if !g.loop.dirty {
		g.loop.dirty = true
		l.dirty = append(l.dirty, g)
	}
}

func (l *loop) turn() {
	l.callDue()
	if l.taken == nil {
		l.taken, l.spare = l.h.mailbox.take(l.spare), nil
	}
	in := l.taken
	l.takeIn(in)
	in.reset()
	l.taken, l.spare = nil, in
	l.look()
	if l.h.failed.Load() == nil {
		l.out.flush()
	}
	l.startRound()
}

// takeIn gives everything to the cores. It strikes out what it begins, so that
// after a panic it can go on; a round that failed may be ended twice.
func (l *loop) takeIn(in *inbox) {
	if in.round != nil {
		l.roundDone(in.round)
		in.round = nil
	}
	for i, a := range in.applied {
		in.applied[i] = applyDone{}
		if a.group != nil {
			l.applied(a)
		}
	}
	for i, m := range in.messages {
		in.messages[i] = inboundMessage{}
		if m.group != nil {
			l.message(m)
		}
	}
	for i, n := range in.notices {
		in.notices[i] = inboundNotice{}
		if n.kind != 0 {
			l.notice(n)
		}
	}
	for i, p := range in.proposals {
		in.proposals[i] = nil
		if p != nil {
			l.propose(p)
		}
	}
	for i, r := range in.reads {
		in.reads[i] = nil
		if r != nil {
			l.read(r)
		}
	}
	for i, f := range in.calls {
		in.calls[i] = nil
		if f != nil {
			f()
		}
	}
}

func (l *loop) message(m inboundMessage) {
	m.group.holdUnwritten(-m.size)
	if m.group.loop.open(l) {
		m.group.loop.core.Step(m.m)
		l.touch(m.group)
		if from := ReplicaID(m.m.GetFrom()); l.h.cfg.Removed != nil && !m.group.loop.core.lists(from) {
			l.stranger(m.node, notice{kind: noticeRemoved, group: m.group.id, from: m.group.replica, to: from})
		}
	}
}

// open reports whether the group takes part.
func (g *groupLoop) open(l *loop) bool {
	return g.place < len(l.groups) && &l.groups[g.place].loop == g
}

// look collects the effects of all groups that were touched. A group that has
// more to say is looked at again in the next turn.
func (l *loop) look() {
	work := l.dirty
	l.dirty = l.clean[:0]
	for i, g := range work {
		work[i] = nil
		g.loop.dirty = false
		if g.loop.open(l) {
			l.lookAt(g)
		}
	}
	l.clean = work
	if len(l.dirty) > 0 {
		l.h.mailbox.wake()
	}
}

func (l *loop) lookAt(g *Group) {
	e, core := &l.effects, g.loop.core
	core.Effects(e)
	if hook := l.h.cfg.StepHook; hook != nil && l.h.failed.Load() == nil {
		hook(core, e)
	}
	if e.Append != nil {
		l.journal.add(g, e.Append)
	}
	for _, m := range e.Send {
		if node := g.node(ReplicaID(m.GetTo())); node != 0 {
			l.out.add(node, g.id, m)
		} else {
			l.h.stats.messagesUnsent.Add(1)
		}
	}
	for i := range e.Proposals {
		l.proposalEvent(g, &e.Proposals[i])
	}
	if len(e.Apply) > 0 {
		g.applier.enqueue(g, l.batch(g, e))
	}
	g.setUnapplied(int64(core.Backlog()))
	for _, r := range e.Reads {
		l.readEvent(g, r)
	}
	for _, ev := range e.Changes {
		l.changeEvent(g, ev)
	}
	for _, r := range e.Behind {
		l.behind(g, r)
	}
	if e.OlderErr != nil {
		g.logger().Warn("a follower that is behind cannot be served", zap.Error(e.OlderErr))
	}
	if e.Status != nil {
		l.statusChanged(g, e.Status)
	}
	if len(g.loop.transfers) > 0 {
		l.checkTransfers(g)
	}
	if err := core.Failed(); err != nil && !g.loop.ended {
		l.groupFailed(g, err)
	} else if core.HasEffects() {
		l.touch(g)
	}
}

// batch is what is to be applied, and who waits for it.
func (l *loop) batch(g *Group, e *Effects) applyBatch {
	b := applyBatch{entries: e.Apply}
	for i, id := range e.Owners {
		if id == 0 {
			continue
		}
		if b.waiting == nil {
			b.waiting = make([]*proposal, len(e.Apply))
		}
		b.waiting[i] = g.loop.proposals[id]
		delete(g.loop.proposals, id)
	}
	return b
}

func (l *loop) propose(p *proposal) {
	g := p.group
	switch {
	case p.err != nil:
		p.end(Proposal{Err: p.err})
	case !g.loop.open(l):
		p.end(Proposal{Err: Retry(ErrClosed)})
	case p.full != nil && g.loop.core.isLeader():
		p.end(Proposal{Err: p.full})
	case p.term != 0 && p.term != g.loop.core.hard.Term && g.loop.core.isLeader():
		p.end(Proposal{Err: Retry(ErrLeadershipLost)})
	default:
		g.loop.lastProposal++
		g.loop.proposals[g.loop.lastProposal] = p
		g.loop.core.Propose(g.loop.lastProposal, p.data)
		l.touch(g)
	}
}

func (l *loop) proposalEvent(g *Group, e *ProposalEvent) {
	if e.State == ProposalPlaced {
		l.h.stats.proposals.Add(1)
		return
	}
	p := g.loop.proposals[e.ID]
	delete(g.loop.proposals, e.ID)
	if p != nil {
		p.end(Proposal{Err: l.withNode(g, e.Err)})
	}
}

// withNode adds where the leader is to an error that names it.
func (l *loop) withNode(g *Group, err error) error {
	var elsewhere *NotLeaderError
	if !errors.As(err, &elsewhere) || elsewhere.Leader == 0 || elsewhere.Node != 0 {
		return err
	}
	// The core may give one error to many; those that have it read it already.
	return &NotLeaderError{Group: elsewhere.Group, Leader: elsewhere.Leader, Node: g.node(elsewhere.Leader)}
}

func (l *loop) read(r *read) {
	g := r.group
	if !g.loop.open(l) {
		r.end(0, Retry(ErrClosed))
		return
	}
	g.loop.lastRead++
	g.loop.reads[g.loop.lastRead] = r
	g.loop.core.Read(g.loop.lastRead)
	l.touch(g)
}

func (l *loop) readEvent(g *Group, e ReadEvent) {
	r := g.loop.reads[e.ID]
	delete(g.loop.reads, e.ID)
	switch {
	case r == nil || r.abandoned.Load():
	case e.Err != nil:
		r.end(0, l.withNode(g, e.Err))
	default:
		r.index = e.Index
		g.loop.confirmed = append(g.loop.confirmed, r)
		l.answerReads(g)
	}
}

// answerReads ends the reads whose index is applied.
func (l *loop) answerReads(g *Group) {
	applied := Index(g.applied.Load())
	kept := g.loop.confirmed[:0]
	for _, r := range g.loop.confirmed {
		switch {
		case r.abandoned.Load():
		case r.index <= applied:
			l.h.stats.reads.Add(1)
			r.end(r.index, nil)
		default:
			kept = append(kept, r)
		}
	}
	clear(g.loop.confirmed[len(kept):])
	g.loop.confirmed = kept
}

func (l *loop) applied(a applyDone) {
	g := a.group
	g.loop.core.Applied(a.last, a.log)
	l.answerReads(g)
	if g.loop.open(l) {
		l.touch(g)
	}
}

func (l *loop) statusChanged(g *Group, s *Status) {
	full := g.loop.core.Status()
	g.status.Store(&full)
	if leads := s.Role.IsLeader(); leads != g.loop.leading {
		g.loop.leading = leads
		if leads {
			l.h.stats.electionsWon.Add(1)
		} else {
			l.h.stats.leadershipLost.Add(1)
		}
	}
	if g.onStatus == nil {
		return
	}
	var err error
	func() {
		defer recoverInto(&err, "OnStatus")
		g.onStatus(full)
	}()
	if err != nil {
		l.failGroup(g, err)
	}
}
