package testcluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// step is one look at a core, as a node hands it to its watch.
type step struct {
	by      int // process
	replica raftlog.ReplicaID
	status  raftlog.Status
	effects raftlog.Effects
}

func (s step) in(term raftlog.Term) step { s.status.Term = term; return s }

func (s step) of(group raftlog.GroupID) step { s.status.Group = group; return s }

func (s step) leading(term raftlog.Term, last raftlog.Index) step {
	s.status.Role, s.status.Term, s.status.Last = raftlog.RoleLeaderActive, term, last
	return s
}

func (s step) with(conf raftlog.ConfState) step { s.status.Conf = conf; return s }

func (s step) committing(index, durable raftlog.Index) step {
	s.status.Commit, s.status.Durable = index, durable
	return s
}

func (s step) acks(term, index uint64) step {
	s = s.sending(pb.MsgAppResp, term, 1, false)
	s.effects.Send[0].Index = new(index)
	return s
}

func (s step) writing(a *raftlog.Append) step { s.effects.Append = a; return s }

func (s step) applying(entries ...raftlog.Entry) step {
	s.effects.Apply = entries
	return s
}

func (s step) sending(kind pb.MessageType, term, to uint64, reject bool) step {
	m := &pb.Message{Type: kind.Enum(), From: new(uint64(s.replica)), To: new(to), Term: new(term), Reject: new(reject)}
	s.effects.Send = []*pb.Message{m}
	return s
}

func (s step) promising(hard storage.HardState) step {
	s.effects.Append = &raftlog.Append{Frame: storage.Frame{Kind: storage.FrameAppend, Hard: hard}}
	return s
}

