package topic

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// ProducerConfig configures a Producer. The zero value is an idempotent
// producer without a name.
type ProducerConfig struct {
	// Name makes the producer keep its identity across restarts: a newer
	// producer of that name fences this one where it writes. Up to 249 bytes.
	// Default: none, each producer has a new identity.
	Name string
	// Anonymous switches idempotence off: nothing is deduplicated, one batch of
	// a partition is on its way at a time, and a batch whose outcome is unknown
	// is not repeated. Not together with Name.
	Anonymous bool
	// Codec compresses batches, each one for itself, where that makes them
	// smaller: CodecNone, CodecS2 or CodecZstd. Default CodecNone.
	Codec Codec
	// MaxBatchBytes bounds the records of a batch, in bytes; the topic's own
	// bound holds too. A larger record travels alone. 1 KiB to 1 MiB. Default
	// 1 MiB.
	MaxBatchBytes int
	// MaxBufferedBytes bounds the records that wait in the producer or are on
	// their way, as they count against MaxBatchBytes; beyond it calls wait for
	// room, in the order in which they came. A larger call is accepted when there
	// is nothing else. 1 KiB to 1 GiB. Default 64 MiB.
	MaxBufferedBytes int
	// FailWhenFull makes calls that would have to wait for room fail at once,
	// with a *BufferFullError.
	FailWhenFull bool
	// MaxInFlight is how many batches of a partition may be on their way at
	// once to a leader on this node: 1 to 5. To another node it is one. Default 2:
	// one is written while the next one fills. With one partition and 512 records
	// on their way, 1, 2 and 5 were measured to put 410, 310 and 290 records into a
	// batch, with 16 and 128 partitions equally many.
	MaxInFlight int
}

func (c ProducerConfig) withDefaults() ProducerConfig {
	c.MaxBatchBytes = cmp.Or(c.MaxBatchBytes, TargetBatchSize)
	c.MaxBufferedBytes = cmp.Or(c.MaxBufferedBytes, 64<<20)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 2)
	if c.Anonymous {
		c.MaxInFlight = 1 // a repeated batch must not overtake
	}
	return c
}

func (c ProducerConfig) validate() error {
	switch {
	case c.Anonymous && c.Name != "":
		return fmt.Errorf("topic: ProducerConfig.Name is %q: an anonymous producer has none", c.Name)
	case len(c.Name) > 249:
		return fmt.Errorf("topic: ProducerConfig.Name has %d bytes: want up to 249", len(c.Name))
	case c.Codec > newestCodec:
		return fmt.Errorf("topic: ProducerConfig.Codec is %d: want %s", c.Codec, codecRange)
	case c.MaxBatchBytes < 1<<10 || c.MaxBatchBytes > TargetBatchSize:
		return fmt.Errorf("topic: ProducerConfig.MaxBatchBytes is %d: want 1024 to %d", c.MaxBatchBytes, TargetBatchSize)
	case c.MaxBufferedBytes < 1<<10 || c.MaxBufferedBytes > 1<<30:
		return fmt.Errorf("topic: ProducerConfig.MaxBufferedBytes is %d: want 1024 to %d", c.MaxBufferedBytes, 1<<30)
	case c.MaxInFlight < 1 || c.MaxInFlight > maxInFlight:
		return fmt.Errorf("topic: ProducerConfig.MaxInFlight is %d: want 1 to %d", c.MaxInFlight, maxInFlight)
	}
	return nil
}

// maxInFlight is below what a partition remembers of a producer, so that each
// batch on its way can be repeated.
const maxInFlight = 5

var _ = [RememberedBatches - maxInFlight]struct{}{}

// Producer writes records to topics. Its methods are safe for concurrent use.
//
// Records of calls that wait for the same partition travel together; there is
// no timer. What nobody answered is repeated, with the same sequence numbers
// and so without duplicates, until it is answered or the producer is closed.
// Calls to one partition that follow each other are appended in that order.
type Producer struct {
	m       *Manager
	cfg     ProducerConfig
	life    context.Context // ends when the producer is closed
	stop    context.CancelFunc
	running sync.WaitGroup
	room    budget
	calls   callPool

	mu struct {
		sync.Mutex
		views    map[string]*topicView
		lanes    map[address]*lane    // that have not ended
		telling  map[*lane]bool       // that are calling back
		quiet    chan struct{}        // closed when none is any more; nil: nobody waits
		spent    map[address]identity // of lanes that have ended
		identity identity
		asking   []*lane // for an identity
		failed   error   // a newer producer of the name was met
		closing  bool    // no more calls
		closed   bool    // no more goroutines
	}
}

// NewProducer makes a producer. Errors are Refused, or Retry once the manager
// was closed.
func (m *Manager) NewProducer(cfg ProducerConfig) (*Producer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, raftlog.Refused(err)
	}
	p := &Producer{m: m, cfg: cfg}
	p.room.max, p.room.fail = cfg.MaxBufferedBytes, cfg.FailWhenFull
	p.life, p.stop = context.WithCancel(context.Background())
	p.mu.views, p.mu.lanes, p.mu.spent = map[string]*topicView{}, map[address]*lane{}, map[address]identity{}
	p.mu.telling = map[*lane]bool{}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		p.stop()
		return nil, explain(p.life, raftlog.Retry(ErrClosed), "new producer")
	}
	m.mu.producers[p] = true
	return p, nil
}

