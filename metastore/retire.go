package metastore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stelelog/stele/raftlog"
)

// A topic that is deleted with a grace can be brought back, as it was, until the
// grace has ended:
//
//	            retire                retired: all partitions are closed
//	active ───────────────▶ retiring ─────────────────────────▶ retired
//	  ▲                      ▲     │ restore                     │   │ purge: the
//	  │                      │     ▼                             │   │ grace is over
//	  │       restored       │   restoring ◀─────────────────────┘   │
//	  └──────────────────────┼────── │           restore             ▼
//	     all are open again  └───────┘ retire                     deleting ──▶ deleted
//
// and from every state but deleted to deleting, which is a deletion without a grace.
// From there nothing comes back.
//
// Each deletion with a grace has a number, which rises along the topic's life, and
// all that follows names it: so of what was proposed for one deletion nothing
// happens to a topic that was brought back since, and deleted again, or not. What
// closes and opens the partitions carries the number too (package topic). A topic that
// is retiring or retired gets the next number when it is deleted once more: somebody may
// have asked for it to be brought back, by the number of before, and not know what came
// of it, and that may come late. What closes its partitions does not follow: all that
// the topic is closed for from when it was retiring is one, and has the first of these
// numbers. So whoever closes them gets done, however often the deletion is asked for.
//
// Whether a topic is brought back or purged is decided by the order of these
// commands alone: each leads out of the state that the other one needs.

// # After a forced recovery
//
// A forced recovery may lose the end of the metadata's log, and that of a partition's.
// So the metadata may know less of a topic's deletions than its partitions do, and one
// partition less than the metadata. Neither is ever made good by the numbers of before:
// a partition passes over what is below the number that it has heard of. Therefore
//
//	a topic that is retiring, retired   goes on under a number of the new epoch, which
//	or restoring                        is above all that its partitions can have heard
//	                                    of: they are closed, or opened, anew. What was
//	                                    retired is retiring again meanwhile
//	a topic that is active              keeps its number. What a partition of it was
//	                                    closed for is opened when it is met (TakenBack)
//
// TakenBack is the number up to which deletions are known to be taken back. It may be
// old, as of any node: whatever it opens, no deletion that stands is opened by it (I11).
// Be it n, of an epoch e, read where the topic was active or restoring; and let a
// deletion d stand in the metadata that go on, of which that is an earlier state, or a
// state that a recovery has cut off.
//
//  1. d came later, in epoch e: then its first number follows the topic's, and one of
//     epoch e is above n, which is the topic's number, or 0 of epoch e.
//  2. d came later, or goes on, in a later epoch: then it is above all of epoch e.
//  3. d came earlier: then it was taken back where n was read. In the metadata that go
//     on it stands if what took it back was lost, and until the recovery there is
//     applied. Who asked for the deletion then has asked for the topic, too, since.
//
// A partition that hears of n and of d, in whatever order, is closed in 1 and 2. What a
// recovery loses is lost: a deletion that returned, when the metadata lose it, and when
// a partition does, that it is closed, until it has been closed for the new number. The
// topic is retired again once all are.

// Bounds of the grace of a deletion.
const (
	MinDeleteGrace = time.Second
	MaxDeleteGrace = 10 * 365 * 24 * time.Hour
)

// Deletion is when a topic was deleted with a grace, and until when it can be
// brought back.
type Deletion struct {
	// Number tells the deletions of a topic's life apart. It rises, also when a
	// deletion is asked for of a topic that is retired, and with a forced recovery; and
	// stays when the topic is brought back. 0: there was none.
	Number uint64
	// First is the number for which the partitions are closed: Number as it was when the
	// topic became retiring, or when a forced recovery gave it another one. 0 if it is
	// active.
	First uint64
	// At is when it was asked for, by the clock of the node that was asked; Until is
	// when the grace ends. Both are 0 of a topic that was brought back.
	At, Until Stamp
}

// nextDeletion is the number of the deletion that follows another one, in a recovery
// epoch. As ids do, it carries the epoch: a forced recovery may have lost numbers
// that partitions have seen.
func nextDeletion(last, epoch uint64) uint64 {
	if of, n := splitID(last); of == epoch {
		return makeID(epoch, n+1)
	}
	return makeID(epoch, 1)
}

