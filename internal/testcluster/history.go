package testcluster

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/stelelog/stele/internal/invariant"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// history is what all nodes of a cluster did, of every raft group, across their
// lives, as far as it left a trace: what a node does after the moment whose disk
// survives is not part of it. Each step is held against it:
//
//	R1   a term of a group has one leader
//	R2   a replica grants its vote once a term, whatever disks and processes it had
//	R7   a leader's commit rests on a quorum of voters that said that they hold it,
//	     which no learner counts to (R10)
//	R6   whoever is elected holds what was applied in earlier terms
//	R8   terms, votes and commits of one process do not go back; a process begins
//	     in no term below what an earlier one said
//	R10  what a log holds up to what it knows to be committed, a learner's too, is
//	     what is committed in every other one
//	R11  the same entry is applied everywhere at an index, each in its turn, and
//	     leads to the same configuration; the metadata are equal at equal indices
//	R30  quorums of one configuration and the next meet
//	R32  a replica that the creation of its group does not list begins with no
//	     configuration
//
// and a replica that was in a configuration and is not any more never is again.
type history struct {
	mu     sync.Mutex
	groups map[raftlog.GroupID]*groupHistory
	states map[raftlog.Index]uint64 // of the metadata, as a hash
	broken []string
}

type groupHistory struct {
	leaders map[raftlog.Term]raftlog.ReplicaID
	votes   map[vote]raftlog.ReplicaID
	said    map[raftlog.ReplicaID]raftlog.Term // newest in what a replica sent
	entries map[raftlog.Index]seen
	confs   []confAt
	created *raftlog.ConfState // that of the creation, once a replica began with it
	acks    map[raftlog.ReplicaID]ack
	common  map[raftlog.Index]raftlog.Term // of what any log knew to be committed
	began   map[raftlog.ReplicaID]bool
	listed  map[raftlog.ReplicaID]bool // that ever were in a configuration
}

type vote struct {
	of   raftlog.ReplicaID
	term raftlog.Term
}

type seen struct {
	term raftlog.Term
	hash uint64
}

// ack is up to where a replica said to hold the log of a term's leader.
type ack struct {
	term  raftlog.Term
	index raftlog.Index
}

type confAt struct {
	index raftlog.Index
	conf  raftlog.ConfState
}

// life is what the history knows of one process.
type life struct {
	name     string
	replicas map[raftlog.ReplicaID]*replicaLife
}

type replicaLife struct {
	core    *raftlog.Core // a reset opens the replica anew
	hard    storage.HardState
	applied raftlog.Index                  // handed out to be applied; 0: nothing yet
	log     map[raftlog.Index]raftlog.Term // appended since core was opened
	leads   raftlog.Term                   // of the last look, if it led then
	commit  raftlog.Index                  // of the last look
	conf    raftlog.ConfState              // of the last look
}

func newHistory() *history {
	return &history{groups: map[raftlog.GroupID]*groupHistory{}, states: map[raftlog.Index]uint64{}}
}

func (h *history) violate(property, format string, args ...any) {
	if len(h.broken) < 20 {
		h.broken = append(h.broken, property+": "+fmt.Sprintf(format, args...))
	}
}

// violations returns what was found.
func (h *history) violations() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.broken)
}

// watch returns what member i's next process is watched with.
func (c *Cluster) watch(i int) *invariant.Watch {
	m := c.members[i] // the list grows when a member is added
	l := &life{name: m.Name, replicas: map[raftlog.ReplicaID]*replicaLife{}}
	h := m.history
	return &invariant.Watch{
		Clock: c.Clock(i),
		Step: func(core *raftlog.Core, e *raftlog.Effects) {
			if e.Empty() {
				return
			}
			s := core.Status()
			if c.opts.Applied != nil {
				for k := range e.Apply {
					c.opts.Applied(i, s.Group, &e.Apply[k])
				}
			}
			c.Acked(i, func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.step(l, core, &s, e)
			})
		},
		State: func(at raftlog.Index, hash uint64, err error) {
			if m.damaged {
				return
			}
			c.Acked(i, func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.state(l, at, hash, err)
			})
		},
	}
}

func (h *history) state(l *life, at raftlog.Index, hash uint64, err error) {
	if err != nil {
		h.violate("metadata", "%s at %d: %v", l.name, at, err)
	}
	if other, ok := h.states[at]; ok && other != hash {
		h.violate("R11", "%s: the metadata at %d differ from those of another node", l.name, at)
	}
	h.states[at] = hash
}

