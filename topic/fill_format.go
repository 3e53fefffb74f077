package topic

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// A fill is how a replica gets a log that its leader has no longer from the
// beginning, or whose beginning it never had: a copy of another replica's, up to
// what that one has applied, over a stream "topic.fill". Integers are
// little-endian, but for those marked v, which are unsigned varints. The one that
// is to be filled asks, in 50 bytes:
//
//	offset size
//	     0    4  crc32c        of [4, 50)
//	     4    1  version       1
//	     5    1  0
//	     6   16  incarnation   of the topic
//	    22    4  partition
//	    26    8  group
//	    34    8  replica       the one that asks
//	    42    8  next          the first entry that it wants; 0: it has none yet
//
// and is answered in messages:
//
//	     0    4  crc32c        of [4, 9+length)
//	     4    1  kind
//	     5    4  length
//	     9       body
//
//	kind        body
//	1 refused   the response of a call that failed (wire_errors.go); nothing follows
//	2 cut       replica v, term v (of the sender, in raft), start index v, start
//	            term v, start offset v, last index v, last term v, next offset v,
//	            side file v (index; 0: none), first v (entry that follows), and the
//	            configuration as of exactly the last index: four lists (voters,
//	            learners, outgoing voters, next learners), each a count v and as
//	            many replicas v, and a byte, 1 if it leaves by itself
//	3 frames    whole frames of the log, as storage writes them
//	4 state     a part of the side file's data
//	5 end       nothing
//
// in the order cut, frames up to the last index, state, end. The frames have
// checksums of their own, which the staged log verifies with group, index, term
// and offset of each. Who was interrupted asks again for what is missing, here or
// of another replica: the entries up to a replica's applied index are the same
// everywhere, so parts from several senders make one log.
const (
	methodFill = "topic.fill"

	fillVersion     = 1
	fillRequestSize = 50
	fillHead        = 9

	fillRefused byte = 1
	fillIsCut   byte = 2
	fillFrames  byte = 3
	fillState   byte = 4
	fillEnd     byte = 5

	// fillChunk is about how much a message with frames holds. One that is larger
	// than that travels alone.
	fillChunk = 256 << 10
	// maxFillBody bounds what a receiver takes in at once.
	maxFillBody = storage.MaxFramePayload + 1<<10
	// maxFillConf bounds each list of a configuration.
	maxFillConf = 64
)

var fillTable = crc32.MakeTable(crc32.Castagnoli)

// fillRequest asks for a log.
type fillRequest struct {
	address
	group   storage.GroupID
	replica storage.ReplicaID
	next    storage.Index
}

func (q fillRequest) encode() []byte {
	b := make([]byte, 6, fillRequestSize)
	b[4] = fillVersion
	b = append(b, q.incarnation[:]...)
	b = binary.LittleEndian.AppendUint32(b, q.partition)
	b = binary.LittleEndian.AppendUint64(b, uint64(q.group))
	b = binary.LittleEndian.AppendUint64(b, uint64(q.replica))
	b = binary.LittleEndian.AppendUint64(b, uint64(q.next))
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], fillTable))
	return b
}

func decodeFillRequest(b []byte) (q fillRequest, err error) {
	switch {
	case len(b) != fillRequestSize:
		return q, malformed("fill of %d bytes", len(b))
	case binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], fillTable):
		return q, malformed("fill whose checksum differs")
	case b[4] != fillVersion || b[5] != 0:
		return q, malformed("fill of version %d.%d, this build knows %d", b[4], b[5], fillVersion)
	}
	copy(q.incarnation[:], b[6:])
	q.partition = binary.LittleEndian.Uint32(b[22:])
	q.group = storage.GroupID(binary.LittleEndian.Uint64(b[26:]))
	q.replica = storage.ReplicaID(binary.LittleEndian.Uint64(b[34:]))
	q.next = storage.Index(binary.LittleEndian.Uint64(b[42:]))
	return q, nil
}

// fillCut is what a sender has.
type fillCut struct {
	replica storage.ReplicaID
	term    storage.Term
	start   storage.LogStart
	last    storage.Index
	lastIn  storage.Term // term of last
	next    storage.Offset
	aux     storage.Index
	first   storage.Index
	conf    storage.ConfState // as of last
}

