package stele

import (
	"context"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// The nouns of topics, under the names that a user of the root needs. Their fields
// and methods are shown by go doc of the package that they come from, such as
// github.com/stelelog/stele/topic.Producer or .../metastore.TopicConfig.
type (
	// Record is one record: key, value, headers and a timestamp.
	Record = topic.Record
	// Header is one header of a record.
	Header = topic.Header
	// Offset is a record's position in its partition, gapless from 0.
	Offset = storage.Offset
	// Position is where a record was appended.
	Position = topic.Position
	// TopicPartition names a partition of a topic.
	TopicPartition = topic.TopicPartition
	// TopicConfig is what a topic's creator decides.
	TopicConfig = metastore.TopicConfig
	// Retention says how much of each partition of a topic is kept.
	Retention = metastore.Retention
	// Topic is a topic with its partitions and their replicas.
	Topic = metastore.Topic
	// Producer appends records to topics; see Node.NewProducer.
	Producer = topic.Producer
	// ProducerConfig configures a Producer.
	ProducerConfig = topic.ProducerConfig
	// Reader reads one partition; see Node.NewReader.
	Reader = topic.Reader
	// Start is where a Reader begins.
	Start = topic.Start
	// Operation is what Config.Trace is told of.
	Operation = topic.Operation
	// BufferFullError: there is no room in a producer.
	BufferFullError = topic.BufferFullError
	// Codec compresses batches of records.
	Codec = topic.Codec
)

// Codecs of batches.
const (
	CodecNone Codec = topic.CodecNone
	CodecS2   Codec = topic.CodecS2
	CodecZstd Codec = topic.CodecZstd
)

// FromStart begins at the first record that there is.
func FromStart() Start { return topic.FromStart() }

// FromOffset begins at an offset.
func FromOffset(o Offset) Start { return topic.FromOffset(o) }

// FromTime begins at the first record that was appended at t or later, by the
// clock of the partition's leader and to the millisecond; at the end if there is
// none. Append times never step back along a partition, so that the answer is the
// same on all nodes. Timestamps that producers set do not matter.
func FromTime(t time.Time) Start { return topic.FromTime(t) }

// FromEnd begins after the last record that can be read when the reader begins.
func FromEnd() Start { return topic.FromEnd() }

// CreateTopic creates a topic and returns when all its partitions have leaders.
// The creation is durable on a quorum before that; if ctx ends in between, the
// error is Unknown and the topic may exist. A name that is taken, in whatever
// case of letters, is Refused.
func (n *Node) CreateTopic(ctx context.Context, name string, cfg TopicConfig) (Topic, error) {
	p, err := n.serving(ctx, "Node.CreateTopic")
	if err != nil {
		return Topic{}, err
	}
	return p.topics.CreateTopic(ctx, name, cfg)
}

// DescribeTopic returns a topic. That there is none is answered only after a
// linearizable read.
func (n *Node) DescribeTopic(ctx context.Context, name string) (Topic, error) {
	p, err := n.serving(ctx, "Node.DescribeTopic")
	if err != nil {
		return Topic{}, err
	}
	return p.topics.DescribeTopic(ctx, name)
}

// ListTopics returns all topics by name, not older than any change that was
// acknowledged before the call.
func (n *Node) ListTopics(ctx context.Context) ([]Topic, error) {
	p, err := n.serving(ctx, "Node.ListTopics")
	if err != nil {
		return nil, err
	}
	return p.topics.ListTopics(ctx)
}

// Topics returns the topics as this node knows them, by name: a local snapshot, which
// may be old, as Members is. It asks nobody, and so has an answer when ListTopics has
// none. It is empty until the node has got the metadata. What it points to must not be
// changed.
func (n *Node) Topics() []Topic {
	p := n.net.parts.Load()
	if p == nil {
		return nil
	}
	return p.meta.Topics()
}

// DeleteTopic deletes a topic. When it returns nil, nothing will ever be
// appended to that topic again, and its name is free. A partition without a
// quorum makes the error Unknown: the topic stays in deletion, refuses records,
// and is finished when the quorum is back.
func (n *Node) DeleteTopic(ctx context.Context, name string) error {
	p, err := n.serving(ctx, "Node.DeleteTopic")
	if err != nil {
		return err
	}
	return p.topics.DeleteTopic(ctx, name)
}

// SetRetention changes what a topic keeps, and returns the topic. On nil a majority
// holds the change; the leaders of the partitions see to it within some seconds
// that what is due goes, on all replicas alike. What is gone does not come back when
// more is to be kept later.
//
// Errors: metastore.ErrTopicNotFound (Refused), an invalid value (Refused), a
// *ClusterVersionError (Retry) while a member of the cluster runs a build that does
// not know retention. If ctx ends the outcome is Unknown; the call may be repeated.
func (n *Node) SetRetention(ctx context.Context, name string, r Retention) (Topic, error) {
	p, err := n.serving(ctx, "Node.SetRetention")
	if err != nil {
		return Topic{}, err
	}
	return p.topics.SetRetention(ctx, name, r)
}

// NewProducer returns a producer. Records that it acknowledges are synced on a
// quorum; what it retries is appended once. Close it to flush it.
func (n *Node) NewProducer(cfg ProducerConfig) (*Producer, error) {
	p, err := n.ready()
	if err != nil {
		return nil, err
	}
	return p.topics.NewProducer(cfg)
}

// NewReader returns a reader of one partition, on whatever node the partition
// lives. ctx bounds the call, not the reader.
func (n *Node) NewReader(ctx context.Context, tp TopicPartition, start Start) (*Reader, error) {
	p, err := n.serving(ctx, "Node.NewReader")
	if err != nil {
		return nil, err
	}
	return p.topics.NewReader(ctx, tp, start)
}
