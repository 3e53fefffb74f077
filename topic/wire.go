package topic

import (
	"encoding/binary"
	"fmt"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// Calls between managers. Integers are little-endian. Every request begins
// with the partition that it is for:
//
//	offset size
//	     0    1  version       1
//	     1    1  flags         offsets: 1 linearizable; 0 for the others
//	     2   16  incarnation   of the topic
//	    18    4  partition
//
// and goes on, by method:
//
//	topic.produce   22    8  term          of the leader that the caller believes in; 0: none
//	                30       batch         as it is to be appended
//	topic.fetch     22    8  from          offset
//	                30    8  seen          the reader's high watermark
//	                38    4  max bytes
//	                42    4  wait          at most this long for records, in ms
//	topic.offsets   22                     nothing more
//	topic.since     22    8  stamp         ms since 1970 UTC
//	topic.seal      22                     nothing more
//	topic.close     22    1  kind          of the entry: 4 retire, 5 restore
//	                23    8  deletion
//	topic.transfer  22    8  replica       that is to lead
//	topic.left      22    8  group         of the partition
//	                30    8  replica
//	topic.clock     22                     nothing more
//	topic.time      22                     nothing more; incarnation and partition are 0
//	topic.sums      22    8  from          the first entry of a segment
//
// A response says what became of the call, so that errors survive whatever
// network the host has:
//
//	0    1  version       1
//	1    1  code          0: no error; see wire_errors.go
//
// and without an error goes on, by method:
//
//	topic.produce    2    8  base offset   of the batch
//	topic.fetch      2    8  start         first offset that the partition holds
//	                10    8  high watermark
//	                18    8  next          where to go on
//	                26       batches
//	topic.offsets    2    8  start
//	                10    8  high watermark
//	topic.since      2    8  start         as of topic.offsets, linearizable
//	                10    8  high watermark
//	                18    8  offset        of the first record appended at the
//	                                       stamp or later; the high watermark if
//	                                       there is none
//	topic.seal       2                     nothing more
//	topic.close      2                     nothing more
//	topic.transfer   2                     nothing more
//	topic.left       2    1  listed        by the group, linearizable: 0 no, 1 yes
//	topic.clock      2    8  now           by the node's clock, ms since 1970 UTC
//	topic.time       2    8  now           as of topic.clock, of a node that need not hold
//	                                       the partition
//	topic.sums       2   48  per segment from there on that was verified here, oldest
//	                         first: its first entry (8), its last (8), its SHA-256
const (
	methodProduce  = "topic.produce"
	methodFetch    = "topic.fetch"
	methodOffsets  = "topic.offsets"
	methodSince    = "topic.since"
	methodSeal     = "topic.seal"
	methodClose    = "topic.close"
	methodTransfer = "topic.transfer"
	methodLeft     = "topic.left"
	methodClock    = "topic.clock"
	methodTime     = "topic.time"
	methodSums     = "topic.sums"

	wireVersion = 1

	wireAddress = 22
	wireHead    = 2

	flagLinearizable = 1
)

// address names one life of a partition.
type address struct {
	incarnation storage.Incarnation
	partition   uint32
}

func (a address) String() string { return fmt.Sprintf("%v/%d", a.incarnation, a.partition) }

func (a address) append(b []byte, flags byte) []byte {
	b = append(b, wireVersion, flags)
	b = append(b, a.incarnation[:]...)
	return binary.LittleEndian.AppendUint32(b, a.partition)
}

// decodeAddress reads the beginning of a request, and returns what follows.
func decodeAddress(req []byte) (a address, flags byte, rest []byte, err error) {
	switch {
	case len(req) < wireAddress:
		return a, 0, nil, malformed("request of %d bytes", len(req))
	case req[0] != wireVersion:
		return a, 0, nil, malformed("request of version %d, this build knows %d", req[0], wireVersion)
	}
	copy(a.incarnation[:], req[2:])
	a.partition = binary.LittleEndian.Uint32(req[18:])
	return a, req[1], req[wireAddress:], nil
}

// malformed makes an error for bytes that no manager sends.
func malformed(format string, args ...any) error {
	return raftlog.Refused(fmt.Errorf("topic: call: %s", fmt.Sprintf(format, args...)))
}

// encodeProduce copies the batch.
func encodeProduce(a address, term storage.Term, batch []byte) []byte {
	b := a.append(make([]byte, 0, wireAddress+8+len(batch)), 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(term))
	return append(b, batch...)
}

// decodeProduce borrows the batch.
func decodeProduce(body []byte) (term storage.Term, batch []byte, err error) {
	if len(body) < 8 {
		return 0, nil, malformed("produce of %d bytes", len(body))
	}
	return storage.Term(binary.LittleEndian.Uint64(body)), body[8:], nil
}

// fetchCall is a FetchRequest to another node.
type fetchCall struct {
	FetchRequest
	waitMillis uint32
}

func encodeFetch(a address, c fetchCall) []byte {
	b := a.append(make([]byte, 0, wireAddress+24), 0)
	b = appendOffset(b, c.From)
	b = appendOffset(b, c.Seen)
	b = binary.LittleEndian.AppendUint32(b, uint32(c.MaxBytes))
	return binary.LittleEndian.AppendUint32(b, c.waitMillis)
}

func decodeFetch(body []byte) (c fetchCall, err error) {
	if len(body) != 24 {
		return c, malformed("fetch of %d bytes", len(body))
	}
	c.From = readOffset(body)
	c.Seen = readOffset(body[8:])
	size := binary.LittleEndian.Uint32(body[16:])
	c.MaxBytes = int(min(size, maxFetchBytes))
	c.waitMillis = binary.LittleEndian.Uint32(body[20:])
	if c.From < 0 || c.Seen < 0 || size == 0 {
		return c, malformed("fetch of %d bytes from %d after %d", size, c.From, c.Seen)
	}
	return c, nil
}

// responseHead begins every response without an error.
func responseHead(size int) []byte {
	return append(make([]byte, 0, wireHead+size), wireVersion, codeNone)
}

// decodeResponse returns what follows the head, or the error that the other
// node answered. A response that cannot be read says nothing of the outcome.
func decodeResponse(resp []byte) ([]byte, error) {
	switch {
	case len(resp) < wireHead:
		return nil, raftlog.Unknown(malformed("response of %d bytes", len(resp)))
	case resp[0] != wireVersion:
		return nil, raftlog.Unknown(malformed("response of version %d, this build knows %d", resp[0], wireVersion))
	case resp[1] != codeNone:
		return nil, decodeError(resp[1], resp[wireHead:])
	}
	return resp[wireHead:], nil
}

func encodeProduced(base storage.Offset) []byte { return appendOffset(responseHead(8), base) }

func decodeProduced(resp []byte) (storage.Offset, error) {
	body, err := decodeResponse(resp)
	if err != nil {
		return 0, err
	}
	if len(body) != 8 || readOffset(body) < 0 {
		return 0, raftlog.Unknown(malformed("produced in %d bytes", len(body)))
	}
	return readOffset(body), nil
}

// fetchedHead is the size of a fetch's response before the batches.
const fetchedHead = wireHead + 24

// putFetched writes the head of a response into the first fetchedHead bytes.
func putFetched(b []byte, f Fetched) {
	b[0], b[1] = wireVersion, codeNone
	binary.LittleEndian.PutUint64(b[2:], uint64(f.Start))
	binary.LittleEndian.PutUint64(b[10:], uint64(f.HighWatermark))
	binary.LittleEndian.PutUint64(b[18:], uint64(f.Next))
}

// decodeFetched borrows the batches, which it does not look at. Errors of the
// answer itself are of a read: nothing happened.
func decodeFetched(resp []byte) (f Fetched, err error) {
	body, err := decodeResponse(resp)
	if err != nil {
		return f, err
	}
	if len(body) < 24 {
		return f, raftlog.Retry(malformed("fetched in %d bytes", len(body)))
	}
	f.Start, f.HighWatermark, f.Next = readOffset(body), readOffset(body[8:]), readOffset(body[16:])
	f.Data = body[24:]
	if f.Start < 0 || f.Next < f.Start || f.Next > f.HighWatermark {
		return Fetched{}, raftlog.Retry(malformed("fetched up to %d of [%d, %d)", f.Next, f.Start, f.HighWatermark))
	}
	return f, nil
}

// offsets are what a partition holds.
type offsets struct {
	start, end storage.Offset
	at         storage.Offset // that was searched for
}

func encodeSince(a address, stamp int64) []byte {
	return appendOffset(a.append(make([]byte, 0, wireAddress+8), 0), storage.Offset(stamp))
}

func decodeSince(body []byte) (stamp int64, err error) {
	if len(body) != 8 {
		return 0, malformed("since of %d bytes", len(body))
	}
	return int64(readOffset(body)), nil
}

func encodeSinceIs(o offsets) []byte {
	return appendOffset(appendOffset(appendOffset(responseHead(24), o.start), o.end), o.at)
}

func decodeSinceIs(resp []byte) (o offsets, err error) {
	body, err := decodeResponse(resp)
	if err != nil {
		return o, err
	}
	if len(body) != 24 {
		return o, raftlog.Retry(malformed("since in %d bytes", len(body)))
	}
	o = offsets{start: readOffset(body), end: readOffset(body[8:]), at: readOffset(body[16:])}
	if o.start < 0 || o.at < o.start || o.end < o.at {
		return o, raftlog.Retry(malformed("offset %d of [%d, %d)", o.at, o.start, o.end))
	}
	return o, nil
}

func encodeOffsets(o offsets) []byte {
	return appendOffset(appendOffset(responseHead(16), o.start), o.end)
}

func decodeOffsets(resp []byte) (o offsets, err error) {
	body, err := decodeResponse(resp)
	if err != nil {
		return o, err
	}
	if len(body) != 16 {
		return o, raftlog.Retry(malformed("offsets in %d bytes", len(body)))
	}
	o = offsets{start: readOffset(body), end: readOffset(body[8:])}
	if o.start < 0 || o.end < o.start {
		return o, raftlog.Retry(malformed("offsets [%d, %d)", o.start, o.end))
	}
	return o, nil
}

func appendOffset(b []byte, o storage.Offset) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(o))
}

func readOffset(b []byte) storage.Offset { return storage.Offset(binary.LittleEndian.Uint64(b)) }
