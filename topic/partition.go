package topic

import (
	"fmt"
	"sync"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// PartitionConfig describes one replica of one partition. A zero field has its
// default.
type PartitionConfig struct {
	// Topic and Partition name it in errors.
	Topic     string
	Partition uint32
	// Incarnation is the life of the topic. Required.
	Incarnation storage.Incarnation
	// Codec compresses the batches that are made here. Default: CodecNone.
	Codec Codec
	// MaxPendingBytes bounds the records that wait for a quorum, in bytes: 1 B
	// to 1 GiB. What comes alone always fits. Default 32 MiB.
	MaxPendingBytes int
	// MaxInFlight bounds the entries that the group has at once: 1 to 65,536.
	// Default 256.
	MaxInFlight int
	// MaxInFlightBytes bounds their records, in bytes: 1 B to 1 GiB. It is to
	// be well below the group's own bound, which refuses where this one waits.
	// Default 4 MiB.
	MaxInFlightBytes int
	// Clock stamps batches. Default: the machine's.
	Clock clock.Clock
	// OnLogStart is told that this replica's log begins later now, and how many
	// bytes of files that let go, from the group's goroutine: it must not block.
	// Default: nobody is.
	OnLogStart func(start storage.LogStart, bytes int64)
	// Builders are shared by the partitions of a node. Default: its own.
	Builders *Builders
}

func (c PartitionConfig) withDefaults() PartitionConfig {
	if c.MaxPendingBytes == 0 {
		c.MaxPendingBytes = 32 << 20
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = 256
	}
	if c.MaxInFlightBytes == 0 {
		c.MaxInFlightBytes = 4 << 20
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Builders == nil {
		c.Builders = new(Builders)
	}
	return c
}

func (c PartitionConfig) validate() error {
	switch {
	case c.Incarnation.IsZero():
		return fmt.Errorf("topic: PartitionConfig.Incarnation is zero: it must name a life of %q", c.Topic)
	case c.Codec > newestCodec:
		return fmt.Errorf("topic: PartitionConfig.Codec is %d: want %s", c.Codec, codecRange)
	case c.MaxPendingBytes < 1 || c.MaxPendingBytes > 1<<30:
		return fmt.Errorf("topic: PartitionConfig.MaxPendingBytes is %d: want 1 to %d", c.MaxPendingBytes, 1<<30)
	case c.MaxInFlight < 1 || c.MaxInFlight > 1<<16:
		return fmt.Errorf("topic: PartitionConfig.MaxInFlight is %d: want 1 to %d", c.MaxInFlight, 1<<16)
	case c.MaxInFlightBytes < 1 || c.MaxInFlightBytes > 1<<30:
		return fmt.Errorf("topic: PartitionConfig.MaxInFlightBytes is %d: want 1 to %d", c.MaxInFlightBytes, 1<<30)
	}
	return nil
}

// Group is what a partition needs of its raft group; *raftlog.Group is one.
type Group interface {
	// Propose calls done exactly once, never from within Propose.
	Propose(data []byte, done func(raftlog.Proposal))
	// Readable reports whether a watermark may be shown.
	Readable() (storage.Index, bool)
	Log() *storage.Log
}

// Partition is one replica of one partition on this node. It is the state
// machine of its group, and the way for records in and out.
//
// Its methods are safe for concurrent use, except that Apply and Applied are
// the group's to call. It owns no goroutine and closes no group.
type Partition struct {
	cfg     PartitionConfig
	batches batcher
	applied applier

	bound  chan struct{} // closed by Bind: group is set
	closed chan struct{} // closed by Close
	group  Group

	mu struct {
		sync.Mutex
		hw       storage.Offset
		changed  chan struct{} // nil: nobody waits
		isBound  bool
		isClosed bool
	}
}

var _ raftlog.StateMachine = (*Partition)(nil)

// NewPartition makes the state machine to open a group with. It does nothing
// until Bind.
func NewPartition(cfg PartitionConfig) (*Partition, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Partition{
		cfg: cfg,
		batches: batcher{
			incarnation: cfg.Incarnation, codec: cfg.Codec, clock: cfg.Clock, builders: cfg.Builders,
			maxBytes: cfg.MaxPendingBytes, maxInFlight: cfg.MaxInFlight, maxFlying: cfg.MaxInFlightBytes,
		},
		bound: make(chan struct{}), closed: make(chan struct{}),
	}, nil
}

// Bind joins the partition to its open group. It must follow the opening of
// the group at once, since applying waits for it, and only the first call
// counts; where the opening fails, call Close instead. It reads no file.
func (p *Partition) Bind(g Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.isBound || p.mu.isClosed {
		return
	}
	p.mu.isBound = true
	p.group = g
	p.mu.hw = g.Log().NextOffset()
	p.batches.bind(g)
	close(p.bound)
}

// Close ends the calls that wait with ErrPartitionClosed, and refuses all
// later ones. Records that were proposed are answered by the group, which is
// to be closed after it. It is idempotent.
func (p *Partition) Close() {
	p.mu.Lock()
	if p.mu.isClosed {
		p.mu.Unlock()
		return
	}
	p.mu.isClosed = true
	close(p.closed)
	p.wakeLocked()
	p.mu.Unlock()
	p.batches.close()
}

// Incarnation is the life of the topic that the partition belongs to.
func (p *Partition) Incarnation() storage.Incarnation { return p.cfg.Incarnation }

// Append appends records of a producer, or of nobody in particular (zero
// ProducerBatch: nothing is deduplicated, and the records of several calls
// share batches). They must fit one batch (see Fitting), else the error is a
// *TooLargeError. Nothing of records is kept after the return.
//
// With an error nothing happened and done is not called. Else done is called
// exactly once, from a goroutine of the group or of Close, and must not block:
// the records are synced by a quorum and have offsets, or it says what became
// of them. Calls that follow each other are appended in their order. A
// producer has at most RememberedBatches calls in flight, and repeats a batch
// as it was.
//
// Errors: ErrOverloaded, ErrPartitionClosed, *TooLargeError; in the Ack also
// *raftlog.NotLeaderError and others of raftlog, ErrSealed, ErrUnknownProducer,
// *FencedError, *OutOfOrderError.
func (p *Partition) Append(producer ProducerBatch, records []Record, done func(Ack)) error {
	if len(records) == 0 {
		return raftlog.Refused(fmt.Errorf("topic: no records to append to %s/%d", p.cfg.Topic, p.cfg.Partition))
	}
	return p.batches.append(producer, records, done)
}

// AppendBatch is Append for a batch that another node has encoded, with the
// same promises. data belongs to the group from then on, even after an
// unknown outcome, and its append stamp is written into it here: a repetition
// needs bytes of its own. Small anonymous batches join others.
//
// Errors, besides those of Append: ErrCorruptBatch,
// ErrTopicIncarnationMismatch.
func (p *Partition) AppendBatch(data []byte, done func(Ack)) error {
	batch, rest, err := ReadBatch(data)
	switch {
	case err != nil:
		return err
	case len(rest) != 0 || batch.Kind() != KindData:
		return corrupt("not one batch of records")
	case batch.Incarnation() != p.cfg.Incarnation:
		return ErrTopicIncarnationMismatch
	}
	records := p.cfg.Builders.walk()
	defer p.cfg.Builders.endWalk(records)
	if err := records.checkProposal(batch); err != nil {
		return err
	}
	return p.batches.appendBatch(batch, records, done)
}

// SetLogStart has the partition begin at start on all replicas, where a segment
// of the log on this one does (see storage.Log.SegmentStart): records below it are
// gone for good. It may be repeated, and a start that the log has passed changes
// nothing. See Append for how done is called, and package documentation for
// retention. The cluster must be of version 3.
func (p *Partition) SetLogStart(start storage.LogStart, done func(error)) error {
	data := newLogStart(p.cfg.Incarnation, start, p.cfg.Clock.Now())
	return p.batches.enqueue(data, len(data), joined{done: func(a Ack) { done(a.Err) }})
}

// Seal ends the partition: once done was called with nil, no record is ever
// appended to it again, on any replica. It may be repeated. See Append for
// how done is called.
func (p *Partition) Seal(done func(error)) error {
	data := newSeal(p.cfg.Incarnation, p.cfg.Clock.Now())
	return p.batches.enqueue(data, len(data), joined{done: func(a Ack) { done(a.Err) }})
}
