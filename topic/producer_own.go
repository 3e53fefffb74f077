package topic

import "encoding/binary"

// appendOwn is AppendBatch for a batch of records that this process has built
// for this partition: it is not decoded again.
func (p *Partition) appendOwn(b Batch, done func(Ack)) error {
	if now := p.cfg.Clock.Now().UnixMilli(); b.Stamp() != now { // it was signed with the one that it has
		b.setStamp(now)
	}
	return p.batches.enqueue(b.data, len(b.data), joined{count: int(b.Count()), done: done})
}

// size is that of a checked batch that more may follow.
func (b Batch) size() int { return int(binary.LittleEndian.Uint32(b.data[offLength:])) }
