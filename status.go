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
	// Lost are the partitions, of any node, of which a forced recovery left no replica,
	// as this node knows: nothing but deleting their topics helps.
	Lost []TopicPartition
}

// Status returns what the node knows of itself, without asking others.
func (n *Node) Status() Status {
	id := n.store.Identity()
	s := Status{Name: n.cfg.Name, Addr: n.Addr(), Node: id.Node, ClusterID: id.ClusterID, Readiness: n.Readiness(), Disk: n.diskStatus()}
	if p := n.net.parts.Load(); p != nil {
		s.MetadataLeader, _ = p.meta.Leader()
		s.Metadata = p.meta.GroupStatus()
		s.Partitions = p.topics.Status()
		s.Lost = p.lost()
	}
	return s
}

// lost are the partitions of which a forced recovery left no replica.
func (p *parts) lost() (all []TopicPartition) {
	gone := map[raftlog.GroupID]bool{}
	for _, r := range p.meta.Recoveries() {
		for _, g := range r.Lost {
			gone[g] = true
		}
	}
	if len(gone) == 0 {
		return nil
	}
	for _, t := range p.meta.Topics() {
		for _, part := range t.Partitions {
			if gone[part.Group] {
				all = append(all, TopicPartition{Topic: t.Name, Partition: part.Index})
			}
		}
	}
	return all
}
