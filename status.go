package stele

import (
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// NodeID names one life of one data directory in a cluster.
type NodeID = storage.NodeID

// ClusterID names a cluster, for all time.
type ClusterID = storage.ClusterID

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
	ClusterID ClusterID
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
