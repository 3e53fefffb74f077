package raftlog

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/stelelog/stele/storage"
)

// applier applies the committed entries of one group, in a goroutine that
// lives only while there are some: a group whose state machine is slow holds
// up nobody else.
type applier struct {
	mu struct {
		sync.Mutex
		queue   []applyBatch
		running bool          // the goroutine lives
		halted  error         // not nil: nothing is applied any more
		quiet   chan struct{} // not nil: to be closed when the goroutine ends
	}

	// Of the goroutine alone.
	results []Result
	entries []storage.LogEntry
}

// applyBatch is what one look at a core handed out. It owns its proposals.
type applyBatch struct {
	entries []Entry
	waiting []*proposal // nil, or as long as entries: who proposed entries[i] here
}

// end ends the proposals that are left in the batch.
func (b *applyBatch) end(err error) {
	for i, p := range b.waiting {
		if p != nil {
			b.waiting[i] = nil
			p.end(Proposal{Err: Unknown(err)})
		}
	}
}

// applyDone tells the loop that a group's entries up to last are applied.
type applyDone struct {
	group *Group
	last  Index
	log   storage.LogPosition
}

// enqueue hands a batch to the goroutine and starts it if there is none.
func (a *applier) enqueue(g *Group, b applyBatch) {
	a.mu.Lock()
	if err := a.mu.halted; err != nil {
		a.mu.Unlock()
		b.end(err)
		return
	}
	a.mu.queue = append(a.mu.queue, b)
	start := !a.mu.running
	a.mu.running = true
	a.mu.Unlock()
	if start {
		g.host.wg.Go(func() { a.run(g) })
	}
}

// halt makes err the end of everything that is not applied yet, but lets the
// batch that is being applied finish. The channel closes when it has.
func (a *applier) halt(err error) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.halted == nil {
		a.mu.halted = err
	}
	if a.mu.quiet == nil {
		a.mu.quiet = make(chan struct{})
		if !a.mu.running {
			close(a.mu.quiet)
		}
	}
	return a.mu.quiet
}

// halted returns the first error that halt was called with.
func (a *applier) halted() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.halted
}

func (a *applier) run(g *Group) {
	for {
		batch, more := a.next()
		if !more {
			return
		}
		if cause := g.applyBatch(&batch); cause != nil {
			err := &GroupFailedError{Group: g.id, Replica: g.replica, Cause: cause}
			a.halt(err)
			batch.end(err)
			g.failSoon(cause)
		}
	}
}

// next returns the next batch, or false when the goroutine is to end.
func (a *applier) next() (applyBatch, bool) {
	a.mu.Lock()
	if a.mu.halted == nil && len(a.mu.queue) > 0 {
		b := a.mu.queue[0]
		a.mu.queue[0] = applyBatch{}
		a.mu.queue = a.mu.queue[1:]
		a.mu.Unlock()
		return b, true
	}
	rest, err := a.mu.queue, a.mu.halted
	a.mu.queue = nil
	if len(rest) == 0 {
		a.mu.running = false
		if a.mu.quiet != nil {
			close(a.mu.quiet)
		}
		a.mu.Unlock()
		return applyBatch{}, false
	}
	a.mu.Unlock()
	for i := range rest {
		rest[i].end(err)
	}
	return a.next()
}

// applyBatch applies a batch, writes the log, and tells whom it concerns.
func (g *Group) applyBatch(b *applyBatch) (err error) {
	defer recoverInto(&err, "apply")
	a, n := &g.applier, len(b.entries)
	if cap(a.results) < n {
		a.results = make([]Result, n)
	}
	results := a.results[:n]
	clear(results)
	// A state machine with a state of its own may be ahead of the log.
	known := 0
	for known < n && b.entries[known].Index <= g.machineAt {
		known++
	}
	if known < n {
		if err := g.machine.Apply(b.entries[known:], results[known:]); err != nil {
			return fmt.Errorf("raftlog: apply: %w", err)
		}
	}
	if err := g.appendLog(b.entries, results); err != nil {
		return err
	}
	last := b.entries[n-1].Index
	// Reads end at what is counted as applied here: the state machine shows it
	// first.
	g.machine.Applied(last)
	g.applied.Store(uint64(last))
	g.host.stats.applyBatches.Add(1)
	g.host.stats.entriesApplied.Add(uint64(n))
	done := applyDone{group: g, last: last, log: g.log.Position()}
	g.host.mailbox.post(func(in *inbox) { in.applied = append(in.applied, done) })
	for i, p := range b.waiting {
		if p != nil {
			b.waiting[i] = nil
			p.end(Proposal{Index: b.entries[i].Index, Term: b.entries[i].Term, Result: results[i]})
		}
	}
	return nil
}

// appendLog writes the entries that the log does not hold yet: after a restart
// a state machine with a state of its own may be behind the log.
func (g *Group) appendLog(entries []Entry, results []Result) error {
	at := g.log.Position()
	next := at.NextOffset
	out := g.applier.entries[:0]
	for i := range entries {
		e := &entries[i]
		if e.Index <= at.LastIndex {
			continue
		}
		le := storage.LogEntry{
			Entry:   storage.Entry{Index: e.Index, Term: e.Term, Kind: e.Kind, Data: e.Data},
			Verdict: results[i].Verdict, BaseOffset: next,
		}
		if le.Verdict == 0 || g.ownState {
			// With a state of its own a state machine may never have been asked
			// about this entry, and logs are to be equal on all replicas.
			le.Verdict = verdictByKind(e)
		}
		if le.Verdict == VerdictData {
			if results[i].BaseOffset != next {
				return fmt.Errorf("raftlog: entry %d was given offset %d, the next is %d", e.Index, results[i].BaseOffset, next)
			}
			le.Count = results[i].Count
			next += Offset(le.Count)
		}
		out = append(out, le)
	}
	err := g.log.Append(out)
	clear(out)
	g.applier.entries = out[:0]
	return err
}

func verdictByKind(e *Entry) Verdict {
	switch {
	case e.Kind != storage.EntryNormal:
		return VerdictConfig
	case len(e.Data) == 0:
		return VerdictEmpty
	default:
		return VerdictControl
	}
}

var errPanic = errors.New("raftlog: panic")

// recoverInto, deferred, turns a panic into an error.
func recoverInto(err *error, where string) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w in %s: %v\n%s", errPanic, where, p, debug.Stack())
	}
}
