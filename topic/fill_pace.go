package topic

import (
	"context"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/clock"
)

// pacer spreads bytes over time: what all fills of a node take together, in one
// direction. It never holds up the first one after a pause.
type pacer struct {
	clock clock.Clock
	rate  int64 // bytes a second

	mu   sync.Mutex
	free time.Time // when what was taken so far will have been paid for
}

// paceSlack is how far what is taken may be ahead of what is paid for.
const paceSlack = 50 * time.Millisecond

// take takes n bytes and waits until they are paid for.
func (b *pacer) take(ctx context.Context, n int) error {
	wait := b.due(b.clock.Now(), n)
	if wait <= paceSlack {
		return ctx.Err()
	}
	timer := b.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// due takes n bytes and returns how long it is until they are paid for.
func (b *pacer) due(now time.Time, n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.free.Before(now) {
		b.free = now
	}
	b.free = b.free.Add(time.Duration(float64(n) / float64(b.rate) * float64(time.Second)))
	return b.free.Sub(now)
}
