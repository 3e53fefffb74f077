package topic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// # Deletions that can be taken back
//
//	active -> retiring     in the metadata, with the number of the deletion and the end of
//	                       its grace; nodes that see it take and show no records
//	retire                 in the log of every partition: nothing is appended behind it,
//	                       on whatever replica and under whatever leader (closing.go)
//	retiring -> retired    in the metadata; DeleteTopic returns
//
//	retired -> restoring   in the metadata: from now on it is not purged
//	restore                in the log of every partition: it takes records again
//	restoring -> active    in the metadata; nodes that see it take and show records;
//	                       UndeleteTopic returns
//
//	retired -> deleting    in the metadata, when the grace has ended; delete.go goes on
//
// Because of the retire no leader that has not heard of the deletion can acknowledge a
// record between the two calls (I11). What takes the topic from retired is the one
// command that comes first in the metadata's log: to bring it back or to purge it. All
// commands and entries name the number of the deletion, so that those that come late
// change nothing. A call that ends early, or whose node dies, is finished by the
// finisher of any node.
//
// # While the grace lasts
//
//   - The name is taken, and so are the topic's places: its partitions count toward
//     all limits.
//   - Everything goes on but records: replicas are open, have leaders, are verified,
//     repaired, filled, audited, and moved, so that a node may leave.
//   - Retention removes nothing that it had not decided to remove before: behind the
//     retire no partition begins later. What has grown too old goes after the topic
//     was brought back, as it would have.
//   - Producers are remembered: their memory is counted in the time of the partition's
//     batches, of which there are none. So who goes on in time is deduplicated. But a
//     producer ends what it has in flight to a topic that is deleted, and tells what it
//     does not know; what it sends later it sends under a new identity.
//   - Readers end (ErrTopicDeleted) when they ask. New ones go on at the same offsets.
//   - A partition without a quorum keeps the topic retiring, or restoring, until it has
//     one. Both can be left by another call: a topic that is retiring can be brought
//     back, one that is restoring deleted again.
//   - A forced recovery has all partitions be closed, or opened, anew (package
//     metastore). What it lost of a deletion nobody knows: a topic of which the
//     metadata lost that it was deleted with a grace lives, and its partitions are
//     opened when somebody writes to them, or calls UndeleteTopic (reopen). Those that
//     a deletion without a grace has sealed stay so: UndeleteTopic says so at once
//     (errEnded). What they hold can be read while the topic is active, and the topic
//     deleted.
//
// # When it ends
//
// The end of the grace is counted from the clock of the node that DeleteTopic was
// called on. A node that leads the metadata purges when its own clock has passed it.
// Both clocks may be wrong, so neither call nor purge happens while the clock is more
// than a minute off the median of those of the members that are not dead, or fewer
// than a majority of them say what theirs is. (clockDoubt; they are asked when there
// is something to decide, for two seconds at most.) A clock that is set back later
// makes the grace longer, never shorter.

// DeleteOption is an option of a call of DeleteTopic.
type DeleteOption struct{ grace time.Duration }

// WithGrace has the topic be kept for a time in which it can be brought back: 1 s to
// 10 years, in whole milliseconds (what is left is cut off). 0: for none, whatever
// Config.DeleteGrace says.
func WithGrace(grace time.Duration) DeleteOption { return DeleteOption{grace} }

// isOver reports whether a topic is deleted for who writes and reads, for now or for
// good.
func isOver(s metastore.TopicState) bool {
	return s != metastore.TopicActive && s != metastore.TopicRestoring
}

// refuses returns why a replica neither takes nor shows records, as far as this node
// knows; nil: it does both.
func (m *Manager) refuses(r *replica) error {
	switch {
	case r.ending.Load():
		return ErrTopicDeleted
	case !r.shut.Load():
		return nil
	}
	if t, err := m.cfg.Meta.TopicByIncarnation(r.incarnation); err == nil && isOver(t.State) {
		return ErrTopicDeleted
	}
	return errNotYet
}

