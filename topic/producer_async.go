package topic

import (
	"context"
	"runtime/debug"

	"go.uber.org/zap"
)

// ProduceAsync is Produce of one record that does not wait for the answer. done
// is called exactly once; nil ignores the result.
//
// What is not accepted (no such topic, too large, no room with FailWhenFull, a
// context that has ended) is told before ProduceAsync returns. Everything else
// is told in a goroutine of the producer, for one partition one after the other
// and in the order of the calls, and so of the offsets, refusals and expiries
// included. Only a record whose ctx ends is told of that at once, before those
// that it waited behind.
//
// Callbacks may call the producer, all but Close and Flush, and wait, but that
// holds up the callbacks behind them, which pile up: nothing else slows down
// those who produce. One that panics is logged, with its stack, and harms
// nothing else.
//
// ProduceAsync itself waits for room in the producer, and where Produce would to
// find the topic, until ctx ends. The record must not change until done is
// called.
func (p *Producer) ProduceAsync(ctx context.Context, topic string, record Record, done func(Position, error)) {
	c := p.calls.getAsync(record, done)
	ctx = p.traceAsync(ctx, topic, -1, c)
	v, err := p.prepare(ctx, topic, c.records)
	if err != nil {
		p.refuse(c, Position{Offset: NoOffset}, explain(ctx, err, "produce to %q", topic))
		return
	}
	p.beginAsync(ctx, p.choose(v, record.Key), c)
}

// ProduceToAsync is ProduceAsync to one partition, whatever the key is. For a
// partition that the topic does not have the error is a *NoPartitionError.
func (p *Producer) ProduceToAsync(ctx context.Context, topic string, partition uint32, record Record, done func(Position, error)) {
	c := p.calls.getAsync(record, done)
	ctx = p.traceAsync(ctx, topic, int(partition), c)
	l, err := p.prepareTo(ctx, topic, partition, c.records)
	if err != nil {
		p.refuse(c, Position{Partition: partition, Offset: NoOffset}, explain(ctx, err, "produce to %s/%d", topic, partition))
		return
	}
	p.beginAsync(ctx, l, c)
}

func (p *Producer) beginAsync(ctx context.Context, l *lane, c *call) {
	if err := p.begin(ctx, l, c); err != nil {
		p.refuse(c, Position{Partition: l.partition, Offset: NoOffset}, err)
	}
}

// traceAsync tells the host of the call, and when it ends.
func (p *Producer) traceAsync(ctx context.Context, topic string, partition int, c *call) context.Context {
	if p.m.cfg.Trace == nil {
		return ctx
	}
	inside, end := p.traceProduce(ctx, topic, partition, c.records)
	done := c.done
	c.done = func(at Position, err error) {
		end(err)
		if done != nil {
			done(at, err)
		}
	}
	return inside
}

// refuse ends a call that was not queued.
func (p *Producer) refuse(c *call, at Position, err error) {
	done := c.done
	c.free()
	p.tell(done, at, err)
}

// tell calls a function of the host: what it does must not end the goroutine.
func (p *Producer) tell(done func(Position, error), at Position, err error) {
	if done == nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			p.m.cfg.Logger.Error("a callback of ProduceAsync panicked", zap.Any("panic", r), zap.ByteString("stack", debug.Stack()))
		}
	}()
	done(at, err)
}

// unlock gives the lane's lock back and tells calls what became of them: those
// that wait at once, the others by their callbacks, in the order of out and
// behind all that ended before.
//
// Callbacks have a goroutine while there are any, and not that of an answer:
// the group's would stop while one waits, and two of other nodes' answers may
// be on their way at once.
func (l *lane) unlock(out []ending) {
	waiting := out[:0]
	for _, e := range out {
		if e.call.async {
			l.unwatchLocked(e.call)
			l.mu.untold = append(l.mu.untold, e)
		} else {
			waiting = append(waiting, e)
		}
	}
	if len(l.mu.untold) > 0 && !l.mu.telling {
		l.mu.telling = true
		l.p.tells(l, true)
		go l.callBack()
	}
	l.mu.Unlock() // and those that are called back may be other calls by now
	for _, e := range waiting {
		e.call.ready <- e.ended
	}
}

// maxSpare is how many endings of callbacks a lane has room for while it has
// none.
const maxSpare = 1024

// outbox is what the goroutine that calls back has taken over. It is that
// goroutine's, and its successor's.
type outbox struct {
	endings []ending
	next    int
}

// callBack calls the callbacks of the calls that have ended, until there are no
// more.
func (l *lane) callBack() {
	finished := false
	defer func() {
		if !finished { // a callback called runtime.Goexit
			go l.callBack()
		}
	}()
	box := &l.outbox
	for {
		for box.next < len(box.endings) {
			e := box.endings[box.next]
			box.endings[box.next] = ending{}
			box.next++
			l.callBackOne(e)
		}
		l.mu.Lock()
		if len(l.mu.untold) == 0 {
			l.mu.telling = false
			l.p.tells(l, false)
			l.mu.Unlock()
			finished = true
			return
		}
		spare := box.endings[:0]
		if cap(spare) > maxSpare {
			spare = nil
		}
		box.endings, box.next, l.mu.untold = l.mu.untold, 0, spare
		l.mu.Unlock()
	}
}

func (l *lane) callBackOne(e ending) {
	if e.call.mark != nil {
		e.call.mark()
		return
	}
	done := e.call.done
	e.call.free()
	l.p.tell(done, Position{Partition: l.partition, Offset: e.base}, e.err)
}

// mark has passed called when all calls that the lane has now were told what
// became of them.
func (l *lane) mark(passed func()) {
	c := &call{lane: l, since: l.p.m.cfg.Clock.Now(), async: true, mark: passed}
	l.mu.Lock()
	l.queueLocked(c)
	l.unlock(l.passLocked(nil))
}

// isMark reports whether a call is not one, but waits for those before it.
func (c *call) isMark() bool { return c.mark != nil }

// passLocked takes marks from the front of the queue: they wait for flight, if
// that is not empty.
func (l *lane) passLocked(out []ending) []ending {
	for len(l.mu.queue) > 0 && l.mu.queue[0].isMark() {
		c := l.mu.queue[0]
		l.dequeueLocked(1)
		c.state = callEnded
		if n := len(l.mu.flight); n > 0 {
			l.mu.flight[n-1].after = append(l.mu.flight[n-1].after, ending{call: c})
		} else {
			out = append(out, ending{call: c})
		}
	}
	return out
}
