package stele

import (
	"context"
	"errors"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/topic"
)

// TransferError says why the metadata's leadership was not handed over to a node.
// It is Retry.
type TransferError = membership.TransferError

// ErrNotTransferred says that the chosen replica of a partition did not take over
// leadership; another one leads. It is Retry.
var ErrNotTransferred = topic.ErrNotTransferred

// TransferLeadership has the leader of a partition hand over to the replica on the
// named node; the zero TopicPartition is the metadata. It may be called on any
// node, and again. It returns nil when that replica leads, a round trip later if it
// is well; what is produced meanwhile waits, and nothing is lost.
//
// A partition goes back to its preferred leader, the first of its Replicas, some
// time later: see Config.NoLeaderRebalance.
//
//	Refused  *NoMemberError, ErrTopicNotFound, *NoPartitionError; the node has no
//	         replica of the partition
//	Retry    *TransferError, ErrNotTransferred: it did not take over; there is no
//	         leader that could hand over, or it could not be reached
//	Unknown  ctx or CallTimeout ended, or the answer was lost: it may have happened
func (n *Node) TransferLeadership(ctx context.Context, of TopicPartition, to string) error {
	p, m, err := n.find(ctx, "Node.TransferLeadership", to)
	if err != nil {
		return err
	}
	if of == (TopicPartition{}) {
		err = p.orders.Transfer(ctx, m.Node)
		if e := (*TransferError)(nil); errors.As(err, &e) {
			e.Name = m.Name
		}
		return err
	}
	return p.topics.TransferLeadership(ctx, of, m.Node)
}