// refusal is refuses for who asks from another node: that a topic with a grace is
// deleted ends them, and is said only after a linearizable read.
func (m *Manager) refusal(ctx context.Context, r *replica) error {
	if err := m.refuses(r); err == nil || r.ending.Load() {
		return err
	}
	if err := m.cfg.Meta.Barrier(ctx); err != nil {
		return raftlog.Retry(fmt.Errorf("%w: %w", errNotYet, withoutOutcome{err}))
	}
	if err := m.refuses(r); err != nil {
		return err
	}
	return errNotYet
}

// retireTopic deletes a topic with a grace.
func (m *Manager) retireTopic(ctx context.Context, t *metastore.Topic, grace time.Duration) error {
	name := t.Name
	if err := m.cfg.Meta.MayRetire(grace); err != nil {
		return explain(ctx, err, "delete %q", name)
	}
	now, err := m.soundClock(ctx)
	if err != nil {
		return explain(ctx, raftlog.Retry(err), "delete %q", name)
	}
	var got metastore.Topic
	for {
		got, err = m.cfg.Meta.RetireTopic(ctx, t, now, grace)
		if !errors.Is(err, metastore.ErrStale) || raftlog.OutcomeOf(err) != raftlog.OutcomeRefused {
			break
		}
		if *t, err = m.findNow(ctx, name); err != nil {
			break
		}
	}
	if err != nil {
		return explain(ctx, err, "delete %q", name)
	}
	if err := m.awaitRetired(ctx, &got); err != nil {
		return raftlog.Unknown(withoutOutcome{explain(ctx, err, "delete %q: it is finished later", name)})
	}
	return nil
}

// findNow is find, not older than any change that was acknowledged before.
func (m *Manager) findNow(ctx context.Context, name string) (metastore.Topic, error) {
	if err := m.barrier(ctx); err != nil {
		return metastore.Topic{}, err
	}
	return m.find(ctx, name)
}

// UndeleteTopic brings back a topic that was deleted with a grace, as it was: with its
// incarnation, its records and their offsets, and what is remembered of producers.
// When it returns nil, the topic takes and shows records; of one that is not deleted it
// returns nil at once. It may be called again after an error.
//
// After a forced recovery it opens what a deletion has closed that the metadata lost,
// also of a topic that is not deleted, which then needs quorums; without one the error
// is one of Retry. What a deletion without a grace has closed that the metadata lost
// stays closed. Then the error is one of Refused, also where the topic began to be
// brought back, and all that is left is to delete it: if it is active its records can be
// read before. ErrTopicDeleted is what is said of a record for such a partition.
//
// Errors: metastore.ErrTopicNotFound, after a linearizable read, and ErrTopicDeleted
// come too late. If ctx ends, or a partition has no quorum, the outcome is unknown:
// once it has begun it is finished in the background when there are quorums, and the
// topic is not purged meanwhile.
func (m *Manager) UndeleteTopic(ctx context.Context, name string) (metastore.Topic, error) {
	ctx, end := m.cfg.Trace.begin(ctx, Operation{Name: OpUndeleteTopic, Topic: name, Partition: -1})
	t, err := m.undeleteTopic(ctx, name)
	end(err)
	return t, err
}

