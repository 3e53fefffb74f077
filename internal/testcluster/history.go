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
//	R6   whoever is elected holds what was applied in earlier terms
//	R8   terms, votes and commits of one process do not go back; a process begins
//	     in no term below what an earlier one said
//	R11  the same entry is applied everywhere at an index, each in its turn, and
//	     leads to the same configuration; the metadata are equal at equal indices
//	R30  quorums of one configuration and the next meet
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
	hard    storage.HardState
	applied raftlog.Index // handed out to be applied; 0: nothing yet
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
	l := &life{name: c.members[i].Name, replicas: map[raftlog.ReplicaID]*replicaLife{}}
	h := c.members[i].history
	return &invariant.Watch{
		Step: func(core *raftlog.Core, e *raftlog.Effects) {
			if e.Empty() {
				return
			}
			s := core.Status()
			c.Acked(i, func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.step(l, &s, e)
			})
		},
		State: func(at raftlog.Index, hash uint64, err error) {
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

func (h *history) step(l *life, s *raftlog.Status, e *raftlog.Effects) {
	g := h.groups[s.Group]
	if g == nil {
		g = &groupHistory{
			leaders: map[raftlog.Term]raftlog.ReplicaID{}, votes: map[vote]raftlog.ReplicaID{}, said: map[raftlog.ReplicaID]raftlog.Term{},
			entries: map[raftlog.Index]seen{}, listed: map[raftlog.ReplicaID]bool{},
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
