package stele

import (
	"context"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/topic"
)

var (
	// ErrMovePending: a replica of the partition is on its way already. It is Retry.
	ErrMovePending = metastore.ErrMovePending
	// ErrTooManyMoves: eight replicas are on their way in the cluster. It is Retry.
	ErrTooManyMoves = metastore.ErrTooManyMoves
	// ErrReplicaExists: the node has a replica of the partition. It is Refused.
	ErrReplicaExists = metastore.ErrReplicaExists
	// ErrMemberDraining: the node is about to leave the cluster. It is Retry, as that
	// may be taken back.
	ErrMemberDraining = metastore.ErrMemberDraining
	// ErrMemberDead: the node is marked dead. It is Retry.
	ErrMemberDead = metastore.ErrMemberDead
)

// MoveReplica has the replica of a partition on one named node replaced by one on
// another, dead or alive: a person's way to copy elsewhere what a dead node held
// that is to stay a member. It may be called on any node. It returns when that is
// decided, durably; the partition's leader carries it out and goes on serving
// meanwhile. Cluster.Moves shows what is under way, Events.MoveChanged on that
// leader's node how far it is.
//
// Replicas are balanced by number, so that a move may be followed by another one:
// see Config.NoRebalance.
//
//	Refused  *NoMemberError, ErrTopicNotFound, *NoPartitionError, ErrReplicaExists;
//	         from has no replica of the partition
//	Retry    ErrMovePending, ErrTooManyMoves, ErrMemberDead, ErrMemberDraining;
//	         nothing happened
//	Unknown  ctx ended: it may have been decided
func (n *Node) MoveReplica(ctx context.Context, of TopicPartition, from, to string) error {
	p, source, err := n.find(ctx, "Node.MoveReplica", from)
	if err != nil {
		return err
	}
	target, err := p.member(to)
	if err != nil {
		return err
	}
	return p.topics.MoveReplica(ctx, topic.TopicPartition(of), source.Node, target.Node)
}
