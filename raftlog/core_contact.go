package raftlog

import (
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// contacts is when a leader last heard from each replica, in ticks.
type contacts struct{ peers []contact }

type contact struct {
	replica  ReplicaID
	heard    int
	caughtUp int   // -1: not yet
	match    Index // durable there, as it said in this term
}

func (k *contacts) reset() { k.peers = k.peers[:0] }

func (k *contacts) find(r ReplicaID) *contact {
	for i := range k.peers {
		if k.peers[i].replica == r {
			return &k.peers[i]
		}
	}
	return nil
}

// heard notes an answer to this leader in its present term.
func (k *contacts) heard(c *Core, m *pb.Message) {
	ack := m.GetType() == pb.MsgAppResp
	if !c.isLeader() || !ack && m.GetType() != pb.MsgHeartbeatResp || Term(m.GetTerm()) != c.hard.Term {
		return
	}
	from := ReplicaID(m.GetFrom())
	p := k.find(from)
	if p == nil {
		if !listed(c.conf, from) {
			return
		}
		k.peers = append(k.peers, contact{replica: from, caughtUp: -1})
		p = &k.peers[len(k.peers)-1]
	}
	p.heard = c.ticks
	if !ack || m.GetReject() {
		return
	}
	p.match = max(p.match, Index(m.GetIndex()))
	if p.match >= c.last {
		p.caughtUp = c.ticks
	}
}

// match returns up to where a replica said to have the leader's log.
func (k *contacts) match(r ReplicaID) Index {
	if p := k.find(r); p != nil {
		return p.match
	}
	return 0
}

// leaderSpoke notes that a leader of this or a later term was heard.
func (c *Core) leaderSpoke(m *pb.Message) {
	if m.GetType() != pb.MsgApp && m.GetType() != pb.MsgHeartbeat {
		return
	}
	lead, term := ReplicaID(c.soft.Lead), Term(m.GetTerm())
	if term > c.hard.Term || term == c.hard.Term && (lead == 0 || lead == ReplicaID(m.GetFrom())) {
		c.leaderHeard = c.ticks
	}
}

// forgetAfter is after how many election timeouts a replica that cannot
// campaign gives up a leader that it does not hear.
const forgetAfter = 2

// forgetLeader has a replica that does not vote notice that its leader is gone:
// raft notices it by campaigning alone, so a learner would believe in it for
// ever, and send it its reads.
func (c *Core) forgetLeader() {
	if c.soft.Lead == raft.None || c.isLeader() || votes(c.conf, c.self) ||
		c.ticks-c.leaderHeard <= forgetAfter*c.opts.ElectionTicks {
		return
	}
	c.guard("forget leader", func() error { return c.node.ForgetLeader() })
}

// since returns the ticks since a replica was heard from and was caught up; -1
// for never.
func (k *contacts) since(r ReplicaID, now int) (heard, caughtUp int) {
	p := k.find(r)
	switch {
	case p == nil:
		return -1, -1
	case p.caughtUp < 0:
		return now - p.heard, -1
	default:
		return now - p.heard, now - p.caughtUp
	}
}
