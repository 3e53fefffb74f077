package topic

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// call is records that wait to be appended to one partition, together. Its
// records belong to the caller and are read until the call is claimed for a
// batch, or ended, both under the lock of its lane.
type call struct {
	pool    *callPool
	lane    *lane
	records []Record
	size    int // taken of the producer's room
	since   time.Time
	values  context.Context // of an operation that is traced; else nil
	// Of the lane's lock:
	state callState
	batch *batch // that it was claimed for
	place int    // in batch.calls, or counted from the lane's first call on

	// Who waits hears of the end on a channel, who does not by a callback, in its
	// turn.
	ready chan ended // buffered
	async bool
	done  func(Position, error) // of an async call; nil: nobody cares
	one   [1]Record             // records of an async call
	watch *watch                // of an async call's context; nil: it never ends
	mark  func()                // see lane.mark
}

type callState uint8

const (
	callNew     callState = iota
	callWaiting           // in lane.mu.queue
	callClaimed           // its records are in a batch
	callEnded
)

// ended is what became of a call.
type ended struct {
	base storage.Offset
	err  error
}

// callPool keeps calls, and above all their channels, for reuse.
type callPool struct{ pool sync.Pool }

func (p *callPool) get(records []Record, size int) *call {
	c, ok := p.pool.Get().(*call)
	if !ok {
		c = &call{pool: p, ready: make(chan ended, 1)}
	}
	c.records, c.size, c.state = records, size, callNew
	return c
}

// getAsync returns a call of one record that nobody waits for.
func (p *callPool) getAsync(record Record, done func(Position, error)) *call {
	c := p.get(nil, 0)
	c.async, c.done, c.one[0] = true, done, record
	c.records = c.one[:]
	return c
}

// wait returns what became of the call, which is not to be used any more.
func (c *call) wait(ctx context.Context) (storage.Offset, error) {
	select {
	case e := <-c.ready:
		c.free()
		return e.base, e.err
	case <-ctx.Done():
	}
	c.lane.giveUp(ctx, c)
	e := <-c.ready
	c.free()
	return e.base, e.err
}

// free gives a call back. Nobody else may know of it any more: neither its lane
// nor its batch do once it has ended, and contexts only know lanes.
func (c *call) free() {
	c.lane, c.records, c.batch, c.values, c.watch = nil, nil, nil, nil, nil
	c.async, c.done, c.one[0] = false, nil, Record{}
	c.pool.pool.Put(c)
}

// ending is a call and what it is to be told: see lane.unlock.
type ending struct {
	call *call
	ended
}

// batch is an encoded batch of a lane that is not answered yet.
type batch struct {
	data     []byte
	values   context.Context // of the first call, traced or not; not its end
	calls    []*call         // nil for those that gave up
	after    []ending        // of calls behind it, that hear of their end after it
	counts   []int           // records of each
	size     int             // taken of the producer's room
	count    int
	first    Sequence
	since    time.Time // of the oldest call
	numbered bool      // identity and first are in data
	flying   bool      // sent and not answered
	sent     bool      // it was, once
	given    bool      // data belongs to a partition here: copy before it is changed
	unknown  bool      // an attempt may have appended it
	renewed  int       // how often it was given another identity
	away     int       // how often it was sent to another node
}

// end ends what is left of the batch's calls, all of them with err or else from
// base on.
func (b *batch) end(out []ending, base storage.Offset, err error) []ending {
	if err != nil && b.unknown && !errors.Is(err, raftlog.ErrOutcomeUnknown) {
		err = raftlog.Unknown(withoutOutcome{&callError{"the records may have been appended", err}})
	}
	for i, c := range b.calls {
		if c != nil {
			c.state = callEnded
			e := ended{base: base, err: err}
			if err != nil {
				e.base = NoOffset
			}
			out = append(out, ending{c, e})
		}
		base += storage.Offset(b.counts[i])
	}
	out = append(out, b.after...)
	b.calls, b.after = nil, nil
	return out
}
