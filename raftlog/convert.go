package raftlog

import (
	"slices"

	"github.com/stelelog/stele/storage"
	"go.etcd.io/raft/v3/confchange"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"
)

// entryOverhead is what an entry counts beyond its data in byte budgets: not
// less than its framing on any wire.
const entryOverhead = 32

func entrySize(e *pb.Entry) int { return len(e.GetData()) + entryOverhead }

func toRaftEntry(e storage.Entry) *pb.Entry {
	return &pb.Entry{
		Index: new(uint64(e.Index)),
		Term:  new(uint64(e.Term)),
		Type:  pb.EntryType(e.Kind).Enum(),
		Data:  e.Data,
	}
}

func toRaftEntries(es []storage.Entry) []*pb.Entry {
	out := make([]*pb.Entry, len(es))
	for i, e := range es {
		out[i] = toRaftEntry(e)
	}
	return out
}

func fromRaftEntry(e *pb.Entry) storage.Entry {
	return storage.Entry{
		Index: Index(e.GetIndex()),
		Term:  Term(e.GetTerm()),
		Kind:  EntryKind(e.GetType()),
		Data:  e.GetData(),
	}
}

func fromRaftEntries(es []*pb.Entry) []storage.Entry {
	if len(es) == 0 {
		return nil
	}
	out := make([]storage.Entry, len(es))
	for i, e := range es {
		out[i] = fromRaftEntry(e)
	}
	return out
}

func toRaftHard(h storage.HardState) *pb.HardState {
	return &pb.HardState{Term: new(uint64(h.Term)), Vote: new(uint64(h.Vote)), Commit: new(uint64(h.Commit))}
}

func fromRaftHard(h *pb.HardState) storage.HardState {
	return storage.HardState{Term: Term(h.GetTerm()), Vote: ReplicaID(h.GetVote()), Commit: Index(h.GetCommit())}
}

func toRaftConf(c ConfState) *pb.ConfState {
	return &pb.ConfState{
		Voters:         toRaftIDs(c.Voters),
		Learners:       toRaftIDs(c.Learners),
		VotersOutgoing: toRaftIDs(c.VotersOutgoing),
		LearnersNext:   toRaftIDs(c.LearnersNext),
		AutoLeave:      new(c.AutoLeave),
	}
}

func fromRaftConf(c *pb.ConfState) ConfState {
	return ConfState{
		Voters:         fromRaftIDs(c.GetVoters()),
		Learners:       fromRaftIDs(c.GetLearners()),
		VotersOutgoing: fromRaftIDs(c.GetVotersOutgoing()),
		LearnersNext:   fromRaftIDs(c.GetLearnersNext()),
		AutoLeave:      c.GetAutoLeave(),
	}
}

func toRaftIDs(ids []ReplicaID) []uint64 {
	var out []uint64
	for _, id := range ids {
		out = append(out, uint64(id))
	}
	return out
}

func fromRaftIDs(ids []uint64) []ReplicaID {
	var out []ReplicaID
	for _, id := range ids {
		out = append(out, ReplicaID(id))
	}
	return out
}

// votes reports whether id is a voter of c, of either majority while joint.
func votes(c ConfState, id ReplicaID) bool {
	return slices.Contains(c.Voters, id) || slices.Contains(c.VotersOutgoing, id)
}

// listed reports whether id has any part in c.
func listed(c ConfState, id ReplicaID) bool {
	return votes(c, id) || slices.Contains(c.Learners, id) || slices.Contains(c.LearnersNext, id)
}

// decodeConfChange reads a configuration entry. An entry without data leaves a
// joint configuration.
func decodeConfChange(e *pb.Entry) (*pb.ConfChangeV2, error) {
	if e.GetType() == pb.EntryConfChange {
		var cc pb.ConfChange
		if err := proto.Unmarshal(e.GetData(), &cc); err != nil {
			return nil, err
		}
		return cc.AsV2(), nil
	}
	var cc pb.ConfChangeV2
	if err := proto.Unmarshal(e.GetData(), &cc); err != nil {
		return nil, err
	}
	return &cc, nil
}

// changeConf computes what cc makes of conf, or why it is not valid there.
// raft panics when an invalid change is applied, so every change comes through
// here first.
func changeConf(conf ConfState, last Index, cc *pb.ConfChangeV2) (ConfState, error) {
	change, err := changeable(conf, last)
	if err != nil {
		return conf, err
	}
	var cfg tracker.Config
	var progress tracker.ProgressMap
	if cc.LeaveJoint() {
		cfg, progress, err = change.LeaveJoint()
	} else if autoLeave, joint := cc.EnterJoint(); joint {
		cfg, progress, err = change.EnterJoint(autoLeave, cc.Changes...)
	} else {
		cfg, progress, err = change.Simple(cc.Changes...)
	}
	if err != nil {
		return conf, err
	}
	change.Tracker.Config, change.Tracker.Progress = cfg, progress
	return fromRaftConf(change.Tracker.ConfState()), nil
}

// changeable makes conf what changes start from, or says why it is none.
func changeable(conf ConfState, last Index) (confchange.Changer, error) {
	change := confchange.Changer{Tracker: tracker.MakeProgressTracker(1, 0), LastIndex: uint64(last)}
	cfg, progress, err := confchange.Restore(change, toRaftConf(conf))
	if err == nil {
		change.Tracker.Config, change.Tracker.Progress = cfg, progress
	}
	return change, err
}
