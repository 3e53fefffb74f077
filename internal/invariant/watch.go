// Package invariant lets tests look into nodes that run unmodified.
//
// A Watch is handed to a node with the context that opens it, so that it costs a
// host's program nothing and is no part of its configuration:
//
//	stele.Open(invariant.With(ctx, &invariant.Watch{...}), cfg)
//
// What a Watch finds is its owner's to report. It must not block, and must not
// change what it is shown. It is called from several goroutines.
package invariant

import (
	"context"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
)

// Watch is what a test wants to see of one node. A nil function is not called.
type Watch struct {
	// Clock, if it is not nil, is what the node takes for the machine's.
	Clock clock.Clock
	// Step sees every look at a raft group's core, before anything of it is
	// carried out (raftlog.Config.StepHook).
	Step func(*raftlog.Core, *raftlog.Effects)
	// State sees the metadata after each batch that was applied: the index, a
	// hash of the whole state, and what contradicts itself in it, or nil.
	State func(applied raftlog.Index, hash uint64, err error)
}

type key struct{}

// With returns a context that carries w.
func With(ctx context.Context, w *Watch) context.Context {
	return context.WithValue(ctx, key{}, w)
}

// From returns the Watch that ctx carries, or an empty one.
func From(ctx context.Context) *Watch {
	if w, ok := ctx.Value(key{}).(*Watch); ok {
		return w
	}
	return &Watch{}
}
