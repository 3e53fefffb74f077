package stele

import (
	"slices"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// NodeID names one life of one data directory in a cluster.
type NodeID = storage.NodeID

// Member is a node of the cluster.
type Member = metastore.Member

// GroupStatus is one replica's view of its raft group.
type GroupStatus = raftlog.Status

// PartitionStatus is the status of one partition replica on this node.
type PartitionStatus = topic.PartitionStatus

// Status is what a node knows of itself. It is a snapshot; what it points to
// must not be changed.
type Status struct {
	Name      string
	Addr      string
	Node      NodeID // 0 until the node is part of a cluster
	ClusterID storage.ClusterID
	Readiness Readiness
	Disk      DiskStatus

	MetadataLeader NodeID // 0: none in view
	Metadata       GroupStatus
	Partitions     []PartitionStatus // of the replicas on this node
}

// Status returns what the node knows of itself, without asking others.
func (n *Node) Status() Status {
	id := n.store.Identity()
	s := Status{Name: n.cfg.Name, Addr: n.Addr(), Node: id.Node, ClusterID: id.ClusterID, Readiness: n.Readiness(), Disk: n.diskStatus()}
	if p := n.net.parts.Load(); p != nil {
		s.MetadataLeader, _ = p.meta.Leader()
		s.Metadata = p.meta.GroupStatus()
		s.Partitions = p.topics.Status()
	}
	return s
}

// Members returns the nodes of the cluster as this node knows them, by id. It
// is a local snapshot, empty until the node is part of a cluster. The addresses
// are those that this node uses: of its own InitialMembers.
func (n *Node) Members() []Member {
	p := n.net.parts.Load()
	if p == nil {
		return nil
	}
	members := slices.Clone(p.meta.Members())
	for i := range members {
		members[i].Addr = n.cfg.addrOf(members[i].Name, members[i].Addr)
	}
	return members
}
