package topic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// lane is a producer's way to one partition, in one life of the topic.
//
//	queue    calls that wait, in their order; those that are waiting when a
//	         batch may be sent are encoded into it, at most to its bound
//	flight   batches that were numbered and are not answered, in their order
//
// Invariants:
//   - The sequences of flight follow each other without gap, and end at next.
//   - A batch is sent when all before it in flight are on their way, so a
//     partition meets them in order; one that it meets too early is refused as
//     out of order and sent again.
//   - Calls to another node may overtake each other, so one batch is on its way
//     there at a time.
//   - After a failure nothing is sent before all that is on its way was
//     answered; then flight is sent again from its front (recover).
//   - Only a batch that certainly was not appended, with no other of flight in
//     doubt, may be taken out of flight or get other numbers: an old copy of
//     it would be taken for what now has its numbers.
type lane struct {
	address
	p     *Producer
	topic string
	place metastore.Partition
	limit int // bytes of a batch's records

	waiting atomic.Int64 // bytes in queue
	trouble atomic.Int64 // when it last failed, ns since 1970; 0: not since it last succeeded
	over    atomic.Bool  // ended
	outbox  outbox       // of the goroutine that calls back
	onTurn  func()       // turn

	mu struct {
		sync.Mutex
		queue      []*call // nil for those that gave up, but for the first
		gone       int     // how many have left the queue's front
		flight     []*batch
		out        int  // of flight on their way
		away       bool // to another node
		identity   identity
		asking     bool // for an identity
		next       Sequence
		recovering bool
		running    bool // recover is
		renew      bool // the identity is of no use any more
		pause      backoff
		last       error // of the last attempt
		ended      error
		due        bool // turn will be called
		watches    watches
		untold     []ending // of callbacks, in their order
		telling    bool     // somebody is calling back
	}
}

func newLane(p *Producer, v *topicView, partition uint32) *lane {
	l := &lane{
		address: address{v.topic.Incarnation, partition}, p: p, topic: v.topic.Name,
		place: v.topic.Partitions[partition],
		limit: min(p.cfg.MaxBatchBytes, int(v.topic.Config.MaxBatchBytes)),
	}
	l.onTurn = l.turn
	return l
}

// avoided is how long records that may go anywhere stay away from a partition
// after a failure: longer than the longest pause between two attempts.
const avoided = 2 * lastBackoff

// leaderless reports whether records for the partition would have to wait.
func (l *lane) leaderless() bool {
	if at := l.trouble.Load(); at != 0 && l.p.m.cfg.Clock.Now().UnixNano()-at < int64(avoided) {
		return true
	}
	return !l.p.m.leaderOf(l.address, l.place).sure
}

// enqueue queues a call, which holds its size of the producer's room. A call
// that nobody waits for ends with ctx.
func (l *lane) enqueue(ctx context.Context, c *call) {
	var done <-chan struct{}
	if c.async {
		done = ctx.Done()
	}
	l.mu.Lock()
	var out []ending
	if err := l.mu.ended; err != nil {
		c.lane, c.state = l, callEnded
		l.p.room.give(c.size)
		out = append(out, ending{c, ended{NoOffset, notSent(err)}})
	} else {
		if done != nil {
			l.watchLocked(ctx, done, c)
		}
		l.queueLocked(c)
		l.waiting.Add(int64(c.size))
		out = l.pumpSoonLocked(nil)
	}
	l.unlock(out)
}

func (l *lane) queueLocked(c *call) {
	c.lane, c.state = l, callWaiting
	c.place = l.mu.gone + len(l.mu.queue)
	l.mu.queue = append(l.mu.queue, c)
}

// at names the partition.
func (l *lane) at() TopicPartition { return TopicPartition{l.topic, l.partition} }

// about says of an error which records it is about, once; nil stays nil.
func (l *lane) about(err error) error {
	var noLeader *NoLeaderError
	var said *callError
	if err == nil || errors.As(err, &noLeader) || errors.As(err, &said) {
		return err
	}
	return &callError{fmt.Sprintf("records for %v", l.at()), err}
}

// noLeader says that this node knows of no leader to send to, and of a replica
// that could lead here why it does not.
func (l *lane) noLeader() error {
	if err := l.p.m.failure(l.address); err != nil {
		return raftlog.Retry(fmt.Errorf("the replica on this node failed: %w", withoutOutcome{err}))
	}
	return l.p.m.orLost(l.place, raftlog.Retry(errors.New("none is known")))
}

