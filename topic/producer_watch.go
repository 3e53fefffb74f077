package topic

import "context"

// watches has a lane hear of the ends of the contexts of its async calls: once for
// all calls of a context, since many records share one, and to hear of it for
// each costs more than all else that is done for a small record. Guarded by the
// lane's lock.
type watches struct {
	// By what closes when the context ends: contexts need not be comparable.
	by map[<-chan struct{}]*watch
	// idle is one that no call has: it is kept until there is another one, since
	// the next record is likely to have the same context.
	idle *watch
}

// watch is one context.
type watch struct {
	ctx   context.Context
	done  <-chan struct{}
	calls int // that have not ended, or whose end nobody was told of yet
	stop  func() bool
}

// watchLocked has the lane give up a call, which is to be queued, when ctx ends.
func (l *lane) watchLocked(ctx context.Context, done <-chan struct{}, c *call) {
	ws := &l.mu.watches
	w := ws.by[done]
	if w == nil {
		ws.endIdle()
		w = &watch{ctx: ctx, done: done}
		w.stop = context.AfterFunc(ctx, func() { l.giveUpAll(w) })
		if ws.by == nil {
			ws.by = map[<-chan struct{}]*watch{}
		}
		ws.by[done] = w
	}
	if ws.idle == w {
		ws.idle = nil
	}
	w.calls++
	c.watch = w
}

// unwatchLocked notes that a call has ended.
func (l *lane) unwatchLocked(c *call) {
	w := c.watch
	if w == nil {
		return
	}
	c.watch = nil
	ws := &l.mu.watches
	if w.calls--; w.calls > 0 || ws.by[w.done] != w { // its context has ended
		return
	}
	ws.endIdle()
	ws.idle = w
	if l.mu.ended != nil {
		ws.endIdle()
	}
}

// endIdle forgets the context that no call has.
func (ws *watches) endIdle() {
	if w := ws.idle; w != nil {
		w.stop()
		delete(ws.by, w.done)
		ws.idle = nil
	}
}

// giveUpAll ends all calls whose context has ended, in their order.
func (l *lane) giveUpAll(w *watch) {
	l.mu.Lock()
	ws := &l.mu.watches
	if ws.idle == w {
		ws.idle = nil
	}
	if ws.by[w.done] == w { // it tells nothing to a call that is only about to be queued
		delete(ws.by, w.done)
	}
	var out []ending
	for _, b := range l.mu.flight {
		for _, c := range b.calls {
			if c != nil && c.watch == w {
				out = l.giveUpLocked(out, w.ctx, c)
			}
		}
	}
	// Calls leave the queue while it is looked through; their places stay, empty.
	for _, c := range l.mu.queue {
		if c != nil && c.watch == w {
			out = l.giveUpLocked(out, w.ctx, c)
		}
	}
	l.unlock(out)
}