func (m *Manager) undeleteTopic(ctx context.Context, name string) (metastore.Topic, error) {
	ctx, cancel, err := m.whileOpen(ctx)
	defer cancel()
	var t metastore.Topic
	for err == nil {
		if t, err = m.findNow(ctx, name); err != nil || t.State != metastore.TopicRetiring && t.State != metastore.TopicRetired {
			break
		}
		err = m.cfg.Meta.RestoreTopic(ctx, t.Incarnation, t.Deletion.Number)
		if err == nil {
			t.State = metastore.TopicRestoring
			break
		}
		if raftlog.OutcomeOf(err) == raftlog.OutcomeUnknown {
			break
		}
		if errors.Is(err, metastore.ErrStale) || errors.Is(err, metastore.ErrTopicNotFound) || errors.Is(err, metastore.ErrTopicDeleting) {
			err = nil // somebody was faster: whatever it is by now
		}
	}
	switch {
	case err != nil:
		return metastore.Topic{}, explain(ctx, err, "undelete %q", name)
	case t.State == metastore.TopicActive:
		if err := m.openActive(ctx, t); err != nil {
			return metastore.Topic{}, err
		}
		return t, nil
	case t.State == metastore.TopicDeleting:
		return metastore.Topic{}, explain(ctx, ErrTopicDeleted, "undelete %q: it is too late", name)
	}
	if err := m.finishRestore(ctx, &t); errors.Is(err, errEnded) {
		return metastore.Topic{}, explain(ctx, err, "undelete %q", name)
	} else if err != nil {
		return metastore.Topic{}, raftlog.Unknown(withoutOutcome{explain(ctx, err, "undelete %q: it is finished later", name)})
	}
	if now, err := m.cfg.Meta.TopicByIncarnation(t.Incarnation); err == nil {
		t = now
	}
	return t, nil
}

// openActive opens the partitions of a topic that lives, if a forced recovery may have
// left them closed.
func (m *Manager) openActive(ctx context.Context, t metastore.Topic) error {
	number := m.cfg.Meta.TakenBack(t.Incarnation)
	if number <= t.Deletion.Number {
		return nil // it was said when the last one was taken back, or there was none
	}
	if err := m.closeAll(ctx, &t, KindRestore, number); errors.Is(err, errEnded) {
		return explain(ctx, err, "undelete %q: it is not deleted, and its records can be read; copy what is needed", t.Name)
	} else if err != nil {
		return raftlog.Retry(withoutOutcome{explain(ctx, err, "undelete %q: it is not deleted, but of its partitions some may be closed", t.Name)})
	}
	return nil
}

// reopen returns what became of a batch, and has the partition be opened if that is
// closed for a deletion that was taken back. It does not block.
func (m *Manager) reopen(r *replica, err error) error {
	var closed *retiredError
	if err == nil || !errors.As(err, &closed) {
		return err
	}
	number := m.cfg.Meta.TakenBack(r.incarnation)
	if number < closed.number {
		return err
	}
	if r.reopening.CompareAndSwap(false, true) {
		if err := r.part.Restore(number, func(error) { r.reopening.Store(false) }); err != nil {
			r.reopening.Store(false)
		}
	}
	return errNotYet
}

// awaitRetired is finishRetire, and goes on if the topic was brought back meanwhile and
// deleted once more, or the cluster recovered, so that its partitions are to be closed
// for another number: the topic is deleted when all of them are, for whichever deletion.
func (m *Manager) awaitRetired(ctx context.Context, t *metastore.Topic) error {
	for {
		err := m.finishRetire(ctx, t)
		if !errors.Is(err, errOtherwise) && !errors.Is(err, metastore.ErrStale) {
			return err
		}
		if err := m.barrier(ctx); err != nil {
			return err
		}
		now, e := m.cfg.Meta.TopicByIncarnation(t.Incarnation)
		if e != nil || now.Deletion.First <= t.Deletion.First || now.State != metastore.TopicRetiring && now.State != metastore.TopicRetired {
			return err
		}
		*t = now
	}
}

// finishRetire closes all partitions of a topic that is retiring. It may be done by
// many at once: all of them do it for the same number, whatever was asked since.
func (m *Manager) finishRetire(ctx context.Context, t *metastore.Topic) error {
	if t.State == metastore.TopicRetired {
		return nil
	}
	if err := m.closeAll(ctx, t, KindRetire, t.Deletion.First); err != nil {
		return err
	}
	return m.cfg.Meta.SetTopicRetired(ctx, t.Incarnation, t.Deletion.First)
}

// finishRestore opens all partitions of a topic that is restoring. It may be done by
// many at once.
func (m *Manager) finishRestore(ctx context.Context, t *metastore.Topic) error {
	if err := m.closeAll(ctx, t, KindRestore, t.Deletion.Number); err != nil {
		return err
	}
	return m.cfg.Meta.SetTopicRestored(ctx, t.Incarnation, t.Deletion.Number)
}