// What the history is there for: each forged step of a node that is broken is
// found, and what a sound one does beside it is not.
func TestHistoryFindsABrokenNode(t *testing.T) {
	one, two := step{by: 0, replica: 1}, step{by: 1, replica: 2}
	again := step{by: 2, replica: 1} // another process of replica 1
	entry := func(index raftlog.Index, term raftlog.Term, data string) raftlog.Entry {
		return raftlog.Entry{Index: index, Term: term, Data: []byte(data)}
	}
	to := func(index raftlog.Index, voters ...raftlog.ReplicaID) raftlog.Entry {
		return raftlog.Entry{Index: index, Term: 3, Conf: &raftlog.ConfState{Voters: voters}}
	}
	const vote, grant, ask, ack = pb.MsgVote, pb.MsgVoteResp, pb.MsgPreVoteResp, pb.MsgAppResp
	three, four := step{by: 3, replica: 3}, step{by: 4, replica: 4}
	conf := raftlog.ConfState{Voters: []raftlog.ReplicaID{1, 2, 3}, Learners: []raftlog.ReplicaID{4}}
	joint := raftlog.ConfState{Voters: []raftlog.ReplicaID{1, 2, 4}, VotersOutgoing: []raftlog.ReplicaID{1, 2, 3}}
	leads := one.leading(3, 9).with(conf)
	log := func(hard storage.HardState, terms ...raftlog.Term) *raftlog.Append {
		var entries []storage.Entry
		for i, term := range terms {
			entries = append(entries, storage.Entry{Index: raftlog.Index(2 + i), Term: term})
		}
		return &raftlog.Append{Frame: storage.Frame{Kind: storage.FrameAppend, Hard: hard, Entries: entries}}
	}
	for name, c := range map[string]struct {
		steps []step
		want  string // the property that the last step breaks; "": none does
	}{
		"a leader each term":                   {[]step{one.leading(3, 9), two.leading(4, 9), one.leading(5, 9)}, ""},
		"a second leader of a term":            {[]step{one.leading(3, 9), two.leading(3, 9)}, "R1"},
		"of two groups":                        {[]step{one.leading(3, 9), two.of(7).leading(3, 9)}, ""},
		"its vote granted once a term":         {[]step{one.sending(grant, 3, 2, false), one.sending(grant, 3, 2, false), one.sending(grant, 4, 3, false)}, ""},
		"its vote granted twice":               {[]step{one.sending(grant, 3, 2, false), one.sending(grant, 3, 3, false)}, "R2"},
		"a vote refused":                       {[]step{one.sending(grant, 3, 2, false), one.sending(grant, 3, 3, true)}, ""},
		"a vote in a term that nobody is in":   {[]step{one.sending(ask, 3, 2, false), one.sending(ask, 3, 3, false)}, ""},
		"a term that it only asked about":      {[]step{one.sending(ask, 4, 2, false), again.in(3)}, ""},
		"its own vote, and then another's":     {[]step{one.sending(vote, 3, 2, false), one.sending(vote, 3, 3, false), one.sending(grant, 3, 2, false)}, "R2"},
		"its vote granted by the next process": {[]step{one.sending(grant, 3, 2, false), again.in(3).sending(grant, 3, 3, false)}, "R2"},
		"the log of a leader without an entry": {[]step{one.applying(entry(5, 3, "a")), two.leading(4, 4)}, "R6"},
		"the log of a leader with it":          {[]step{one.applying(entry(5, 3, "a")), two.leading(4, 5)}, ""},
		"a term goes back":                     {[]step{one.promising(storage.HardState{Term: 4}), one.promising(storage.HardState{Term: 3})}, "R8"},
		"a vote is taken back":                 {[]step{one.promising(storage.HardState{Term: 4, Vote: 1}), one.promising(storage.HardState{Term: 4, Vote: 2})}, "R8"},
		"a commit goes back":                   {[]step{one.promising(storage.HardState{Term: 4, Commit: 7}), one.promising(storage.HardState{Term: 5, Commit: 6})}, "R8"},
		"a process begins in an older term":    {[]step{one.sending(grant, 3, 2, false), again.in(2)}, "R8"},
		"a process begins where it was":        {[]step{one.sending(grant, 3, 2, false), again.in(3)}, ""},
		"entries in turn, the same everywhere": {[]step{one.applying(entry(5, 3, "a"), entry(6, 3, "b")), two.applying(entry(5, 3, "a"), entry(6, 3, "b"))}, ""},
		"another entry":                        {[]step{one.applying(entry(5, 3, "a")), two.applying(entry(5, 3, "b"))}, "R11"},
		"an entry of another term":             {[]step{one.applying(entry(5, 3, "a")), two.applying(entry(5, 4, "a"))}, "R11"},
		"an entry twice":                       {[]step{one.applying(entry(5, 3, "a")), one.applying(entry(5, 3, "a"))}, "R11"},
		"an entry left out":                    {[]step{one.applying(entry(5, 3, "a")), one.applying(entry(7, 3, "c"))}, "R11"},
		"one voter more":                       {[]step{one.applying(to(5, 1, 2, 3), to(6, 1, 2, 3, 4))}, ""},
		"another configuration":                {[]step{one.applying(to(5, 1, 2, 3)), two.applying(to(5, 1, 2, 4))}, "R11"},
		"quorums that do not meet":             {[]step{one.applying(to(5, 1, 2, 3), to(6, 1, 4, 5))}, "R30"},
		"a commit that a quorum holds":         {[]step{leads, two.acks(3, 5), leads.committing(5, 9)}, ""},
		"a commit that a quorum said twice":    {[]step{leads, two.acks(3, 5), two.acks(3, 4), leads.committing(5, 9)}, ""},
		"a commit that only the leader holds":  {[]step{leads, leads.committing(5, 9)}, "R7"},
		"a commit that is not durable here":    {[]step{leads, two.acks(3, 5), leads.committing(5, 4)}, "R7"},
		"a commit that a voter held once":      {[]step{leads, two.acks(2, 5), leads.committing(5, 9)}, "R7"},
		"a commit that a voter refused":        {[]step{leads, two.sending(ack, 3, 1, true), leads.committing(5, 9)}, "R7"},
		"a commit that a learner holds":        {[]step{leads, four.acks(3, 5), leads.committing(5, 9)}, "R7"},
		"a commit of both halves":              {[]step{leads.with(joint), two.acks(3, 5), leads.with(joint).committing(5, 9)}, ""},
		"a commit of one half":                 {[]step{leads.with(joint), four.acks(3, 5), leads.with(joint).committing(5, 9)}, "R7"},
		"a commit that it knew before it led":  {[]step{leads.committing(5, 9)}, ""},
		"the same log of a learner":            {[]step{one.writing(log(storage.HardState{Term: 3, Commit: 3}, 3, 3)), four.writing(log(storage.HardState{Term: 3, Commit: 2}, 3, 3))}, ""},
		"another log of a learner":             {[]step{one.writing(log(storage.HardState{Term: 3, Commit: 3}, 3, 3)), four.writing(log(storage.HardState{Term: 3, Commit: 3}, 3, 2))}, "R10"},
		"another log that is not committed":    {[]step{one.writing(log(storage.HardState{Term: 3, Commit: 3}, 3, 3)), four.writing(log(storage.HardState{Term: 3, Commit: 2}, 3, 2))}, ""},
		"a log that was overwritten":           {[]step{one.writing(log(storage.HardState{Term: 3, Commit: 3}, 3, 3)), four.writing(log(storage.HardState{Term: 2}, 3, 2)), four.writing(log(storage.HardState{Term: 3, Commit: 3}, 3, 3))}, ""},
		"begins as the creation says":          {[]step{one.with(conf), two.with(conf)}, ""},
		"begins empty":                         {[]step{one.with(conf), three}, ""},
		"begins as the creation does not say":  {[]step{one.with(conf), two.with(joint)}, "R32"},
		"begins unlisted":                      {[]step{one.with(conf), step{by: 5, replica: 5}.with(conf)}, "R32"},
		"who was out is in again":              {[]step{one.applying(to(5, 1, 2, 3), to(6, 1, 2), to(7, 1, 2, 3))}, "R12"},
	} {
		t.Run(name, func(t *testing.T) {
			h, lives := newHistory(), map[int]*life{}
			for i, s := range c.steps {
				require.Empty(t, h.violations(), "before step %d", i)
				if lives[s.by] == nil {
					lives[s.by] = &life{name: fmt.Sprint("process ", s.by), replicas: map[raftlog.ReplicaID]*replicaLife{}}
				}
				s.status.Replica = s.replica
				h.step(lives[s.by], nil, &s.status, &s.effects)
			}
			if c.want == "" {
				require.Empty(t, h.violations())
				return
			}
			require.Len(t, h.violations(), 1)
			require.True(t, strings.HasPrefix(h.violations()[0], c.want+": "), "%v", h.violations())
		})
	}
}

// The metadata of two nodes are held against each other, and what contradicts
// itself in one is told.
func TestHistoryFindsOtherMetadata(t *testing.T) {
	h := newHistory()
	c := &Cluster{history: h, members: []*Member{{Name: "node-1", history: h}, {Name: "node-2", history: h}}}
	c.mu.down = map[int]bool{}
	first, second := c.watch(0), c.watch(1)
	first.State(5, 77, nil)
	second.State(5, 77, nil)
	first.State(6, 78, nil)
	require.Empty(t, c.Violations())
	c.mu.down[1] = true
	second.State(6, 79, nil)
	require.Empty(t, c.Violations(), "the moment whose disk survives is before that")
	delete(c.mu.down, 1)
	second.State(6, 79, nil)
	require.Len(t, c.Violations(), 1)
	require.Contains(t, c.Violations()[0], "R11: node-2: the metadata at 6 differ")
	first.State(7, 80, errors.New("a partition of no topic"))
	require.Len(t, c.Violations(), 2)
	require.Contains(t, c.Violations()[1], "node-1 at 7: a partition of no topic")
}
