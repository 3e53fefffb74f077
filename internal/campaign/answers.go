//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// answerKind is what a client got for a request that did not succeed.
type answerKind uint8

const (
	// typed: the server says what became of it, with an outcome.
	typed answerKind = iota
	// lost: the connection was refused, or broke before the answer was whole.
	lost
	// silent: no answer came within the client's patience.
	silent
	// garbled: an answer, and not one that the server's documentation has.
	garbled
)

func (k answerKind) String() string { return [...]string{"typed", "lost", "silent", "garbled"}[k] }

// failure is a request that did not succeed.
type failure struct {
	kind     answerKind
	node     string // that was asked
	outcome  string // of a typed one: retry, refused or unknown
	sentence string
}

func (f *failure) Error() string { return fmt.Sprintf("%s from %s: %s", f.what(), f.node, f.sentence) }

func (f *failure) what() string {
	if f.kind == typed {
		return f.outcome
	}
	return f.kind.String()
}

// broken is why no whole answer came, by the error of the HTTP client. patient is
// that of the client's own patience.
func broken(node string, patient context.Context, err error) *failure {
	kind := lost
	var late net.Error
	if patient.Err() != nil || errors.As(err, &late) && late.Timeout() && !isDial(err) {
		kind = silent
	}
	return &failure{kind: kind, node: node, sentence: cause(err)}
}

// isDial: nobody was reached, so nothing can have happened.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// told reads the answer of a status that is not 200.
func told(node, status string, text []byte) *failure {
	var a struct{ Outcome, Error string }
	if json.Unmarshal(text, &a) != nil || a.Outcome == "" {
		return &failure{kind: garbled, node: node, sentence: fmt.Sprintf("%s: %.100s", status, text)}
	}
	return &failure{kind: typed, node: node, outcome: a.Outcome, sentence: strings.ReplaceAll(a.Error, "\n", " ")}
}

// cause is the innermost error: those around it have addresses.
func cause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			break
		}
		err = inner
	}
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return err.Error()
}

// phase is a part of a campaign in which clients are judged by one measure.
type phase struct {
	name string
	// graceful: nothing but what people do in good order happens. Every error of a
	// client is to be typed and to be repeated, but that a connection to a node which
	// is being stopped, or is to be started again, may be lost.
	graceful bool
	stopping []string
}

// begin begins a phase. What is asked in one and answered in another one is judged
// by both.
func (l *ledger) begin(p phase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phases = append(l.phases, p)
}

// now is the phase in which a request is sent.
func (l *ledger) now() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.phases) - 1
}

// out notes that a node is no member any more: who still asks it finds nobody.
func (l *ledger) out(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left[node] = true
}

// failed notes what a client got for a request that it sent in a phase. A producer's is
// about n records, a reader's about none.
func (l *ledger) failed(since int, f *failure, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	who := "a producer"
	if n == 0 {
		who = "a reader"
		n = 1
	} else if f.kind == typed && f.outcome == "refused" {
		l.counts.Refused += int64(n)
		l.violate("%d records were refused: %s", n, f.sentence)
	}
	l.errors[fmt.Sprintf("%s: %s: %s", who, f.what(), anyNumber.ReplaceAllString(f.sentence, "#"))] += int64(n)
	if f.kind == lost {
		l.counts.Lost++
	}
	if name, bad := l.impermissible(since, f); bad {
		l.violate("%s: %s was told by %s: %s: %s: want an error with the outcome retry", name, who, f.node, f.what(), f.sentence)
	}
}

// impermissible judges a failure by the phases from since to now: if one of them is
// not graceful, all is permitted.
func (l *ledger) impermissible(since int, f *failure) (name string, bad bool) {
	phases := l.phases[max(since, 0):]
	if len(phases) == 0 || f.kind == typed && f.outcome == "retry" {
		return "", false
	}
	permitted := f.kind == lost && l.left[f.node]
	for _, p := range phases {
		if !p.graceful {
			return "", false
		}
		for _, n := range p.stopping {
			permitted = permitted || f.kind == lost && n == f.node
		}
	}
	return phases[len(phases)-1].name, !permitted
}
