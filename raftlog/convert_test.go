package raftlog

import (
	"testing"

	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func confEntry(t *testing.T, i Index, term Term, changes ...*pb.ConfChangeSingle) storage.Entry {
	e := storage.Entry{Index: i, Term: term, Kind: storage.EntryConfChangeV2}
	if len(changes) > 0 {
		how := pb.ConfChangeTransitionAuto
		if len(changes) > 1 {
			how = pb.ConfChangeTransitionJointExplicit
		}
		data, err := proto.Marshal(&pb.ConfChangeV2{Changes: changes, Transition: how.Enum()})
		require.NoError(t, err)
		e.Data = data
	}
	return e
}

func change(kind pb.ConfChangeType, id uint64) *pb.ConfChangeSingle {
	return &pb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(id)}
}

func TestEntriesSurviveConversion(t *testing.T) {
	in := []storage.Entry{
		{Index: 5, Term: 2, Kind: storage.EntryNormal, Data: []byte("x")},
		{Index: 6, Term: 3, Kind: storage.EntryConfChange, Data: []byte{}},
		{Index: 7, Term: 3, Kind: storage.EntryConfChangeV2},
	}
	require.Equal(t, in, fromRaftEntries(toRaftEntries(in)))
	hard := storage.HardState{Term: 4, Vote: 2, Commit: 6}
	require.Equal(t, hard, fromRaftHard(toRaftHard(hard)))
	conf := ConfState{
		Voters: []ReplicaID{1, 2}, Learners: []ReplicaID{5}, VotersOutgoing: []ReplicaID{1, 3},
		LearnersNext: []ReplicaID{3}, AutoLeave: true,
	}
	require.Equal(t, conf, fromRaftConf(toRaftConf(conf)))
}

// A follower gets configuration changes: valid ones switch it when they are
// applied, others change nothing and above all do not panic; restarted in
// between, it knows the configuration of exactly its log's end.
func TestConfigurationsSwitchAtApply(t *testing.T) {
	st := created(7, 3, 1, 2, 3)
	b := emptyBench(t, 3)
	r := b.open(st, &memoryLog{}, CoreOptions{})
	list := []storage.Entry{
		{Index: 2, Term: 2},
		confEntry(t, 3, 2, change(pb.ConfChangeAddLearnerNode, 4)),
		confEntry(t, 4, 2), // leave what? a no-op
		{Index: 5, Term: 2, Kind: storage.EntryConfChange, Data: []byte("\xff\xff")},            // unreadable: a no-op
		confEntry(t, 6, 2, change(pb.ConfChangeAddNode, 4), change(pb.ConfChangeRemoveNode, 3)), // joint
		confEntry(t, 7, 2, change(pb.ConfChangeRemoveNode, 1)),                                  // not while joint
		confEntry(t, 8, 2), // leave
	}
	m := message(pb.MsgApp, 1, 3, 2)
	m.Index, m.LogTerm, m.Commit, m.Entries = new(uint64(1)), new(uint64(1)), new(uint64(8)), toRaftEntries(list)
	r.core.Step(m)
	b.settle()
	require.NoError(t, r.core.Failed())
	require.Len(t, r.applied, 7)
	joint := ConfState{Voters: []ReplicaID{1, 2, 4}, VotersOutgoing: []ReplicaID{1, 2, 3}}
	want := []*ConfState{
		nil,
		{Voters: []ReplicaID{1, 2, 3}, Learners: []ReplicaID{4}},
		{Voters: []ReplicaID{1, 2, 3}, Learners: []ReplicaID{4}},
		{Voters: []ReplicaID{1, 2, 3}, Learners: []ReplicaID{4}},
		nil, nil,
		{Voters: []ReplicaID{1, 2, 4}},
	}
	for i, e := range r.applied {
		if i == 4 || i == 5 {
			require.Equal(t, joint.Voters, e.Conf.Voters)
			require.Equal(t, joint.VotersOutgoing, e.Conf.VotersOutgoing)
			continue
		}
		require.Equal(t, want[i], e.Conf, "entry %d", e.Index)
	}
	require.Equal(t, RoleRemoved, r.core.Status().Role)
	require.Equal(t, []ReplicaID{1, 2, 4}, r.core.State().Conf.Voters)
	require.Equal(t, Index(8), r.core.State().Log.LastIndex)
	b.tick(3, 50)
	require.Equal(t, RoleRemoved, r.core.Status().Role, "it campaigns no more")
}