// notTakenLocked is the error of a call whose records were not sent, or were
// certainly not appended: end is why it ended, nil if it had waited for too
// long.
func (l *lane) notTakenLocked(end error) error {
	last := l.mu.last
	switch {
	case last == nil:
		return raftlog.Retry(&callError{fmt.Sprintf("the records for %v were not sent yet", l.at()), end})
	case end == nil:
		end = notSent(last)
	default:
		end = raftlog.Retry(because(end, last))
	}
	if l.mu.asking {
		return raftlog.Retry(&callError{fmt.Sprintf("the records for %v wait for the producer's identity", l.at()), withoutOutcome{end}})
	}
	return raftlog.Retry(&NoLeaderError{l.at(), end})
}

// notSent gives the error that ended a lane to a call that was not sent.
func notSent(err error) error {
	if raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown {
		return raftlog.Retry(withoutOutcome{err})
	}
	return err
}

// giveUp ends a call whose context has ended.
func (l *lane) giveUp(ctx context.Context, c *call) {
	l.mu.Lock()
	l.unlock(l.giveUpLocked(nil, ctx, c))
}

func (l *lane) giveUpLocked(out []ending, ctx context.Context, c *call) []ending {
	var err error
	var passed []ending
	switch c.state {
	case callWaiting:
		passed = l.leaveLocked(c)
		err = l.notTakenLocked(ctx.Err())
	case callClaimed:
		c.batch.calls[c.place] = nil
		err = &callError{fmt.Sprintf("the records for %v were sent and not answered", l.at()), raftlog.UnknownCause(ctx)}
	default:
		return out
	}
	c.state = callEnded
	return append(append(out, ending{c, ended{NoOffset, err}}), passed...)
}

// leaveLocked takes a call out of the queue, from wherever it is, and returns
// the marks that waited for it alone.
func (l *lane) leaveLocked(c *call) []ending {
	l.mu.queue[c.place-l.mu.gone] = nil
	l.dequeueLocked(0)
	l.waiting.Add(-int64(c.size))
	l.p.room.give(c.size)
	return l.passLocked(nil)
}

// dequeueLocked takes n calls, and those behind them that gave up, from the
// front of the queue.
func (l *lane) dequeueLocked(n int) {
	for n < len(l.mu.queue) && l.mu.queue[n] == nil {
		n++
	}
	clear(l.mu.queue[:n])
	l.mu.gone += n
	if n == len(l.mu.queue) {
		n, l.mu.queue = 0, l.mu.queue[:0] // the whole of it is used again
	}
	l.mu.queue = l.mu.queue[n:]
}

// pumpLocked sends what may be sent.
func (l *lane) pumpLocked(out []ending) []ending {
	for l.mu.ended == nil && !l.mu.recovering {
		out = l.passLocked(out)
		b := l.unsentLocked()
		if b == nil && len(l.mu.queue) == 0 || l.fullLocked() {
			return out
		}
		if !l.identifyLocked() {
			return out
		}
		to := l.p.m.leaderOf(l.address, l.place)
		if l.mu.out > 0 && to.here == nil {
			return out
		}
		if to.here == nil && to.node == 0 {
			l.mu.last = l.noLeader()
			l.recoverLocked()
			return out
		}
		if b == nil {
			b = l.claimLocked()
		}
		l.numberLocked(b)
		if b.sent {
			l.p.m.stats.retries.Add(1)
		}
		b.flying, b.sent = true, true
		l.mu.out++
		l.mu.away = to.here == nil
		if l.mu.away {
			l.sendAway(b, to)
			return out
		}
		if err := l.sendHere(b, to.here); err != nil {
			out = l.answerLocked(out, b, 0, err)
		}
	}
	return out
}

// fullLocked reports whether as much as may be is on its way.
func (l *lane) fullLocked() bool {
	return l.mu.out > 0 && (l.mu.away || l.mu.out >= l.p.cfg.MaxInFlight)
}

// unsentLocked returns the first batch of flight that is not on its way.
func (l *lane) unsentLocked() *batch {
	for _, b := range l.mu.flight {
		if !b.flying {
			return b
		}
	}
	return nil
}