// checkGrace refuses a grace that no deletion can have.
func checkGrace(grace time.Duration) error {
	if grace < MinDeleteGrace || grace > MaxDeleteGrace {
		return invalid("DeleteGrace", grace, "%v to %v (10 years), or 0: none", MinDeleteGrace, MaxDeleteGrace)
	}
	return nil
}

// retireTopic deletes a topic with a grace.
type retireTopic struct {
	Incarnation raftlog.Incarnation
	Number      uint64 // of the deletion
	At, Until   Stamp
}

func (retireTopic) kind() CommandType { return typeRetireTopic }

func (c retireTopic) check() error {
	if c.Until < c.At || c.Until-c.At > Stamp(MaxDeleteGrace.Milliseconds()) {
		return invalid("Deletion.Until", uint64(c.Until), "%d to %d, which is when the deletion was asked for and %v", uint64(c.At), uint64(c.At)+uint64(MaxDeleteGrace.Milliseconds()), MaxDeleteGrace)
	}
	return checkGrace(time.Duration(c.Until-c.At) * time.Millisecond)
}

func (c retireTopic) appendBody(b []byte) []byte {
	b = appendUint(append(b, c.Incarnation[:]...), c.Number)
	return appendUint(appendUint(b, uint64(c.At)), uint64(c.Until))
}

func (d *decoder) retireTopic() retireTopic {
	return retireTopic{d.id16(), d.uint(), Stamp(d.uint()), Stamp(d.uint())}
}

// apply may be applied twice. It is to name the next deletion, or, where that has
// come about, the one that there is: a copy that comes after the topic was brought back
// names one that has passed. Of a topic that is retired already the grace ends at the
// later of the two moments, so that nobody takes back what an earlier call promised;
// and it gets the number, so that what was asked before to bring the topic back, and
// comes late, names a deletion that has passed. Of that nothing is to be seen in the
// state: so it gets the number always. Its partitions stay as they are: they are closed,
// or are being closed, for First. Nobody opens them for that, or a number that came
// after it: none was taken back, since the topic was neither restoring nor active.
func (c retireTopic) apply(t *tx) (any, error) {
	head, ok := t.topic(c.Incarnation)
	if !ok {
		return nil, ErrTopicNotFound
	}
	last, retired := head.Deletion, head.State == TopicRetiring || head.State == TopicRetired
	switch {
	case head.State == TopicDeleting:
		return nil, named(ErrTopicDeleting, head.Name)
	case c.Number != nextDeletion(last.Number, t.cluster().Epoch) && !(retired && c.Number == last.Number):
		return nil, staleDeletion(head, c.Number)
	case retired:
		head.Deletion = Deletion{c.Number, last.First, last.At, max(last.Until, c.Until)}
	default:
		head.State, head.Deletion = TopicRetiring, Deletion{c.Number, c.Number, c.At, c.Until}
	}
	t.putHead(c.Incarnation, head)
	return again(t, createTopic{Incarnation: c.Incarnation, Name: head.Name}, head)
}

func staleDeletion(head topicHead, number uint64) error {
	return fmt.Errorf("%w: topic %q is %v, its last deletion is number %d, not %d", ErrStale, head.Name, head.State, head.Deletion.Number, number)
}

// putHead writes a topic's head, and has the catalog follow.
func (t *tx) putHead(i raftlog.Incarnation, head topicHead) {
	t.put(keyIncarnation(tableTopic, i), head.encode())
	t.changes = append(t.changes, change{of: i, state: head.State, deletion: head.Deletion})
}

// stepTopic leads a topic that was deleted with a grace to another state.
type stepTopic struct {
	Incarnation raftlog.Incarnation
	Number      uint64 // of the deletion; its First, if To is TopicRetired
	To          TopicState
	Now         Stamp // by the clock of the leader that proposed it, if To is TopicDeleting; else 0
}

func (stepTopic) kind() CommandType { return typeStepTopic }

func (c stepTopic) check() error {
	switch c.To {
	case TopicRetired, TopicRestoring, TopicActive, TopicDeleting:
	default:
		return invalid("Topic.State", c.To, "%v, %v, %v or %v", TopicRetired, TopicRestoring, TopicActive, TopicDeleting)
	}
	if c.Now != 0 && c.To != TopicDeleting {
		return invalid("Now", uint64(c.Now), "0 but for %v", TopicDeleting)
	}
	return nil
}

