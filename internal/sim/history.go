package sim

import (
	"encoding/binary"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// history is a log as the checker keeps it: terms, and hashes that chain, so
// that two logs are equal up to an index if their hashes there are.
type history struct {
	base   raftlog.Index  // the creation, the snapshot it began anew at, or 0: nothing
	terms  []raftlog.Term // from base
	hashes []uint64
}

func newHistory() history { return historyAt(1, 1, 1) }

// historyAt is a log that begins behind an entry.
func historyAt(base raftlog.Index, term raftlog.Term, hash uint64) history {
	return history{base: base, terms: []raftlog.Term{term}, hashes: []uint64{hash}}
}

func (h *history) last() raftlog.Index               { return h.base + raftlog.Index(len(h.terms)) - 1 }
func (h *history) term(i raftlog.Index) raftlog.Term { return h.terms[i-h.base] }
func (h *history) hash(i raftlog.Index) uint64       { return h.hashes[i-h.base] }

// holds reports whether the log up to i is the one with that hash. What is below
// a snapshot was committed.
func (h *history) holds(i raftlog.Index, hash uint64) bool {
	return i < h.base || i <= h.last() && h.hash(i) == hash
}

// set writes an entry and discards all after it.
func (h *history) set(e storage.Entry) {
	n := int(e.Index - h.base)
	prev := h.hashes[n-1]
	h.terms = append(h.terms[:n], e.Term)
	h.hashes = append(h.hashes[:n], mix(prev, entryHash(e.Index, e.Term, e.Kind, e.Data)))
}

// rewrite replaces an entry and leaves what follows, as no log should.
func (h *history) rewrite(e storage.Entry) {
	n := int(e.Index - h.base)
	h.terms[n] = e.Term
	h.hashes[n] = mix(h.hashes[n-1], entryHash(e.Index, e.Term, e.Kind, e.Data))
	for i := n + 1; i < len(h.hashes); i++ {
		h.hashes[i] = mix(h.hashes[i-1], uint64(i))
	}
}

func (h *history) cut(last raftlog.Index) {
	n := last - h.base + 1
	h.terms, h.hashes = h.terms[:n], h.hashes[:n]
}

func (h *history) clone() history {
	return history{
		base:   h.base,
		terms:  append([]raftlog.Term(nil), h.terms...),
		hashes: append([]uint64(nil), h.hashes...),
	}
}

func entryHash(i raftlog.Index, t raftlog.Term, k raftlog.EntryKind, data []byte) uint64 {
	h := mix(mix(uint64(i), uint64(t)), uint64(k)<<32|uint64(len(data)))
	for ; len(data) >= 8; data = data[8:] {
		h = mix(h, binary.LittleEndian.Uint64(data))
	}
	for _, b := range data {
		h = mix(h, uint64(b))
	}
	return h
}
