package topic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/stelelog/stele/storage"
)

// The producer state as a side file of the partition log holds it. The file
// speaks of the log exactly up to an index; storage checks its checksum.
//
//	byte     format               1, or 2
//	uvarint  index                of the last entry that is in it
//	uvarint  next offset          of the partition
//	byte     sealed               0 or 1
//	uvarint  last deletion        with a grace, that the partition heard of: not 0; of
//	                              format 2 alone
//	byte     open                 1: that one was taken back, else 0; of format 2 alone
//	uvarint  latest append stamp  ms
//	uvarint  highest forgotten producer id
//	uvarint  highest forgotten producer epoch
//	uvarint  number of producers, and for each, longest silent first
//	           uvarint  id
//	           uvarint  epoch
//	           uvarint  stamp of the last append, as ms before the latest
//	           uvarint  next sequence
//	           uvarint  number of batches, and for each, oldest first
//	                      uvarint  count
//	                      uvarint  base offset
const (
	snapshotFormat  = 1
	snapshotRetired = 2 // of a partition that was once closed for a deletion with a grace

	// minProducerSize is a producer with one batch, in bytes.
	minProducerSize = 7
)

var errCorruptSnapshot = errors.New("topic: corrupt producer state")

// appendSnapshot encodes the state.
func (s *partitionState) appendSnapshot(buf []byte) []byte {
	format := byte(snapshotFormat)
	if s.closing.last > 0 {
		format = snapshotRetired
	}
	buf = append(buf, format)
	buf = binary.AppendUvarint(buf, uint64(s.index))
	buf = binary.AppendUvarint(buf, uint64(s.next))
	buf = appendFlag(buf, s.closing.sealed)
	if format == snapshotRetired {
		buf = appendFlag(binary.AppendUvarint(buf, s.closing.last), s.closing.open)
	}
	p := s.producers
	buf = binary.AppendUvarint(buf, uint64(p.now))
	buf = binary.AppendUvarint(buf, uint64(p.forgottenID))
	buf = binary.AppendUvarint(buf, uint64(p.forgottenEpoch))
	buf = binary.AppendUvarint(buf, uint64(len(p.byID)))
	for x := p.oldest; x != nil; x = x.newer {
		buf = binary.AppendUvarint(buf, uint64(x.id))
		buf = binary.AppendUvarint(buf, uint64(x.epoch))
		buf = binary.AppendUvarint(buf, uint64(p.now-x.lastAppend))
		buf = binary.AppendUvarint(buf, uint64(x.next))
		buf = binary.AppendUvarint(buf, uint64(x.n))
		for _, b := range x.batches[:x.n] {
			buf = binary.AppendUvarint(buf, uint64(b.count))
			buf = binary.AppendUvarint(buf, uint64(b.base))
		}
	}
	return buf
}

func appendFlag(buf []byte, is bool) []byte {
	if is {
		return append(buf, 1)
	}
	return append(buf, 0)
}

// readSnapshot decodes a state of the given incarnation.
func readSnapshot(data []byte, incarnation storage.Incarnation) (*partitionState, error) {
	if len(data) == 0 || data[0] != snapshotFormat && data[0] != snapshotRetired {
		return nil, fmt.Errorf("%w: unknown format", errCorruptSnapshot)
	}
	c := cursor{in: data[1:]}
	s := newPartitionState(incarnation)
	s.index = storage.Index(c.uvarint())
	s.next = c.offset()
	s.closing.sealed = c.upTo(1) == 1
	if data[0] == snapshotRetired {
		s.closing.last = c.uvarint()
		s.closing.open = c.upTo(1) == 1
		c.bad = c.bad || s.closing.last == 0
	}
	s.producers.now = int64(c.upTo(math.MaxInt64))
	s.producers.forgottenID = ProducerID(c.uvarint())
	s.producers.forgottenEpoch = ProducerEpoch(c.upTo(math.MaxUint32))
	n := c.upTo(MaxProducers)
	if c.bad || n > uint64(len(c.in))/minProducerSize {
		return nil, fmt.Errorf("%w: head", errCorruptSnapshot)
	}
	for i := range n {
		x := c.producer(s.producers.now, s.next)
		if c.bad || s.producers.byID[x.id] != nil {
			return nil, fmt.Errorf("%w: producer %d of %d", errCorruptSnapshot, i, n)
		}
		if last := s.producers.newest; last != nil && last.lastAppend > x.lastAppend {
			return nil, fmt.Errorf("%w: producer %d of %d is not in order", errCorruptSnapshot, i, n)
		}
		s.producers.byID[x.id] = x
		s.producers.pushNewest(x)
	}
	if len(c.in) != 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", errCorruptSnapshot, len(c.in))
	}
	return s, nil
}

func (c *cursor) producer(now int64, next storage.Offset) *producer {
	x := &producer{
		id:         ProducerID(c.uvarint()),
		epoch:      ProducerEpoch(c.upTo(math.MaxUint32)),
		lastAppend: now - int64(c.uvarint()),
		next:       Sequence(c.upTo(math.MaxInt64)),
		n:          int(c.upTo(RememberedBatches)),
	}
	if x.n == 0 || x.id == 0 || x.lastAppend > now {
		c.bad = true
		return x
	}
	var known uint64
	for i := range x.n {
		b := &x.batches[i]
		b.count = uint32(c.upTo(math.MaxUint32))
		b.base = c.offset()
		known += uint64(b.count)
		if b.count == 0 || b.base > next {
			c.bad = true
		}
	}
	if known > uint64(x.next) {
		c.bad = true
	}
	return x
}

func (c *cursor) offset() storage.Offset { return storage.Offset(c.upTo(math.MaxInt64)) }

// upTo reads a value that is not above limit.
func (c *cursor) upTo(limit uint64) uint64 {
	v := c.uvarint()
	if v > limit {
		c.bad = true
		return 0
	}
	return v
}