func (h *history) step(l *life, core *raftlog.Core, s *raftlog.Status, e *raftlog.Effects) {
	g := h.groups[s.Group]
	if g == nil {
		g = &groupHistory{
			leaders: map[raftlog.Term]raftlog.ReplicaID{}, votes: map[vote]raftlog.ReplicaID{}, said: map[raftlog.ReplicaID]raftlog.Term{},
			entries: map[raftlog.Index]seen{}, listed: map[raftlog.ReplicaID]bool{}, began: map[raftlog.ReplicaID]bool{},
			acks: map[raftlog.ReplicaID]ack{}, common: map[raftlog.Index]raftlog.Term{},
		}
		h.groups[s.Group] = g
	}
	who := fmt.Sprintf("%s, %v of %v", l.name, s.Replica, s.Group)
	r := l.replicas[s.Replica]
	if r == nil {
		r = &replicaLife{hard: storage.HardState{Term: g.said[s.Replica]}}
		l.replicas[s.Replica] = r
		if s.Term < r.hard.Term {
			h.violate("R8", "%s: begins in term %d and spoke in %d", who, s.Term, r.hard.Term)
		}
	}
	if r.core != core || r.log == nil {
		r.core, r.log = core, map[raftlog.Index]raftlog.Term{}
	}
	h.begins(g, who, s)
	if len(g.confs) == 0 && len(s.Conf.Voters) > 0 {
		g.confs = []confAt{{s.Applied, s.Conf}}
		g.list(s.Conf)
	}
	h.append(g, r, who, e.Append)
	for _, m := range e.Send {
		h.sent(g, s.Replica, who, m)
	}
	for i := range e.Apply {
		if e.Apply[i].Index == s.LogStart+1 {
			r.applied = s.LogStart // the log may have begun anew at a snapshot
		}
		h.apply(g, r, who, &e.Apply[i])
	}
	if s.Role.IsLeader() && s.Failed == nil {
		h.leads(g, who, s)
		h.commits(g, r, who, s)
	} else {
		r.leads = 0
	}
	r.commit, r.conf = s.Commit, s.Conf
}

// creationIndex is up to where a log is part of its group's creation.
const creationIndex raftlog.Index = 1

// begins checks the first that is seen of a replica.
func (h *history) begins(g *groupHistory, who string, s *raftlog.Status) {
	if g.began[s.Replica] {
		return
	}
	g.began[s.Replica] = true
	if len(s.Conf.Voters) == 0 || s.Applied > creationIndex {
		return // empty, or after a forced recovery, which begins another history
	}
	if g.created == nil {
		g.created = &s.Conf
	}
	if !invariant.Same(*g.created, s.Conf) || !slices.Contains(invariant.Everyone(s.Conf), s.Replica) {
		h.violate("R32", "%s: begins with %+v, the group was created with %+v", who, s.Conf, *g.created)
	}
}

// commits checks what the commit of a leader rests on.
func (h *history) commits(g *groupHistory, r *replicaLife, who string, s *raftlog.Status) {
	if r.leads != s.Term { // what it knew before
		r.leads = s.Term
		return
	}
	if s.Commit <= r.commit {
		return
	}
	holds := func(id raftlog.ReplicaID) bool {
		if id == s.Replica {
			return s.Durable >= s.Commit
		}
		said := g.acks[id]
		return said.term == s.Term && said.index >= s.Commit
	}
	if !invariant.Quorum(s.Conf, holds) && !invariant.Quorum(r.conf, holds) {
		h.violate("R7", "%s: commits %d in term %d without a quorum of %+v", who, s.Commit, s.Term, s.Conf)
	}
}

func (g *groupHistory) list(c raftlog.ConfState) {
	for _, r := range invariant.Everyone(c) {
		g.listed[r] = true
	}
}