func (c stepTopic) appendBody(b []byte) []byte {
	b = append(appendUint(append(b, c.Incarnation[:]...), c.Number), byte(c.To))
	return appendUint(b, uint64(c.Now))
}

func (d *decoder) stepTopic() stepTopic {
	return stepTopic{d.id16(), d.uint(), TopicState(d.byte()), Stamp(d.uint())}
}

// apply may be applied twice: where the topic is as asked, or has gone on from there
// in the same deletion to where this one leads, nothing changes.
func (c stepTopic) apply(t *tx) (any, error) {
	head, ok := t.topic(c.Incarnation)
	if !ok {
		if _, dead := t.tombstone(c.Incarnation); dead && c.To == TopicDeleting {
			return nil, nil
		}
		return nil, ErrTopicNotFound
	}
	if head.State == TopicDeleting && c.To != TopicDeleting {
		return nil, named(ErrTopicDeleting, head.Name)
	}
	from, d := head.State, head.Deletion
	number := d.Number
	if c.To == TopicRetired {
		number = d.First
	}
	if number != c.Number || c.Number == 0 {
		return nil, staleDeletion(head, c.Number)
	}
	switch {
	case from == c.To, from == TopicActive && c.To == TopicRestoring:
		return nil, nil
	case from == TopicRetiring && c.To == TopicRetired:
	case (from == TopicRetiring || from == TopicRetired) && c.To == TopicRestoring:
	case from == TopicRestoring && c.To == TopicActive:
		head.Deletion = Deletion{Number: d.Number}
	case (from == TopicRetiring || from == TopicRetired) && c.To == TopicDeleting && c.Now >= d.Until:
	default:
		return nil, staleDeletion(head, c.Number)
	}
	head.State = c.To
	t.putHead(c.Incarnation, head)
	return nil, nil
}

// settleDeletions has the deletions with a grace that are not over go on under numbers
// of the new epoch.
func (c recovery) settleDeletions(t *tx) error {
	return t.scan([]byte{tableTopic}, func(key, value []byte) error {
		d := decoder{b: value}
		head := d.topicRecord()
		if err := errors.Join(d.end(), wantLength(key, 1+16)); err != nil {
			return damaged("key %q: %w", key, err)
		}
		switch head.State {
		case TopicRetired:
			head.State = TopicRetiring
		case TopicRetiring, TopicRestoring:
		default:
			return nil
		}
		number := nextDeletion(head.Deletion.Number, c.Epoch)
		head.Deletion.Number, head.Deletion.First = number, number
		t.putHead([16]byte(key[1:]), head)
		return nil
	})
}

// TakenBack returns up to which number deletions of a topic are known to be taken back:
// what closed a partition for one of them, or for an earlier one, is to be opened with
// it. 0: nothing is. It is what this node knows (stale), and may be relied on still; it
// can be above the number of any deletion that there was.
func (s *Store) TakenBack(i raftlog.Incarnation) (number uint64) {
	if s.Failed() != nil {
		return 0
	}
	s.machine.read(func(c *catalog) {
		if t := c.topics[i]; t != nil && c.cluster.Version >= typeRetireTopic.needs() {
			number = takenBack(t.State, t.Deletion.Number, c.cluster.Epoch)
		}
	})
	return number
}

// takenBack is TakenBack of a topic in a state, by its last deletion, in an epoch.
func takenBack(s TopicState, last, epoch uint64) uint64 {
	if s != TopicActive && s != TopicRestoring {
		return 0
	}
	return max(last, makeID(epoch, 0))
}

// refusedBy returns why a topic that is not active takes nothing.
func refusedBy(i raftlog.Incarnation, head topicHead) error {
	switch head.State {
	case TopicRetiring, TopicRetired:
		return &TopicRetiredError{head.Name, i, head.Deletion.At, head.Deletion.Until}
	case TopicRestoring:
		return named(ErrTopicRestoring, head.Name)
	}
	return named(ErrTopicDeleting, head.Name)
}

// Refusal returns why the topic takes no records and shows none: a
// *TopicRetiredError, ErrTopicRestoring or ErrTopicDeleting; nil of one that is
// active.
func (t *Topic) Refusal() error {
	if t.State == TopicActive {
		return nil
	}
	return refusedBy(t.Incarnation, topicHead{t.State, t.Name, t.Config, t.Deletion})
}

