package topic

import (
	"errors"
	"fmt"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// FetchRequest asks for records.
type FetchRequest struct {
	// From is the offset of the first record wanted.
	From storage.Offset
	// MaxBytes bounds the answer, but for its first batch. At least 1.
	MaxBytes int
	// Seen is the highest watermark that the reader was shown, by any replica.
	Seen storage.Offset
}

// Fetched is an answer to a FetchRequest.
type Fetched struct {
	// Data are whole batches back to back, from the one that holds From on,
	// with their base offsets: see ReadBatch. The first may begin below From.
	// It lies in the buffer that the caller gave or in its successor.
	Data []byte
	// Buf is the buffer to give to the next Fetch, once Data is not used any
	// more.
	Buf []byte
	// Start is the first offset that the partition holds.
	Start storage.Offset
	// HighWatermark is the first offset that may not be read yet.
	HighWatermark storage.Offset
	// Next is where to go on.
	Next storage.Offset
}

// Fetch reads batches from this replica, as far as its high watermark, into
// buf, which it grows if needed. It does not wait: at the watermark Data is
// empty. The caller owns what it returns.
//
// Errors: *BehindError, ErrNotReadable, ErrPartitionClosed, *storage.DamageError
// (all Retry: another replica, or later), and *OutOfRangeError (Refused).
func (p *Partition) Fetch(req FetchRequest, buf []byte) (Fetched, error) {
	start, hw, err := p.bounds()
	if err != nil {
		return Fetched{Buf: buf}, err
	}
	log := p.group.Log()
	f := Fetched{Buf: buf, Start: start, HighWatermark: hw, Next: req.From}
	switch {
	case req.Seen > hw:
		return f, &BehindError{Seen: req.Seen, HighWatermark: hw}
	case req.From < f.Start || req.From > hw:
		return f, p.outOfRange(req.From, f.Start, hw)
	case req.From == hw:
		return f, nil
	}
	read, err := log.ReadAt(req.From, req.MaxBytes, buf[:0])
	f.Buf = read.Buf
	if err != nil {
		return f, p.fetchError(err, req.From, hw)
	}
	if f.compact(read.Frames); len(f.Data) == 0 {
		return f, p.fetchError(fmt.Errorf("no records at offset %d, below the high watermark %d", req.From, hw), req.From, hw)
	}
	return f, nil
}

// compact moves the batches of records that may be read to the front of the
// buffer and gives them their base offsets.
func (f *Fetched) compact(frames []storage.FrameView) {
	n := 0
	for i := range frames {
		frame := &frames[i]
		if frame.Verdict != storage.VerdictData || len(frame.Payload) < batchHeader {
			continue
		}
		end := frame.BaseOffset + storage.Offset(frame.Count)
		if end > f.HighWatermark { // in the log, and not published yet
			break
		}
		size := copy(f.Buf[n:], frame.Payload)
		Batch{f.Buf[n : n+size]}.setBaseOffset(frame.BaseOffset)
		n += size
		f.Next = end
	}
	f.Data = f.Buf[:n:n]
}

func (p *Partition) outOfRange(from, start, end storage.Offset) error {
	return &OutOfRangeError{Topic: p.cfg.Topic, Partition: p.cfg.Partition, Offset: from, Start: start, End: end}
}

func (p *Partition) fetchError(err error, from, hw storage.Offset) error {
	var out *storage.OutOfRangeError
	switch {
	case errors.As(err, &out): // removed since
		return p.outOfRange(from, out.Start, max(hw, out.Start))
	case errors.Is(err, storage.ErrClosed):
		return ErrPartitionClosed
	}
	return raftlog.Retry(fmt.Errorf("topic: read %s/%d here: %w", p.cfg.Topic, p.cfg.Partition, err))
}

// bounds returns the first offset that the log holds and the high watermark. In
// this order: the log begins later only once its records were shown.
func (p *Partition) bounds() (start, hw storage.Offset, err error) {
	p.mu.Lock()
	bound := p.mu.isBound
	p.mu.Unlock()
	if bound {
		start = p.group.Log().StartOffset()
	}
	hw, err = p.HighWatermark()
	return start, hw, err
}

// HighWatermark is the first offset that may not be read yet on this replica.
// The error is ErrNotReadable or ErrPartitionClosed.
func (p *Partition) HighWatermark() (storage.Offset, error) {
	p.mu.Lock()
	hw, ok := p.mu.hw, p.mu.isBound && !p.mu.isClosed
	p.mu.Unlock()
	if !ok {
		return 0, ErrPartitionClosed
	}
	if _, ok := p.group.Readable(); !ok {
		return 0, ErrNotReadable
	}
	return hw, nil
}

// Changed returns a channel that is closed when the watermark has moved, may
// be shown, or never will. Take it before looking at the watermark:
//
//	for {
//		changed := p.Changed()
//		f, err := p.Fetch(...)
//		if there is nothing yet { <-changed or ctx; continue }
//	}
func (p *Partition) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.isClosed {
		return p.closed
	}
	if p.mu.changed == nil {
		p.mu.changed = make(chan struct{})
	}
	return p.mu.changed
}

// Wake closes the channel of Changed: call it when the group's status changes.
// It does not block.
func (p *Partition) Wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakeLocked()
}

func (p *Partition) wakeLocked() {
	if p.mu.changed != nil {
		close(p.mu.changed)
		p.mu.changed = nil
	}
}
