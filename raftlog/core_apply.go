package raftlog

import (
	"fmt"

	"github.com/stelelog/stele/storage"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// pendingConf is a configuration entry that was handed out and is not applied
// yet. raft switches when it is applied, here as everywhere.
type pendingConf struct {
	index  Index
	change *pb.ConfChangeV2 // nil: not valid, changes nothing
	conf   ConfState        // as of index
	wish   ChangeID         // that it carries; zero: none
}

// handOut passes committed entries to the state machine.
func (c *Core) handOut(e *Effects, entries []*pb.Entry) {
	e.Apply = make([]Entry, len(entries))
	for i, en := range entries {
		out := &e.Apply[i]
		*out = Entry{Index: Index(en.GetIndex()), Term: Term(en.GetTerm()), Kind: EntryKind(en.GetType()), Data: en.GetData()}
		if out.Kind != storage.EntryNormal {
			out.Conf = c.handOutConf(en)
		}
		if id := c.proposals.owner(out.Index, out.Term); id != 0 {
			if e.Owners == nil {
				e.Owners = make([]ProposalID, len(entries))
			}
			e.Owners[i] = id
		}
	}
	c.applying = append(c.applying, entries...)
}

// handOutConf computes the configuration that an entry leads to. raft panics
// on a change that is not valid, so one that is not becomes a no-op, alike on
// all replicas.
func (c *Core) handOutConf(en *pb.Entry) *ConfState {
	p := pendingConf{index: Index(en.GetIndex()), conf: c.nextConf}
	if change, err := decodeConfChange(en); err == nil {
		if conf, err := changeConf(c.nextConf, p.index, change); err == nil {
			p.change, p.conf = change, conf
			p.wish, _ = wishOf(change)
		}
	}
	c.nextConf = p.conf
	c.confs = append(c.confs, p)
	conf := p.conf
	return &conf
}

// Backlog is how many bytes of durable entries wait in memory for the state
// machine alone: they are committed, and go when they are applied.
func (c *Core) Backlog() int { return c.backlog }

// countBacklog takes in what became committed and durable.
func (c *Core) countBacklog() {
	for end := min(c.hard.Commit, c.tail.last()); c.counted < end; {
		c.counted++
		c.backlog += entrySize(c.tail.entries[c.counted-c.tail.prev-1])
	}
}

// Applied tells that the entries up to index are applied, and that the log
// stands at pos: at index, or, while entries that the log held at the start
// are applied again, still where it was. Memory at or below index may go.
func (c *Core) Applied(index Index, pos storage.LogPosition) {
	if c.failed != nil {
		return
	}
	n := 0
	for n < len(c.applying) && Index(c.applying[n].GetIndex()) <= index {
		n++
	}
	if index != c.applied+Index(n) || pos.LastIndex != max(index, c.logged) {
		c.Fail(fmt.Errorf("raftlog: applied up to %d with the log at %d, after %d and of %d handed out",
			index, pos.LastIndex, c.applied, len(c.applying)))
		return
	}
	done := c.applying[:n:n]
	c.applying = c.applying[n:]
	c.applied, c.state.Log = index, pos
	c.switchConf()
	c.tail.applied(index)
	c.tail.trimmed(pos.StartIndex, pos.StartTerm)
	if n == 0 {
		return
	}
	for _, e := range done {
		if Index(e.GetIndex()) > c.logged {
			c.backlog -= entrySize(e)
		}
	}
	c.proposals.applied(done)
	c.guard("apply response", func() error {
		return c.node.Step(&pb.Message{
			Type: pb.MsgStorageApplyResp.Enum(), To: new(uint64(c.self)), From: new(uint64(raft.LocalApplyThread)),
			Term: new(uint64(0)), Entries: done,
		})
	})
	c.tend()
}

// switchConf makes the configurations up to the applied index active.
func (c *Core) switchConf() {
	for len(c.confs) > 0 && c.confs[0].index <= c.applied {
		p := c.confs[0]
		c.confs = c.confs[1:]
		if p.change != nil {
			c.guard("configuration change", func() error {
				c.node.ApplyConfChange(p.change)
				return nil
			})
		}
		if listed(p.conf, c.self) {
			// It never comes back once it is out, but for a forced recovery, which goes
			// on with it: then both are in its log, one after the other.
			c.removed = c.retired
		} else if listed(c.conf, c.self) {
			c.removed = true
		}
		c.confApplied(&p)
		if p.index > c.logged {
			c.state.Conf = p.conf
		}
	}
}
