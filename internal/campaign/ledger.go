//go:build unix

package main

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"
)

// number is a record's number: each is sent at most once.
type number uint64

// fate is what is known of a record. There are many.
type fate struct {
	told      answer
	seen      bool
	partition int16 // where it was seen, as is offset
	offset    int64
}

func (f *fate) at() place { return place{int(f.partition), f.offset} }

// answer is what a producer was told of a record.
type answer uint8

const (
	nothing  answer = iota // it waits for the answer, or it is unknown
	acked                  // it is at its place
	rejected               // it was not appended, and will not be
)

// place is where a record is.
type place struct {
	partition int
	offset    int64
}

// ledger knows what became of every record, and finds what must not be. It is
// safe for concurrent use.
type ledger struct {
	mu         sync.Mutex
	fates      []fate
	partitions []pages
	counts     counts
	errors     map[string]int64 // what clients were told, but for numbers
	violations []string
	pauses     pauses
	phases     []phase
	left       map[string]bool // names of nodes that are out
}

// pages is one partition: the records that readers saw, by offset, and those
// acknowledged ones that they have yet to see.
type pages struct {
	seen    []number
	pending map[int64]number
	last    map[int]number // by writer: its newest acknowledged record
	lastAt  map[int]int64
}

// counts are for people. Rejected are those of which certainly nothing happened;
// of them, Refused are those that nobody is to send again. Lost are connections, of
// producers and readers, that were refused or broke: one for each request.
type counts struct{ Sent, Acked, Rejected, Refused, Unknown, Read, Lost int64 }

func newLedger(partitions int) *ledger {
	l := &ledger{partitions: make([]pages, partitions), errors: map[string]int64{}, left: map[string]bool{}, pauses: newPauses(partitions)}
	for i := range l.partitions {
		l.partitions[i] = pages{pending: map[int64]number{}, last: map[int]number{}, lastAt: map[int]int64{}}
	}
	return l
}

// issue returns n numbers that nobody has.
func (l *ledger) issue(n int) []number {
	l.mu.Lock()
	defer l.mu.Unlock()
	numbers := make([]number, n)
	for i := range numbers {
		numbers[i] = number(len(l.fates))
		l.fates = append(l.fates, fate{})
	}
	l.counts.Sent += int64(n)
	return numbers
}

func (l *ledger) violate(format string, args ...any) {
	if len(l.violations) < 20 {
		l.violations = append(l.violations, fmt.Sprintf(format, args...))
	}
}

// unordered is the writer of records that are sent at the same time.
const unordered = -1

// acknowledge notes that writer was told of a record's place.
func (l *ledger) acknowledge(writer int, n number, at place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Acked++
	if at.partition < 0 || at.partition >= len(l.partitions) || at.offset < 0 {
		l.violate("record %d: acknowledged at partition %d, offset %d", n, at.partition, at.offset)
		return
	}
	l.pauses.acknowledged(at.partition, time.Now())
	f, p := &l.fates[n], &l.partitions[at.partition]
	f.told = acked
	switch {
	case f.seen && f.at() != at:
		l.violate("record %d: acknowledged at %v, read at %v", n, at, f.at())
	case !f.seen && at.offset < int64(len(p.seen)):
		l.violate("record %d: acknowledged at %v, where readers saw record %d", n, at, p.seen[at.offset])
	case !f.seen:
		if other, taken := p.pending[at.offset]; taken {
			l.violate("records %d and %d: both acknowledged at %v", other, n, at)
		}
		p.pending[at.offset] = n
	}
	if writer == unordered {
		return
	}
	if last, ok := p.last[writer]; ok && (n > last) != (at.offset > p.lastAt[writer]) {
		l.violate("record %d of writer %d is at offset %d of partition %d, its earlier record %d at %d",
			n, writer, at.offset, at.partition, last, p.lastAt[writer])
	}
	p.last[writer], p.lastAt[writer] = n, at.offset
}

// reject notes that a producer was told that a record was not appended.
func (l *ledger) reject(n number) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Rejected++
	f := &l.fates[n]
	f.told = rejected
	if f.seen {
		l.violate("record %d: its producer was told that nothing happened, it was read at %v", n, f.at())
	}
}

// anyNumber is what differs between sentences that say the same.
var anyNumber = regexp.MustCompile(`[0-9]+|\b[a-g]\b`)

// sentences are what clients were told, the most frequent first.
func (l *ledger) sentences() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	said := slices.SortedFunc(maps.Keys(l.errors), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.errors[b], l.errors[a]), cmp.Compare(a, b))
	})
	for i, s := range said {
		said[i] = fmt.Sprintf("%7d  %s", l.errors[s], s)
	}
	return said
}

// unknown notes that nobody knows whether a record was appended.
func (l *ledger) unknown(n number) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.Unknown++
}

// read notes that a reader of some node saw a record.
func (l *ledger) read(n number, at place, node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.partitions[at.partition]
	switch end := int64(len(p.seen)); {
	case n >= number(len(l.fates)):
		l.violate("record %d was read from %s at %v: nobody sent it", n, node, at)
		return
	case at.offset < end:
		if p.seen[at.offset] != n {
			l.violate("record %d was read from %s at %v, where another reader saw record %d", n, node, at, p.seen[at.offset])
		}
		return
	case at.offset > end:
		l.violate("record %d was read from %s at %v: the one before was at %d", n, node, at, end-1)
		return
	}
	p.seen = append(p.seen, n)
	l.counts.Read++
	f := &l.fates[n]
	if f.seen {
		l.violate("record %d was read twice: at %v and at %v from %s", n, f.at(), at, node)
	}
	f.seen, f.partition, f.offset = true, int16(at.partition), at.offset
	if f.told == rejected {
		l.violate("record %d was read from %s at %v: its producer was told that nothing happened", n, node, at)
	}
	if expected, ok := p.pending[at.offset]; ok {
		delete(p.pending, at.offset)
		if expected != n {
			l.violate("record %d was read from %s at %v, where record %d was acknowledged", n, node, at, expected)
		}
	}
}

// unread is how many acknowledged records no reader saw yet.
func (l *ledger) unread() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.partitions {
		n += len(l.partitions[i].pending)
	}
	return n
}

// ends are how many records readers saw of each partition.
func (l *ledger) ends() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends := make([]int64, len(l.partitions))
	for i := range ends {
		ends[i] = int64(len(l.partitions[i].seen))
	}
	return ends
}

// sums returns the counts, and what was found wrong.
func (l *ledger) sums() (counts, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts, append([]string(nil), l.violations...)
}

// unexpected notes what is wrong with an answer.
func (l *ledger) unexpected(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violate(format, args...)
}

// acknowledgedEnds are, of each partition, the offset behind all that was
// acknowledged or read.
func (l *ledger) acknowledgedEnds() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends := make([]int64, len(l.partitions))
	for i, p := range l.partitions {
		ends[i] = int64(len(p.seen))
		for offset := range p.pending {
			ends[i] = max(ends[i], offset+1)
		}
	}
	return ends
}
