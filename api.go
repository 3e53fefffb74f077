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
	// TopicState is where a topic is in its life: Topic.State.
	TopicState = metastore.TopicState
	// Deletion is when a topic was deleted with a grace, and until when it can be
	// brought back: Topic.Deletion.
	Deletion = metastore.Deletion
	// DeleteOption is an option of Node.DeleteTopic: see WithGrace.
	DeleteOption = topic.DeleteOption
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

// Where a topic is in its life. One that is gone is not found any more.
const (
	TopicActive    TopicState = metastore.TopicActive
	TopicDeleting  TopicState = metastore.TopicDeleting  // it will be gone, and nothing can stop that
	TopicRetiring  TopicState = metastore.TopicRetiring  // it is being deleted with a grace
	TopicRetired   TopicState = metastore.TopicRetired   // it is deleted, and its grace lasts: see Node.UndeleteTopic
	TopicRestoring TopicState = metastore.TopicRestoring // it is being brought back
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
// acknowledged before the call. Those that were deleted with a grace are among them
// while it lasts, with their State and Deletion.
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
//
// With a grace (WithGrace, or Config.DeleteGrace) UndeleteTopic brings the topic back
// as it was until that is over. Until then it keeps its name, its records and its
// places: CreateTopic with the name, and who wants to write or read, get a
// *TopicRetiredError that says until when; its partitions count toward limits; its
// replicas are kept up and can be moved. When the call returns nil, nothing is
// appended until the topic is brought back. Deleting it again with a grace never makes
// the time shorter; without one it is deleted at once. A grace is Retry while this
// node's clock is more than a minute off those of the other members, and a
// *ClusterVersionError (Retry) while a member's build does not know it.
func (n *Node) DeleteTopic(ctx context.Context, name string, opts ...DeleteOption) error {
	p, err := n.serving(ctx, "Node.DeleteTopic")
	if err != nil {
		return err
	}
	return p.topics.DeleteTopic(ctx, name, opts...)
}

// WithGrace has DeleteTopic keep the topic for a time in which it can be brought back:
// 1 s to 10 years. 0: it is deleted for good, whatever Config.DeleteGrace says.
func WithGrace(grace time.Duration) DeleteOption { return topic.WithGrace(grace) }

// UndeleteTopic brings back a topic that was deleted with a grace, while that lasts:
// the same incarnation, with its records at their offsets. Readers and producers that
// were on it have ended, or do with ErrTopicDeleted at their next call; new ones go on
// where they were, and what retention finds too old by then goes as ever. On nil it
// takes and shows records; of a topic that is not deleted that is at once.
//
// Errors: ErrTopicNotFound and ErrTopicDeleted (Refused) come too late. If ctx ends, or
// while a partition has no quorum, the outcome is Unknown: once begun, it is finished
// when the quorum is back, and the topic is not deleted meanwhile. The call may be
// repeated.
func (n *Node) UndeleteTopic(ctx context.Context, name string) (Topic, error) {
	p, err := n.serving(ctx, "Node.UndeleteTopic")
	if err != nil {
		return Topic{}, err
	}
	return p.topics.UndeleteTopic(ctx, name)
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
