package raftlog

import pb "go.etcd.io/raft/v3/raftpb"

// ForgedFrames are frames, each with one message of each kind that travels, from one
// replica of a group to another.
func ForgedFrames(group GroupID, from, to ReplicaID, term Term) (map[string][]byte, error) {
	frames := map[string][]byte{}
	for kind := range pb.MessageType_name {
		t := pb.MessageType(kind)
		if _, ok := travels(t); !ok {
			continue
		}
		m := frameMessage(t, uint64(from), uint64(to), uint64(term))
		m.Index, m.LogTerm, m.Commit = new(uint64(1)), new(uint64(1)), new(uint64(1))
		frame, err := appendMessage([]byte{frameVersion}, group, m)
		if err != nil {
			return nil, err
		}
		frames[t.String()] = frame
	}
	return frames, nil
}
