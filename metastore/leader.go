package metastore

import "github.com/stelelog/stele/raftlog"

// Leader returns the node that leads the metadata group as this node sees it,
// 0 if it sees none: a follower that hears nothing for an election timeout, a
// leader that hears no quorum for two, and a node whose metadata failed, see
// none. changed is closed when the answer may have become another, and when the
// metadata fails.
func (s *Store) Leader() (leader raftlog.NodeID, changed <-chan struct{}) {
	changed = s.leaderChange() // before the status: a change after it is not missed
	if s.Failed() != nil {
		return 0, changed
	}
	if r := s.group.Status().Leader; r != 0 {
		for _, m := range s.Members() {
			if m.Replica == r {
				leader = m.Node
			}
		}
	}
	return leader, changed
}

// Group returns this node's replica of the metadata group, for changes of its
// configuration and of its leader. It is the store's: proposals are made through
// the store alone. Ask for it each time: one that a snapshot has replaced is
// closed.
func (s *Store) Group() *raftlog.Group {
	g, _ := s.group.now.Load().group.(*raftlog.Group)
	return g
}

// GroupStatus returns this node's view of the metadata group.
func (s *Store) GroupStatus() raftlog.Status { return s.group.Status() }
