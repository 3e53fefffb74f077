//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// pauses are for how long nothing was acknowledged: by partition, the longest
// since mark.
type pauses struct {
	last    []time.Time
	longest []time.Duration
}

func newPauses(partitions int) pauses {
	return pauses{last: make([]time.Time, partitions), longest: make([]time.Duration, partitions)}
}

func (p *pauses) acknowledged(partition int, now time.Time) {
	if last := p.last[partition]; !last.IsZero() {
		p.longest[partition] = max(p.longest[partition], now.Sub(last))
	}
	p.last[partition] = now
}

// markPauses begins anew. A pause that goes on counts from here.
func (l *ledger) markPauses() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for i := range l.pauses.last {
		l.pauses.last[i], l.pauses.longest[i] = now, 0
	}
}

// longestPauses returns the longest ones of each partition, those included that
// still go on.
func (l *ledger) longestPauses() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	longest := slices.Clone(l.pauses.longest)
	for i, last := range l.pauses.last {
		if !last.IsZero() {
			longest[i] = max(longest[i], now.Sub(last))
		}
	}
	return longest
}

// inMilliseconds writes durations, one for each partition.
func inMilliseconds(all []time.Duration) string {
	var words []string
	for _, d := range all {
		words = append(words, fmt.Sprint(d.Milliseconds()))
	}
	return strings.Join(words, " ")
}
