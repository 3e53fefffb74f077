package membership

import (
	"encoding/hex"
	"fmt"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Survey is what a stopped node's directory holds, as far as a forced recovery
// has to know it. It is made on each machine that is left, brought together by a
// person, as JSON, and planned with by PlanRecovery.
type Survey struct {
	Version   int    `json:"survey"` // of this form: 1
	Cluster   string `json:"cluster"`
	ClusterID ID     `json:"cluster_id"`
	Epoch     uint64 `json:"epoch"` // recovery epoch that the directory is in
	Plan      ID     `json:"plan"`  // of the recovery that led there; zero: none, or it is not known here

	Name  string         `json:"name"`
	Node  raftlog.NodeID `json:"node"`
	Nonce ID             `json:"nonce"` // of the directory's life
	// Replica of group 1.
	Replica raftlog.ReplicaID `json:"metadata_replica"`
	// SegmentBytes is what the directory began with.
	SegmentBytes int64 `json:"segment_bytes"`

	// Fenced is the newer recovery epoch that the node met: the cluster went on in it,
	// so that a recovery of this directory would make another cluster of the same id.
	// PlanRecovery refuses that. If the cluster that went on is lost for good as well,
	// with all of its directories, a person may set Fenced to 0 and plan with this one.
	// 0: it met none.
	Fenced uint64 `json:"fenced"`
	// Damaged: the node's metadata differ from what a majority of the voters had
	// (metastore.ErrStateDiverged). A recovery does not go on from them, and the node
	// begins its metadata anew; its partitions count like those of others.
	Damaged bool `json:"damaged,omitempty"`
	// Awaits is the plan of the recovery to Fenced, if it includes the node and was not
	// applied to its directory: that is what helps.
	Awaits ID `json:"awaits"`

	Logs     []raftlog.LogEnd `json:"logs"`
	Metadata SurveyedMetadata `json:"metadata"`
}

// surveyVersion is the form that this build writes.
const surveyVersion = 1

// SurveyedMetadata is the metadata as of the last entry of a node's log.
type SurveyedMetadata struct {
	Begun   bool             `json:"begun"` // false: the node never had any
	Epoch   uint64           `json:"epoch"`
	Members []SurveyedMember `json:"members"`
	Topics  []SurveyedTopic  `json:"topics"`
}

// SurveyedMember is a member of the cluster.
type SurveyedMember struct {
	Node    raftlog.NodeID    `json:"node"`
	Name    string            `json:"name"`
	Nonce   ID                `json:"nonce"`
	Replica raftlog.ReplicaID `json:"replica"` // of group 1
	Addr    string            `json:"addr"`
}

// SurveyedTopic is a topic, and where its partitions are.
type SurveyedTopic struct {
	Name       string              `json:"name"`
	Partitions []SurveyedPartition `json:"partitions"`
}

// SurveyedPartition is where a partition is.
type SurveyedPartition struct {
	Group    raftlog.GroupID     `json:"group"`
	Replicas []SurveyedReplica   `json:"replicas"` // that it has, and one that a move is bringing
	First    []raftlog.ReplicaID `json:"first"`    // that its group began with
}

// SurveyedReplica is a replica of a partition.
type SurveyedReplica struct {
	Replica raftlog.ReplicaID `json:"replica"`
	Node    raftlog.NodeID    `json:"node"`
	Coming  bool              `json:"coming,omitempty"` // a move is bringing it
}

// Surveyed returns what a survey says of metadata.
func Surveyed(o *metastore.Offline) SurveyedMetadata {
	s := SurveyedMetadata{Begun: !o.ClusterID.IsZero(), Epoch: o.Epoch, Members: []SurveyedMember{}, Topics: []SurveyedTopic{}}
	for _, m := range o.Members {
		s.Members = append(s.Members, SurveyedMember{m.Node, m.Name, ID(m.Nonce), m.Replica, m.Addr})
	}
	for _, t := range o.Topics {
		topic := SurveyedTopic{Name: t.Name}
		for _, p := range t.Partitions {
			topic.Partitions = append(topic.Partitions, surveyedPartition(p))
		}
		s.Topics = append(s.Topics, topic)
	}
	return s
}

func surveyedPartition(p metastore.Partition) SurveyedPartition {
	s := SurveyedPartition{Group: p.Group, First: p.FirstReplicas(), Replicas: []SurveyedReplica{}}
	for _, a := range p.Replicas {
		s.Replicas = append(s.Replicas, SurveyedReplica{Replica: a.Replica, Node: a.Node})
	}
	if p.Target != nil {
		s.Replicas = append(s.Replicas, SurveyedReplica{p.Target.Add.Replica, p.Target.Add.Node, true})
	}
	return s
}

// ID is 16 random bytes that travel as 32 hexadecimal digits.
type ID [16]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText implements encoding.TextMarshaler.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *ID) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(id) {
		return fmt.Errorf("membership: id %q: want %d hexadecimal digits", text, 2*len(id))
	}
	copy(id[:], b)
	return nil
}
