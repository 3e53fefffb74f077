package raftlog

import (
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// behindEvery is how often one replica is reported as behind, in election
// timeouts: once a second with the defaults.
const behindEvery = 2

// behind is how a leader notices replicas that need what is not in its log any
// more. raft would send them a snapshot. Here snapshots travel beside raft, so
// raft is told that there is none yet; it asks again at each answer to a
// heartbeat, and that it asked is what is noticed.
type behind struct {
	told []toldBehind
	now  []ReplicaID // to be reported
}

type toldBehind struct {
	replica ReplicaID
	at      int // tick
}

func (b *behind) reset() { b.told, b.now = b.told[:0], b.now[:0] }

// note reports a replica, unless it was reported just now.
func (b *behind) note(r ReplicaID, now, every int) {
	for i := range b.told {
		if t := &b.told[i]; t.replica == r {
			if now-t.at >= every {
				t.at, b.now = now, append(b.now, r)
			}
			return
		}
	}
	b.told, b.now = append(b.told, toldBehind{r, now}), append(b.now, r)
}

// findBehind looks who is behind if raft asked for a snapshot.
func (c *Core) findBehind() {
	if !c.tail.asked {
		return
	}
	c.tail.asked = false
	if !c.isLeader() {
		return
	}
	c.guard("progress", func() error {
		c.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
			if r := ReplicaID(id); r != c.self && Index(pr.Next) <= c.tail.start {
				c.behind.note(r, c.ticks, behindEvery*c.opts.ElectionTicks)
			}
		})
		return nil
	})
}

// NeedsSnapshot reports whether this replica needs a snapshot, of whose log
// start its leader says in that term that it is behind. A late or doubled word
// means nothing, and a leader that does not know what is here is told.
func (c *Core) NeedsSnapshot(leader ReplicaID, term Term, start Index) bool {
	if !c.follows(leader, term) {
		return false
	}
	if c.vouchable() >= start {
		c.vouchTo(leader)
		return false
	}
	return true
}

// follows reports whether this replica follows that leader in that term, which
// it has handed out to be written. raft is asked, as it may know the leader since
// a moment ago.
func (c *Core) follows(leader ReplicaID, term Term) bool {
	if c.failed != nil || c.retired || c.hard.Term != term {
		return false
	}
	var now raft.BasicStatus
	c.guard("status", func() error {
		now = c.node.BasicStatus()
		return nil
	})
	return leader != c.self && ReplicaID(now.Lead) == leader && Term(now.GetTerm()) == term
}

// vouchable is up to where this replica can say, unasked, that its log is the
// leader's: what is committed is in the log of every later leader, and it is
// durable that it is, as are the entries themselves.
func (c *Core) vouchable() Index { return min(c.durable.Commit, c.tail.last()) }

// vouch answers a heartbeat of a leader that knows less of this replica's log
// than there is: the replica is new to it, or its log began anew at a snapshot.
// Raft's own way is to find out with appends, and a leader whose log begins above
// what it would have to ask for sends none.
func (c *Core) vouch(m *pb.Message) {
	if m.GetType() == pb.MsgHeartbeat && Index(m.GetCommit()) < c.vouchable() &&
		c.follows(ReplicaID(m.GetFrom()), Term(m.GetTerm())) {
		c.vouchTo(ReplicaID(m.GetFrom()))
	}
}

// vouchTo leaves after the term that it speaks in is durable, as any answer.
func (c *Core) vouchTo(leader ReplicaID) {
	ack := &pb.Message{
		Type: pb.MsgAppResp.Enum(), From: new(uint64(c.self)), To: new(uint64(leader)),
		Term: new(uint64(c.hard.Term)), Index: new(uint64(c.vouchable())),
	}
	if err := c.release([]*pb.Message{ack}, func(p *pendingAppend) bool { return p.vote }); err != nil {
		c.Fail(err)
	}
}
