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
	index       storage.Index // of the entry
	next        storage.Offset
	latest      int64 // stamp
	sealed      bool
	deletion    uint64 // the last with a grace; 0: none
	restored    bool   // from it
}

// closed reports whether no records are appended.
func (r *replay) closed() bool { return r.sealed || r.deletion > 0 && !r.restored }

// control decides about an entry that is for the partition itself.
func (r *replay) control(b topic.Batch) storage.Verdict {
	fits := true
	switch n := b.Deletion; b.Kind() {
	case topic.KindSeal:
		r.sealed = true
	case topic.KindLogStart:
		start := b.LogStart()
		fits = start.Index < r.index && start.Offset <= r.next && (r.sealed || !r.closed())
	case topic.KindRetire:
		if fits = n() > r.deletion || n() == r.deletion && !r.restored; fits {
			r.deletion, r.restored = n(), false
		}
	case topic.KindRestore:
		if fits = !r.sealed && n() >= r.deletion; fits {
			r.deletion, r.restored = n(), true
		}
	}
	if !fits {
		return storage.VerdictRefused
	}
	return storage.VerdictControl
}

func newReplay(incarnation storage.Incarnation) *replay {
	return &replay{incarnation: incarnation, producers: topic.NewProducers()}
}

// apply decides about the next entry, and returns the batch if it has offsets,
// with the first of them.
func (r *replay) apply(index storage.Index, kind storage.EntryKind, data []byte) (storage.Verdict, topic.Batch, storage.Offset) {
	var none topic.Batch
	r.index = index
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
	case b.Kind() != topic.KindData:
		return r.control(b), none, r.next
	case r.closed():
		return storage.VerdictRefused, none, r.next
	}
	behind := b.Stamp() < r.latest
	r.latest = max(r.latest, b.Stamp())
	r.producers.Advance(b.Stamp())
	_, duplicate, err := r.producers.Check(b.Producer(), b.Count())
	switch {
	case err != nil:
		return storage.VerdictRefused, none, r.next
	case duplicate:
		return storage.VerdictDuplicate, none, r.next
	case behind:
		return storage.VerdictRefused, none, r.next
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
