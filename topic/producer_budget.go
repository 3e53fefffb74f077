package topic

import (
	"context"
	"fmt"
	"sync"

	"github.com/stelelog/stele/raftlog"
)

// budget is a number of bytes that calls wait for.
type budget struct {
	max int
	mu  struct {
		sync.Mutex
		used    int
		changed chan struct{} // nil: nobody waits
	}
}

// take waits for room until ctx or life ends. What comes alone always fits.
func (b *budget) take(ctx, life context.Context, n int) error {
	for {
		b.mu.Lock()
		if b.mu.used == 0 || b.mu.used+n <= b.max {
			b.mu.used += n
			b.mu.Unlock()
			return nil
		}
		changed := b.changedLocked()
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return raftlog.Retry(fmt.Errorf("topic: the producer's buffer of %d bytes is full: %w", b.max, ctx.Err()))
		case <-life.Done():
			return raftlog.Retry(ErrClosed)
		}
	}
}

func (b *budget) changedLocked() <-chan struct{} {
	if b.mu.changed == nil {
		b.mu.changed = make(chan struct{})
	}
	return b.mu.changed
}

func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used -= n
	if b.mu.changed != nil {
		close(b.mu.changed)
		b.mu.changed = nil
	}
}

// empty waits until all was given back.
func (b *budget) empty(ctx, life context.Context) error {
	for {
		b.mu.Lock()
		if b.mu.used == 0 {
			b.mu.Unlock()
			return nil
		}
		changed := b.changedLocked()
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return raftlog.UnknownCause(ctx)
		case <-life.Done():
			return raftlog.Unknown(ErrClosed)
		}
	}
}