// Produce appends records and returns where they are, in the order of records.
// They are durable on a quorum then. A record with a key goes to the partition
// that PartitionOf names, one without to any that has a leader; those without
// keys of one call stay together. Nothing of records is kept after the return.
//
// It waits, through changes of leaders, until ctx ends, or until CallTimeout of
// the manager if no leader took the records. A nil or empty records is no call.
//
// Errors: *TooLargeError, metastore.ErrTopicNotFound (after a linearizable
// read), metastore.ErrTopicDeleting, ErrTopicDeleted, ErrTopicIncarnationMismatch,
// *FencedError, *NoLeaderError, *BufferFullError, metastore.ErrUnavailable,
// ErrClosed; *PartialError if the call's records went to several batches and only some of
// them arrived. When ctx ends the error matches ctx.Err(); it is Retry if the
// records were not on their way yet, else unknown: they may be appended later.
func (p *Producer) Produce(ctx context.Context, topic string, records ...Record) ([]Position, error) {
	if p.m.cfg.Trace == nil {
		return p.produceAny(ctx, topic, records)
	}
	ctx, end := p.traceProduce(ctx, topic, -1, records)
	positions, err := p.produceAny(ctx, topic, records)
	end(err)
	return positions, err
}

// traceProduce tells of a call.
func (p *Producer) traceProduce(ctx context.Context, topic string, partition int, records []Record) (context.Context, func(error)) {
	op := Operation{Name: OpProduce, Topic: topic, Partition: partition, Records: len(records), Bytes: sizeOf(records)}
	return p.m.cfg.Trace.begin(ctx, op)
}

func (p *Producer) produceAny(ctx context.Context, topic string, records []Record) ([]Position, error) {
	v, err := p.prepare(ctx, topic, records)
	if err != nil || len(records) == 0 {
		return nil, explain(ctx, err, "produce to %q", topic)
	}
	if len(records) == 1 || !anyKey(records) {
		return p.produce(ctx, p.choose(v, records[0].Key), records)
	}
	return p.scatter(ctx, v, records)
}

// ProduceTo is Produce to one partition, whatever the keys are. For a partition
// that the topic does not have the error is a *NoPartitionError.
func (p *Producer) ProduceTo(ctx context.Context, topic string, partition uint32, records ...Record) ([]Position, error) {
	if p.m.cfg.Trace == nil {
		return p.produceTo(ctx, topic, partition, records)
	}
	ctx, end := p.traceProduce(ctx, topic, int(partition), records)
	positions, err := p.produceTo(ctx, topic, partition, records)
	end(err)
	return positions, err
}

func (p *Producer) produceTo(ctx context.Context, topic string, partition uint32, records []Record) ([]Position, error) {
	l, err := p.prepareTo(ctx, topic, partition, records)
	if err != nil || len(records) == 0 {
		return nil, explain(ctx, err, "produce to %s/%d", topic, partition)
	}
	return p.produce(ctx, l, records)
}

// prepare refuses what cannot be appended, and finds the topic.
func (p *Producer) prepare(ctx context.Context, topic string, records []Record) (*topicView, error) {
	err := p.refuses(ctx, records)
	if err != nil {
		return nil, err
	}
	v, err := p.view(ctx, topic)
	if err == nil {
		err = tooLarge(records, int(v.topic.Config.MaxRecordBytes))
	}
	return v, err
}

// prepareTo is prepare for one partition.
func (p *Producer) prepareTo(ctx context.Context, topic string, partition uint32, records []Record) (*lane, error) {
	v, err := p.prepare(ctx, topic, records)
	if err != nil || len(records) == 0 {
		return nil, err
	}
	if checkPartition(&v.topic, partition) != nil { // in the life that this node knows of
		v.suspect.Store(true)
		if v, err = p.view(ctx, topic); err == nil {
			err = checkPartition(&v.topic, partition)
		}
		if err != nil {
			return nil, err
		}
	}
	return p.lane(v, partition), nil
}

// tooLarge returns a *TooLargeError, or nil.
func tooLarge(records []Record, limit int) error {
	for i := range records {
		if n := records[i].Size(); n > limit {
			return &TooLargeError{Record: i, Size: n, Max: limit}
		}
	}
	return nil
}

// refuses returns why a call is not to begin.
func (p *Producer) refuses(ctx context.Context, records []Record) error {
	switch {
	case ctx == nil:
		return ErrNoContext
	case ctx.Err() != nil:
		return raftlog.Retry(ctx.Err())
	}
	if err := tooLarge(records, MaxRecordSize); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closing {
		return raftlog.Retry(ErrClosed)
	}
	return p.mu.failed
}

