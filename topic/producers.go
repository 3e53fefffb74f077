package topic

import (
	"time"

	"github.com/stelelog/stele/storage"
)

// ProducerID names a producer for all time; 0 is anonymous.
type ProducerID uint64

// ProducerEpoch counts the starts of a named producer.
type ProducerEpoch uint32

// Sequence counts a producer's records in one partition and epoch, from 0.
type Sequence uint64

// ProducerBatch says which of a producer's records a batch holds: those from
// First on, Count of the batch many.
type ProducerBatch struct {
	ID    ProducerID
	Epoch ProducerEpoch
	First Sequence
}

const (
	// RememberedBatches is how many batches of a producer a partition knows
	// the offsets of: more than these may not be in flight at once.
	RememberedBatches = 8
	// MaxProducers is how many producers a partition remembers; the one that
	// has not written for longest is forgotten first.
	MaxProducers = 10_000
	// ProducerExpiry is how long it remembers one that does not write, by the
	// append stamps of the partition's batches.
	ProducerExpiry = 24 * time.Hour
)

// Producers is what a partition remembers of its producers: enough to append
// each of their batches once (P4). It is a pure function of the entries
// applied to it, alike on all replicas, and not safe for concurrent use.
//
// A batch is repeated as it was: the same sequences in the same grouping. The
// rules, of which the first that fits holds:
//
//	producer   epoch    first sequence          decision
//	anonymous                                   append
//	may be forgotten                            ErrUnknownProducer
//	new                 0                       append
//	new                 not 0                   *OutOfOrderError
//	known      older                            *FencedError
//	known      newer    0                       append, the older epoch ends
//	known      newer    not 0                   *OutOfOrderError
//	known      same     next                    append
//	known      same     of a remembered batch   duplicate, with its offset
//	known      same     other                   *OutOfOrderError
//
// A forgotten producer must not be taken for a new one, or the repetition of
// its first batch would be appended twice and its older epochs would come
// back. Ids and epochs only grow, so two numbers tell: one whose id was made
// after every forgotten id, or whose epoch is above every forgotten epoch, is
// new. All others have to obtain a new identity.
type Producers struct {
	byID   map[ProducerID]*producer
	oldest *producer // a list, by the time of the last append
	newest *producer
	now    int64 // latest append stamp seen, ms; never before 1970

	forgottenID    ProducerID    // highest forgotten
	forgottenEpoch ProducerEpoch // highest forgotten
}

// producer is one producer's last batches. They follow each other without gap.
type producer struct {
	id         ProducerID
	epoch      ProducerEpoch
	lastAppend int64 // Producers.now of its last append
	next       Sequence
	n          int                                // batches known
	batches    [RememberedBatches]rememberedBatch // oldest first

	older, newer *producer
}

type rememberedBatch struct {
	count uint32
	base  storage.Offset
}

// NewProducers returns the state of a partition without entries.
func NewProducers() *Producers {
	return &Producers{byID: make(map[ProducerID]*producer)}
}

// Len is the number of producers remembered.
func (p *Producers) Len() int { return len(p.byID) }

// Advance tells the append stamp of the next batch and forgets who has not
// written for ProducerExpiry. Of stamps that go back, the latest counts.
func (p *Producers) Advance(stamp int64) {
	p.now = max(p.now, stamp)
	for p.oldest != nil && p.oldest.lastAppend < p.now-ProducerExpiry.Milliseconds() {
		p.forget(p.oldest)
	}
}

// Check decides about a batch of count records: append it (duplicate false,
// then call Appended), it is a duplicate of the batch at base, or it is
// refused with err. It changes nothing.
func (p *Producers) Check(b ProducerBatch, count uint32) (base storage.Offset, duplicate bool, err error) {
	if b.ID == 0 {
		return 0, false, nil
	}
	known := p.byID[b.ID]
	switch {
	case known == nil:
		if b.ID <= p.forgottenID && b.Epoch <= p.forgottenEpoch {
			return 0, false, ErrUnknownProducer
		}
		return 0, false, firstOf(b)
	case b.Epoch < known.epoch:
		return 0, false, &FencedError{Producer: b.ID, Epoch: b.Epoch, Current: known.epoch}
	case b.Epoch > known.epoch:
		return 0, false, firstOf(b)
	case b.First == known.next:
		return 0, false, nil
	}
	if base, ok := known.find(b.First, count); ok {
		return base, true, nil
	}
	return 0, false, &OutOfOrderError{Producer: b.ID, Epoch: b.Epoch, First: b.First, Next: known.next}
}

// firstOf refuses a batch that is not the first of its epoch.
func firstOf(b ProducerBatch) error {
	if b.First != 0 {
		return &OutOfOrderError{Producer: b.ID, Epoch: b.Epoch, First: b.First, Next: 0}
	}
	return nil
}

// Appended records that a batch which Check let pass was appended at base.
func (p *Producers) Appended(b ProducerBatch, count uint32, base storage.Offset) {
	if b.ID == 0 {
		return
	}
	known := p.byID[b.ID]
	if known == nil {
		if len(p.byID) >= MaxProducers {
			p.forget(p.oldest)
		}
		known = &producer{id: b.ID}
		p.byID[b.ID] = known
	} else {
		p.unlink(known)
	}
	if known.epoch != b.Epoch {
		known.epoch, known.n = b.Epoch, 0
	}
	known.next = b.First + Sequence(count)
	known.lastAppend = p.now
	known.remember(rememberedBatch{count: count, base: base})
	p.pushNewest(known)
}

func (p *Producers) forget(old *producer) {
	p.forgottenID = max(p.forgottenID, old.id)
	p.forgottenEpoch = max(p.forgottenEpoch, old.epoch)
	delete(p.byID, old.id)
	p.unlink(old)
}

func (p *Producers) unlink(x *producer) {
	if x.older != nil {
		x.older.newer = x.newer
	} else {
		p.oldest = x.newer
	}
	if x.newer != nil {
		x.newer.older = x.older
	} else {
		p.newest = x.older
	}
	x.older, x.newer = nil, nil
}

func (p *Producers) pushNewest(x *producer) {
	x.older = p.newest
	if p.newest != nil {
		p.newest.newer = x
	} else {
		p.oldest = x
	}
	p.newest = x
}

// find returns where the very batch [first, first+count) was appended.
func (x *producer) find(first Sequence, count uint32) (storage.Offset, bool) {
	end := x.next
	for i := x.n - 1; i >= 0; i-- {
		b := x.batches[i]
		start := end - Sequence(b.count)
		if start == first {
			return b.base, b.count == count
		}
		end = start
	}
	return 0, false
}

func (x *producer) remember(b rememberedBatch) {
	if x.n == RememberedBatches {
		copy(x.batches[:], x.batches[1:])
		x.n--
	}
	x.batches[x.n] = b
	x.n++
}