// claimLocked encodes waiting calls into a new batch at the end of flight.
func (l *lane) claimLocked() *batch {
	b := &batch{since: l.mu.queue[0].since}
	builders := &l.p.m.builders
	builder := builders.get(l.p.m.cfg.Clock.Now())
	n, room := 0, min(len(l.mu.queue), 128)
	b.values = l.p.life
	b.calls, b.counts = make([]*call, 0, room), make([]int, 0, room)
claiming:
	for _, c := range l.mu.queue {
		switch {
		case c == nil:
		case c.isMark():
			c.state = callEnded
			b.after = append(b.after, ending{call: c})
		case b.size > 0 && b.size+c.size > l.limit:
			break claiming
		default:
			if b.size == 0 && c.values != nil {
				b.values = context.WithoutCancel(c.values)
			}
			for i := range c.records {
				builder.Append(&c.records[i])
			}
			c.state, c.batch, c.place = callClaimed, b, len(b.calls)
			b.calls, b.counts = append(b.calls, c), append(b.counts, len(c.records))
			b.size += c.size
			b.count += len(c.records)
			c.records = nil
		}
		n++
	}
	l.dequeueLocked(n)
	l.waiting.Add(-int64(b.size))
	b.data = builder.Build(BatchInfo{
		Incarnation: l.incarnation, Codec: l.p.cfg.Codec,
		Producer: ProducerBatch{ID: l.mu.identity.id, Epoch: l.mu.identity.epoch, First: l.mu.next},
	})
	builders.put(builder)
	b.first, b.numbered = l.mu.next, true
	if l.mu.identity.id != 0 {
		l.mu.next += Sequence(b.count)
	}
	l.mu.flight = append(l.mu.flight, b)
	return b
}

// numberLocked gives a batch its numbers, again if it had others.
func (l *lane) numberLocked(b *batch) {
	if b.sent && b.given {
		b.data, b.given = bytes.Clone(b.data), false
	}
	if b.numbered {
		return
	}
	b.first, b.numbered = l.mu.next, true
	l.mu.next += Sequence(b.count)
	binary.LittleEndian.PutUint64(b.data[offProducer:], uint64(l.mu.identity.id))
	binary.LittleEndian.PutUint32(b.data[offEpoch:], uint32(l.mu.identity.epoch))
	binary.LittleEndian.PutUint64(b.data[offSequence:], uint64(b.first))
	Batch{b.data}.sign()
}

// sendHere appends a batch to the leader on this node. With an error nothing
// was appended, and there is no answer.
func (l *lane) sendHere(b *batch, r *replica) error {
	if err := l.p.m.refuses(r); err != nil {
		return err
	}
	b.given = true
	if l.p.m.cfg.Trace == nil {
		return r.part.appendOwn(Batch{b.data}, func(a Ack) { l.answered(b, a.Base, l.p.m.reopen(r, a.Err)) })
	}
	_, end := l.p.m.cfg.Trace.begin(b.values, l.operation(OpCommit, b, l.p.m.cfg.Node))
	err := r.part.appendOwn(Batch{b.data}, func(a Ack) {
		a.Err = l.p.m.reopen(r, a.Err)
		end(a.Err)
		l.answered(b, a.Base, a.Err)
	})
	if err != nil {
		end(err)
	}
	return err
}

// answered takes in what became of a batch.
func (l *lane) answered(b *batch, base storage.Offset, err error) {
	l.mu.Lock()
	if l.mu.ended != nil {
		l.mu.Unlock()
		return
	}
	out := l.answerLocked(nil, b, base, err)
	l.unlock(l.pumpSoonLocked(out))
	var fenced *FencedError
	if errors.As(err, &fenced) {
		l.p.fence(err)
	}
}

func (l *lane) answerLocked(out []ending, b *batch, base storage.Offset, err error) []ending {
	l.mu.out--
	b.flying = false
	if err == nil {
		l.mu.pause, l.mu.last = backoff{}, nil
		l.trouble.Store(0)
		s := &l.p.m.stats
		s.batches.Add(1)
		s.records.Add(uint64(b.count))
		s.bytes.Add(uint64(len(b.data)))
		out = l.removeLocked(out, b, base, nil)
	} else {
		l.mu.last = err
		out = l.failedLocked(out, b, err)
	}
	if l.mu.recovering && l.mu.ended == nil {
		l.recoverLocked()
	}
	return out
}

