package topic

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// Start says where a reader begins.
type Start struct {
	kind   startKind
	offset storage.Offset
	stamp  int64
}

type startKind uint8

const (
	startFirst startKind = iota
	startOffset
	startEnd
	startTime
)

// FromStart begins at the first record that the partition holds.
func FromStart() Start { return Start{} }

// FromOffset begins at an offset that the partition holds, or at its end.
func FromOffset(o storage.Offset) Start { return Start{kind: startOffset, offset: o} }

// FromEnd begins behind every record that was acknowledged before NewReader was
// called.
func FromEnd() Start { return Start{kind: startEnd} }

// FromTime begins at the first record that was appended at t or later, as the
// leader's clock said, to the millisecond; behind every record that was
// acknowledged before NewReader was called if there is none.
//
// Append times never step back along a partition, however the clocks of its
// leaders differ: a batch counts as appended when the one before it was, at
// least. So there is one answer, the same on all replicas. The timestamps of
// records, which producers set, do not matter.
func FromTime(t time.Time) Start { return Start{kind: startTime, stamp: stampOf(t)} }

// ReadRecord is a record and where it is.
type ReadRecord struct {
	Record
	Offset storage.Offset
}

// Reader reads one partition, in one life of its topic: from the replica on
// this node if there is one and it can answer, else from another node's. The
// high watermark that it has seen never goes back, whichever replicas it meets,
// and it meets no gap.
//
// A Reader is for one goroutine; only Close and HighWatermark may be called from
// others.
type Reader struct {
	address
	m     *Manager
	name  string
	place metastore.Partition

	life  context.Context
	close context.CancelFunc

	next   storage.Offset
	seen   atomic.Int64 // highest watermark; written by the calls, read by anyone
	away   int          // which replica elsewhere is asked
	behind bool         // the replica here is, as far as is known
	buf    []byte
	view   View
	it     BatchRecords // of Records
}

// NewReader opens a reader. It takes the topic that has the name now; when that
// life of the name ends, the reader ends with ErrTopicDeleted.
//
// Errors: metastore.ErrTopicNotFound and *NoPartitionError (both after a
// linearizable read), metastore.ErrTopicDeleting, metastore.ErrUnavailable,
// *OutOfRangeError, *metastore.InvalidError for what is no topic's name. It waits for a replica that can
// answer until ctx ends; the error then matches ctx.Err(). Nothing happened:
// they are Retry or Refused.
func (m *Manager) NewReader(ctx context.Context, p TopicPartition, start Start) (*Reader, error) {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	var r *Reader
	if err == nil {
		r, err = m.newReader(ctx, p, start)
	}
	if err != nil {
		return nil, explain(ctx, err, "open a reader of %v", p)
	}
	return r, nil
}

