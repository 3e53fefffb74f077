package metastore

import (
	"math"
	"slices"
	"time"

	"github.com/stelelog/stele/raftlog"
)

// TopicState is where a topic is in its life.
type TopicState uint8

const (
	// TopicActive: it can be written and read.
	TopicActive TopicState = 1
	// TopicDeleting: it will be deleted, and nothing can stop that; its
	// partitions are being sealed. The name is still taken.
	TopicDeleting TopicState = 2
	// TopicDeleted: it is gone and its name is free. A tombstone by
	// incarnation remains.
	TopicDeleted TopicState = 3
	// TopicRetiring: it was deleted with a grace, during which it can be brought
	// back; its partitions are being closed. The name is still taken.
	TopicRetiring TopicState = 4
	// TopicRetired: its partitions are closed. When the grace has ended it is
	// TopicDeleting.
	TopicRetired TopicState = 5
	// TopicRestoring: it is being brought back; its partitions are being opened.
	TopicRestoring TopicState = 6

	newestState = TopicRestoring
)

// Kept reports whether what the topic holds is to be kept: it is active, or can
// be again.
func (s TopicState) Kept() bool {
	return s == TopicActive || s == TopicRetiring || s == TopicRetired || s == TopicRestoring
}

func (s TopicState) String() string {
	switch s {
	case TopicActive:
		return "active"
	case TopicDeleting:
		return "deleting"
	case TopicDeleted:
		return "deleted"
	case TopicRetiring:
		return "retiring"
	case TopicRetired:
		return "retired"
	case TopicRestoring:
		return "restoring"
	}
	return "invalid"
}

// Limits of topics, and the defaults of TopicConfig.
const (
	// MaxPartitions is how many partitions a topic can have.
	MaxPartitions = 10_000
	// MaxClusterPartitions is how many all topics of a cluster can have
	// together: each is a raft group on each of its nodes, open or not.
	MaxClusterPartitions = 100_000
	// MaxRecordBytes is the largest TopicConfig.MaxRecordBytes, and its default.
	MaxRecordBytes = 16 << 20

	// MinRetentionAge and MaxRetentionAge bound Retention.Age.
	MinRetentionAge = time.Second
	MaxRetentionAge = 100 * 365 * 24 * time.Hour
	// MaxRetentionBytes is the largest Retention.Bytes.
	MaxRetentionBytes = 1 << 60

	minBatchBytes     = 1 << 10
	maxBatchBytes     = 16 << 20
	defaultBatchBytes = 1 << 20
	defaultReplicas   = 3
)

// TopicConfig is what a topic's creator decides. The zero value of a field
// means its default.
type TopicConfig struct {
	// Partitions is how many partitions the topic has: 1 to 10,000, and no more
	// than 100,000 in all topics together. Default 1.
	Partitions uint32
	// Replicas is how many nodes hold each partition: 1 to the number of
	// members. Default 3, or the number of members if that is smaller. If too few of
	// them are not on their way out, a creation is refused with ErrTooFewNodes.
	Replicas uint32
	// MaxBatchBytes bounds a batch of records as it is stored, in bytes:
	// 1 KiB to 16 MiB. Default 1 MiB.
	MaxBatchBytes uint32
	// MaxRecordBytes bounds a record: its key, value and headers, as
	// topic.Record.Size counts them, in bytes. Producers refuse larger ones. 1 B
	// to 16 MiB. Default 16 MiB.
	MaxRecordBytes uint32
	// Retention says what is removed of the topic's front. Default: nothing is. It
	// can be changed: see Store.SetRetention. It needs version 3 of the cluster.
	Retention Retention
}

// Retention says how much of each partition is kept. Records are removed when
// either is passed; a zero value keeps all. They go in whole segments, oldest
// first, and never those of the segment that is written to: a partition that is
// written slowly keeps up to one segment (stele.Config.SegmentBytes) of older
// records.
type Retention struct {
	// Age is how long records are kept at least, by the clocks of the leaders that
	// appended them: 1 s to 100 years (of 365 days), in whole milliseconds; more
	// precise ones are rounded up. 0: for ever.
	Age time.Duration
	// Bytes is how much of a partition's log is kept at least, on each replica, in
	// bytes on disk: 1 to 1 << 60. 0: all.
	Bytes int64
}

// IsZero reports whether all is kept.
func (r Retention) IsZero() bool { return r == Retention{} }

// rounded is the retention that is stored.
func (r Retention) rounded() Retention {
	if part := r.Age % time.Millisecond; part > 0 {
		r.Age += time.Millisecond - part
	}
	return r
}

// check refuses a retention that no topic can have.
func (r Retention) check() error {
	if r.Age != 0 && (r.Age < MinRetentionAge || r.Age > MaxRetentionAge) {
		return invalid("Retention.Age", r.Age, "0, or %v to %v (100 years)", MinRetentionAge, MaxRetentionAge)
	}
	if r.Bytes < 0 || r.Bytes > MaxRetentionBytes {
		return invalid("Retention.Bytes", r.Bytes, "0, or 1 to %d", int64(MaxRetentionBytes))
	}
	return nil
}

