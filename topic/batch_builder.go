package topic

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/stelelog/stele/storage"
)

// BatchBuilder encodes records into a batch, one by one, into buffers that it
// reuses: nothing is allocated for a record, and one slice for a batch. It is
// for one goroutine at a time. Start with Reset.
type BatchBuilder struct {
	packer
	records []byte
	count   uint32
	stamp   int64
	last    int64 // timestamp of the last record, ms
	max     int64
}

// BatchInfo is what a batch says besides its records.
type BatchInfo struct {
	Incarnation storage.Incarnation
	Producer    ProducerBatch // zero: anonymous
	Codec       Codec
}

// Reset begins a batch with the given append stamp.
func (b *BatchBuilder) Reset(now time.Time) {
	b.records, b.count, b.last = b.records[:0], 0, 0
	b.stamp = now.UnixMilli()
}

// Count is the number of records appended since Reset.
func (b *BatchBuilder) Count() int { return int(b.count) }

// Size is the encoded size of the records appended since Reset, in bytes.
func (b *BatchBuilder) Size() int { return len(b.records) }

// Append encodes a record and keeps nothing of it. The caller has checked the
// limits: see Fitting.
func (b *BatchBuilder) Append(r *Record) {
	ms := b.stamp
	if !r.Timestamp.IsZero() {
		ms = r.Timestamp.UnixMilli()
	}
	if b.count == 0 || ms > b.max {
		b.max = ms
	}
	buf := binary.AppendUvarint(b.records, uint64(b.count))
	buf = binary.AppendVarint(buf, ms-b.last)
	buf = appendNullable(buf, r.Key)
	buf = appendNullable(buf, r.Value)
	buf = binary.AppendUvarint(buf, uint64(len(r.Headers)))
	for i := range r.Headers {
		buf = binary.AppendUvarint(buf, uint64(len(r.Headers[i].Key)))
		buf = append(buf, r.Headers[i].Key...)
		buf = appendNullable(buf, r.Headers[i].Value)
	}
	b.records, b.last = buf, ms
	b.count++
}

// Build returns the batch in a slice of its own, of exactly its size. The
// builder may be used again after a Reset. Without records there is no batch:
// nil.
func (b *BatchBuilder) Build(info BatchInfo) []byte {
	if b.count == 0 {
		return nil
	}
	packed, codec := b.compress(info.Codec, b.records)
	out := newBatch(KindData, info, packed)
	out.data[offCodec] = byte(codec)
	binary.LittleEndian.PutUint32(out.data[offCount:], b.count)
	binary.LittleEndian.PutUint32(out.data[offRecordsSize:], uint32(len(b.records)))
	binary.LittleEndian.PutUint64(out.data[offStamp:], uint64(b.stamp))
	binary.LittleEndian.PutUint64(out.data[offMaxTime:], uint64(b.max))
	out.sign()
	return out.data
}

// newSeal returns the batch that ends a partition.
func newSeal(incarnation storage.Incarnation, now time.Time) []byte {
	b := newBatch(KindSeal, BatchInfo{Incarnation: incarnation}, nil)
	b.setStamp(now.UnixMilli())
	return b.data
}

// newLogStart returns the entry that has the log begin with what start says.
func newLogStart(incarnation storage.Incarnation, start storage.LogStart, now time.Time) []byte {
	b := newBatch(KindLogStart, BatchInfo{Incarnation: incarnation}, make([]byte, logStartSize-batchHeader))
	binary.LittleEndian.PutUint64(b.data[offStartIndex:], uint64(start.Index))
	binary.LittleEndian.PutUint64(b.data[offStartTerm:], uint64(start.Term))
	binary.LittleEndian.PutUint64(b.data[offStartOffset:], uint64(start.Offset))
	b.setStamp(now.UnixMilli())
	return b.data
}

// newBatch lays out a batch; the caller fills in the rest and signs it.
func newBatch(kind Kind, info BatchInfo, records []byte) Batch {
	data := make([]byte, batchHeader+len(records))
	copy(data[batchHeader:], records)
	binary.LittleEndian.PutUint32(data[offLength:], uint32(len(data)))
	data[offFormat], data[offKind] = batchFormat, byte(kind)
	binary.LittleEndian.PutUint64(data[offProducer:], uint64(info.Producer.ID))
	binary.LittleEndian.PutUint32(data[offEpoch:], uint32(info.Producer.Epoch))
	binary.LittleEndian.PutUint64(data[offSequence:], uint64(info.Producer.First))
	copy(data[offIncarnation:], info.Incarnation[:])
	return Batch{data}
}

// appendNullable keeps nil and empty apart.
func appendNullable(buf, b []byte) []byte {
	if b == nil {
		return append(buf, 0)
	}
	return append(binary.AppendUvarint(buf, uint64(len(b))+1), b...)
}

// Builders lends batch builders, and what checks batches of other nodes, to the
// partitions of a node, so that idle partitions hold no buffers. It is safe for
// concurrent use.
type Builders struct {
	builders sync.Pool // of *BatchBuilder
	walks    sync.Pool // of *BatchRecords
}

func (p *Builders) get(now time.Time) *BatchBuilder {
	b, ok := p.builders.Get().(*BatchBuilder)
	if !ok {
		b = new(BatchBuilder)
	}
	b.Reset(now)
	return b
}

// put takes a builder back, unless a lonely large record has blown it up.
func (p *Builders) put(b *BatchBuilder) {
	if cap(b.records) <= 2*TargetBatchSize {
		p.builders.Put(b)
	}
}

// walk lends a walk through records, until the end of endWalk.
func (p *Builders) walk() *BatchRecords {
	if it, ok := p.walks.Get().(*BatchRecords); ok {
		return it
	}
	return new(BatchRecords)
}

func (p *Builders) endWalk(it *BatchRecords) {
	it.in, it.record = nil, Record{}
	clear(it.headers)
	if cap(it.scratch) <= 2*TargetBatchSize {
		p.walks.Put(it)
	}
}
