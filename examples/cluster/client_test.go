package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
)

// fake is a node that does as it is told, and counts what it is asked.
func fake(t *testing.T, handle http.HandlerFunc) (addr string, asked *atomic.Int64) {
	asked = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked.Add(1)
		handle(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), asked
}

// hangUp ends the connection in the middle of an answer.
func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func takesTwo(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok 2 0 0\nend 2\n") }

// What may have been appended is not sent again, unless that is wanted. What was
// certainly not goes to the next node.
func TestProduceOutcomes(t *testing.T) {
	for _, c := range []struct {
		name        string
		first       http.HandlerFunc
		atLeastOnce bool
		code        int
		says        string
		second      int64 // times that the second node is asked
	}{
		{"it hangs up", hangUp, false, 1, "lines 1 to 2 may or may not have been appended", 0},
		{"it hangs up", hangUp, true, 0, "2 of them were sent again and may be there twice", 1},
		{"its answer is cut off", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "ok 2 0 0\n")
			_ = http.NewResponseController(w).Flush()
			hangUp(w, r)
		}, false, 1, "may or may not have been appended", 0},
		{"it fails strangely", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "oops", http.StatusBadGateway) }, false, 1, "answered 502 Bad Gateway: oops", 0},
		{"it does not know", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "unknown 2 timed out\nend 2\n") }, false, 1, "timed out", 0},
		{"it refuses", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "refused 2 no\nend 2\n") }, true, 1, "lines 1 to 2 refused: no", 0},
		{"it leaves the cluster", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "retry 2 it takes in no more\nend 2\n") }, false, 0, "2 records acknowledged", 1},
		{"it is stopping", func(w http.ResponseWriter, _ *http.Request) { writeError(w, errStopping) }, false, 0, "2 records acknowledged", 1},
	} {
		first, _ := fake(t, c.first)
		second, asked := fake(t, takesTwo)
		code, out, errs := runHere(t.Context(), strings.NewReader("a\nb\n"), "produce", "-topic", "t", "-http", first+","+second,
			fmt.Sprintf("-at-least-once=%v", c.atLeastOnce), "-timeout", "10s")
		require.Equal(t, c.code, code, "%s: %s", c.name, errs)
		require.Contains(t, out+errs, c.says, c.name)
		require.Equal(t, c.second, asked.Load(), c.name)
	}
	second, asked := fake(t, takesTwo)
	mustRun(t, "a\nb\n", "produce", "-topic", "t", "-http", "127.0.0.1:1,"+second)
	require.EqualValues(t, 1, asked.Load(), "nobody was there, so nothing can have been appended")
}

// A reader goes on at the next node where it was, even if it was given nothing
// but the place yet.
func TestConsumeGoesOn(t *testing.T) {
	var asked []string
	first, _ := fake(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(offsetHeader, "7")
		_ = http.NewResponseController(w).Flush()
		hangUp(w, r)
	})
	second, _ := fake(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("from"))
		fmt.Fprintf(w, `{"partition":0,"offset":%d,"value":"x"}`+"\n", 6+len(asked))
		if len(asked) == 1 {
			_ = http.NewResponseController(w).Flush()
			hangUp(w, r)
		}
		fmt.Fprintln(w, `{"next":9}`)
	})
	require.Equal(t, "x\nx\n", mustRun(t, "", "consume", "-topic", "t", "-partition", "0", "-from", "end", "-http", first+","+second+","+second))
	require.Equal(t, []string{"7", "8"}, asked)
}

// Of several partitions one that cannot be read is named, and the others are printed;
// what a node answered is told rather than that another one is not there.
func TestConsumeGoesOnWithTheOthers(t *testing.T) {
	node, _ := fake(t, func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case q.Get("partition") == "":
			fmt.Fprint(w, `{"partitions":4}`)
		case q.Get("partition") == "1":
			writeError(w, &requestError{http.StatusGone, stele.OutcomeRetry, "no replica is left"})
		case q.Get("partition") == "2":
			writeError(w, &requestError{http.StatusServiceUnavailable, stele.OutcomeRetry, "no leader"})
		default:
			fmt.Fprintf(w, `{"partition":%[1]s,"offset":0,"value":"of %[1]s"}`+"\n"+`{"next":1}`+"\n", q.Get("partition"))
		}
	})
	for _, follow := range []string{"-follow=false", "-follow"} {
		code, out, errs := runHere(t.Context(), nil, "consume", "-topic", "t", "-timeout", "200ms", "-http", node+",127.0.0.1:1", follow)
		require.Equal(t, exitFailed, code)
		lines := strings.Split(out, "\n")
		slices.Sort(lines)
		require.Equal(t, []string{"", "of 0", "of 3"}, lines)
		require.Contains(t, errs, "cluster consume: t/1: no replica is left\n")
		require.Contains(t, errs, "cluster consume: t/2: tried until the timeout: no leader\n")
		require.True(t, strings.HasSuffix(errs, "cluster consume: 2 partitions could not be read\n"), errs)
	}
	code, _, errs := runHere(t.Context(), nil, "consume", "-topic", "t", "-partition", "1", "-http", node)
	require.Equal(t, exitFailed, code)
	require.Equal(t, "cluster consume: t/1: no replica is left\n", errs)
	code, _, errs = runHere(t.Context(), nil, "members", "-timeout", "100ms", "-http", "127.0.0.1:1,127.0.0.1:2")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "connection refused")
}
