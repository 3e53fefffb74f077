package topic

import (
	"sync"
	"sync/atomic"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// Ack is what became of the records of one Append: with Err nil they are at
// Base, Base+1, ... in the order in which they were given, and were synced by
// a quorum.
type Ack struct {
	Base  storage.Offset
	Count int
	// Err is nil or has an outcome: see raftlog.OutcomeOf.
	Err error
}

// proposer is what the batcher needs of a group. done is called exactly once,
// never from within Propose.
type proposer interface {
	Propose(data []byte, done func(raftlog.Proposal))
}

// batcher turns calls into entries of a partition's group. There is no timer:
//
//   - Records of anonymous callers join the open batch. It is closed when it
//     is full, or as soon as no other anonymous batch is in flight; so one
//     caller alone waits for nobody, and many share an entry.
//   - A batch of a producer with an identity is an entry of its own, because
//     it is repeated as it was. Many are in flight at once, so that producers
//     do not wait for each other.
//   - Closed batches are proposed in the order in which they were closed, up
//     to a number and a size at once; whoever proposes encodes them.
//   - Their append stamps never step back: an entry that would be stamped before
//     what was applied, or proposed, gets that stamp.
//
// The naive way, a batch per call, costs a raft entry per record; two open
// anonymous batches at once were measured to gain nothing.
//
// It starts no goroutine: it runs in its callers and in the callbacks of the
// group. Callbacks to its own callers run without its lock.
type batcher struct {
	incarnation storage.Incarnation
	codec       Codec
	maxBytes    int
	maxInFlight int // entries
	maxFlying   int // their bytes; one alone may be larger
	clock       clock.Clock
	builders    *Builders
	latest      atomic.Int64 // append stamp that was applied, ms
	proposed    int64        // last append stamp, ms; of whoever is proposing

	mu struct {
		sync.Mutex
		group    proposer // nil: not bound yet
		open     *BatchBuilder
		joined   []joined // calls in the open batch
		openSize int      // their bytes
		queue    []*entry // closed, not proposed yet
		bytes    int      // of records that wait for an answer
		inFlight int      // entries proposed and not answered
		flying   int      // their bytes
		shared   int      // anonymous batches of callers, closed and not answered
		busy     bool     // somebody is proposing
		closed   bool
	}
}

// maxMerged is the size of the records of an encoded batch, in bytes, up to
// which they join the open batch instead of being an entry of their own.
const maxMerged = TargetBatchSize / 16

// joined is one call in a batch.
type joined struct {
	first int // of its records in the batch
	count int
	done  func(Ack)
}

// entry is one closed batch.
type entry struct {
	owner   *batcher
	data    []byte
	builder *BatchBuilder // not nil: data is still to be made of it
	size    int           // as counted in the budgets
	shared  bool
	calls   []joined
}

// append accepts records that fit one batch. See Partition.Append.
func (b *batcher) append(producer ProducerBatch, records []Record, done func(Ack)) error {
	size, err := b.measure(records)
	if err != nil {
		return err
	}
	if producer.ID != 0 {
		now := b.clock.Now()
		builder := b.builders.get(now)
		for i := range records {
			builder.Append(&records[i])
		}
		data := builder.Build(BatchInfo{Incarnation: b.incarnation, Producer: producer, Codec: b.codec})
		b.builders.put(builder)
		return b.enqueue(data, size, joined{count: len(records), done: done})
	}
	b.mu.Lock()
	if err := b.reserveLocked(size); err != nil {
		b.mu.Unlock()
		return err
	}
	b.makeRoomLocked(size)
	first := b.mu.open.Count()
	for i := range records {
		b.mu.open.Append(&records[i])
	}
	b.joinLocked(size, joined{first: first, count: len(records), done: done})
	b.proposeAndUnlock()
	return nil
}

// appendBatch accepts an encoded batch that is valid, which it owns from now
// on. See Partition.AppendBatch.
func (b *batcher) appendBatch(batch Batch, records *BatchRecords, done func(Ack)) error {
	size, call := len(batch.data), joined{count: int(batch.Count()), done: done}
	if batch.Producer().ID != 0 || batch.recordsSize() > maxMerged {
		batch.setStamp(b.clock.Now().UnixMilli())
		return b.enqueue(batch.data, size, call)
	}
	size = batch.recordsSize() + call.count*recordOverhead
	b.mu.Lock()
	if err := b.reserveLocked(size); err != nil {
		b.mu.Unlock()
		return err
	}
	b.makeRoomLocked(size)
	call.first = b.mu.open.Count()
	for records.Reset(batch); records.Next(); {
		b.mu.open.Append(records.Record())
	}
	b.joinLocked(size, call)
	b.proposeAndUnlock()
	return nil
}

// measure returns a bound of the encoded size of records.
func (b *batcher) measure(records []Record) (int, error) {
	size := 0
	for i := range records {
		n := records[i].Size()
		if n > MaxRecordSize {
			return 0, &TooLargeError{Record: i, Size: n, Max: MaxRecordSize}
		}
		size += n + recordOverhead
	}
	if size > TargetBatchSize && len(records) > 1 {
		return 0, &TooLargeError{Record: -1, Size: size, Max: TargetBatchSize}
	}
	return size, nil
}

// reserveLocked takes size bytes of the budget. What comes alone always fits.
func (b *batcher) reserveLocked(size int) error {
	switch {
	case b.mu.closed || b.mu.group == nil:
		return ErrPartitionClosed
	case b.mu.bytes > 0 && b.mu.bytes+size > b.maxBytes:
		return ErrOverloaded
	}
	b.mu.bytes += size
	return nil
}

// makeRoomLocked makes sure that there is an open batch and that it takes
// another size bytes.
func (b *batcher) makeRoomLocked(size int) {
	if b.mu.open != nil && b.mu.open.Size()+size > TargetBatchSize {
		b.closeOpenLocked()
	}
	if b.mu.open == nil {
		b.mu.open = b.builders.get(b.clock.Now())
	}
}

func (b *batcher) joinLocked(size int, call joined) {
	b.mu.openSize += size
	b.mu.joined = append(b.mu.joined, call)
	if b.mu.shared == 0 {
		b.closeOpenLocked()
	}
}

// closeOpenLocked queues the open batch.
func (b *batcher) closeOpenLocked() {
	e := &entry{owner: b, builder: b.mu.open, size: b.mu.openSize, shared: true, calls: b.mu.joined}
	b.mu.open, b.mu.openSize = nil, 0
	b.mu.joined = make([]joined, 0, len(b.mu.joined))
	b.mu.shared++
	b.mu.queue = append(b.mu.queue, e)
}

// enqueue queues an entry of its own, behind those who came before: an
// anonymous caller may have records in the open batch.
func (b *batcher) enqueue(data []byte, size int, call joined) error {
	b.mu.Lock()
	if err := b.reserveLocked(size); err != nil {
		b.mu.Unlock()
		return err
	}
	if b.mu.open != nil {
		b.closeOpenLocked()
	}
	b.mu.queue = append(b.mu.queue, &entry{owner: b, data: data, size: size, calls: []joined{call}})
	b.proposeAndUnlock()
	return nil
}

// proposeAndUnlock proposes what is queued, in order. Only one goroutine does
// so at a time, without the lock; the others leave it to that one.
func (b *batcher) proposeAndUnlock() {
	defer b.mu.Unlock()
	if b.mu.busy {
		return
	}
	b.mu.busy = true
	for len(b.mu.queue) > 0 && b.mayFlyLocked(b.mu.queue[0]) {
		e := b.mu.queue[0]
		b.mu.queue[0] = nil
		b.mu.queue = b.mu.queue[1:]
		b.mu.inFlight++
		b.mu.flying += e.size
		group := b.mu.group
		b.mu.Unlock()
		b.proposed = max(b.proposed, b.latest.Load())
		if e.builder != nil {
			e.builder.stamp = max(e.builder.stamp, b.proposed)
			e.data = e.builder.Build(BatchInfo{Incarnation: b.incarnation, Codec: b.codec})
			b.builders.put(e.builder)
			e.builder = nil
		}
		if batch := (Batch{e.data}); batch.Stamp() < b.proposed {
			batch.setStamp(b.proposed)
		}
		b.proposed = Batch{e.data}.Stamp()
		group.Propose(e.data, e.proposed)
		b.mu.Lock()
	}
	b.mu.busy = false
}

func (b *batcher) mayFlyLocked(e *entry) bool {
	return b.mu.inFlight == 0 || b.mu.inFlight < b.maxInFlight && b.mu.flying+e.size <= b.maxFlying
}

// proposed is called by the group when the outcome of an entry is known.
func (e *entry) proposed(p raftlog.Proposal) {
	b := e.owner
	b.mu.Lock()
	b.mu.inFlight--
	b.mu.flying -= e.size
	b.releaseLocked(e)
	if b.mu.open != nil && b.mu.shared == 0 {
		b.closeOpenLocked()
	}
	b.proposeAndUnlock() // first, so that the group works while the callers wake
	e.end(outcome(p))
}

// releaseLocked gives back what an entry that has ended held.
func (b *batcher) releaseLocked(e *entry) {
	b.mu.bytes -= e.size
	if e.shared {
		b.mu.shared--
	}
}

// outcome returns where the records of an entry are, or why they are nowhere.
func outcome(p raftlog.Proposal) Ack {
	switch {
	case p.Err != nil:
		return Ack{Err: p.Err}
	case p.Result.Err != nil:
		return Ack{Err: p.Result.Err}
	}
	if base, ok := p.Result.Value.(storage.Offset); ok { // a duplicate
		return Ack{Base: base}
	}
	return Ack{Base: p.Result.BaseOffset}
}

// end tells the callers of a batch.
func (e *entry) end(a Ack) {
	for _, c := range e.calls {
		ack := a
		if a.Err == nil {
			ack.Base, ack.Count = a.Base+storage.Offset(c.first), c.count
		}
		c.done(ack)
	}
}

// bind gives the batcher its group.
func (b *batcher) bind(g proposer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.group = g
}

// close refuses everything from now on and ends what was not proposed yet;
// what was proposed is ended by the group.
func (b *batcher) close() {
	b.mu.Lock()
	b.mu.closed = true
	if b.mu.open != nil {
		b.closeOpenLocked()
	}
	queue := b.mu.queue
	b.mu.queue = nil
	for _, e := range queue {
		b.releaseLocked(e)
	}
	b.mu.Unlock()
	for _, e := range queue {
		e.end(Ack{Err: ErrPartitionClosed})
	}
}
