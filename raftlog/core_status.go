package raftlog

import (
	"cmp"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// Status is a snapshot. Progress costs an allocation on a leader.
func (c *Core) Status() Status {
	s := c.now()
	if s.Role.IsLeader() {
		s.Progress = c.progress()
		c.unsettled(func(r ReplicaID) {
			if !slices.Contains(s.Unsettled, r) {
				s.Unsettled = append(s.Unsettled, r)
			}
		})
	}
	return s
}

func (c *Core) now() Status {
	s := Status{
		Group: c.state.Group, Replica: c.self, Role: c.role(), Failed: c.failed,
		Term: c.hard.Term, Vote: c.hard.Vote, Leader: ReplicaID(c.soft.Lead), Transferee: c.proposals.transferee,
		LogStart: c.tail.start, Commit: c.hard.Commit, Applied: c.applied, Durable: c.tail.last(), Last: c.last,
		Conf: c.conf, ConfIndex: c.confIndex, ConfPending: c.confPending(), ConfSafe: c.confSafe(),
	}
	if s.SinceLeader = -1; c.isLeader() {
		c.unsettled(func(ReplicaID) { s.unsettled++ })
		s.SinceLeader, s.Settled = 0, s.unsettled == 0
	} else if c.leaderHeard != 0 {
		s.SinceLeader = c.ticks - c.leaderHeard
	}
	if c.retired {
		s.Leader = 0
	}
	switch s.Role {
	case RoleLeaderActive:
		s.Readable = true
	case RoleLeaderStarting, RoleResigned:
	default:
		// What this replica showed in an earlier life was durable here. It may
		// have forgotten that it was committed, so all of it comes first.
		s.Readable = c.taught && c.applied >= c.doubt
	}
	return s
}

func (c *Core) role() Role {
	switch {
	case c.failed != nil:
		return RoleResigned
	case c.removed:
		return RoleRemoved
	case c.leaderActive():
		return RoleLeaderActive
	case c.isLeader():
		return RoleLeaderStarting
	case !votes(c.conf, c.self):
		return RoleObserver
	case c.soft.RaftState == raft.StateCandidate:
		return RoleCandidate
	case c.soft.RaftState == raft.StatePreCandidate:
		return RoleProspective
	case c.soft.Lead != raft.None:
		return RoleFollower
	default:
		return RoleUnattached
	}
}

// progress lists what the leader knows of each replica, by id.
func (c *Core) progress() []Progress {
	var out []Progress
	c.guard("progress", func() error {
		c.node.WithProgress(func(id uint64, typ raft.ProgressType, pr tracker.Progress) {
			p := Progress{
				Replica: ReplicaID(id), Learner: typ == raft.ProgressTypeLearner,
				Match: Index(pr.Match), Next: Index(pr.Next),
			}
			if p.Replica != c.self {
				p.SinceContact, p.SinceCaughtUp = c.contacts.since(p.Replica, c.ticks)
			}
			out = append(out, p)
		})
		return nil
	})
	slices.SortFunc(out, func(a, b Progress) int { return cmp.Compare(a.Replica, b.Replica) })
	return out
}