func (c *fillCut) encode() []byte {
	var b []byte
	for _, v := range [...]uint64{
		uint64(c.replica), uint64(c.term), uint64(c.start.Index), uint64(c.start.Term), uint64(c.start.Offset),
		uint64(c.last), uint64(c.lastIn), uint64(c.next), uint64(c.aux), uint64(c.first),
	} {
		b = binary.AppendUvarint(b, v)
	}
	for _, list := range [...][]storage.ReplicaID{c.conf.Voters, c.conf.Learners, c.conf.VotersOutgoing, c.conf.LearnersNext} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, r := range list {
			b = binary.AppendUvarint(b, uint64(r))
		}
	}
	if c.conf.AutoLeave {
		return append(b, 1)
	}
	return append(b, 0)
}

func decodeFillCut(b []byte) (fillCut, error) {
	in := cursor{in: b}
	c := fillCut{
		replica: storage.ReplicaID(in.uvarint()), term: storage.Term(in.uvarint()),
		start: storage.LogStart{Index: storage.Index(in.uvarint()), Term: storage.Term(in.uvarint()), Offset: in.offset()},
		last:  storage.Index(in.uvarint()), lastIn: storage.Term(in.uvarint()), next: in.offset(),
		aux: storage.Index(in.uvarint()), first: storage.Index(in.uvarint()),
	}
	for _, list := range [...]*[]storage.ReplicaID{&c.conf.Voters, &c.conf.Learners, &c.conf.VotersOutgoing, &c.conf.LearnersNext} {
		for range in.upTo(maxFillConf) {
			*list = append(*list, storage.ReplicaID(in.uvarint()))
		}
	}
	c.conf.AutoLeave = in.upTo(1) == 1
	switch {
	case in.bad || len(in.in) != 0:
		return c, malformed("the cut of a fill of %d bytes", len(b))
	case c.last < c.start.Index || c.lastIn < c.start.Term || c.term < c.lastIn || c.next < c.start.Offset ||
		c.aux > c.last || c.first <= c.start.Index || c.first > c.last+1:
		return c, malformed("a fill of entries %d to %d of a log of entries %d to %d", c.first, c.last, c.start.Index+1, c.last)
	}
	return c, nil
}

// writeFill writes one message.
func writeFill(w io.Writer, kind byte, body []byte) error {
	head := make([]byte, fillHead)
	head[4] = kind
	binary.LittleEndian.PutUint32(head[5:], uint32(len(body)))
	crc := crc32.Update(crc32.Checksum(head[4:], fillTable), fillTable, body)
	binary.LittleEndian.PutUint32(head, crc)
	if _, err := w.Write(head); err != nil {
		return err
	}
	if len(body) == 0 {
		return nil
	}
	_, err := w.Write(body)
	return err
}

// readFill reads one message into buf, which is grown as far as bytes come.
func readFill(r io.Reader, buf []byte) (kind byte, body []byte, err error) {
	var head [fillHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, buf, err
	}
	length := int(binary.LittleEndian.Uint32(head[5:]))
	if kind = head[4]; kind < fillRefused || kind > fillEnd || length > maxFillBody {
		return 0, buf, malformed("a fill's message of kind %d and %d bytes", kind, length)
	}
	body = buf[:0]
	for len(body) < length {
		at := len(body)
		part := min(length-at, max(fillChunk, cap(body)-at))
		body = append(body, make([]byte, part)...)
		if _, err := io.ReadFull(r, body[at:]); err != nil {
			return 0, body, err
		}
	}
	crc := crc32.Update(crc32.Checksum(head[4:], fillTable), fillTable, body)
	if crc != binary.LittleEndian.Uint32(head[:]) {
		return 0, body, malformed("a fill's message whose checksum differs")
	}
	return kind, body, nil
}

// fillError is the error in a refusal.
func fillError(body []byte) error {
	if _, err := decodeResponse(body); err != nil {
		return err
	}
	return raftlog.Unknown(fmt.Errorf("topic: a fill was refused without a reason"))
}
