package topic

// A batch is one raft entry's data. The same bytes lie in the journal, travel
// to the other replicas, lie in the partition log, and go to readers. Integers
// are little-endian.
//
//	offset size
//	     0    8  base offset        of its first record; 0 until the batch is applied
//	     8    4  length             of the whole batch, in bytes
//	    12    4  crc32c             of [8, 12) and [16, length): the base offset is outside
//	    16    1  format             1
//	    17    1  kind               1 data, 2 seal, 3 log start, 4 retire, 5 restore
//	    18    1  codec              of the records: 0 none, 1 s2 block, 2 zstd frame, with a
//	                                window of at most 1 MiB
//	    19    1  0
//	    20    4  count              offsets that the batch occupies; 0 for control kinds
//	    24    8  producer id        0: anonymous, nothing is deduplicated
//	    32    4  producer epoch
//	    36    4  records size       in bytes, decompressed
//	    40    8  first sequence     of the producer in this partition and epoch
//	    48    8  append stamp       the leader's clock, ms since 1970 UTC; not before
//	                                that of the batch before it
//	    56    8  max timestamp      of its records, ms since 1970 UTC
//	    64   16  incarnation        of the topic
//	    80       records            as the codec left them
//
// A log start is of version 3 of a cluster: it is not proposed before. It has no
// records, count and codec 0, and behind the header:
//
//	80    8  index              of the last entry that goes
//	88    8  term               of that entry
//	96    8  first offset       that stays
//
// So are a retire and a restore; behind the header of theirs:
//
//	80    8  deletion           its number, not 0
//
// A kind or a format that a build does not know, under a checksum that is right,
// was written by a newer one: the replica stops, since the others decide
// something that it cannot.
//
// A record, in varints (zigzag where signed):
//
//	uvarint  offset delta      to the base offset; strictly increasing, below count
//	varint   timestamp delta   ms, to the record before; of the first to 1970 UTC
//	uvarint  key length + 1    0: null
//	         key
//	uvarint  value length + 1  0: null
//	         value
//	uvarint  number of headers, and for each
//	           uvarint  key length
//	                    key
//	           uvarint  value length + 1   0: null
//	                    value
//
// What a producer proposes has one record for each offset. Readers accept
// gaps, which leaves room for compaction by key.
const (
	offBaseOffset  = 0
	offLength      = 8
	offCRC         = 12
	offFormat      = 16
	offKind        = 17
	offCodec       = 18
	offReserved    = 19
	offCount       = 20
	offProducer    = 24
	offEpoch       = 32
	offRecordsSize = 36
	offSequence    = 40
	offStamp       = 48
	offMaxTime     = 56
	offIncarnation = 64
	batchHeader    = 80

	offStartIndex  = 80
	offStartTerm   = 88
	offStartOffset = 96
	logStartSize   = 104

	offDeletion = 80
	closingSize = 88

	batchFormat = 1

	// minRecordSize is a record without key, value and headers.
	minRecordSize = 5
	// maxRecordsSize is the largest decompressed size of a batch's records: a
	// record of MaxRecordSize that travels alone.
	maxRecordsSize = MaxRecordSize + recordOverhead
	// MaxBatchSize bounds a batch, in bytes.
	MaxBatchSize = batchHeader + maxRecordsSize
)

// Kind is what a batch carries. The values are on disk.
type Kind uint8

const (
	// KindData carries records.
	KindData Kind = 1
	// KindSeal ends a partition: nothing is appended after it.
	KindSeal Kind = 2
	// KindLogStart removes the front of the log: see retention.go.
	KindLogStart Kind = 3

	// KindRetire closes a partition for a deletion with a grace, and KindRestore opens
	// it again: see closing.go.
	KindRetire  Kind = 4
	KindRestore Kind = 5

	newestKind = KindRestore
)

// Codec is how the records of a batch are compressed. The values are on disk.
type Codec uint8

const (
	// CodecNone leaves them as they are.
	CodecNone Codec = 0
	// CodecS2 is an S2 block, a faster relative of Snappy.
	CodecS2 Codec = 1
	// CodecZstd is a zstd frame (RFC 8878): smaller than S2's, for more CPU.
	CodecZstd Codec = 2

	newestCodec = CodecZstd
	codecRange  = "0 (none), 1 (s2) or 2 (zstd)"
)

func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecS2:
		return "s2"
	case CodecZstd:
		return "zstd"
	default:
		return "unknown"
	}
}
