package topic

import (
	"cmp"
	"context"

	"github.com/stelelog/stele/raftlog"
)

// Flush waits until all that was produced before the call is answered, and the
// callbacks of it have returned. Calls beside it, and behind it, go on. What
// became of the records their own calls are told: the error is nil, or it
// matches ctx.Err() (Retry: nothing was ended by it).
func (p *Producer) Flush(ctx context.Context) error {
	if err := p.m.begin(ctx); err != nil {
		return explain(ctx, err, "flush")
	}
	return explain(ctx, p.flush(ctx), "flush")
}

func (p *Producer) flush(ctx context.Context) error {
	lanes := p.busyLanes()
	passed := make(chan struct{}, len(lanes))
	for _, l := range lanes {
		l.mark(func() { passed <- struct{}{} })
	}
	for range lanes {
		select {
		case <-passed:
		case <-ctx.Done():
			return raftlog.Retry(ctx.Err())
		}
	}
	return nil
}

// Close refuses new calls, waits until what was produced is answered and the
// callbacks of it have returned, and ends the producer. If ctx ends first, what
// was not on its way ends with ErrClosed as Retry, what was as unknown, and
// Close returns an error that matches ctx.Err(). It is idempotent. It is not for
// callbacks, which it waits for.
func (p *Producer) Close(ctx context.Context) error {
	if ctx == nil {
		return explain(ctx, ErrNoContext, "close a producer")
	}
	p.mu.Lock()
	p.mu.closing = true
	p.mu.Unlock()
	err := p.room.empty(ctx, p.life)
	p.abort(ErrClosed)
	if told := p.awaitCallbacks(ctx); told != nil {
		return cmp.Or(err, told) // the manager still knows of it
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	delete(p.m.mu.producers, p)
	return err
}

// abort ends the producer and everything that waits in it.
func (p *Producer) abort(cause error) {
	p.mu.Lock()
	p.mu.closing, p.mu.closed = true, true
	p.mu.Unlock()
	p.stop()
	p.failLanes(cause)
	p.running.Wait()
	p.failLanes(cause) // of calls that came in between
}

// busyLanes are all lanes that may still have something to tell.
func (p *Producer) busyLanes() []*lane {
	lanes := p.allLanes()
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.mu.telling {
		if l.over.Load() { // else it is there already
			lanes = append(lanes, l)
		}
	}
	return lanes
}

// awaitCallbacks waits until no callback runs or is to be called.
func (p *Producer) awaitCallbacks(ctx context.Context) error {
	for {
		p.mu.Lock()
		if len(p.mu.telling) == 0 {
			p.mu.Unlock()
			return nil
		}
		if p.mu.quiet == nil {
			p.mu.quiet = make(chan struct{})
		}
		quiet := p.mu.quiet
		p.mu.Unlock()
		select {
		case <-quiet:
		case <-ctx.Done():
			return raftlog.Retry(ctx.Err())
		}
	}
}

// tells notes that a lane begins to call back, or ends.
func (p *Producer) tells(l *lane, begins bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if begins {
		p.mu.telling[l] = true
		return
	}
	delete(p.mu.telling, l)
	if len(p.mu.telling) == 0 && p.mu.quiet != nil {
		close(p.mu.quiet)
		p.mu.quiet = nil
	}
}
