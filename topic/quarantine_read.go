package topic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// QuarantineSource names a log in quarantine.
type QuarantineSource struct {
	Dir       string // of Quarantined
	Partition uint32
	// Replica chooses one of several replicas of the partition that are in the
	// directory. 0: the one that goes farthest.
	Replica storage.ReplicaID
	// From is the offset of the first record that is wanted. Default: all that there
	// are.
	From storage.Offset
}

// QuarantineReader reads the records of a log in quarantine. See
// storage.QuarantineReader for what they are, and what is not among them. It is for
// one goroutine, and has none. Close has to be called: until then nothing destroys
// the directory.
type QuarantineReader struct {
	frames *storage.QuarantineReader
	life   context.Context
	next   storage.Offset
	it     BatchRecords
	of     storage.Incarnation // that all batches are of; zero: none was read
	ended  bool                // behind damage to the log's end; see recordOrLost
	inside bool                // what ended the last call is wrong inside of a frame that is right
}

// QuarantineDamageError says from where on a log in quarantine cannot be read. What
// is before it was read. It is Refused.
type QuarantineDamageError struct {
	Dir       string // of the log, relative to the node's directory
	Partition uint32
	Offset    storage.Offset // of the first record that cannot be read
	Entry     storage.Index  // that it is in
	Err       error          // a *storage.DamageError, or one that matches ErrCorruptBatch
}

func (e *QuarantineDamageError) Error() string {
	return fmt.Sprintf("topic: partition %d in %s cannot be read from offset %d (entry %d) on: %s", e.Partition, e.Dir, e.Offset, e.Entry, textOf(e.Err))
}

// Is gives the error its outcome: refused.
func (e *QuarantineDamageError) Is(target error) bool { return target == raftlog.ErrRefused }

// Unwrap gives what is wrong.
func (e *QuarantineDamageError) Unwrap() error { return withoutOutcome{e.Err} }

// ReadQuarantined opens a log in quarantine, to look at its records. Nothing is
// asked, and nothing changed. Errors: storage.ErrNotQuarantined (Refused), also if
// the directory has no such log; what the disk says (Retry).
func (m *Manager) ReadQuarantined(ctx context.Context, from QuarantineSource) (*QuarantineReader, error) {
	if err := m.begin(ctx); err != nil {
		return nil, explain(ctx, err, "read %q", from.Dir)
	}
	r, err := m.readQuarantined(from)
	return r, explain(ctx, err, "read %q", from.Dir)
}

func (m *Manager) readQuarantined(from QuarantineSource) (*QuarantineReader, error) {
	frames, err := m.cfg.Store.ReadQuarantined(from.Dir, from.Partition, from.Replica, m.cfg.Host.Replicas())
	switch {
	case errors.Is(err, storage.ErrNotQuarantined):
		return nil, raftlog.Refused(err)
	case err != nil:
		return nil, raftlog.Retry(err)
	}
	r := NewQuarantineReader(frames, from.From)
	r.life = m.life
	return r, nil
}

// NewQuarantineReader reads the records of frames from an offset on. Closing it
// closes frames. It is what Manager.ReadQuarantined does, for directories whose node
// does not run (storage.Offline).
func NewQuarantineReader(frames *storage.QuarantineReader, from storage.Offset) *QuarantineReader {
	r := &QuarantineReader{frames: frames, life: context.Background(), next: from}
	if from > 0 {
		frames.Seek(from)
	}
	r.next = max(from, frames.Log().Start)
	return r
}

// Source is which log is read, as far as the reader has come.
func (r *QuarantineReader) Source() QuarantineSource {
	l := r.frames.Log()
	return QuarantineSource{Dir: r.frames.Entry().Dir, Partition: l.Partition, Replica: l.Replica, From: r.next}
}

// Offset is that of the record that comes next.
func (r *QuarantineReader) Offset() storage.Offset { return r.next }

// Incarnation is the life of the topic for which the records were appended, as they
// say themselves; zero: none was read yet.
func (r *QuarantineReader) Incarnation() storage.Incarnation { return r.of }

