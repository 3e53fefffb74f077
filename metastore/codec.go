package metastore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/stelelog/stele/raftlog"
)

// errMalformed is the cause of every decoding error.
var errMalformed = errors.New("metastore: malformed")

func appendUint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }

func appendString(b []byte, s string) []byte {
	return append(appendUint(b, uint64(len(s))), s...)
}

// decoder reads what the append functions wrote. The first error stays, and
// every later read returns zero. It accepts one encoding of each value only,
// so that equal states have equal bytes and what was decoded encodes to what
// was read.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
		d.b = nil
	}
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 {
		d.fail("bad or padded varint")
		return 0
	}
	d.b = d.b[n:]
	return v
}

// uintMax reads an integer of at most limit.
func (d *decoder) uintMax(limit uint64) uint64 {
	v := d.uint()
	if v > limit {
		d.fail("%d is above %d", v, limit)
		return 0
	}
	return v
}

func (d *decoder) uint32() uint32 { return uint32(d.uintMax(1<<32 - 1)) }

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("too short")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

// bytes returns the next n bytes; they alias the input.
func (d *decoder) bytes(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.fail("%d bytes wanted, %d left", n, len(d.b))
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) id16() (id [16]byte) {
	copy(id[:], d.bytes(len(id)))
	return id
}

func (d *decoder) string(limit int) string {
	return string(d.bytes(int(d.uintMax(uint64(limit)))))
}

// count reads a number of items of at least size bytes each, which the rest of
// the input must have room for.
func (d *decoder) count(size int) int {
	return int(d.uintMax(uint64(len(d.b) / size)))
}

// version reads a version byte; zero is none.
func (d *decoder) version(newest byte) { d.versionUpTo(newest) }

// versionUpTo is version for who has to know which it is.
func (d *decoder) versionUpTo(newest byte) byte {
	v := d.byte()
	if d.err == nil && (v == 0 || v > newest) {
		d.fail("version %d, known up to %d", v, newest)
	}
	return v
}

// end returns the first error; bytes that are left are one.
func (d *decoder) end() error {
	if len(d.b) > 0 {
		d.fail("%d bytes too many", len(d.b))
	}
	return d.err
}

func appendReplicas(b []byte, ids []raftlog.ReplicaID) []byte {
	b = appendUint(b, uint64(len(ids)))
	for _, id := range ids {
		b = appendUint(b, uint64(id))
	}
	return b
}

func (d *decoder) replicas() []raftlog.ReplicaID {
	n := d.count(1)
	if n == 0 {
		return nil
	}
	ids := make([]raftlog.ReplicaID, n)
	for i := range ids {
		ids[i] = raftlog.ReplicaID(d.uint())
	}
	return ids
}

func appendConf(b []byte, c raftlog.ConfState) []byte {
	b = appendReplicas(b, c.Voters)
	b = appendReplicas(b, c.Learners)
	b = appendReplicas(b, c.VotersOutgoing)
	b = appendReplicas(b, c.LearnersNext)
	return appendFlag(b, c.AutoLeave)
}

func (d *decoder) conf() (c raftlog.ConfState) {
	c.Voters = d.replicas()
	c.Learners = d.replicas()
	c.VotersOutgoing = d.replicas()
	c.LearnersNext = d.replicas()
	c.AutoLeave = d.flag()
	return c
}

// flag reads a byte that is 0 or 1.
func (d *decoder) flag() bool {
	v := d.byte()
	if v > 1 {
		d.fail("flag %d", v)
	}
	return v == 1
}

func appendFlag(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}
