//go:build unix

package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func at(offset int64) place { return place{0, offset} }

// TestLedgerFindsWhatMustNotBe, each violation by itself.
func TestLedgerFindsWhatMustNotBe(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(l *ledger)
		want string // "": nothing is wrong
	}{
		{"read after its answer", func(l *ledger) { l.acknowledge(1, 0, at(0)); l.read(0, at(0), "a") }, ""},
		{"read before its answer", func(l *ledger) { l.read(0, at(0), "a"); l.acknowledge(1, 0, at(0)) }, ""},
		{"read again through another node", func(l *ledger) { l.read(0, at(0), "a"); l.read(0, at(0), "b") }, ""},
		{"unknown and read", func(l *ledger) { l.unknown(0); l.read(0, at(0), "a") }, ""},
		{"unknown and lost", func(l *ledger) { l.unknown(0) }, ""},
		{"in order though one is missing", func(l *ledger) { l.acknowledge(1, 0, at(0)); l.unknown(1); l.acknowledge(1, 2, at(1)) }, ""},
		{"writers between each other", func(l *ledger) { l.acknowledge(1, 0, at(1)); l.acknowledge(2, 1, at(0)) }, ""},

		{"twice", func(l *ledger) { l.read(0, at(0), "a"); l.read(0, at(1), "a") }, "record 0 was read twice"},
		{"twice in two partitions", func(l *ledger) { l.read(0, at(0), "a"); l.read(0, place{1, 0}, "a") }, "record 0 was read twice"},
		{"another record in its place", func(l *ledger) { l.acknowledge(1, 0, at(0)); l.read(1, at(0), "a") }, "where record 0 was acknowledged"},
		{"answered late, another is there", func(l *ledger) { l.read(1, at(0), "a"); l.acknowledge(1, 0, at(0)) }, "where readers saw record 1"},
		{"answered late, it is elsewhere", func(l *ledger) { l.read(0, at(0), "a"); l.acknowledge(1, 0, at(1)) }, "acknowledged at {0 1}, read at {0 0}"},
		{"one place for two", func(l *ledger) { l.acknowledge(1, 0, at(0)); l.acknowledge(2, 1, at(0)) }, "both acknowledged"},
		{"rejected, then read", func(l *ledger) { l.reject(0); l.read(0, at(0), "a") }, "nothing happened"},
		{"read, then rejected", func(l *ledger) { l.read(0, at(0), "a"); l.reject(0) }, "nothing happened"},
		{"nodes that differ", func(l *ledger) { l.read(0, at(0), "a"); l.read(1, at(0), "b") }, "another reader saw record 0"},
		{"a gap", func(l *ledger) { l.read(0, at(0), "a"); l.read(1, at(2), "a") }, "the one before was at 0"},
		{"out of order", func(l *ledger) { l.acknowledge(1, 0, at(1)); l.acknowledge(1, 1, at(0)) }, "its earlier record 0 at 1"},
		{"from nowhere", func(l *ledger) { l.read(9, at(0), "a") }, "nobody sent it"},
		{"refused", func(l *ledger) { l.told("refused", "too large", 1) }, "1 records were refused: too large"},
		{"no such partition", func(l *ledger) { l.acknowledge(1, 0, place{7, 0}) }, "partition 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger(2)
			l.issue(3)
			c.do(l)
			_, violations := l.sums()
			if c.want == "" {
				require.Empty(t, violations)
				return
			}
			require.NotEmpty(t, violations)
			require.Contains(t, violations[0], c.want)
		})
	}
}

// TestLedgerCountsWhatIsLost: what was acknowledged and nobody read.
func TestLedgerCountsWhatIsLost(t *testing.T) {
	l := newLedger(2)
	l.issue(3)
	l.acknowledge(1, 0, at(0))
	l.acknowledge(1, 1, at(1))
	l.unknown(2)
	require.Equal(t, 2, l.unread())
	l.read(0, at(0), "a")
	require.Equal(t, 1, l.unread())
	require.Equal(t, []int64{1, 0}, l.ends())
}

// TestARoundIsTheSameAgain by its seed and number.
func TestARoundIsTheSameAgain(t *testing.T) {
	kinds := map[string]bool{}
	for n := range 300 {
		one, two := planRound(7, n, 3, true), planRound(7, n, 3, true)
		require.Equal(t, one.String(), two.String())
		kinds[one.fault.name] = true
		require.False(t, planRound(7, n, 3, false).fault.network)
	}
	require.Len(t, kinds, len(allFaults()))
}

// TestPausesAreFound: those between two records, and one that goes on, each of its
// partition; what was before the mark counts no more.
func TestPausesAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(2)
		l.issue(9)
		l.acknowledge(1, 0, place{0, 0})
		time.Sleep(time.Minute)
		l.acknowledge(1, 1, place{0, 1})
		l.markPauses()
		time.Sleep(3 * time.Second)
		l.acknowledge(1, 2, place{0, 2})
		l.acknowledge(1, 3, place{1, 0})
		time.Sleep(5 * time.Second)
		l.acknowledge(1, 4, place{1, 1})
		require.Equal(t, []time.Duration{5 * time.Second, 5 * time.Second}, l.longestPauses())
		time.Sleep(time.Second)
		require.Equal(t, []time.Duration{6 * time.Second, 5 * time.Second}, l.longestPauses())
	})
}

// TestWhatProducersWereTold: sentences that differ in numbers and nodes are one.
func TestWhatProducersWereTold(t *testing.T) {
	l := newLedger(1)
	l.told("retry", "partition 3 has no leader in view of b", 2)
	l.told("unknown", "EOF", 3)
	l.told("retry", "partition 14 has no leader in view of c", 2)
	require.Equal(t, []string{"      4  retry: partition # has no leader in view of #", "      3  unknown: EOF"}, l.sentences())
}
