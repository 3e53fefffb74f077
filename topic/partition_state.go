package topic

import (
	"github.com/stelelog/stele/storage"
)

// partitionState is what the entries of a partition's group amount to. It is a
// pure function of them: no clock, no I/O, alike on all replicas.
//
//   - next is the number of records in all entries with VerdictData, so that
//     offsets are gapless (P1).
//   - After a seal no entry has VerdictData; nor between a retire and its restore,
//     where none begins the log later either: what is deleted with a grace is kept.
//   - The append stamps of entries with VerdictData never step back, whichever
//     leaders' clocks they are of, so that an offset can be found by its stamp.
type partitionState struct {
	incarnation storage.Incarnation
	index       storage.Index  // of the last entry
	next        storage.Offset // that the next record gets
	closing     closing
	producers   *Producers
}

// decision is what applying an entry decided.
type decision struct {
	verdict storage.Verdict
	base    storage.Offset // of the records; of a duplicate, those of the first time
	count   uint32
	err     error            // why it was refused
	start   storage.LogStart // of a log start: what the log begins with from now on
}

func newPartitionState(incarnation storage.Incarnation) *partitionState {
	return &partitionState{incarnation: incarnation, producers: NewProducers()}
}

// apply decides about the next entry. Whatever the bytes are, it decides alike
// everywhere: nothing is an error of the state machine.
func (s *partitionState) apply(index storage.Index, kind storage.EntryKind, data []byte) decision {
	s.index = index
	switch {
	case kind != storage.EntryNormal:
		return decision{verdict: storage.VerdictConfig, base: s.next}
	case len(data) == 0:
		return decision{verdict: storage.VerdictEmpty, base: s.next}
	}
	b, rest, err := ReadBatch(data)
	switch {
	case err != nil:
		return s.refuse(err)
	case len(rest) != 0:
		return s.refuse(corrupt("%d bytes after the batch", len(rest)))
	case b.Incarnation() != s.incarnation:
		return s.refuse(ErrTopicIncarnationMismatch)
	case b.Kind() == KindSeal:
		s.closing.sealed = true
		return decision{verdict: storage.VerdictControl, base: s.next}
	case b.Kind() == KindLogStart:
		return s.applyStart(b.LogStart())
	case b.Kind() == KindRetire, b.Kind() == KindRestore:
		return s.applyClosing(b)
	}
	if err := s.closing.refuses(); err != nil {
		return s.refuse(err)
	}
	return s.applyData(b)
}

func (s *partitionState) applyData(b Batch) decision {
	latest := s.producers.now
	s.producers.Advance(b.Stamp())
	base, duplicate, err := s.producers.Check(b.Producer(), b.Count())
	switch {
	case err != nil:
		return s.refuse(err)
	case duplicate:
		return decision{verdict: storage.VerdictDuplicate, base: base, count: b.Count()}
	case b.Stamp() < latest:
		return s.refuse(errStampBehind)
	}
	d := decision{verdict: storage.VerdictData, base: s.next, count: b.Count()}
	s.producers.Appended(b.Producer(), b.Count(), s.next)
	s.next += storage.Offset(b.Count())
	return d
}

// applyStart: a start that the log has passed is applied too, so that nothing
// but the entry decides what happens.
func (s *partitionState) applyStart(start storage.LogStart) decision {
	if start.Index >= s.index || start.Offset > s.next {
		return s.refuse(corrupt("a log start behind entry %d and offset %d", s.index, s.next))
	}
	if err := s.closing.refuses(); err != nil && !s.closing.sealed {
		return s.refuse(err)
	}
	return decision{verdict: storage.VerdictControl, base: s.next, start: start}
}

func (s *partitionState) refuse(err error) decision {
	return decision{verdict: storage.VerdictRefused, base: s.next, err: err}
}