func (c TopicConfig) withDefaults(members int) TopicConfig {
	if c.Partitions == 0 {
		c.Partitions = 1
	}
	if c.Replicas == 0 {
		c.Replicas = uint32(min(defaultReplicas, members))
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = defaultBatchBytes
	}
	if c.MaxRecordBytes == 0 {
		c.MaxRecordBytes = MaxRecordBytes
	}
	return c
}

// validate checks a config with its defaults filled in.
func (c TopicConfig) validate(members int) error {
	if c.Partitions < 1 || c.Partitions > MaxPartitions {
		return invalid("TopicConfig.Partitions", c.Partitions, "1 to %d", MaxPartitions)
	}
	if c.Replicas < 1 || uint64(c.Replicas) > uint64(members) {
		return invalid("TopicConfig.Replicas", c.Replicas, "1 to %d, the number of members that can hold one", members)
	}
	if c.MaxBatchBytes < minBatchBytes || c.MaxBatchBytes > maxBatchBytes {
		return invalid("TopicConfig.MaxBatchBytes", c.MaxBatchBytes, "%d to %d", minBatchBytes, maxBatchBytes)
	}
	if c.MaxRecordBytes < 1 || c.MaxRecordBytes > MaxRecordBytes {
		return invalid("TopicConfig.MaxRecordBytes", c.MaxRecordBytes, "1 to %d", MaxRecordBytes)
	}
	return c.Retention.check()
}

// check is validate for one who does not know the members.
func (c TopicConfig) check() error {
	return c.withDefaults(math.MaxInt32).validate(math.MaxInt32)
}

// TopicSpec asks for a topic.
type TopicSpec struct {
	Name   string
	Config TopicConfig
	// Incarnation of the topic to be; zero lets CreateTopic make one. A caller
	// that keeps it can ask again after an unknown outcome: the same
	// incarnation is created once.
	Incarnation raftlog.Incarnation
}

// Topic is a topic as of one applied index. Values share what they point to:
// it must not be changed.
type Topic struct {
	Name        string
	Incarnation raftlog.Incarnation
	State       TopicState
	Config      TopicConfig // defaults filled in
	Partitions  []Partition // by index; none if deleted
	Deletion    Deletion    // the last one with a grace
}

// Partition is one partition and the replicas that hold it.
type Partition struct {
	Index uint32
	Group raftlog.GroupID
	// Replicas that hold it. The first one is the preferred leader.
	Replicas []Assignment
	// Generation counts the changes of Replicas and Target.
	Generation uint64
	// Target is the move that is under way; nil: none.
	Target *Target
	// first is the group's first configuration, once Replicas may differ from it.
	first []raftlog.ReplicaID
}

// Assignment is one replica's place.
type Assignment struct {
	Replica raftlog.ReplicaID
	Node    raftlog.NodeID
}

// Target is what a move brings about: Add comes in, Remove goes.
type Target struct {
	Add     Assignment        // with a replica id of its own, which was never used
	Remove  raftlog.ReplicaID // one of the partition's Replicas; 0: none goes
	Started Stamp
}

// FirstReplicas returns the first configuration of the partition's group: the
// replicas that the creating command listed, preferred leader first. It never
// changes. Only they ever begin with it, however late; a replica that a move
// brings in begins with none, and learns it from the leader.
func (p Partition) FirstReplicas() []raftlog.ReplicaID {
	if p.Generation > 0 {
		return p.first
	}
	ids := make([]raftlog.ReplicaID, len(p.Replicas))
	for i, a := range p.Replicas {
		ids[i] = a.Replica
	}
	return ids
}

// On returns the replica that node holds of the partition, or that a move
// brings to it.
func (p Partition) On(node raftlog.NodeID) (raftlog.ReplicaID, bool) {
	for _, a := range p.Replicas {
		if a.Node == node {
			return a.Replica, true
		}
	}
	if p.Target != nil && p.Target.Add.Node == node {
		return p.Target.Add.Replica, true
	}
	return 0, false
}

// place returns where in Replicas a replica is, -1 if it is not there.
func (p Partition) place(r raftlog.ReplicaID) int {
	return slices.IndexFunc(p.Replicas, func(a Assignment) bool { return a.Replica == r })
}

// NodeAssignment is a partition replica that a node has to hold.
type NodeAssignment struct {
	Topic     *Topic // shared: not to be changed
	Partition Partition
	Replica   raftlog.ReplicaID
	// Target: it is the one that the move under way brings in.
	Target bool
}

// Move returns the move of the partition that is under way.
func (a NodeAssignment) Move() (Move, bool) { return moveOf(a.Topic.Incarnation, a.Partition) }

// maxNameBytes is what storage can make a directory and its name in quarantine
// of.
const maxNameBytes = 179

// checkTopicName accepts what storage does (a test compares): what can be part
// of a file name on every system, without the '@' and '~' of names that stele
// makes itself.
func checkTopicName(name string) error {
	const allowed = "1 to 179 of A-Z a-z 0-9 . _ -, and neither . nor .."
	if len(name) < 1 || len(name) > maxNameBytes || name == "." || name == ".." {
		return invalid("Topic.Name", name, allowed)
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return invalid("Topic.Name", name, allowed)
		}
	}
	return nil
}