// produce appends records to one partition, in pieces that fit a batch.
func (p *Producer) produce(ctx context.Context, l *lane, records []Record) ([]Position, error) {
	n, size := fitting(records, l.limit)
	if n == len(records) {
		c := p.calls.get(records, size)
		if err := p.begin(ctx, l, c); err != nil {
			return nil, err
		}
		base, err := c.wait(ctx)
		if err != nil {
			return nil, err
		}
		positions := make([]Position, n)
		for i := range positions {
			positions[i] = Position{Partition: l.partition, Offset: base + storage.Offset(i)}
		}
		return positions, nil
	}
	var g gathering
	for len(records) > 0 {
		n, size := fitting(records, l.limit)
		g.begin(ctx, p, l, records[:n], size, nil)
		records = records[n:]
	}
	return g.wait(ctx)
}

// scatter appends records to the partitions of their keys.
func (p *Producer) scatter(ctx context.Context, v *topicView, records []Record) ([]Position, error) {
	var keyless *lane
	of := make(map[*lane][]int)
	var order []*lane
	for i := range records {
		l := keyless
		if l == nil || records[i].Key != nil {
			l = p.choose(v, records[i].Key)
		}
		if records[i].Key == nil {
			keyless = l
		}
		if of[l] == nil {
			order = append(order, l)
		}
		of[l] = append(of[l], i)
	}
	g := gathering{total: len(records)}
	for _, l := range order {
		places := of[l]
		mine := make([]Record, len(places))
		for i, at := range places {
			mine[i] = records[at]
		}
		for len(mine) > 0 {
			n, size := fitting(mine, l.limit)
			g.begin(ctx, p, l, mine[:n], size, places[:n])
			mine, places = mine[n:], places[n:]
		}
	}
	return g.wait(ctx)
}

// gathering is a call that became several.
type gathering struct {
	total int
	parts []part
}

type part struct {
	call   *call
	lane   *lane
	count  int
	places []int // of its records in the whole; nil: they follow the last part's
	err    error // it was not begun
}

func (g *gathering) begin(ctx context.Context, p *Producer, l *lane, records []Record, size int, places []int) {
	c := p.calls.get(records, size)
	err := p.begin(ctx, l, c)
	g.parts = append(g.parts, part{call: c, lane: l, count: len(records), places: places, err: err})
	if places == nil {
		g.total += len(records)
	}
}

func (g *gathering) wait(ctx context.Context) ([]Position, error) {
	positions := make([]Position, g.total)
	var first error
	failed, at := 0, 0
	for _, part := range g.parts {
		base, err := NoOffset, part.err
		if err == nil {
			base, err = part.call.wait(ctx)
		}
		if err != nil {
			base = NoOffset
			failed += part.count
			if first == nil || raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown {
				first = err
			}
		}
		for i := range part.count {
			place := at + i
			if part.places != nil {
				place = part.places[i]
			}
			positions[place] = Position{Partition: part.lane.partition, Offset: NoOffset}
			if base != NoOffset {
				positions[place].Offset = base + storage.Offset(i)
			}
		}
		at += part.count
	}
	switch {
	case first == nil:
		return positions, nil
	case failed == g.total && len(g.parts) == 1:
		return nil, first
	}
	return positions, &PartialError{Failed: failed, Err: first}
}

// begin takes room for a call and queues it.
func (p *Producer) begin(ctx context.Context, l *lane, c *call) error {
	if c.size == 0 {
		_, c.size = fitting(c.records, l.limit)
	}
	c.since = p.m.cfg.Clock.Now()
	if p.m.cfg.Trace != nil {
		c.values = ctx
	}
	if err := p.room.take(ctx, p.life, c.size); err != nil {
		return l.about(err)
	}
	if p.m.draining.Load() { // after the room was taken: Drain counts it, or is seen here
		p.room.give(c.size)
		return l.about(ErrDraining)
	}
	l.enqueue(ctx, c)
	return nil
}

// fitting returns how many records from the front travel in one batch, and a
// bound of their size.
func fitting(records []Record, limit int) (n, size int) {
	for i := range records {
		s := records[i].Size() + recordOverhead
		if size+s > limit && i > 0 {
			return i, size
		}
		size += s
	}
	return len(records), size
}

func anyKey(records []Record) bool {
	for i := range records {
		if records[i].Key != nil {
			return true
		}
	}
	return false
}

func (p *Producer) failLanes(cause error) {
	for _, l := range p.allLanes() {
		l.fail(cause)
	}
}

func (p *Producer) allLanes() []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	lanes := make([]*lane, 0, len(p.mu.lanes))
	for _, l := range p.mu.lanes {
		lanes = append(lanes, l)
	}
	return lanes
}

// fence ends a producer whose name a newer one has taken.
func (p *Producer) fence(err error) {
	p.mu.Lock()
	if p.mu.failed == nil {
		p.mu.failed = err
	}
	p.mu.Unlock()
	p.failLanes(err)
}

// spawn starts a goroutine that Close waits for; false after it.
func (p *Producer) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return false
	}
	p.running.Go(f)
	return true
}
