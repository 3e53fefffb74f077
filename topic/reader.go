package topic

import (
	"context"
	"errors"
	"iter"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// Start says where a reader begins.
type Start struct {
	kind   byte
	offset storage.Offset
}

// FromStart begins at the first record that the partition holds.
func FromStart() Start { return Start{kind: 's'} }

// FromOffset begins at an offset.
func FromOffset(o storage.Offset) Start { return Start{kind: 'o', offset: o} }

// FromEnd begins behind the last record that was acknowledged before the call.
func FromEnd() Start { return Start{kind: 'e'} }

// ReadRecord is a record and where it is.
type ReadRecord struct {
	Record
	Offset storage.Offset
}

// Reader reads one partition.
type Reader struct{}

// NewReader opens a reader.
func (m *Manager) NewReader(ctx context.Context, p TopicPartition, start Start) (*Reader, error) {
	return nil, raftlog.Retry(errors.ErrUnsupported)
}

// Records returns the records from the reader's offset on, for ever: at the
// end it waits, until ctx ends.
func (r *Reader) Records(ctx context.Context) iter.Seq2[ReadRecord, error] {
	return func(func(ReadRecord, error) bool) {}
}

// View is what a Fetch returned: records in a buffer that the next call uses
// again.
//
//	for v.Next() { v.Offset(), v.Record() }
//	err := v.Err()
type View struct{}

// Next goes to the next record.
func (v *View) Next() bool { return false }

// Offset is that of the current record.
func (v *View) Offset() storage.Offset { return 0 }

// Record is the current record, borrowed.
func (v *View) Record() *Record { return nil }

// Err is what ended the walk early.
func (v *View) Err() error { return nil }

// Fetch returns the next records; it waits at the end until ctx ends.
func (r *Reader) Fetch(ctx context.Context, maxBytes int) (*View, error) { return nil, nil }

// Offset is that of the next record.
func (r *Reader) Offset() storage.Offset { return 0 }

// HighWatermark is the highest watermark that the reader was shown.
func (r *Reader) HighWatermark() storage.Offset { return 0 }

// Close ends the reader.
func (r *Reader) Close() {}
