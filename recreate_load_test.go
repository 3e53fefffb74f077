package stele_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/storage"
)

// lifeLog is what a test knows of the lives of one topic's name, which are numbered from
// 0, and of what producers and readers met in them. Each record says in which life of
// the name its call began, and is unlike every other one.
type lifeLog struct {
	c          *testcluster.Cluster
	topic      string
	partitions uint32
	loads      map[int]*lifeLoad
	rounds     atomic.Int64 // that producers and readers have left

	mu       sync.Mutex
	begun    int // the newest life whose creation was called
	made     int // the newest one whose creation returned; -1: none
	ended    int // the newest one whose deletion returned; -1: none
	ids      []storage.Incarnation
	floor    map[int]int // by member: made, when its process began
	sent     map[string]*sentRecord
	sessions []*session
}

// sentRecord is a record that was sent by its name: it may be in one of the lives from
// first to last, which were there while its call went on.
type sentRecord struct {
	first, last int // not before the one that was there when its call began
	acked       bool
	at          stele.Position
}

// session is what one reader gave.
type session struct {
	member      int
	partition   uint32
	first, last int // lives in which it may have been opened
	from        stele.Offset
	values      []string // without a gap
}

func newLifeLog(c *testcluster.Cluster, topic string, partitions uint32) *lifeLog {
	return &lifeLog{
		c: c, topic: topic, partitions: partitions, made: -1, begun: -1, ended: -1,
		loads: map[int]*lifeLoad{}, floor: map[int]int{}, sent: map[string]*sentRecord{},
	}
}

// begin and end enclose the creation of the next life.
func (l *lifeLog) begin() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
	return l.begun
}

func (l *lifeLog) end(inc storage.Incarnation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made = l.begun
	l.ids = append(l.ids, inc)
}

// ends notes that a life was deleted.
func (l *lifeLog) ends(life int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = life
}

// newest is the newest life that may be there.
func (l *lifeLog) newest() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun
}

// starts notes that a member's process begins: whatever is read there by its topic's
// name is of this life or a later one, however long the member was away.
func (l *lifeLog) starts(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.floor[i] = max(l.made, 0)
}

// lifeLoad is what works with the topic on one member, until its node ends or stop.
type lifeLoad struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

const lifeThink = 15 * time.Millisecond

// load has a producer of the member's own name, which waits for the node to be ready,
// and a reader work on a member.
func (l *lifeLog) load(i int) {
	l.stop(i)
	ctx, cancel := context.WithCancel(context.Background())
	load, node := &lifeLoad{cancel: cancel}, l.c.Node(i)
	l.loads[i] = load
	load.wg.Go(func() {
		if node.WaitReady(ctx) == nil {
			l.produce(ctx, i, node)
		}
	})
	load.wg.Go(func() { l.read(ctx, i, node) })
}

func (l *lifeLog) stop(i int) {
	if load := l.loads[i]; load != nil {
		load.cancel()
		load.wg.Wait()
		delete(l.loads, i)
	}
}

func (l *lifeLog) stopAll() {
	for i := range l.c.Size() {
		l.stop(i)
	}
}

// restFor waits a little, and reports whether there is more to do.
func restFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// roundsOfLife is how often the producers and readers of all members do something in a
// life, so that one that takes long costs no more.
const roundsOfLife = 250

// round waits until there is something to do, and reports whether there is.
func (l *lifeLog) round(ctx context.Context) bool {
	for restFor(ctx, lifeThink) {
		if l.rounds.Add(-1) >= 0 {
			return true
		}
		if !restFor(ctx, 200*time.Millisecond) {
			break
		}
	}
	return false
}

// over reports whether nobody works with a node any more; an error of one that goes on
// has an outcome.
func (l *lifeLog) over(node *stele.Node, err error) bool {
	if code := node.Readiness().Code; code == stele.Closed || code == stele.Removed {
		return true
	}
	if err != nil && !errors.Is(err, stele.ErrRetry) && !errors.Is(err, stele.ErrRefused) && !errors.Is(err, stele.ErrOutcomeUnknown) {
		l.c.T.Errorf("an error without an outcome: %v", err)
	}
	return false
}

func (l *lifeLog) produce(ctx context.Context, i int, node *stele.Node) {
	p, err := node.NewProducer(stele.ProducerConfig{Name: fmt.Sprint("of-member-", i)})
	if err != nil {
		return
	}
	defer p.Close(ctx)
	for n := 0; l.round(ctx); n++ {
		values, records := l.draw(i, 1+n%3)
		positions, err := p.ProduceTo(ctx, l.topic, uint32(i+n)%l.partitions, records...)
		l.sentBy(i, values, positions, err)
		if l.over(node, err) {
			return
		}
	}
}

func (l *lifeLog) draw(i, n int) (values []string, records []stele.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		v := fmt.Sprintf("life %d, member %d, record %d", max(l.made, l.ended+1), i, len(l.sent))
		l.sent[v] = &sentRecord{first: max(l.made, l.ended+1), last: -1}
		values, records = append(values, v), append(records, stele.Record{Value: []byte(v)})
	}
	return values, records
}

func (l *lifeLog) sentBy(i int, values []string, positions []stele.Position, err error) {
	l.mu.Lock()
	for _, v := range values {
		l.sent[v].last = l.begun
	}
	l.mu.Unlock()
	if err != nil {
		return
	}
	l.c.Acked(i, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for k, v := range values {
			sent := l.sent[v]
			if sent.acked, sent.at = true, positions[k]; sent.first > sent.last {
				l.c.T.Errorf("%q was acknowledged in life %d, which was over when its call began", v, sent.last)
			}
		}
	})
}

