package topic

import "encoding/binary"

// appendOwn is AppendBatch for a batch of records that this process has built
// for this partition: it is not decoded again.
func (p *Partition) appendOwn(b Batch, done func(Ack)) error {
	b.setStamp(p.cfg.Clock.Now().UnixMilli())
	return p.batches.enqueue(b.data, len(b.data), joined{count: int(b.Count()), done: done})
}

// size is that of a checked batch that more may follow.
func (b Batch) size() int { return int(binary.LittleEndian.Uint32(b.data[offLength:])) }
