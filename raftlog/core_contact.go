package raftlog

import (
	pb "go.etcd.io/raft/v3/raftpb"
)

// contacts is when a leader last heard from each replica, in ticks.
type contacts struct{ peers []contact }

type contact struct {
	replica  ReplicaID
	heard    int
	caughtUp int // -1: not yet
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
	if ack && !m.GetReject() && Index(m.GetIndex()) >= c.last {
		p.caughtUp = c.ticks
	}
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
