package topic

import (
	"encoding/binary"
	"time"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// closing is whether a partition takes records. It is a part of the partition's
// state, and so decided by the entries of its group alone.
//
//	seal          nothing is ever appended behind it
//	retire n      nothing is appended behind it, until restore n or a later one
//	restore n     what retire n, or an earlier one, closed is open again
//
// n is the number of a deletion with a grace (metastore.Deletion), which rises along
// the topic's life. A retire or restore of a deletion that has passed changes
// nothing, and restore n comes after retire n whatever the order of their entries:
// so whoever was told to close or open a partition, and does so late, does no harm,
// and each entry may be repeated. Who proposes a retire hears that it was passed,
// and may not believe then that the partition is closed.
//
// A partition may have been closed for a deletion that a forced recovery has made
// undone: the metadata lost that it was begun, or the partition that it was taken back.
// Then whoever writes to it meets a retire of a deletion that the metadata say was
// taken back (metastore.Store.TakenBack), and the leader proposes the restore. It may
// do so by what it knows, however old that is: package metastore says why no deletion
// that stands is opened by that (I11).
type closing struct {
	sealed bool
	last   uint64 // number of the last deletion with a grace that was heard of; 0: none
	open   bool   // and it was taken back
}

// refuses returns why records are refused; nil: they are not.
func (c closing) refuses() error {
	switch {
	case c.sealed:
		return ErrSealed
	case c.last > 0 && !c.open:
		return &retiredError{c.last}
	}
	return nil
}

// retiredError is ErrRetired by a deletion.
type retiredError struct{ number uint64 }

func (*retiredError) Error() string { return ErrRetired.Error() }
func (*retiredError) Unwrap() error { return ErrRetired }

// retire closes for a deletion.
func (c *closing) retire(number uint64) error {
	if number < c.last || number == c.last && c.open {
		return errPassed
	}
	c.last, c.open = number, false
	return nil
}

// restore opens what a deletion closed.
func (c *closing) restore(number uint64) error {
	switch {
	case c.sealed:
		return ErrSealed
	case number < c.last:
		return errPassed
	}
	c.last, c.open = number, true
	return nil
}

// newClosing returns the entry that closes (KindRetire) or opens (KindRestore) a
// partition for a deletion.
func newClosing(kind Kind, incarnation storage.Incarnation, number uint64, now time.Time) []byte {
	b := newBatch(kind, BatchInfo{Incarnation: incarnation}, make([]byte, closingSize-batchHeader))
	binary.LittleEndian.PutUint64(b.data[offDeletion:], number)
	b.setStamp(now.UnixMilli())
	return b.data
}

// Deletion is the number in a KindRetire or KindRestore; of no other kind.
func (b Batch) Deletion() uint64 { return binary.LittleEndian.Uint64(b.data[offDeletion:]) }

// checkClosing judges the header of a KindRetire or KindRestore.
func (b Batch) checkClosing() error {
	size := binary.LittleEndian.Uint32(b.data[offRecordsSize:])
	if b.Count() != 0 || size != 0 || b.Codec() != CodecNone || len(b.data) != closingSize {
		return corrupt("a batch of kind %d of %d bytes, with %d records", b.Kind(), len(b.data), b.Count())
	}
	if b.Deletion() == 0 {
		return corrupt("a batch of kind %d for deletion 0", b.Kind())
	}
	return nil
}

// applyClosing applies a KindRetire or KindRestore.
func (s *partitionState) applyClosing(b Batch) decision {
	change := s.closing.restore
	if b.Kind() == KindRetire {
		change = s.closing.retire
	}
	if err := change(b.Deletion()); err != nil {
		return s.refuse(err)
	}
	return decision{verdict: storage.VerdictControl, base: s.next}
}

// Retire closes the partition for a deletion with a grace: once done was called with
// nil, no record is appended to it, on any replica, unless a Restore of the same or a
// later deletion is. It may be repeated. An error of outcome Retry says that it may
// not be closed: such a one was appended before. See Append for how done is called.
// The cluster must be of version 3.
func (p *Partition) Retire(number uint64, done func(error)) error {
	return p.close(KindRetire, number, done)
}

// Restore opens the partition, which was closed for a deletion with a grace: once
// done was called with nil, it takes records. It may be repeated. ErrSealed if the
// partition has ended. See Retire.
func (p *Partition) Restore(number uint64, done func(error)) error {
	return p.close(KindRestore, number, done)
}

func (p *Partition) close(kind Kind, number uint64, done func(error)) error {
	if number == 0 {
		return raftlog.Refused(corrupt("a batch of kind %d for deletion 0", kind))
	}
	data := newClosing(kind, p.cfg.Incarnation, number, p.cfg.Clock.Now())
	return p.batches.enqueue(data, len(data), joined{done: func(a Ack) { done(a.Err) }})
}
