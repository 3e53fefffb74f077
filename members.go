package stele

import (
	"context"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
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
	SeatNone    = membership.SeatNone    // in no configuration: about to come, or gone
	SeatLearner = membership.SeatLearner // it has the metadata and does not vote
	SeatVoter   = membership.SeatVoter
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
		Members: n.members(p), Moves: p.meta.Moves(),
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
		return m, &NoMemberError{name}
	}
	return m, nil
}

// InitialState is what a cluster begins with: settings, and topics.
type InitialState = metastore.InitialState

// TopicSpec asks for a topic in InitialState.
type TopicSpec = metastore.TopicSpec
