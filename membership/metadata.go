package membership

import (
	"context"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Metadata is what membership needs of what the cluster agrees on;
// *metastore.Store is one, and says what the methods do. All are safe for
// concurrent use.
type Metadata interface {
	Barrier(ctx context.Context) error
	Leader() (raftlog.NodeID, <-chan struct{})
	Members() []metastore.Member // by node id; not changed by anybody
	Departures() uint64
	ClusterVersion() uint64
	NewestApplied() metastore.CommandType
	Tombstone(raftlog.Nonce) (metastore.Tombstone, bool, error)
	Load(raftlog.NodeID) (replicas, leads uint64, err error)
	Orphans() (uint64, error)

	Admit(context.Context, metastore.Admission) (metastore.Member, error)
	SetAddress(context.Context, raftlog.NodeID, raftlog.Nonce, string) error
	RecordHeartbeats(context.Context, []metastore.Heartbeat) ([]error, error)
	MarkDead(context.Context, []metastore.DeadMark) ([]error, error)
	SetDeparture(context.Context, raftlog.NodeID, raftlog.Nonce, metastore.Departure) error
	MarkLeaving(context.Context, raftlog.NodeID, raftlog.Nonce, metastore.Judged) error
	RemoveMember(context.Context, raftlog.NodeID) error
	SetVersion(context.Context, uint64) error
}

// Group is what membership needs of raft group 1; *raftlog.Group is one. A
// snapshot replaces that of a metastore.Store, whose Group is asked each time.
type Group interface {
	Status() raftlog.Status
	ChangeMembers(context.Context, raftlog.Change) error
	Resign(ctx context.Context, successors ...raftlog.ReplicaID) error
	TransferLeadership(ctx context.Context, to raftlog.ReplicaID) error
}
