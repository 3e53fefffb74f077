package metastore

import (
	"context"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/clock"
)

// gate holds back what must not be answered from an old state. It opens once
// and stays open. Its goroutine, started by Store.Open, ends when it opens or
// when the store is closed.
type gate struct {
	group   group
	machine *machine
	clock   clock.Clock
	contact time.Duration // how long ago a leader may have been heard
	barrier time.Duration // how long one try may take

	open chan struct{} // closed when the latch is set

	mu struct {
		sync.Mutex
		missing string // why it is not open
	}
}

// gateRetry is how long a try that failed waits for the next one; a change of
// leader ends the wait.
const gateRetry = 200 * time.Millisecond

func newGate(g group, m *machine, c Config) *gate {
	gt := &gate{group: g, machine: m, clock: c.Clock, contact: c.ContactTimeout, barrier: c.BarrierTimeout, open: make(chan struct{})}
	gt.mu.missing = "the store was just opened"
	return gt
}

// run tries until the latch is set or ctx ends. kick is told of changes of
// leader.
func (g *gate) run(ctx context.Context, kick <-chan struct{}) {
	timer := g.clock.NewTimer(gateRetry)
	defer timer.Stop()
	for !g.try(ctx) {
		timer.Reset(gateRetry)
		select {
		case <-ctx.Done():
			return
		case <-kick:
		case <-timer.C():
		}
	}
	close(g.open)
}

// try makes one round and waits, as long as it is good, for the state machine
// to cover it.
func (g *gate) try(ctx context.Context) bool {
	ctx, cancel := withTimeout(ctx, g.clock, g.barrier)
	defer cancel()
	before := g.group.Status()
	f := caughtUpFacts{Role: before.Role, Term: before.Term, Leader: before.Leader}
	if f.Leader != 0 {
		index, err := g.group.ReadIndex(ctx)
		f.Round, f.RoundTerm, f.RoundIndex = err == nil, before.Term, index
	}
	confirmed := g.clock.Now()
	for {
		// The index first: a state that moves on afterwards covers no less.
		applied, progress := g.machine.progress()
		now := g.group.Status()
		f.Applied, f.Role, f.Term, f.Leader = applied, now.Role, now.Term, now.Leader
		f.SinceRound = g.clock.Now().Sub(confirmed)
		ok, missing := f.caughtUp(g.contact)
		g.note(missing)
		if ok || !f.lacksOnlyApplied(g.contact) {
			return ok
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return false
		}
	}
}

func (g *gate) note(missing string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.missing = missing
}

// isOpen reports whether the latch is set.
func (g *gate) isOpen() bool {
	select {
	case <-g.open:
		return true
	default:
		return false
	}
}

// missing says why it is not open, "" if it is.
func (g *gate) missing() string {
	if g.isOpen() {
		return ""
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.missing
}

// withTimeout is context.WithTimeout on a given clock. What it ends ends with
// context.DeadlineExceeded as its cause.
func withTimeout(ctx context.Context, c clock.Clock, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := c.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}