// Records returns the records from the reader's offset on, to the end of the log.
// Only if it cannot go on it yields an error, the last: a *QuarantineDamageError,
// behind which Skip may find more; ctx.Err(), ErrClosed (Retry); what the disk says
// (Retry). Breaking out of the loop is not an error; the reader's offset is then
// behind the last record that was yielded.
//
// Records are the caller's to keep.
func (r *QuarantineReader) Records(ctx context.Context) iter.Seq2[ReadRecord, error] {
	return func(yield func(ReadRecord, error) bool) {
		for {
			record, err := r.record(ctx)
			if err == io.EOF || !yield(record, err) || err != nil {
				return
			}
		}
	}
}

// record returns the next record. io.EOF: there is none.
func (r *QuarantineReader) record(ctx context.Context) (ReadRecord, error) {
	for {
		if r.ended {
			return ReadRecord{}, io.EOF
		}
		for r.it.Next() {
			if r.it.Offset() < r.next {
				continue
			}
			record := ReadRecord{Record: *r.it.Record(), Offset: r.it.Offset()}
			record.Headers = slices.Clone(record.Headers)
			r.next = record.Offset + 1
			return record, nil
		}
		if err := r.it.Err(); err != nil {
			r.inside = true
			return ReadRecord{}, r.damaged(r.frames.Next()-1, err)
		}
		b, err := r.batch(ctx)
		if err != nil {
			return ReadRecord{}, err
		}
		r.it.scratch = nil // the last batch's records are the caller's
		r.it.Reset(b)
	}
}

// batch returns the next batch with records at or behind the reader's offset, whose
// bytes are nobody else's. io.EOF: there is none.
func (r *QuarantineReader) batch(ctx context.Context) (Batch, error) {
	for {
		switch {
		case ctx == nil:
			return Batch{}, ErrNoContext
		case ctx.Err() != nil:
			return Batch{}, raftlog.Retry(ctx.Err())
		case r.life.Err() != nil:
			return Batch{}, raftlog.Retry(ErrClosed)
		}
		f, err := r.frames.Read()
		var damage *storage.DamageError
		switch {
		case err == io.EOF:
			return Batch{}, err
		case errors.Is(err, storage.ErrNotQuarantined):
			return Batch{}, raftlog.Refused(err)
		case errors.As(err, &damage):
			r.next = max(r.next, r.frames.Offset())
			return Batch{}, r.damaged(r.frames.Next(), err)
		case err != nil:
			return Batch{}, raftlog.Retry(err)
		case f.Verdict != storage.VerdictData || f.NextOffset() <= r.next:
			continue
		}
		r.next = max(r.next, f.BaseOffset)
		b, err := r.batchOf(&f)
		if err != nil {
			r.inside = true
			return Batch{}, r.damaged(f.Index, err)
		}
		return b, nil
	}
}

// batchOf is the batch that a frame holds.
func (r *QuarantineReader) batchOf(f *storage.FrameView) (Batch, error) {
	b, rest, err := ReadBatch(slices.Clone(f.Payload))
	switch {
	case err != nil:
		return b, err
	case len(rest) > 0 || b.Kind() != KindData || b.Count() != f.Count:
		return b, corrupt("%d records of kind %d and %d bytes more, in a frame of %d", b.Count(), b.Kind(), len(rest), f.Count)
	case !r.of.IsZero() && r.of != b.Incarnation():
		return b, corrupt("it is of incarnation %v, those before it are of %v", b.Incarnation(), r.of)
	}
	r.of = b.Incarnation()
	b.setBaseOffset(f.BaseOffset)
	return b, nil
}

func (r *QuarantineReader) damaged(entry storage.Index, err error) error {
	l := r.frames.Log()
	return &QuarantineDamageError{Dir: l.Dir, Partition: l.Partition, Offset: r.next, Entry: entry, Err: err}
}

// Skip leaves behind what cannot be read, after a *QuarantineDamageError. It reports
// whether there is more; Offset is then that of the next record: those before it are
// lost. What it leaves out is a batch, or the rest of a segment.
func (r *QuarantineReader) Skip() bool {
	if r.inside {
		r.inside, r.it.in, r.it.err = false, nil, nil
	} else if !r.frames.Skip() {
		return false
	}
	r.next = max(r.next, r.frames.Offset())
	return true
}

// Close ends the reader. It is idempotent.
func (r *QuarantineReader) Close() { r.frames.Close() }
