package stele

import (
	"context"
	"errors"
	"slices"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Member is a node of the cluster, as one node knows it.
type Member struct {
	metastore.Member
	// Seat is what it is in the metadata's raft group. Partitions are independent
	// of that: every member can hold them.
	Seat Seat
}

// Seat is what a member is in the metadata's raft group.
type Seat = membership.Seat

// Seats of members.
const (
	SeatNone    Seat = membership.SeatNone    // in no configuration: about to come, or gone
	SeatLearner Seat = membership.SeatLearner // it has the metadata and does not vote
	SeatVoter   Seat = membership.SeatVoter
)

// Liveness is what the cluster knows of a member's life.
type Liveness = metastore.Liveness

// Move is a replica of a partition on its way to another node.
type Move = metastore.Move

// Cluster is the cluster as of one moment.
type Cluster struct {
	ID      ClusterID
	Version uint64 // what all members agreed to apply; see package metastore
	Leader  NodeID // of the metadata; 0: none in view
	Members []Member
	Moves   []Move
	// Strays are replicas in the configuration of the metadata's group that no
	// member is. There are none unless something went wrong; see Node.Forget.
	Strays []ReplicaID
	// Epoch is the recovery epoch, 0 unless a recovery was forced; Recoveries are
	// those that were, by epoch, and whether they hold destruction.
	Epoch      uint64
	Recoveries []Recovery
}

// Members returns the nodes of the cluster as this node knows them, by id. It is
// a local snapshot, empty until the node is part of a cluster and has got the
// metadata. The addresses are those that this node uses.
func (n *Node) Members() []Member {
	p := n.net.parts.Load()
	if p == nil {
		return nil
	}
	return n.members(p)
}

func (n *Node) members(p *parts) []Member {
	known := p.meta.Members()
	members := make([]Member, len(known))
	conf := p.meta.GroupStatus().Conf
	for i, m := range known {
		if addr, ok := n.net.addr(m.Node); ok {
			m.Addr = addr
		}
		members[i] = Member{Member: m, Seat: membership.SeatOf(conf, m.Replica)}
	}
	return members
}

// DescribeCluster returns the cluster, not older than any change that was
// acknowledged before the call. The error is Retry.
func (n *Node) DescribeCluster(ctx context.Context) (Cluster, error) {
	p, err := n.serving(ctx, "Node.DescribeCluster")
	if err != nil {
		return Cluster{}, err
	}
	if err := p.meta.Barrier(ctx); err != nil {
		return Cluster{}, err
	}
	leader, _ := p.meta.Leader()
	return Cluster{
		ID: n.store.Identity().ClusterID, Version: p.meta.ClusterVersion(), Leader: leader,
		Members: n.members(p), Moves: p.meta.Moves(), Strays: p.strays(),
		Epoch: p.meta.Epoch(), Recoveries: p.meta.Recoveries(),
	}, nil
}

// member returns the newest life of a name.
func (p *parts) member(name string) (m metastore.Member, err error) {
	for _, have := range p.meta.Members() {
		if have.Name == name {
			m = have
		}
	}
	if m.Node == 0 {
		stone, _, err := p.meta.TombstoneNamed(name)
		if err != nil {
			return m, err
		}
		return m, &NoMemberError{name, stone.Node}
	}
	return m, nil
}

// NoVoteError says why a node has no vote yet. It is Retry, but of an observer,
// which never has one: Refused.
type NoVoteError = membership.NoVoteError

// Deferral is why a node has no vote yet, for programs.
type Deferral = membership.Deferral

// Why a node has no vote yet.
const (
	DeferredNoRecord    Deferral = membership.DeferredNoRecord    // it is no member
	DeferredNoLearner   Deferral = membership.DeferredNoLearner   // it is in no configuration yet
	DeferredDead        Deferral = membership.DeferredDead        // it is marked dead
	DeferredDraining    Deferral = membership.DeferredDraining    // it is on its way out
	DeferredObserver    Deferral = membership.DeferredObserver    // it never votes
	DeferredNewLeader   Deferral = membership.DeferredNewLeader   // the leader has not led for long enough
	DeferredUnreachable Deferral = membership.DeferredUnreachable // a call to it failed not long ago
	DeferredBehind      Deferral = membership.DeferredBehind      // it is not caught up
	DeferredStandby     Deferral = membership.DeferredStandby     // there are five voters: it stands by
	DeferredChanging    Deferral = membership.DeferredChanging    // another change is under way
	DeferredOldLife     Deferral = membership.DeferredOldLife     // the life that it replaces speaks, or does not leave yet
	DeferredQuorum      Deferral = membership.DeferredQuorum      // too few of the voters after it would be alive
)

// Promote gives the named node a vote on the metadata, if it may have one now; nil:
// it votes. Nodes that are no observers ask for it themselves, again and again: this
// is to know why one has none yet, or not to wait. It may be called on any node, and
// again.
//
//	Refused  *NoMemberError; *NoVoteError of an observer
//	Retry    *NoVoteError: not now; the leader could not be reached
//	Unknown  ctx or CallTimeout ended, or leadership was lost: it may have the vote
func (n *Node) Promote(ctx context.Context, name string) error {
	p, m, err := n.find(ctx, "Node.Promote", name)
	if err != nil {
		return err
	}
	err = p.orders.Promote(ctx, m.Node)
	if e := (*NoVoteError)(nil); errors.As(err, &e) {
		e.Name = m.Name
	}
	return err
}

// ReplicaID names one stint of a node in a raft group.
type ReplicaID = raftlog.ReplicaID

// ForgetError says why a replica cannot be forgotten. It is Refused.
type ForgetError = membership.ForgetError

// Forget takes a replica that is left over in the configuration of the metadata's
// group, and that no member is, out of it; nil: it is out. Cluster.Strays lists
// such replicas: there are none unless something went wrong, and one that votes is
// not taken out unasked. A node with a member record, or with any partition, is
// refused: that is what Decommission is for. It may be called on any node.
//
//	Refused  *ForgetError
//	Retry    another change is under way, too few of the other voters are alive,
//	         or the leader could not be reached
//	Unknown  ctx or CallTimeout ended, or leadership was lost: it may be out
func (n *Node) Forget(ctx context.Context, replica ReplicaID) error {
	p, err := n.serving(ctx, "Node.Forget")
	if err != nil {
		return err
	}
	return p.orders.Forget(ctx, replica)
}

// find returns the newest life of a name, not older than any change that was
// acknowledged before the call.
func (n *Node) find(ctx context.Context, call, name string) (*parts, metastore.Member, error) {
	p, err := n.serving(ctx, call)
	if err != nil {
		return nil, metastore.Member{}, err
	}
	if err := p.meta.Barrier(ctx); err != nil {
		return nil, metastore.Member{}, err
	}
	m, err := p.member(name)
	return p, m, err
}

// strays are the replicas in the metadata's configuration that no member is.
func (p *parts) strays() (strays []ReplicaID) {
	members, conf := p.meta.Members(), p.meta.GroupStatus().Conf
	for _, r := range slices.Concat(conf.Voters, conf.Learners) {
		if !slices.ContainsFunc(members, func(m metastore.Member) bool { return m.Replica == r }) {
			strays = append(strays, r)
		}
	}
	return strays
}

// InitialState is what a cluster begins with: settings, and topics.
type InitialState = metastore.InitialState

// TopicSpec asks for a topic in InitialState.
type TopicSpec = metastore.TopicSpec
