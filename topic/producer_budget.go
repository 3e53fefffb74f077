package topic

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/stelelog/stele/raftlog"
)

// BufferFullError says that there was no room for records in a producer. Nothing
// happened: it matches raftlog.ErrRetry, and context.Canceled or
// DeadlineExceeded if the call waited for room until its context ended.
type BufferFullError struct {
	Size int   // of the records, in bytes
	Used int   // of the buffer, when the call came
	Max  int   // ProducerConfig.MaxBufferedBytes
	Err  error // why the call did not go on waiting; nil if it did not wait: FailWhenFull
}

func (e *BufferFullError) Error() string {
	text := fmt.Sprintf("topic: no room for %d bytes in the producer: %d are used, up to %d may be (ProducerConfig.MaxBufferedBytes)", e.Size, e.Used, e.Max)
	if e.Err != nil {
		text += ": " + textOf(e.Err)
	}
	return text
}

// Is gives the error its outcome: retry.
func (e *BufferFullError) Is(target error) bool { return target == raftlog.ErrRetry }

// Unwrap gives the end of the wait.
func (e *BufferFullError) Unwrap() error { return e.Err }

// budget is a number of bytes that calls wait for, in the order in which they
// come: a large one is not overtaken for ever by small ones.
type budget struct {
	max  int
	fail bool // instead of waiting
	mu   struct {
		sync.Mutex
		used    int
		waiting []*claim      // none as long as there is room for the first of them
		emptied chan struct{} // nil: nobody waits for that
	}
}

// claim is a call that waits for room.
type claim struct {
	n       int
	granted chan struct{}
}

// take waits for room until ctx or life ends. What comes alone always fits.
func (b *budget) take(ctx, life context.Context, n int) error {
	b.mu.Lock()
	if len(b.mu.waiting) == 0 && b.fitsLocked(n) {
		b.mu.used += n
		b.mu.Unlock()
		return nil
	}
	full := &BufferFullError{Size: n, Used: b.mu.used, Max: b.max}
	if b.fail {
		b.mu.Unlock()
		return full
	}
	c := &claim{n, make(chan struct{})}
	b.mu.waiting = append(b.mu.waiting, c)
	b.mu.Unlock()
	select {
	case <-c.granted:
		return nil
	case <-ctx.Done():
		full.Err = ctx.Err()
		b.leave(c)
		return full
	case <-life.Done():
		b.leave(c)
		return raftlog.Retry(ErrClosed)
	}
}

func (b *budget) fitsLocked(n int) bool { return b.mu.used == 0 || b.mu.used+n <= b.max }

// leave ends a wait in vain.
func (b *budget) leave(c *claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.mu.waiting, c); i >= 0 {
		b.mu.waiting = slices.Delete(b.mu.waiting, i, i+1)
	} else { // it was granted meanwhile
		b.mu.used -= c.n
	}
	b.grantLocked()
}

func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used -= n
	b.grantLocked()
}

func (b *budget) grantLocked() {
	n := 0
	for ; n < len(b.mu.waiting) && b.fitsLocked(b.mu.waiting[n].n); n++ {
		b.mu.used += b.mu.waiting[n].n
		close(b.mu.waiting[n].granted)
	}
	b.mu.waiting = slices.Delete(b.mu.waiting, 0, n)
	if b.mu.used == 0 && b.mu.emptied != nil {
		close(b.mu.emptied)
		b.mu.emptied = nil
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
		if b.mu.emptied == nil {
			b.mu.emptied = make(chan struct{})
		}
		emptied := b.mu.emptied
		b.mu.Unlock()
		select {
		case <-emptied:
		case <-ctx.Done():
			return raftlog.UnknownCause(ctx)
		case <-life.Done():
			return raftlog.Unknown(ErrClosed)
		}
	}
}