// errOtherwise ends an attempt to finish what was taken back, or overtaken.
var errOtherwise = errors.New("the topic was brought back, or deleted otherwise, meanwhile")

// errEnded ends an attempt to open a partition whose seal is left of a deletion without a
// grace that a forced recovery lost. No try ends otherwise.
var errEnded = raftlog.Refused(errors.New("a partition was ended by a deletion without a grace, which a forced recovery lost, and takes no record ever again: delete the topic"))

// ended returns why a sealed partition cannot be opened: the topic is being deleted, or
// is gone, or its metadata do not know of it. Another error says that this is not known.
func (m *Manager) ended(ctx context.Context, i storage.Incarnation) error {
	if err := m.barrier(ctx); err != nil {
		return err
	}
	switch now, err := m.cfg.Meta.TopicByIncarnation(i); {
	case err == nil && now.State != metastore.TopicDeleting && now.State != metastore.TopicDeleted:
		return errEnded
	case err == nil || errors.Is(err, metastore.ErrTopicNotFound):
		return errOtherwise
	default:
		return err
	}
}

// closeAll closes or opens all partitions, wherever their leaders are, until ctx ends
// or the metadata say that it is of no use any more, or a seal does. A partition of
// which a forced recovery left no replica is passed over: as of seal.
func (m *Manager) closeAll(ctx context.Context, t *metastore.Topic, kind Kind, number uint64) error {
	body := encodeClose(kind, number)
	return eachPartition(t, func(a address, p metastore.Partition) error {
		var b backoff
		for len(m.current(a, p).Replicas) > 0 {
			err := m.askLeader(ctx, a, p, methodClose, body, func(r *replica) error { return r.close(ctx, kind, number) })
			if err == nil {
				return nil
			}
			if errors.Is(err, ErrSealed) {
				if err = m.ended(ctx, t.Incarnation); errors.Is(err, errEnded) || errors.Is(err, errOtherwise) {
					return fmt.Errorf("%s/%d: %w", t.Name, p.Index, err)
				}
			}
			if now, e := m.cfg.Meta.TopicByIncarnation(t.Incarnation); e == nil {
				if over, why := overtaken(kind, number, &now); over {
					return why
				}
			}
			if b.wait(ctx, m.cfg.Clock, nil); ctx.Err() != nil {
				return fmt.Errorf("%s/%d: %w (%w)", t.Name, p.Index, raftlog.UnknownCause(ctx), withoutOutcome{err})
			}
		}
		return nil
	})
}

// overtaken reports whether closing, or opening, for a deletion is of no use any more,
// and why: nil if all of it was done. What this node knows may be older than what it
// does.
func overtaken(kind Kind, number uint64, now *metastore.Topic) (over bool, why error) {
	s, n := now.State, now.Deletion.Number
	if kind == KindRetire && (s == metastore.TopicRetiring || s == metastore.TopicRetired) {
		n = now.Deletion.First
	}
	switch {
	case s == metastore.TopicDeleting, s == metastore.TopicDeleted, n > number:
		return true, errOtherwise
	case n < number:
		return false, nil
	case kind == KindRestore:
		return s == metastore.TopicActive, nil
	case s == metastore.TopicRestoring, s == metastore.TopicActive:
		return true, errOtherwise
	}
	return s == metastore.TopicRetired, nil
}

// close closes or opens the partition for a deletion, and waits for it.
func (r *replica) close(ctx context.Context, kind Kind, number uint64) error {
	done := make(chan error, 1)
	if err := r.part.close(kind, number, func(err error) { done <- err }); err != nil {
		return err
	}
	return await(ctx, done)
}

func (m *Manager) serveClose(ctx context.Context, r *replica, _ byte, body []byte) ([]byte, error) {
	kind, number, err := decodeClose(body)
	if err == nil {
		err = r.close(ctx, kind, number)
	}
	if err != nil {
		return nil, err
	}
	return responseHead(0), nil
}