func (m *Manager) newReader(ctx context.Context, p TopicPartition, start Start) (*Reader, error) {
	if err := m.caughtUp(ctx); err != nil {
		return nil, err
	}
	t, err := m.active(ctx, p.Topic)
	if err == nil && checkPartition(&t, p.Partition) != nil { // in the life that this node knows of
		if err = m.barrier(ctx); err == nil {
			t, err = m.active(ctx, p.Topic)
		}
	}
	if err == nil {
		err = checkPartition(&t, p.Partition)
	}
	if err != nil {
		return nil, err
	}
	r := &Reader{address: address{t.Incarnation, p.Partition}, m: m, name: p.Topic, place: t.Partitions[p.Partition]}
	r.life, r.close = context.WithCancel(m.life)
	if err := r.start(ctx, start); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// start finds the first offset. The end, a time, and an offset that the first
// replica does not have, need a linearizable read: a replica may be behind.
func (r *Reader) start(ctx context.Context, at Start) error {
	q := query{linearizable: at.kind == startEnd || at.kind == startTime, searches: at.kind == startTime, stamp: at.stamp}
	o, err := r.offsets(ctx, q)
	if err == nil && at.kind == startOffset && (at.offset < o.start || at.offset > o.end) {
		o, err = r.offsets(ctx, query{linearizable: true})
	}
	if err != nil {
		return err
	}
	switch at.kind {
	case startFirst:
		r.next = o.start
	case startEnd:
		r.next = o.end
	case startTime:
		r.next = o.at
	case startOffset:
		if at.offset < o.start || at.offset > o.end {
			return r.outOfRange(at.offset, o.start, o.end)
		}
		r.next = at.offset
	}
	r.seen.Store(int64(o.end))
	return nil
}

// Offset is that of the record that comes next.
func (r *Reader) Offset() storage.Offset { return r.next }

// HighWatermark is the highest watermark that the reader was shown: the offset
// behind the last record that it may read so far. It may be called beside a
// call that reads, to watch how far behind that is.
func (r *Reader) HighWatermark() storage.Offset { return storage.Offset(r.seen.Load()) }

// Close ends the reader: a call that waits ends with ErrClosed, and so do all
// later ones. It is idempotent.
func (r *Reader) Close() { r.close() }

// readBytes is how much Records asks for at once.
const readBytes = 1 << 20

// Records returns the records from the reader's offset on; at the end of the
// partition it waits for more. It ends with an error, the only one and the last
// that it yields: one that matches ctx.Err() when ctx ended, ErrTopicDeleted,
// *OutOfRangeError, ErrClosed. Breaking out of the loop is not an error; the
// reader's offset is then behind the last record that was yielded.
//
// Records are the caller's to keep.
func (r *Reader) Records(ctx context.Context) iter.Seq2[ReadRecord, error] {
	return func(yield func(ReadRecord, error) bool) {
		for {
			f, err := r.fetch(ctx, readBytes)
			if err != nil {
				yield(ReadRecord{}, err)
				return
			}
			if !r.yieldAll(slices.Clone(f.Data), yield) {
				return
			}
		}
	}
}

// yieldAll yields the records of batches that nobody else uses.
func (r *Reader) yieldAll(data []byte, yield func(ReadRecord, error) bool) bool {
	for len(data) > 0 {
		b, rest := splitBatch(data)
		r.it.scratch = nil // the last batch's records are the caller's
		for r.it.Reset(b); r.it.Next(); {
			if r.it.Offset() < r.next {
				continue
			}
			record := ReadRecord{Record: *r.it.Record(), Offset: r.it.Offset()}
			record.Headers = slices.Clone(record.Headers)
			r.next = record.Offset + 1
			if !yield(record, nil) {
				return false
			}
		}
		if err := r.it.Err(); err != nil {
			yield(ReadRecord{}, err)
			return false
		}
		r.next = max(r.next, b.BaseOffset()+storage.Offset(b.Count()))
		data = rest
	}
	return true
}

// Fetch returns the next records, at least one, and about maxBytes of them at
// most (the first batch is whole, however large). At the end of the partition
// it waits. What it returns is valid until the next call of Fetch or Records,
// and the reader's offset is behind it. Errors are those of Records.
func (r *Reader) Fetch(ctx context.Context, maxBytes int) (*View, error) {
	f, err := r.fetch(ctx, min(max(maxBytes, 1), maxFetchBytes))
	if err != nil {
		return nil, err
	}
	r.view.reset(f.Data, r.next, f.Next)
	r.next = f.Next
	return &r.view, nil
}

// View is what a Fetch returned: records in a buffer that the reader will use
// again. Nothing is allocated for a record.
//
//	for v.Next() {
//		v.Offset(), v.Record()
//	}
//	err := v.Err()
type View struct {
	data []byte
	rest []byte // batches not begun
	from storage.Offset
	end  storage.Offset
	it   BatchRecords
}

func (v *View) reset(data []byte, from, end storage.Offset) {
	v.data, v.rest, v.from, v.end = data, data, from, end
	v.it.in, v.it.err = nil, nil
}

// Next goes to the next record. It reports false behind the last one, and on an
// error.
func (v *View) Next() bool {
	for {
		for v.it.Next() {
			if v.it.Offset() >= v.from {
				return true
			}
		}
		if v.it.Err() != nil || len(v.rest) == 0 {
			return false
		}
		var b Batch
		b, v.rest = splitBatch(v.rest)
		v.it.Reset(b)
	}
}

// Offset is that of the current record.
func (v *View) Offset() storage.Offset { return v.it.Offset() }

// Record is the current record, borrowed until Next; the strings in it are not.
func (v *View) Record() *Record { return v.it.Record() }

// Err is what ended the walk early, nil at the end. It matches ErrCorruptBatch.
func (v *View) Err() error { return v.it.Err() }

// Bytes are the batches as they lie on disk; the first may begin with records
// below the offset that was asked for. See ReadBatch.
func (v *View) Bytes() []byte { return v.data }

// End is the offset behind the last record.
func (v *View) End() storage.Offset { return v.end }

// splitBatch is ReadBatch for batches that were checked.
func splitBatch(data []byte) (Batch, []byte) {
	n := Batch{data}.size()
	return Batch{data[:n:n]}, data[n:]
}

// checkFetched refuses an answer that is not what a replica answers.
func checkFetched(f Fetched, from storage.Offset) error {
	next := from
	for data := f.Data; len(data) > 0; {
		b, rest, err := ReadBatch(data)
		if err != nil {
			return raftlog.Retry(withoutOutcome{err})
		}
		end := b.BaseOffset() + storage.Offset(b.Count())
		if b.Kind() != KindData || b.BaseOffset() > next || end <= next {
			return raftlog.Retry(fmt.Errorf("topic: a batch of [%d, %d) was answered for offset %d", b.BaseOffset(), end, next))
		}
		next, data = end, rest
	}
	if next != f.Next || next > f.HighWatermark {
		return raftlog.Retry(fmt.Errorf("topic: records up to %d of %d were answered as up to %d", next, f.HighWatermark, f.Next))
	}
	return nil
}

// String names the partition.
func (r *Reader) String() string { return TopicPartition{r.name, r.partition}.String() }

// closed returns why the reader can go on no more, or nil.
func (r *Reader) closed(ctx context.Context) error {
	switch {
	case r.life.Err() != nil:
		return raftlog.Retry(ErrClosed)
	case ctx.Err() != nil:
		return raftlog.Retry(ctx.Err())
	}
	t, err := r.m.cfg.Meta.TopicByIncarnation(r.incarnation)
	if err == nil && isOver(t.State) {
		return ErrTopicDeleted
	}
	return nil
}

func (r *Reader) outOfRange(at, start, end storage.Offset) error {
	return &OutOfRangeError{Topic: r.name, Partition: r.partition, Offset: at, Start: start, End: end}
}

// final reports whether no replica will answer otherwise.
func final(err error) bool {
	var outOfRange *OutOfRangeError
	return errors.As(err, &outOfRange) || errors.Is(err, ErrTopicDeleted)
}
