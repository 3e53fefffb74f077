package main

import (
	"fmt"

	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// replay decides about the entries of a partition from its first one on, as its
// replicas did: what a log holds can be checked against that, and what only the
// journal holds has offsets by it. It does not use the code that wrote the log,
// so that neither hides the other's mistakes.
type replay struct {
	incarnation storage.Incarnation
	producers   *topic.Producers
	next        storage.Offset
	sealed      bool
}

func newReplay(incarnation storage.Incarnation) *replay {
	return &replay{incarnation: incarnation, producers: topic.NewProducers()}
}

// apply decides about the next entry, and returns the batch if it has offsets,
// with the first of them.
func (r *replay) apply(kind storage.EntryKind, data []byte) (storage.Verdict, topic.Batch, storage.Offset) {
	var none topic.Batch
	switch {
	case kind != storage.EntryNormal:
		return storage.VerdictConfig, none, r.next
	case len(data) == 0:
		return storage.VerdictEmpty, none, r.next
	}
	b, rest, err := topic.ReadBatch(data)
	switch {
	case err != nil || len(rest) > 0 || b.Incarnation() != r.incarnation:
		return storage.VerdictRefused, none, r.next
	case b.Kind() == topic.KindSeal:
		r.sealed = true
		return storage.VerdictControl, none, r.next
	case b.Kind() == topic.KindLogStart:
		return storage.VerdictControl, none, r.next
	case r.sealed:
		return storage.VerdictRefused, none, r.next
	}
	r.producers.Advance(b.Stamp())
	_, duplicate, err := r.producers.Check(b.Producer(), b.Count())
	switch {
	case err != nil:
		return storage.VerdictRefused, none, r.next
	case duplicate:
		return storage.VerdictDuplicate, none, r.next
	}
	base := r.next
	r.producers.Appended(b.Producer(), b.Count(), base)
	r.next += storage.Offset(b.Count())
	return storage.VerdictData, b, base
}

// check holds what the log says of an entry against what was decided.
func (r *replay) check(f *storage.FrameView, verdict storage.Verdict, base storage.Offset) error {
	if f.Verdict == verdict && (verdict != storage.VerdictData || f.BaseOffset == base && f.NextOffset() == r.next) {
		return nil
	}
	return fmt.Errorf("the log has verdict %d and offsets [%d, %d), by the entries before it they are %d and [%d, %d)",
		f.Verdict, f.BaseOffset, f.NextOffset(), verdict, base, r.next)
}
