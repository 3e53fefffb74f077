package topic

import (
	"context"
	"errors"

	"github.com/stelelog/stele/raftlog"
)

// ProducerConfig configures a Producer. The zero value is an idempotent
// producer without a name.
type ProducerConfig struct {
	// Name makes the producer keep its identity across restarts: a newer
	// producer of that name fences this one. Default: none.
	Name string
	// Anonymous switches idempotence off.
	Anonymous bool
	// Codec compresses batches. Default CodecNone.
	Codec Codec
	// MaxBatchBytes bounds the records of a batch, in bytes; a larger record
	// travels alone: 1 KiB to 1 MiB. Default 1 MiB.
	MaxBatchBytes int
	// MaxBufferedBytes bounds the records that wait in the producer; beyond it
	// calls wait: 1 KiB to 1 GiB. Default 64 MiB.
	MaxBufferedBytes int
	// MaxInFlight is how many batches of a partition may be on their way at
	// once: 1 to 5. Default 5.
	MaxInFlight int
}

// Producer writes records to topics.
type Producer struct{}

// NewProducer makes a producer.
func (m *Manager) NewProducer(cfg ProducerConfig) (*Producer, error) {
	return nil, raftlog.Retry(errors.ErrUnsupported)
}

// Produce appends records to a topic and returns where they are, in the order
// of records.
func (p *Producer) Produce(ctx context.Context, topic string, records ...Record) ([]Position, error) {
	return nil, raftlog.Retry(errors.ErrUnsupported)
}

// ProduceTo is Produce to a given partition.
func (p *Producer) ProduceTo(ctx context.Context, topic string, partition uint32, records ...Record) ([]Position, error) {
	return nil, raftlog.Retry(errors.ErrUnsupported)
}

// ProduceAsync is Produce of one record without waiting: done is called once.
func (p *Producer) ProduceAsync(ctx context.Context, topic string, record Record, done func(Position, error)) {
	done(Position{}, raftlog.Retry(errors.ErrUnsupported))
}

// Close waits until what was produced is acknowledged, or ctx ends.
func (p *Producer) Close(ctx context.Context) error { return nil }