func encodeClose(kind Kind, number uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{byte(kind)}, number)
}

func decodeClose(body []byte) (Kind, uint64, error) {
	if len(body) != 9 || Kind(body[0]) != KindRetire && Kind(body[0]) != KindRestore {
		return 0, 0, malformed("a close of %d bytes", len(body))
	}
	return Kind(body[0]), binary.LittleEndian.Uint64(body[1:]), nil
}

// clockWait bounds how long the members are waited for that say what their clocks are.
const clockWait = 2 * time.Second

// soundClock returns this node's time, or why it is not to be relied on.
func (m *Manager) soundClock(ctx context.Context) (time.Time, error) {
	bounded, cancel := within(ctx, m.cfg.Clock, clockWait)
	defer cancel()
	began := m.cfg.Clock.Now().Round(0) // by the clock that can be set, as the answers are
	var (
		asked sync.WaitGroup
		mu    sync.Mutex
		ahead []time.Duration
		nodes = 1
	)
	for _, member := range m.cfg.Meta.Members() {
		if member.Node == m.cfg.Node || member.Liveness.Dead {
			continue
		}
		nodes++
		asked.Go(func() {
			if d, err := m.askTime(bounded, member.Node, methodTime, address{}); err == nil {
				mu.Lock()
				ahead = append(ahead, d)
				mu.Unlock()
			}
		})
	}
	asked.Wait()
	if ctx.Err() != nil {
		return time.Time{}, ctx.Err()
	}
	if why := clockDoubt(ahead, nodes); why != "" {
		return time.Time{}, errors.New("topic: the end of a grace: " + why)
	}
	now := m.cfg.Clock.Now().Round(0)
	if took := now.Sub(began); took < -maxClockOffset || took > clockWait+maxClockOffset {
		return time.Time{}, errors.New("topic: the end of a grace: this node's clock was set while the others were asked for theirs")
	}
	return now, nil
}

// purgeRetired has a topic whose grace is over by this node's clock be deleted, if
// this node leads the metadata. Before that it does nothing.
func (m *Manager) purgeRetired(ctx context.Context, t *metastore.Topic) error {
	if leader, _ := m.cfg.Meta.Leader(); leader != m.cfg.Node || !m.graceOver(t) {
		return nil
	}
	now, err := m.soundClock(ctx)
	if err == nil {
		err = m.cfg.Meta.PurgeTopic(ctx, t.Incarnation, t.Deletion.Number, now)
	}
	if err == nil {
		m.cfg.Logger.Info("the grace of a deleted topic is over", zap.String("topic", t.Name), zap.Stringer("incarnation", t.Incarnation))
	}
	return err
}

// graceOver reports whether a topic is to be purged, by this node's clock.
func (m *Manager) graceOver(t *metastore.Topic) bool {
	return (t.State == metastore.TopicRetiring || t.State == metastore.TopicRetired) && t.Deletion.Until.Time().Before(m.cfg.Clock.Now())
}

// unfinished names what the finisher of deletions waits for: however often somebody
// deletes a topic meanwhile, its turn comes.
type unfinished struct {
	incarnation storage.Incarnation
	state       metastore.TopicState
}

// tryFinish takes the next step of a topic that is on its way.
func (m *Manager) tryFinish(t *metastore.Topic) {
	ctx, cancel := within(m.life, m.cfg.Clock, finishTry)
	defer cancel()
	var err error
	switch t.State {
	case metastore.TopicDeleting:
		err = m.finishDelete(ctx, t)
	case metastore.TopicRestoring:
		err = m.finishRestore(ctx, t)
	default:
		if m.graceOver(t) {
			err = m.purgeRetired(ctx, t)
		} else {
			err = m.finishRetire(ctx, t)
		}
	}
	if err != nil && !errors.Is(err, errOtherwise) && m.life.Err() == nil {
		m.cfg.Logger.Warn("a topic's deletion, or its end, waits", zap.String("topic", t.Name), zap.Stringer("state", t.State), zap.Error(err))
	}
}
