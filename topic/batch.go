package topic

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/stelelog/stele/storage"
)

// Batch is a view of a valid batch: its header makes sense and its checksum is
// right. It borrows the bytes that ReadBatch was given. The zero value is no
// batch.
type Batch struct{ data []byte }

// ReadBatch reads the first batch of data, which may hold more after it, and
// returns what follows. Errors match ErrCorruptBatch.
func ReadBatch(data []byte) (b Batch, rest []byte, err error) {
	if len(data) < batchHeader {
		return Batch{}, nil, corrupt("%d bytes, less than a header", len(data))
	}
	length := int64(binary.LittleEndian.Uint32(data[offLength:]))
	if length < batchHeader || length > MaxBatchSize || length > int64(len(data)) {
		return Batch{}, nil, corrupt("length %d in %d bytes", length, len(data))
	}
	b, rest = Batch{data[:length:length]}, data[length:]
	if sum := b.checksum(); sum != binary.LittleEndian.Uint32(data[offCRC:]) {
		return Batch{}, nil, corrupt("checksum")
	}
	if err := b.checkHeader(); err != nil {
		return Batch{}, nil, err
	}
	return b, rest, nil
}

// newerEntry returns why an entry is one that only a newer build can decide about:
// its checksum is right, and what it is this build does not know. Nil: it can.
func newerEntry(data []byte) error {
	if len(data) < batchHeader || binary.LittleEndian.Uint32(data[offLength:]) != uint32(len(data)) {
		return nil
	}
	b := Batch{data}
	switch sum := binary.LittleEndian.Uint32(data[offCRC:]); {
	case data[offFormat] == batchFormat && b.Kind() >= KindData && b.Kind() <= newestKind, b.checksum() != sum:
		return nil
	}
	return fmt.Errorf("%w: format %d, kind %d", ErrNewerEntry, data[offFormat], b.Kind())
}

// checkHeader judges a header whose checksum is right.
func (b Batch) checkHeader() error {
	size := int64(binary.LittleEndian.Uint32(b.data[offRecordsSize:]))
	count := int64(b.Count())
	switch {
	case b.data[offFormat] != batchFormat:
		return corrupt("unknown format %d", b.data[offFormat])
	case b.data[offReserved] != 0:
		return corrupt("reserved byte %d", b.data[offReserved])
	case b.Kind() == KindSeal:
		if count != 0 || len(b.data) != batchHeader {
			return corrupt("a seal with records")
		}
		return nil
	case b.Kind() == KindLogStart:
		at := b.LogStart()
		if count != 0 || size != 0 || b.Codec() != CodecNone || len(b.data) != logStartSize {
			return corrupt("a log start of %d bytes, with %d records", len(b.data), count)
		}
		if at.Index == 0 || at.Term == 0 || at.Offset < 0 {
			return corrupt("a log start at entry %d of term %d, offset %d", at.Index, at.Term, at.Offset)
		}
		return nil
	case b.Kind() == KindRetire, b.Kind() == KindRestore:
		return b.checkClosing()
	case b.Kind() != KindData:
		return corrupt("unknown kind %d", b.Kind())
	case b.Codec() > newestCodec:
		return corrupt("unknown codec %d", b.Codec())
	case size > maxRecordsSize:
		return corrupt("records of %d bytes, the limit is %d", size, maxRecordsSize)
	case b.Codec() == CodecNone && size != int64(len(b.data)-batchHeader):
		return corrupt("%d bytes of records, %d declared", len(b.data)-batchHeader, size)
	case count == 0 || count > size/minRecordSize:
		return corrupt("%d records in %d bytes", count, size)
	case binary.LittleEndian.Uint64(b.data[offSequence:]) > math.MaxInt64-uint64(count):
		return corrupt("sequence overflow")
	}
	return nil
}

// Bytes are the batch as it lies on disk. They are borrowed.
func (b Batch) Bytes() []byte { return b.data }

// BaseOffset is the offset of the first record, 0 before the batch is applied
// and wherever its bytes were not patched.
func (b Batch) BaseOffset() storage.Offset {
	return storage.Offset(binary.LittleEndian.Uint64(b.data[offBaseOffset:]))
}

// Kind is what the batch carries.
func (b Batch) Kind() Kind { return Kind(b.data[offKind]) }

// Codec is how its records are compressed.
func (b Batch) Codec() Codec { return Codec(b.data[offCodec]) }

// Count is the number of offsets that the batch occupies.
func (b Batch) Count() uint32 { return binary.LittleEndian.Uint32(b.data[offCount:]) }

// Producer is who wrote it, and which of its records these are.
func (b Batch) Producer() ProducerBatch {
	return ProducerBatch{
		ID:    ProducerID(binary.LittleEndian.Uint64(b.data[offProducer:])),
		Epoch: ProducerEpoch(binary.LittleEndian.Uint32(b.data[offEpoch:])),
		First: Sequence(binary.LittleEndian.Uint64(b.data[offSequence:])),
	}
}

// Stamp is the clock of the leader that proposed it, in ms since 1970 UTC.
func (b Batch) Stamp() int64 { return int64(binary.LittleEndian.Uint64(b.data[offStamp:])) }

// MaxTimestamp is the latest timestamp of its records, in ms since 1970 UTC.
func (b Batch) MaxTimestamp() int64 { return int64(binary.LittleEndian.Uint64(b.data[offMaxTime:])) }

// Incarnation is the life of the topic that it was made for.
func (b Batch) Incarnation() storage.Incarnation {
	return storage.Incarnation(b.data[offIncarnation:batchHeader])
}

// records are its records as the codec left them.
func (b Batch) records() []byte { return b.data[batchHeader:] }

func (b Batch) recordsSize() int { return int(binary.LittleEndian.Uint32(b.data[offRecordsSize:])) }

// LogStart is where a KindLogStart has the log begin; of no other kind.
func (b Batch) LogStart() storage.LogStart {
	return storage.LogStart{
		Index:  storage.Index(binary.LittleEndian.Uint64(b.data[offStartIndex:])),
		Term:   storage.Term(binary.LittleEndian.Uint64(b.data[offStartTerm:])),
		Offset: storage.Offset(binary.LittleEndian.Uint64(b.data[offStartOffset:])),
	}
}

// setBaseOffset patches the bytes; the checksum does not cover the offset.
func (b Batch) setBaseOffset(o storage.Offset) {
	binary.LittleEndian.PutUint64(b.data[offBaseOffset:], uint64(o))
}

// setStamp patches the bytes and their checksum.
func (b Batch) setStamp(ms int64) {
	binary.LittleEndian.PutUint64(b.data[offStamp:], uint64(ms))
	b.sign()
}

// sign writes the checksum of the bytes as they are.
func (b Batch) sign() { binary.LittleEndian.PutUint32(b.data[offCRC:], b.checksum()) }

func (b Batch) checksum() uint32 {
	sum := crc32.Checksum(b.data[offLength:offCRC], castagnoli)
	return crc32.Update(sum, castagnoli, b.data[offFormat:])
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// isEssential reports whether an entry is taken in on a full disk too: one that
// ends or closes its partition, since it is what deleting a topic takes, and one
// that removes records.
func isEssential(entry []byte) bool {
	if len(entry) <= offKind {
		return false
	}
	kind := Kind(entry[offKind])
	return kind == KindSeal || kind == KindRetire || kind == KindLogStart
}
