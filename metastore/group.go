package metastore

import (
	"context"
	"sync/atomic"

	"github.com/stelelog/stele/raftlog"
)

// group is what the metadata needs of its raft group.
type group interface {
	ProposeIn(term raftlog.Term, data []byte, done func(raftlog.Proposal))
	ReadIndex(ctx context.Context) (raftlog.Index, error)
	Status() raftlog.Status
	UpdatePeers(map[raftlog.ReplicaID]raftlog.NodeID)
	State(ctx context.Context) (raftlog.ReplicaState, error)
	TrimLog(upTo raftlog.Index, limit, keep int64) error
}

// openedGroup is the group of a store through all of its openings: a snapshot
// that takes the place of the state closes it and opens it again. In between, and
// until its user comes back, calls of the closed one say so: Retry.
type openedGroup struct{ now atomic.Pointer[opening] }

type opening struct{ group }

func (o *openedGroup) set(g group) { o.now.Store(&opening{g}) }

func (o *openedGroup) ProposeIn(term raftlog.Term, data []byte, done func(raftlog.Proposal)) {
	o.now.Load().ProposeIn(term, data, done)
}

func (o *openedGroup) ReadIndex(ctx context.Context) (raftlog.Index, error) {
	return o.now.Load().ReadIndex(ctx)
}

func (o *openedGroup) Status() raftlog.Status { return o.now.Load().Status() }

func (o *openedGroup) UpdatePeers(peers map[raftlog.ReplicaID]raftlog.NodeID) {
	o.now.Load().UpdatePeers(peers)
}

func (o *openedGroup) State(ctx context.Context) (raftlog.ReplicaState, error) {
	return o.now.Load().State(ctx)
}

// TrimLog does nothing while the group is being opened for the first time: its
// state machine may be called by then.
func (o *openedGroup) TrimLog(upTo raftlog.Index, limit, keep int64) error {
	if g := o.now.Load(); g != nil {
		return g.TrimLog(upTo, limit, keep)
	}
	return nil
}
