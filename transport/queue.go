package transport

import (
	"context"
	"sync"
)

// item is one frame that waits to be written.
type item struct {
	kind   frameKind
	prefix []byte // fields before the body, small
	body   []byte // never changed by anyone any more
	call   *call  // of a request; nil else
}

// itemOverhead is what an item costs beside its bytes, so that a budget also
// bounds the number of empty frames.
const itemOverhead = 64

func (it *item) cost() int { return itemOverhead + len(it.prefix) + len(it.body) }

// sendQueue is what waits for the writer of a connection. It outlives the
// connection when a peer is dialled again. A cost counts until it is written,
// so that a budget bounds all memory that a slow peer can hold.
type sendQueue struct {
	budget int

	mu     sync.Mutex
	filled sync.Cond // the writer waits
	room   sync.Cond // reserve waits
	items  []item
	head   int
	cost   int
	alive  bool // a ping is due
	// running: a goroutine tends this queue (links only).
	running bool
	closed  bool
}

func (q *sendQueue) init(budget int) {
	q.budget = budget
	q.filled.L, q.room.L = &q.mu, &q.mu
}

func (q *sendQueue) fitsLocked(it *item) bool {
	return q.cost == 0 || q.cost+it.cost() <= q.budget
}

func (q *sendQueue) addLocked(it item) {
	q.cost += it.cost()
	q.appendLocked(it)
}

// appendLocked adds an item whose cost is counted already.
func (q *sendQueue) appendLocked(it item) {
	if len(q.items) == cap(q.items) && q.head > len(q.items)/2 {
		// Under steady load the queue never empties: reuse what was taken.
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, it)
	if len(q.items)-q.head == 1 {
		q.filled.Signal()
	}
}

// offer adds an item if there is room. start: the caller must start the
// goroutine that tends the queue.
func (q *sendQueue) offer(it item) (ok, start bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || !q.fitsLocked(&it) {
		return false, false
	}
	q.addLocked(it)
	start = !q.running
	q.running = true
	return true, start
}

// put waits for room; false if ctx ended or the queue was closed.
func (q *sendQueue) put(ctx context.Context, it item) bool {
	if !q.reserve(ctx, &it) {
		return false
	}
	q.fill(it)
	return true
}

// reserve waits for room and takes it for an item that fill adds later; false
// if ctx ended or the queue was closed.
func (q *sendQueue) reserve(ctx context.Context, it *item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed && !q.fitsLocked(it) {
		defer context.AfterFunc(ctx, q.wake)()
	}
	for !q.closed && ctx.Err() == nil && !q.fitsLocked(it) {
		q.room.Wait()
	}
	if q.closed || ctx.Err() != nil {
		return false
	}
	q.cost += it.cost()
	return true
}

// wake makes reserve look at its context again.
func (q *sendQueue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.room.Broadcast()
}

// fill adds the item that room was reserved for.
func (q *sendQueue) fill(it item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.appendLocked(it)
	}
}

// force adds a small item whatever waits: answers that must not block.
func (q *sendQueue) force(it item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.addLocked(it)
	}
}

// excess is how far refusals of calls may go over a budget: about ten thousand.
const excess = 1 << 20

// exceed adds a small item even over the budget; false if too much is over it.
func (q *sendQueue) exceed(it item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cost > q.budget+excess {
		return false
	}
	if !q.closed {
		q.addLocked(it)
	}
	return true
}

// ping makes the writer send a sign of life before all that waits.
func (q *sendQueue) ping() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.alive = true
	q.filled.Signal()
}

// take waits for items and moves up to about limit bytes of them to dst, at
// least one. It returns false when stopped says so (after kick) or the queue
// is closed.
func (q *sendQueue) take(dst []item, limit int, stopped func() bool) ([]item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.head == len(q.items) && !q.alive && !q.closed && !stopped() {
		q.filled.Wait()
	}
	if q.closed || stopped() {
		return dst, false
	}
	if q.alive {
		q.alive = false
		dst = append(dst, item{kind: framePing})
	}
	for took := 0; q.head < len(q.items) && took < limit; q.head++ {
		it := q.items[q.head]
		q.items[q.head] = item{}
		took += it.cost()
		dst = append(dst, it)
	}
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return dst, true
}

// kick makes take look at its stopped again.
func (q *sendQueue) kick() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.filled.Broadcast()
}

// release returns the cost of items that were written or lost.
func (q *sendQueue) release(items []item) {
	cost := 0
	for i := range items {
		if items[i].kind != framePing {
			cost += items[i].cost()
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cost -= cost
	q.room.Broadcast()
}

// empty takes all that waits and returns it.
func (q *sendQueue) empty() []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := append([]item(nil), q.items[q.head:]...)
	clear(q.items)
	q.items, q.head = q.items[:0], 0
	for i := range items {
		q.cost -= items[i].cost()
	}
	q.room.Broadcast()
	return items
}

// rest reports whether nothing waits; then the tending goroutine must end.
func (q *sendQueue) rest() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head < len(q.items) && !q.closed {
		return false
	}
	q.running = false
	return true
}

// close refuses everything from now on and wakes all that wait.
func (q *sendQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
	q.room.Broadcast()
}