func (h *history) append(g *groupHistory, r *replicaLife, who string, a *raftlog.Append) {
	if a == nil || a.Frame.Kind != storage.FrameAppend {
		return
	}
	was, is := r.hard, a.Frame.Hard
	switch {
	case is.Term < was.Term:
		h.violate("R8", "%s: goes from term %d to %d", who, was.Term, is.Term)
	case is.Term == was.Term && was.Vote != 0 && is.Vote != was.Vote:
		h.violate("R8", "%s: in term %d votes for %v and then for %v", who, is.Term, was.Vote, is.Vote)
	case is.Commit < was.Commit:
		h.violate("R8", "%s: goes from commit %d to %d", who, was.Commit, is.Commit)
	}
	r.hard = is
	for _, e := range a.Frame.Entries {
		if was, ok := r.log[e.Index]; ok && was != e.Term {
			for i := e.Index + 1; r.log[i] != 0; i++ {
				delete(r.log, i)
			}
		}
		r.log[e.Index] = e.Term
	}
	for i := was.Commit + 1; i <= is.Commit; i++ {
		term, ok := r.log[i]
		if !ok {
			continue // it was there when the process began
		}
		if other, ok := g.common[i]; ok && other != term {
			h.violate("R10", "%s: knows entry %d of term %d to be committed, which is one of term %d elsewhere", who, i, term, other)
		}
		g.common[i] = term
		delete(r.log, i)
	}
}

func (h *history) sent(g *groupHistory, self raftlog.ReplicaID, who string, m *pb.Message) {
	var to raftlog.ReplicaID
	term := raftlog.Term(m.GetTerm())
	switch m.GetType() {
	case pb.MsgPreVote, pb.MsgPreVoteResp:
		return // of a term that nobody is in yet
	case pb.MsgVote:
		to = self
	case pb.MsgVoteResp:
		if !m.GetReject() {
			to = raftlog.ReplicaID(m.GetTo())
		}
	case pb.MsgAppResp:
		now, said := ack{term, raftlog.Index(m.GetIndex())}, g.acks[self]
		if !m.GetReject() && (now.term > said.term || now.term == said.term && now.index > said.index) {
			g.acks[self] = now
		}
	}
	g.said[self] = max(g.said[self], term)
	if to == 0 {
		return
	}
	v := vote{self, term}
	if before, ok := g.votes[v]; ok && before != to {
		h.violate("R2", "%s: grants its vote in term %d to %v and to %v", who, term, before, to)
	}
	g.votes[v] = to
}

func (h *history) apply(g *groupHistory, r *replicaLife, who string, e *raftlog.Entry) {
	if r.applied != 0 && e.Index != r.applied+1 {
		h.violate("R11", "%s: applies %d after %d", who, e.Index, r.applied)
	}
	r.applied = e.Index
	hash := fnv.New64a()
	_, _ = hash.Write(e.Data) // never fails
	is := seen{e.Term, hash.Sum64()}
	if was, ok := g.entries[e.Index]; ok && was != is {
		h.violate("R11", "%s: applies another entry at %d, of term %d, than was applied elsewhere, of term %d", who, e.Index, is.term, was.term)
	}
	g.entries[e.Index] = is
	if e.Conf != nil {
		h.switches(g, who, e)
	}
}

// switches checks what a configuration entry leads to.
func (h *history) switches(g *groupHistory, who string, e *raftlog.Entry) {
	for _, at := range g.confs {
		if at.index == e.Index {
			if !invariant.Same(at.conf, *e.Conf) {
				h.violate("R11", "%s: entry %d leads to %+v, elsewhere to %+v", who, e.Index, *e.Conf, at.conf)
			}
			return
		}
	}
	last := confAt{}
	if n := len(g.confs); n > 0 {
		last = g.confs[n-1]
	}
	if e.Index < last.index {
		return // before what was seen first of this group
	}
	if len(last.conf.Voters) > 0 && !invariant.Intersect(last.conf, *e.Conf) {
		h.violate("R30", "%s: entry %d leads from %+v to %+v", who, e.Index, last.conf, *e.Conf)
	}
	before := invariant.Everyone(last.conf)
	for _, r := range invariant.Everyone(*e.Conf) {
		if g.listed[r] && !slices.Contains(before, r) {
			h.violate("R12", "%s: entry %d brings %v back, which was out", who, e.Index, r)
		}
	}
	g.list(*e.Conf)
	g.confs = append(g.confs, confAt{e.Index, *e.Conf})
}

func (h *history) leads(g *groupHistory, who string, s *raftlog.Status) {
	if before, ok := g.leaders[s.Term]; ok {
		if before != s.Replica {
			h.violate("R1", "%s: leads term %d, as %v did", who, s.Term, before)
		}
		return
	}
	g.leaders[s.Term] = s.Replica
	for index, was := range g.entries {
		if was.term < s.Term && index > s.Last {
			h.violate("R6", "%s: leads term %d with a log up to %d; %d of term %d was applied", who, s.Term, s.Last, index, was.term)
			return
		}
	}
}
