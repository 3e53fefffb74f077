package storage

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// tableCopy is one copy of the checkpoint table: what all replicas were at the
// start of a generation of the journal.
type tableCopy struct {
	generation uint64
	salt       uint64
	key        uint64
	rows       []ReplicaState // by replica; Tail only of a log that failed
}

// rowTail is the status of a row of a live replica whose log failed: the
// entries follow that it applied and its log does not have for sure.
const rowTail = 3

// encodeTable appends the encoded copy to b, which is empty.
func encodeTable(b []byte, t *tableCopy) []byte {
	b = append(b, make([]byte, headerSize)...)
	for i := range t.rows {
		b = appendRow(b, &t.rows[i])
	}
	le := binary.LittleEndian
	le.PutUint32(b[4:], tableMagic)
	le.PutUint64(b[8:], t.generation)
	le.PutUint64(b[16:], t.salt)
	le.PutUint64(b[24:], t.key)
	le.PutUint64(b[32:], uint64(len(b)-headerSize))
	le.PutUint64(b[40:], uint64(len(t.rows)))
	le.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

func appendRow(b []byte, r *ReplicaState) []byte {
	status := byte(r.Status)
	if r.Status == ReplicaLive && len(r.Tail) > 0 {
		status = rowTail
	}
	b = append(b, status)
	b = binary.AppendUvarint(b, uint64(r.Group))
	b = binary.AppendUvarint(b, uint64(r.Replica))
	b = appendString(b, r.Dir)
	b = appendHardState(b, r.Hard)
	b = appendConf(b, &r.Conf)
	p := &r.Log
	for _, v := range [...]uint64{
		p.Reset, uint64(p.StartIndex), uint64(p.StartTerm), uint64(p.LastIndex), uint64(p.LastTerm),
		uint64(p.NextOffset), uint64(p.SegIndex), uint64(p.SegOffset), uint64(p.SegBytes), uint64(p.AuxIndex),
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendBool(b, p.Exists)
	if status == rowTail {
		b = appendEntries(b, r.Tail)
	}
	return b
}

// decodeTable reads a copy. An error that is errUnknown means that the copy is
// intact; any other that it is torn, damaged, or was never written.
func decodeTable(b []byte) (*tableCopy, error) {
	le := binary.LittleEndian
	if len(b) < headerSize {
		return nil, fmt.Errorf("%d bytes are no table", len(b))
	}
	magic := le.Uint32(b[4:])
	if magic&versionMask != tableMagic&versionMask {
		return nil, fmt.Errorf("begins with %q", b[4:8])
	}
	size, n := le.Uint64(b[32:]), le.Uint64(b[40:])
	if size > uint64(len(b)-headerSize) {
		return nil, errTruncated
	}
	b = b[:headerSize+size]
	if crc32.Checksum(b[4:], castagnoli) != le.Uint32(b) {
		return nil, fmt.Errorf("checksum differs")
	}
	if magic != tableMagic {
		return nil, fmt.Errorf("version %d %w", magic>>24, errUnknown)
	}
	t := &tableCopy{generation: le.Uint64(b[8:]), salt: le.Uint64(b[16:]), key: le.Uint64(b[24:])}
	const minRow = 22
	if n > size/minRow {
		return nil, errTruncated
	}
	t.rows = make([]ReplicaState, n)
	d := decoder{b: b[headerSize:]}
	for i := range t.rows {
		t.rows[i] = d.row()
		switch {
		case d.err != nil:
			return nil, fmt.Errorf("row %d: %w", i, d.err)
		case i > 0 && t.rows[i].Replica <= t.rows[i-1].Replica:
			return nil, fmt.Errorf("row %d: %v follows %v", i, t.rows[i].Replica, t.rows[i-1].Replica)
		}
	}
	if len(d.b) > 0 {
		return nil, fmt.Errorf("%d bytes follow the last row", len(d.b))
	}
	return t, nil
}

func (d *decoder) row() ReplicaState {
	status := d.byte()
	if status < byte(ReplicaLive) || status > rowTail {
		d.fail(fmt.Errorf("status %d %w", status, errUnknown))
	}
	r := ReplicaState{
		Status:  ReplicaStatus(status),
		Group:   GroupID(d.uvarint()),
		Replica: ReplicaID(d.uvarint()),
		Dir:     d.string(),
		Hard:    d.hardState(),
		Conf:    d.conf(),
	}
	r.Log = LogPosition{
		Reset:      d.uvarint(),
		StartIndex: Index(d.uvarint()),
		StartTerm:  Term(d.uvarint()),
		LastIndex:  Index(d.uvarint()),
		LastTerm:   Term(d.uvarint()),
		NextOffset: d.offset(),
		SegIndex:   Index(d.uvarint()),
		SegOffset:  d.offset(),
		SegBytes:   int64(d.offset()),
		AuxIndex:   Index(d.uvarint()),
		Exists:     d.bool(),
	}
	if status == rowTail {
		r.Status = ReplicaLive
		r.Tail = d.entries()
		if d.err == nil && (len(r.Tail) == 0 || r.Tail[0].Index != r.Log.LastIndex+1) {
			d.fail(fmt.Errorf("the entries do not follow entry %d", r.Log.LastIndex))
		}
	}
	return r
}