// TopicRetiredError refuses what needs a topic, or its name, of one that was
// deleted with a grace. It matches raftlog.ErrRefused: nothing changes until the
// grace ends, or somebody brings the topic back, or deletes it without a grace.
type TopicRetiredError struct {
	Name        string
	Incarnation raftlog.Incarnation
	At          Stamp // when it was deleted
	// Until is until when it can be brought back, by the clock of the node that was
	// asked for the deletion. Another one's may be two minutes ahead of it at most
	// where the grace ends, so it may end as much earlier; and it may end later.
	Until Stamp
}

func (e *TopicRetiredError) Error() string {
	return fmt.Sprintf("metastore: the topic %q was deleted at %s and keeps its name until %s: until then it can be undeleted, or deleted at once, without a grace",
		e.Name, e.At.Time().UTC().Format(time.RFC3339), e.Until.Time().UTC().Format(time.RFC3339))
}

// Unwrap gives the outcome.
func (e *TopicRetiredError) Unwrap() error { return raftlog.ErrRefused }

// MayRetire returns why no topic can be deleted with a grace, whichever it is: an
// *InvalidError, or a *ClusterVersionError before version 3, as far as this node knows.
func (s *Store) MayRetire(grace time.Duration) error {
	if err := checkGrace(grace); err != nil {
		return err
	}
	if v := s.ClusterVersion(); v < typeRetireTopic.needs() {
		return &ClusterVersionError{Needs: typeRetireTopic.needs(), Has: v}
	}
	return nil
}

// RetireTopic begins a deletion with a grace, which is counted from at: 1 s to 10
// years. t is what was found of the topic. The one that it returns has the number of
// the deletion, and First, by which its partitions are to be closed. A topic that is
// retired already gets the number, and its grace ends at the later of the two moments.
// It may be repeated.
//
// ErrTopicNotFound, ErrTopicDeleting; ErrStale if the topic was deleted or brought
// back since; *InvalidError; *ClusterVersionError before version 3.
func (s *Store) RetireTopic(ctx context.Context, t *Topic, at time.Time, grace time.Duration) (Topic, error) {
	if err := checkGrace(grace); err != nil {
		return Topic{}, err
	}
	number, from := t.Deletion.Number, Stamp(max(0, at.UnixMilli()))
	s.machine.read(func(c *catalog) { number = nextDeletion(number, c.cluster.Epoch) })
	v, err := s.propose(ctx, retireTopic{t.Incarnation, number, from, from + Stamp(grace.Milliseconds())})
	if err != nil {
		return Topic{}, err
	}
	got, ok := v.(*Topic)
	if !ok {
		return Topic{}, errNoValue
	}
	return *got, nil
}

// SetTopicRetired says that all partitions were closed for a deletion, which is the
// First of those since the topic is retiring. It may be repeated. Errors as of
// RetireTopic; ErrStale once the topic is brought back.
func (s *Store) SetTopicRetired(ctx context.Context, i raftlog.Incarnation, first uint64) error {
	_, err := s.propose(ctx, stepTopic{i, first, TopicRetired, 0})
	return err
}

// RestoreTopic begins to bring a topic back that was retired by that deletion: from
// then on it is not purged. It may be repeated. ErrTopicNotFound and ErrTopicDeleting
// come too late; ErrStale if there was another deletion since.
func (s *Store) RestoreTopic(ctx context.Context, i raftlog.Incarnation, number uint64) error {
	_, err := s.propose(ctx, stepTopic{i, number, TopicRestoring, 0})
	return err
}

// SetTopicRestored says that all partitions of a topic that is brought back were
// opened. It may be repeated. Errors as of RestoreTopic; ErrStale, too, if it was
// deleted again.
func (s *Store) SetTopicRestored(ctx context.Context, i raftlog.Incarnation, number uint64) error {
	_, err := s.propose(ctx, stepTopic{i, number, TopicActive, 0})
	return err
}

// PurgeTopic ends the grace of a deletion at now, by this node's clock: the topic is
// TopicDeleting. Only where the metadata is led: else *raftlog.NotLeaderError.
// ErrStale if it was brought back, or the grace ends later.
func (s *Store) PurgeTopic(ctx context.Context, i raftlog.Incarnation, number uint64, now time.Time) error {
	_, err := s.lead(ctx, stepTopic{i, number, TopicDeleting, Stamp(max(0, now.UnixMilli()))})
	return err
}
