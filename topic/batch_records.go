package topic

import (
	"encoding/binary"
	"time"

	"github.com/stelelog/stele/storage"
)

// BatchRecords walks through the records of a batch. What it returns is
// borrowed: valid until the next Next or Reset (headers), and as long as the
// batch's bytes (codec none) or until the next Reset (others). It reuses its
// buffers; the zero value is ready for Reset.
//
//	for it.Reset(b); it.Next(); {
//		it.Offset(), it.Record()
//	}
//	err := it.Err()
type BatchRecords struct {
	unpacker
	scratch []byte // of the codec
	in      []byte // not read yet
	base    storage.Offset
	count   uint64
	next    uint64 // smallest offset delta allowed
	delta   uint64
	last    int64
	record  Record
	headers []Header
	keys    map[string]string // of headers seen
	err     error
}

// What a walk remembers of header keys: how many, and of which size at most.
const (
	maxInterned    = 256
	maxInternedKey = 64
)

// Reset begins with the first record of b. A failure shows in Next and Err.
func (it *BatchRecords) Reset(b Batch) {
	it.base, it.count = b.BaseOffset(), uint64(b.Count())
	it.next, it.delta, it.last = 0, 0, 0
	it.in, it.err = it.decompress(b.Codec(), it.scratch, b.records(), b.recordsSize())
	if b.Codec() != CodecNone && it.err == nil {
		it.scratch = it.in
	}
}

// Next goes to the next record. It reports false at the end and on an error.
func (it *BatchRecords) Next() bool {
	if it.err != nil || len(it.in) == 0 {
		return false
	}
	c := cursor{in: it.in}
	it.delta = c.uvarint()
	it.last += c.varint()
	it.record.Timestamp = time.UnixMilli(it.last)
	it.record.Key = c.nullable()
	it.record.Value = c.nullable()
	it.record.Headers = it.readHeaders(&c)
	if c.bad || it.delta < it.next || it.delta >= it.count {
		it.err = corrupt("record after offset delta %d", it.next)
		return false
	}
	it.in, it.next = c.in, it.delta+1
	return true
}

func (it *BatchRecords) readHeaders(c *cursor) []Header {
	n := c.uvarint()
	if n == 0 {
		return nil
	}
	if n > uint64(len(c.in)/2) { // a header has two bytes at least
		c.bad = true
		return nil
	}
	it.headers = it.headers[:0]
	for range n {
		key := it.intern(c.take(c.uvarint()))
		it.headers = append(it.headers, Header{Key: key, Value: c.nullable()})
		if c.bad {
			return nil
		}
	}
	return it.headers
}

// intern returns a header's key as a string, which unlike the rest is not
// borrowed. Keys repeat, so that few are allocated.
func (it *BatchRecords) intern(key []byte) string {
	if s, ok := it.keys[string(key)]; ok {
		return s
	}
	s := string(key)
	if len(s) > maxInternedKey {
		return s
	}
	if it.keys == nil || len(it.keys) >= maxInterned {
		it.keys = make(map[string]string)
	}
	it.keys[s] = s
	return s
}

// Offset is the offset of the current record.
func (it *BatchRecords) Offset() storage.Offset { return it.base + storage.Offset(it.delta) }

// Record is the current record, borrowed but for the keys of its headers.
func (it *BatchRecords) Record() *Record { return &it.record }

// Err is what ended the walk early, nil at the end. It matches ErrCorruptBatch.
func (it *BatchRecords) Err() error { return it.err }

// cursor reads primitive values and remembers that one was malformed.
type cursor struct {
	in  []byte
	bad bool
}

func (c *cursor) uvarint() uint64 {
	if len(c.in) > 0 && c.in[0] < 0x80 {
		v := c.in[0]
		c.in = c.in[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(c.in)
	if n <= 0 {
		c.bad, c.in = true, nil
		return 0
	}
	c.in = c.in[n:]
	return v
}

func (c *cursor) varint() int64 {
	u := c.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// take returns the next n bytes, borrowed.
func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.in)) {
		c.bad, c.in = true, nil
		return nil
	}
	b := c.in[:n:n]
	c.in = c.in[n:]
	return b
}

func (c *cursor) nullable() []byte {
	n := c.uvarint()
	if n == 0 {
		return nil
	}
	return c.take(n - 1)
}

// checkProposal reports whether an encoded batch that was not made here is one
// that may be proposed: every offset has its record, and every record decodes.
func (it *BatchRecords) checkProposal(b Batch) error {
	var n uint64
	for it.Reset(b); it.Next(); n++ {
		if it.delta != n {
			return corrupt("no record for offset delta %d", n)
		}
	}
	if it.err == nil && n != it.count {
		return corrupt("%d records, %d declared", n, it.count)
	}
	return it.err
}
