package topic

import (
	"errors"
	"fmt"
	"time"

	"github.com/stelelog/stele/storage"
)

// A partition is searched for a time by the append stamps of its batches, which
// never step back (see partitionState): by halves, over the offsets that can be
// read, as one searches a sorted slice. There is no index of times, and so
// nothing to keep, to rebuild or to read at opening; a search reads one frame for
// each half, log2 of the number of batches of them. Record timestamps are
// whatever producers say, and not sorted.

// stampOf returns the first append stamp that is not before t, in ms.
func stampOf(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return ms
}

// offsetSince returns the first offset from start to before end that was
// appended at the stamp or later; end if there is none.
func (p *Partition) offsetSince(stamp int64, start, end storage.Offset) (storage.Offset, error) {
	var buf []byte
	for start < end {
		middle := start + (end-start)/2
		read, err := p.group.Log().ReadAt(middle, 1, buf[:0])
		if buf = read.Buf; err != nil {
			return 0, p.fetchError(err, middle, end)
		}
		frame := firstData(read.Frames)
		if frame == nil {
			return 0, p.fetchError(fmt.Errorf("no records at offset %d, below the high watermark", middle), middle, end)
		}
		if (Batch{frame.Payload}).Stamp() < stamp {
			start = frame.BaseOffset + storage.Offset(frame.Count)
		} else {
			end = min(end, max(start, frame.BaseOffset))
		}
	}
	return start, nil
}

// firstData returns the first frame with records, or nil.
func firstData(frames []storage.FrameView) *storage.FrameView {
	for i := range frames {
		if frames[i].Verdict == storage.VerdictData && len(frames[i].Payload) >= batchHeader {
			return &frames[i]
		}
	}
	return nil
}

// since fills in the first offset that was appended at the stamp or later, of
// what a replica shows: its end if there is none.
func (r *replica) since(o *offsets, stamp int64) error {
	at, err := r.part.offsetSince(stamp, o.start, o.end)
	var gone *OutOfRangeError
	if errors.As(err, &gone) { // removed since, and so is all before it
		o.start = min(r.group.Log().StartOffset(), o.end)
		at, err = r.part.offsetSince(stamp, o.start, o.end)
	}
	o.at = at
	return err
}