// removeLocked takes a batch out of flight and ends its calls. Callbacks wait
// for those of the batches before it.
func (l *lane) removeLocked(out []ending, b *batch, base storage.Offset, err error) []ending {
	i := slices.Index(l.mu.flight, b)
	l.mu.flight = slices.Delete(l.mu.flight, i, i+1)
	l.p.room.give(b.size)
	if i == 0 {
		return b.end(out, base, l.about(err))
	}
	before := l.mu.flight[i-1]
	for _, e := range b.end(nil, base, l.about(err)) {
		if !e.call.async {
			out = append(out, e)
		} else {
			before.after = append(before.after, e)
		}
	}
	return out
}

// maxRenewed is how often a batch gets a new identity before its calls fail.
const maxRenewed = 3

// failedLocked decides what to do about a batch that was not acknowledged.
func (l *lane) failedLocked(out []ending, b *batch, err error) []ending {
	outcome := raftlog.OutcomeOf(err)
	var fenced *FencedError
	switch {
	case errors.Is(err, ErrTopicIncarnationMismatch), errors.Is(err, ErrSealed), errors.Is(err, ErrRetired), errors.Is(err, ErrTopicDeleted):
		if !errors.Is(err, ErrTopicIncarnationMismatch) && !errors.Is(err, ErrTopicDeleted) {
			err = fmt.Errorf("%w (%w)", ErrTopicDeleted, err)
		}
		l.p.doubt(l)
		return l.endLocked(out, err)
	case errors.As(err, &fenced):
		return l.endLocked(out, err)
	case l.p.cfg.Anonymous:
		if outcome != raftlog.OutcomeRetry {
			return l.removeLocked(out, b, NoOffset, err)
		}
		l.mu.recovering = true
		return out
	case l.hopelessLocked(b, err):
		l.mu.recovering, l.mu.renew = true, true
		if b.renewed++; b.renewed > maxRenewed || outcome == raftlog.OutcomeUnknown {
			return l.removeLocked(out, b, NoOffset, err)
		}
		return out
	case outcome == raftlog.OutcomeRefused: // and leaves a gap
		l.mu.recovering, l.mu.renew = true, true
		return l.removeLocked(out, b, NoOffset, err)
	}
	b.unknown = b.unknown || outcome == raftlog.OutcomeUnknown
	l.mu.recovering = true
	return out
}

// hopelessLocked reports whether no repetition with the same numbers would ever
// be appended.
func (l *lane) hopelessLocked(b *batch, err error) bool {
	if errors.Is(err, ErrUnknownProducer) {
		return true
	}
	var order *OutOfOrderError
	if !errors.As(err, &order) {
		return false
	}
	// A gap closes when those before are appended, unless there are none.
	return order.First < order.Next || l.mu.flight[0] == b
}

// fail ends the lane and everything that waits in it.
func (l *lane) fail(err error) {
	l.mu.Lock()
	var out []ending
	if l.mu.ended == nil {
		out = l.endLocked(nil, err)
	}
	l.unlock(out)
}

func (l *lane) endLocked(out []ending, err error) []ending {
	err = l.about(err)
	l.mu.ended = err
	for _, b := range l.mu.flight {
		e := err
		if b.unknown = b.unknown || b.flying; !b.unknown {
			e = notSent(err)
		}
		l.p.room.give(b.size)
		out = b.end(out, NoOffset, e)
	}
	for _, c := range l.mu.queue {
		if c == nil {
			continue
		}
		c.state = callEnded
		l.p.room.give(c.size)
		out = append(out, ending{c, ended{NoOffset, notSent(err)}})
	}
	l.mu.flight, l.mu.queue = nil, nil
	l.mu.watches.endIdle()
	l.waiting.Store(0)
	l.dropLocked()
	return out
}

// dropLocked forgets a lane that has ended, but not who numbered its batches:
// see Producer.lane.
func (l *lane) dropLocked() {
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	l.over.Store(true)
	delete(p.mu.lanes, l.address)
	if spent := l.mu.identity; spent.id != 0 {
		spent.used = true
		p.mu.spent[l.address] = spent
	}
}
