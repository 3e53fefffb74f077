package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// The formats of the journal and of the checkpoint table. Integers in headers
// are little-endian; "uvarint" is Go's. Both begin each unit with a header of
// 64 bytes, which lies in one sector.
//
// # Journal file: <dir>/journal/<number>.journal
//
// A file holds one generation of the journal at a time. When the checkpoint
// table no longer needs it, it is written over from its beginning by a later
// generation, so behind the last round there may be zeros or anything of an
// earlier life.
//
//	      page 0                       page k
//	+----------------------------+   +----------------+   +----
//	| round: header, body, zeros |   | round: header, |   | ...
//	| (prev, carries, frames)    |   | body, zeros    |   |
//	+----------------------------+   +----------------+   +----
//
// A round begins on a page of 4096 bytes. Its header:
//
//	 0  u32  crc32c of bytes 4..64 of the header, begun not at 0 but at the key:
//	         its two halves, one xor the other
//	 4  4    "SJR" and the version, 1
//	 8  u64  generation, from 1
//	16  u64  salt of the generation: random, drawn anew each time
//	24  u64  offset of the round in the file; 0: the first round
//	32  u64  first round: generation of the predecessor, else 0
//	40  u64  first round: salt of the predecessor, else 0
//	48  u64  first round: proven end of the predecessor, in bytes, else 0
//	56  u32  length of the body
//	60  u32  crc32c of the body
//	64  ...  body: frames, one behind the other; none: the round is a mark
//
// A round is valid if both checksums hold, generation and salt are those of
// the file's first round, and the offset is its own. The key is drawn once for
// a directory and kept in the checkpoint table alone: nobody who merely chooses
// the bytes of a record can make a page of them that looks like a round.
//
// # Frame
//
//	uvarint kind, group, replica, then by kind
//	append, carry:   uvarint term, vote, commit, index of the first entry (0 if
//	                 none), count; for each entry: uvarint term, u8 kind,
//	                 uvarint length, data
//	created, reset:  uvarint length and bytes of the directory, uvarint reset,
//	                 index, term, next offset; configuration
//	staged:          a reset to a log that holds entries up to the index: as a
//	                 reset, then uvarint start index, start term, segment index,
//	                 segment offset, segment bytes, aux index
//	destroyed, set aside: nothing
//
// A configuration is four lists (voters, learners, outgoing voters, next
// learners), each a uvarint count and as many uvarint ids, and a u8: 1 if the
// joint configuration leaves by itself.
//
// # Checkpoint table: <dir>/journal/checkpoint.0 and checkpoint.1
//
//	 0  u32  crc32c of all that follows, rows included
//	 4  4    "SCT" and the version, 1
//	 8  u64  generation of the journal at whose start the rows are true
//	16  u64  its salt
//	24  u64  key
//	32  u64  length of the rows in bytes; what lies behind them is of no meaning
//	40  u64  number of rows
//	48  16   zeros
//	64  ...  rows, by replica
//
// A row: u8 status (1: live; 2: set aside; 3: live, and its log failed), uvarint group, replica, length and bytes of the directory,
// term, vote, commit; configuration; uvarint reset, start index, start term,
// last index, last term, next offset, segment index, segment offset, segment
// bytes, aux index; u8: 1 if files exist. With status 3 there follow the entries
// above the last index that were applied when the generation began, as in an
// append: index of the first, count, entries.
const (
	headerSize   = 64
	pageSize     = 4096
	journalMagic = uint32('S') | uint32('J')<<8 | uint32('R')<<16 | 1<<24
	tableMagic   = uint32('S') | uint32('C')<<8 | uint32('T')<<16 | 1<<24

	// versionMask leaves the letters of a magic number.
	versionMask = 1<<24 - 1
)

// errTruncated says that a unit ends inside a value.
var errTruncated = errors.New("ends inside a value")

// errUnknown says that an intact unit holds what this build does not know.
var errUnknown = errors.New("is not known to this build")

// roundHeader is the header of a round.
type roundHeader struct {
	generation uint64
	salt       uint64
	offset     int64
	prev       position // of a first round: the proven end of the predecessor
	bodyLen    uint32
	bodyCRC    uint32
}

// position is a point in the journal, at the beginning of a round or at the end
// of one.
type position struct {
	generation uint64
	salt       uint64
	offset     int64
}

// end is the offset at which the next round begins.
func (h roundHeader) end() int64 {
	return pageAlign(h.offset + headerSize + int64(h.bodyLen))
}

func pageAlign(n int64) int64 { return (n + pageSize - 1) &^ (pageSize - 1) }

// headerCRC is the checksum of a round's header by the directory's key.
func headerCRC(key uint64, header []byte) uint32 {
	return crc32.Update(uint32(key)^uint32(key>>32), castagnoli, header[4:headerSize])
}

// putRoundHeader writes h over the first 64 bytes of b.
func putRoundHeader(b []byte, key uint64, h roundHeader) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], journalMagic)
	le.PutUint64(b[8:], h.generation)
	le.PutUint64(b[16:], h.salt)
	le.PutUint64(b[24:], uint64(h.offset))
	le.PutUint64(b[32:], h.prev.generation)
	le.PutUint64(b[40:], h.prev.salt)
	le.PutUint64(b[48:], uint64(h.prev.offset))
	le.PutUint32(b[56:], h.bodyLen)
	le.PutUint32(b[60:], h.bodyCRC)
	le.PutUint32(b[0:], headerCRC(key, b))
}

// parseRoundHeader reads a header and reports whether it is one. Whether it
// stands where it should is the caller's to ask.
func parseRoundHeader(b []byte, key uint64) (h roundHeader, ok bool) {
	le := binary.LittleEndian
	if len(b) < headerSize || le.Uint32(b[4:]) != journalMagic || le.Uint32(b) != headerCRC(key, b) {
		return h, false
	}
	h = roundHeader{
		generation: le.Uint64(b[8:]),
		salt:       le.Uint64(b[16:]),
		offset:     int64(le.Uint64(b[24:])),
		prev: position{
			generation: le.Uint64(b[32:]),
			salt:       le.Uint64(b[40:]),
			offset:     int64(le.Uint64(b[48:])),
		},
		bodyLen: le.Uint32(b[56:]),
		bodyCRC: le.Uint32(b[60:]),
	}
	return h, h.offset >= 0 && h.offset <= math.MaxInt64-2*math.MaxUint32 && h.prev.offset >= 0
}

// decoder reads the values of a unit that has passed its checksum. After the
// first error it reads zeros; take care of err before what was read is used.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail(errTruncated)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail(errTruncated)
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

// bytes returns the next n bytes of the input itself, without room to grow.
func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail(errTruncated)
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

// count reads the number of elements to come, each of at least size bytes: so
// an allocation for them is never larger than the input justifies.
func (d *decoder) count(size int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/size) {
		d.fail(errTruncated)
		return 0
	}
	return int(n)
}

// bool refuses what is neither 0 nor 1.
func (d *decoder) bool() bool {
	v := d.byte()
	if v > 1 {
		d.fail(fmt.Errorf("flag %d %w", v, errUnknown))
	}
	return v == 1
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.b = nil
}