// read opens readers by the topic's name, one after the other.
func (l *lifeLog) read(ctx context.Context, i int, node *stele.Node) {
	for n := 0; l.round(ctx); n++ {
		err := l.readOnce(ctx, i, node, uint32(n)%l.partitions)
		if ctx.Err() == nil && l.over(node, err) {
			return
		}
	}
}

func (l *lifeLog) readOnce(ctx context.Context, i int, node *stele.Node, partition uint32) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	l.mu.Lock()
	s := &session{member: i, partition: partition, first: l.floor[i]}
	l.mu.Unlock()
	r, err := node.NewReader(ctx, stele.TopicPartition{Topic: l.topic, Partition: partition}, stele.FromStart())
	if err != nil {
		return err
	}
	defer r.Close()
	s.from, s.last = r.Offset(), l.newest()
	for range 4 {
		view, err := r.Fetch(ctx, 16<<10)
		if err != nil {
			l.keep(s)
			return err
		}
		for view.Next() {
			if want := s.from + stele.Offset(len(s.values)); view.Offset() != want {
				l.c.T.Errorf("%v on member %d gives offset %d after %d", r, i, view.Offset(), want-1)
			}
			s.values = append(s.values, string(view.Record().Value))
		}
		if err := view.Err(); err != nil {
			return err
		}
	}
	l.keep(s)
	return nil
}

func (l *lifeLog) keep(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions = append(l.sessions, s)
}

// acked counts the records of the present life that were acknowledged.
func (l *lifeLog) acked() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sent {
		if s.acked && s.first == l.made {
			n++
		}
	}
	return n
}

// verify reads the life that is left through members, and holds against it, and against
// each other, what producers and readers were told in all lives. Nobody works with the
// topic any more.
func (l *lifeLog) verify(members ...int) (records int) {
	t := l.c.T
	t.Helper()
	var logs [][]string // by partition
	for k, i := range members {
		for p := range l.partitions {
			got := l.readAll(i, p)
			if k == 0 {
				logs = append(logs, got)
				records += len(got)
			} else {
				require.Equal(t, logs[p], got, "partition %d through member %d and member %d", p, members[0], i)
			}
		}
	}
	l.verifySent(t, logs)
	l.verifySessions(t)
	return records
}

func (l *lifeLog) readAll(i int, p uint32) []string {
	ctx, cancel := context.WithTimeout(l.c.T.Context(), time.Minute)
	defer cancel()
	return l.c.ReadAll(ctx, i, stele.TopicPartition{Topic: l.topic, Partition: p})
}

// verifySent: the log of the life that is left holds nothing of an earlier one, nothing
// twice, and all that was acknowledged in it, where it was said to be.
func (l *lifeLog) verifySent(t *testing.T, logs [][]string) {
	t.Helper()
	now := l.made
	seen := map[string]stele.Position{}
	for p, values := range logs {
		for o, v := range values {
			at := stele.Position{Partition: uint32(p), Offset: stele.Offset(o)}
			s := l.sent[v]
			switch before, twice := seen[v]; {
			case s == nil:
				t.Errorf("%v holds %q, which nobody sent", at, v)
			case s.last < now:
				t.Errorf("%v of life %d holds %q, whose call had ended in life %d", at, now, v, s.last)
			case s.acked && s.at != at:
				t.Errorf("%v holds %q, which was acknowledged at %v", at, v, s.at)
			case twice:
				t.Errorf("%q is at %v and at %v", v, before, at)
			}
			seen[v] = at
		}
	}
	for v, s := range l.sent {
		if _, there := seen[v]; !there && s.acked && s.first == now {
			t.Errorf("%q, acknowledged at %v in life %d, is lost", v, s.at, now)
		}
	}
}

// verifySessions: all that a reader gave is of one life, which may have been there when
// it was opened, and is where it was acknowledged in that life.
func (l *lifeLog) verifySessions(t *testing.T) {
	t.Helper()
	type place struct {
		life int
		at   stele.Position
	}
	is := map[place]string{}
	for v, s := range l.sent {
		if !s.acked || s.first != s.last {
			continue
		}
		at := place{s.first, s.at}
		if other, taken := is[at]; taken {
			t.Errorf("%v of life %d was acknowledged to %q and to %q", s.at, s.first, other, v)
		}
		is[at] = v
	}
	for _, s := range l.sessions {
		first, last := s.first, s.last
		for _, v := range s.values {
			if sent := l.sent[v]; sent == nil {
				t.Errorf("a reader on member %d gave %q, which nobody sent", s.member, v)
			} else if first = max(first, sent.first); sent.last >= 0 {
				last = min(last, sent.last)
			}
		}
		if first > last {
			t.Errorf("a reader on member %d, opened in life %d to %d, gave what is not of one of them: %q", s.member, s.first, s.last, s.values)
		}
		if first != last {
			continue
		}
		for k, v := range s.values {
			at := place{first, stele.Position{Partition: s.partition, Offset: s.from + stele.Offset(k)}}
			if want, known := is[at]; known && want != v {
				t.Errorf("a reader on member %d gave %q at %v of life %d, where %q was acknowledged", s.member, v, at.at, first, want)
			}
		}
	}
}
