//go:build unix

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
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
		{"refused", func(l *ledger) { l.failed(0, &failure{typed, "a", "refused", "too large"}, 1) }, "1 records were refused: too large"},
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

// TestWhatClientsWereTold: sentences that differ in numbers and nodes are one.
func TestWhatClientsWereTold(t *testing.T) {
	l := newLedger(1)
	l.failed(-1, &failure{typed, "a", "retry", "partition 3 has no leader in view of b"}, 2)
	l.failed(-1, &failure{kind: lost, node: "a", sentence: "EOF"}, 3)
	l.failed(-1, &failure{typed, "a", "retry", "partition 14 has no leader in view of c"}, 2)
	l.failed(-1, &failure{kind: lost, node: "a", sentence: "EOF"}, 0)
	require.Equal(t, []string{
		"      4  a producer: retry: partition # has no leader in view of #", "      3  a producer: lost: EOF", "      1  a reader: lost: EOF",
	}, l.sentences())
	sums, violations := l.sums()
	require.EqualValues(t, 2, sums.Lost)
	require.Empty(t, violations)
}

// TestWhatClientsMayBeTold while people do things in good order: errors to repeat; and
// nothing from the node that they stop, or that is out.
func TestWhatClientsMayBeTold(t *testing.T) {
	eof := &failure{kind: lost, node: "b", sentence: "EOF"}
	late := &failure{kind: silent, node: "b", sentence: "deadline"}
	unknown := &failure{typed, "b", "unknown", "it ended in between"}
	nothing, stopsB, stopsA, crash := phase{"nothing", true, nil}, phase{"stop b", true, []string{"b"}}, phase{"stop a", true, []string{"a"}}, phase{name: "kill"}
	for _, c := range []struct {
		name   string
		f      *failure
		phases []phase // from that of the request to that of the answer
		want   string  // "": it may be
	}{
		{"to repeat", &failure{typed, "b", "retry", "stopping"}, []phase{nothing}, ""},
		{"lost by who stops", eof, []phase{stopsB}, ""},
		{"lost by who stopped when it was asked", eof, []phase{stopsB, stopsA}, ""},
		{"lost by who stops when it answers", eof, []phase{nothing, stopsB}, ""},
		{"lost in a crash", eof, []phase{crash}, ""},
		{"asked in a crash", late, []phase{crash, nothing}, ""},
		{"answered in a crash", unknown, []phase{nothing, crash}, ""},

		{"lost by another one", eof, []phase{stopsA}, "stop a: a producer was told by b: lost: EOF"},
		{"lost by nobody's doing", eof, []phase{nothing}, "nothing: a producer was told by b: lost: EOF"},
		{"no answer, of who stops", late, []phase{stopsB}, "stop b: a producer was told by b: silent: deadline"},
		{"in doubt, of who stops", unknown, []phase{stopsB}, "stop b: a producer was told by b: unknown: it ended in between"},
		{"nonsense, of who stops", &failure{kind: garbled, node: "b", sentence: "502"}, []phase{stopsB}, "stop b: a producer was told by b: garbled: 502"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger(1)
			l.begin(crash)
			l.begin(c.phases[0])
			since := l.now()
			for _, p := range c.phases[1:] {
				l.begin(p)
			}
			l.failed(since, c.f, 1)
			_, violations := l.sums()
			if c.want == "" {
				require.Empty(t, violations)
				return
			}
			require.Len(t, violations, 1)
			require.Contains(t, violations[0], c.want)
		})
	}
	l := newLedger(1)
	l.begin(nothing)
	l.out("b")
	l.failed(0, eof, 0)
	l.failed(0, late, 0)
	_, violations := l.sums()
	require.Equal(t, []string{"nothing: a reader was told by b: silent: deadline: want an error with the outcome retry"}, violations)
}

// TestAnswersAreTold for what they are.
func TestAnswersAreTold(t *testing.T) {
	require.Equal(t, &failure{typed, "a", "retry", "stopping; soon"}, told("a", "503 Service Unavailable", []byte(`{"outcome":"retry","error":"stopping; soon"}`)))
	require.Equal(t, garbled, told("a", "502 Bad Gateway", []byte(`<html>`)).kind)
	require.Equal(t, garbled, told("a", "500 Internal Server Error", []byte(`{"error":"no outcome"}`)).kind)

	// A server that hangs up, one that nobody is at, and one that says nothing.
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	release := make(chan struct{})
	waits := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hangs.Close()
	defer waits.Close()
	defer close(release)
	w := &load{http: &http.Client{}}
	defer w.http.CloseIdleConnections()
	for _, c := range []struct {
		url     string
		kind    answerKind
		nothing bool
	}{{hangs.URL, lost, false}, {"http://127.0.0.1:1", lost, true}, {waits.URL, silent, false}} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if c.kind == silent {
			cancel() // its patience is over
			ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		}
		_, nothing, f := w.post(ctx, "a", c.url, nil)
		cancel()
		require.Equal(t, c.kind, f.kind, f)
		require.Equal(t, c.nothing, nothing)
	}
}
