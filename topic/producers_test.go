package topic_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// machine feeds a partition's state with batches, one entry each.
type machine struct {
	state *topic.State
	index storage.Index
	now   time.Time
	last  time.Time // append stamp, which never steps back
}

func newMachine() *machine {
	return &machine{state: topic.NewState(someIncarnation), index: 1, now: someTime}
}

// send applies a batch of count records.
func (m *machine) send(id, epoch, first, count int) topic.Decision {
	m.index++
	return m.state.Apply(m.index, storage.EntryNormal, m.batch(id, epoch, first, count))
}

func (m *machine) batch(id, epoch, first, count int) []byte {
	info := topic.BatchInfo{
		Incarnation: someIncarnation,
		Producer:    topic.ProducerBatch{ID: topic.ProducerID(id), Epoch: topic.ProducerEpoch(epoch), First: topic.Sequence(first)},
	}
	if m.now.After(m.last) {
		m.last = m.now
	}
	return encode(info, m.last, make([]topic.Record, count)...)
}

// reopen goes on with a state that was encoded and decoded.
func (m *machine) reopen(t require.TestingT) {
	data := m.state.Snapshot()
	state, err := topic.ReadSnapshot(data, someIncarnation)
	require.NoError(t, err)
	require.Equal(t, data, state.Snapshot())
	require.Equal(t, m.index, state.Index())
	m.state = state
}

func data(base storage.Offset, count int) topic.Decision {
	return topic.Decision{Verdict: storage.VerdictData, Base: base, Count: uint32(count)}
}

func duplicate(base storage.Offset, count int) topic.Decision {
	return topic.Decision{Verdict: storage.VerdictDuplicate, Base: base, Count: uint32(count)}
}

// requireRefused checks a refusal, its type and its outcome.
func requireRefused(t require.TestingT, d topic.Decision, want error, outcome raftlog.Outcome) {
	require.Equal(t, storage.VerdictRefused, d.Verdict)
	require.Zero(t, d.Count)
	if _, typed := want.(interface{ Is(error) bool }); typed {
		require.Equal(t, want, d.Err)
	} else {
		require.ErrorIs(t, d.Err, want)
	}
	require.Equal(t, outcome, raftlog.OutcomeOf(d.Err))
}

// Property: P4, P9 (red: a newer epoch kept the batches of the older one; fail-over: TestNodesFailUnderLoad)
func TestProducerRules(t *testing.T) {
	m := newMachine()
	require.Equal(t, data(0, 3), m.send(0, 0, 0, 3), "anonymous")
	require.Equal(t, data(3, 3), m.send(0, 0, 0, 3), "and never a duplicate")

	requireRefused(t, m.send(7, 0, 4, 1), &topic.OutOfOrderError{Producer: 7, First: 4}, raftlog.OutcomeRetry)
	require.Equal(t, data(6, 4), m.send(7, 0, 0, 4))
	require.Equal(t, duplicate(6, 4), m.send(7, 0, 0, 4))
	require.Equal(t, data(10, 2), m.send(7, 0, 4, 2))
	require.Equal(t, duplicate(6, 4), m.send(7, 0, 0, 4))
	m.reopen(t)
	require.Equal(t, duplicate(10, 2), m.send(7, 0, 4, 2))

	order := func(epoch topic.ProducerEpoch, first, next topic.Sequence) error {
		return &topic.OutOfOrderError{Producer: 7, Epoch: epoch, First: first, Next: next}
	}
	requireRefused(t, m.send(7, 0, 7, 1), order(0, 7, 6), raftlog.OutcomeRetry)   // a gap
	requireRefused(t, m.send(7, 0, 0, 3), order(0, 0, 6), raftlog.OutcomeUnknown) // grouped otherwise
	requireRefused(t, m.send(7, 0, 1, 3), order(0, 1, 6), raftlog.OutcomeUnknown)
	requireRefused(t, m.send(7, 0, 4, 9), order(0, 4, 6), raftlog.OutcomeUnknown)

	requireRefused(t, m.send(7, 2, 6, 1), order(2, 6, 0), raftlog.OutcomeRetry)
	require.Equal(t, data(12, 4), m.send(7, 2, 0, 4), "a new epoch, with the sequences of the old")
	m.reopen(t)
	require.Equal(t, duplicate(12, 4), m.send(7, 2, 0, 4))
	requireRefused(t, m.send(7, 2, 8, 1), order(2, 8, 4), raftlog.OutcomeRetry)
	for _, first := range []int{0, 4, 6} {
		fenced := &topic.FencedError{Producer: 7, Epoch: 0, Current: 2}
		requireRefused(t, m.send(7, 0, first, 1), fenced, raftlog.OutcomeRefused)
	}
}

// Property: P4 (red: one batch fewer remembered; red: expiry at half the time; red: the newest producer forgotten instead of the oldest)
func TestProducerLimits(t *testing.T) {
	t.Run("batches", func(t *testing.T) {
		m := newMachine()
		for i := range topic.RememberedBatches + 1 {
			require.Equal(t, data(storage.Offset(10*i), 10), m.send(1, 0, 10*i, 10))
		}
		for i := 1; i <= topic.RememberedBatches; i++ {
			require.Equal(t, duplicate(storage.Offset(10*i), 10), m.send(1, 0, 10*i, 10))
		}
		gone := &topic.OutOfOrderError{Producer: 1, First: 0, Next: 10 * (topic.RememberedBatches + 1)}
		requireRefused(t, m.send(1, 0, 0, 10), gone, raftlog.OutcomeUnknown)
	})
	t.Run("hours", func(t *testing.T) {
		m := newMachine()
		m.send(5, 0, 0, 1)
		m.now = m.now.Add(topic.ProducerExpiry)
		require.Equal(t, duplicate(0, 1), m.send(5, 0, 0, 1), "a duplicate does not prolong")
		m.now = m.now.Add(time.Millisecond)
		m.send(0, 0, 0, 1) // time passes by any batch
		m.now = someTime   // and never goes back
		m.reopen(t)
		requireRefused(t, m.send(5, 0, 1, 1), topic.ErrUnknownProducer, raftlog.OutcomeRefused)
		requireRefused(t, m.send(5, 0, 0, 1), topic.ErrUnknownProducer, raftlog.OutcomeRefused)
		requireRefused(t, m.send(4, 0, 0, 1), topic.ErrUnknownProducer, raftlog.OutcomeRefused) // could have been forgotten too
		require.Equal(t, data(2, 1), m.send(5, 1, 0, 1), "its next epoch is new")
		require.Equal(t, data(3, 1), m.send(6, 0, 0, 1), "a newer producer is new")
	})
	t.Run("producers", func(t *testing.T) {
		m := newMachine()
		for id := 1; id <= topic.MaxProducers; id++ {
			m.send(id, 0, 0, 1)
		}
		m.send(1, 0, 1, 1) // 2 is the one that has not written for longest
		m.reopen(t)
		m.send(topic.MaxProducers+1, 0, 0, 1)
		require.Equal(t, topic.MaxProducers, m.state.Producers().Len())
		require.Equal(t, duplicate(0, 1), m.send(1, 0, 0, 1))
		require.Equal(t, duplicate(2, 1), m.send(3, 0, 0, 1))
		requireRefused(t, m.send(2, 0, 1, 1), topic.ErrUnknownProducer, raftlog.OutcomeRefused)
		requireRefused(t, m.send(2, 0, 0, 1), topic.ErrUnknownProducer, raftlog.OutcomeRefused)
	})
}

// attempt is one batch that a producer of the model has sent.
type attempt struct{ id, epoch, first, count int }

// producersModel knows all that ever was appended, and nothing of how a
// partition remembers it.
type producersModel struct {
	*machine
	next     storage.Offset
	appended map[attempt]storage.Offset
	order    []attempt                 // appended, oldest first, since the last one of other producers
	records  map[[3]int]storage.Offset // id, epoch, sequence
	epochs   map[int]int               // highest appended
	ends     map[[2]int]int            // id, epoch: next sequence
	last     map[int]time.Time         // clock of the last append
	recent   []int                     // ids, by last append
	clock    time.Time                 // latest stamp
	freshID  int
}

// Property: P1, P4 (red: a forgotten producer taken for a new one; red: an older epoch let in; red: the base of the newest batch returned for every duplicate)
func TestProducersModel(t *testing.T) {
	full := newMachine() // one short of the limit, so that every new producer costs an old one
	for id := 1; id <= topic.MaxProducers-3; id++ {
		full.send(id, 0, 0, 1)
	}
	snapshot := full.state.Snapshot()
	rapid.Check(t, func(t *rapid.T) {
		state, err := topic.ReadSnapshot(snapshot, someIncarnation)
		require.NoError(t, err)
		m := &producersModel{
			machine: &machine{state: state, index: full.index, now: someTime, last: someTime}, next: topic.MaxProducers - 3,
			appended: map[attempt]storage.Offset{}, records: map[[3]int]storage.Offset{}, epochs: map[int]int{},
			ends: map[[2]int]int{}, last: map[int]time.Time{}, clock: someTime, freshID: topic.MaxProducers,
		}
		for id := 1; id <= topic.MaxProducers-3; id++ {
			m.recent = append(m.recent, id)
			m.last[id] = someTime
		}
		t.Repeat(map[string]func(*rapid.T){
			"send":   m.sendSome,
			"repeat": m.repeat,
			"time": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(-1, 30).Draw(t, "hours")) * time.Hour)
			},
			"reopen": func(t *rapid.T) { m.reopen(t) },
		})
	})
}

// sendSome sends a batch of a producer that is new or was drawn, with a
// sequence that may or may not be the right one.
func (m *producersModel) sendSome(t *rapid.T) {
	a := attempt{count: rapid.IntRange(1, 4).Draw(t, "count")}
	switch {
	case len(m.order) == 0 || rapid.IntRange(0, 3).Draw(t, "new") == 0:
		m.freshID++
		a.id = m.freshID
	default:
		like := rapid.SampledFrom(m.order).Draw(t, "producer")
		a.id, a.epoch = like.id, max(0, m.epochs[like.id]+rapid.IntRange(-1, 1).Draw(t, "epoch"))
	}
	a.first = max(0, m.ends[[2]int{a.id, a.epoch}]+rapid.SampledFrom([]int{0, 0, 0, 0, 1, -1}).Draw(t, "gap"))
	m.try(t, a)
}

func (m *producersModel) repeat(t *rapid.T) {
	if len(m.order) > 0 {
		m.try(t, rapid.SampledFrom(m.order).Draw(t, "batch"))
	}
}

func (m *producersModel) try(t *rapid.T, a attempt) {
	if m.now.After(m.clock) {
		m.clock = m.now
	}
	known := m.known(a.id)
	d := m.send(a.id, a.epoch, a.first, a.count)
	switch d.Verdict {
	case storage.VerdictData:
		m.checkAppend(t, a, d)
	case storage.VerdictDuplicate:
		base, ok := m.appended[a]
		require.True(t, ok, "%+v was never appended", a)
		require.Equal(t, base, d.Base)
	default:
		require.Zero(t, d.Count)
		require.Equal(t, m.next, d.Base)
	}
	m.checkPromises(t, a, d, known)
	if d.Verdict == storage.VerdictData {
		m.noteAppend(a)
	}
}

// checkAppend is what must hold however little is remembered.
func (m *producersModel) checkAppend(t *rapid.T, a attempt, d topic.Decision) {
	require.Equal(t, m.next, d.Base, "gapless")
	require.Equal(t, uint32(a.count), d.Count)
	require.GreaterOrEqual(t, a.epoch, m.epochs[a.id], "an older epoch after a newer one")
	require.Equal(t, m.ends[[2]int{a.id, a.epoch}], a.first, "in order")
	for i := range a.count {
		_, again := m.records[[3]int{a.id, a.epoch, a.first + i}]
		require.False(t, again, "%+v appended twice", a)
	}
}

// checkPromises is what must hold of a producer within the limits, and of one
// that is new.
func (m *producersModel) checkPromises(t *rapid.T, a attempt, d topic.Decision, known bool) {
	end := m.ends[[2]int{a.id, a.epoch}]
	switch _, ever := m.last[a.id]; {
	case !ever && a.first == 0:
		require.Equal(t, storage.VerdictData, d.Verdict, "a new producer")
	case !known:
		require.True(t, a.epoch > m.epochs[a.id] || d.Verdict == storage.VerdictRefused, "%+v forgotten, but %v", a, d)
	case a.epoch < m.epochs[a.id]:
		require.ErrorAs(t, d.Err, new(*topic.FencedError))
	case a.first == end:
		require.Equal(t, storage.VerdictData, d.Verdict, "the next batch")
	case a.first > end:
		require.ErrorAs(t, d.Err, new(*topic.OutOfOrderError))
	case m.remembered(a):
		require.Equal(t, duplicate(m.appended[a], a.count), d)
	}
}

func (m *producersModel) noteAppend(a attempt) {
	m.appended[a] = m.next
	m.order = append(m.order, a)
	for i := range a.count {
		m.records[[3]int{a.id, a.epoch, a.first + i}] = m.next + storage.Offset(i)
	}
	m.next += storage.Offset(a.count)
	m.epochs[a.id] = a.epoch
	m.ends[[2]int{a.id, a.epoch}] = a.first + a.count
	m.last[a.id] = m.clock
	for i, id := range m.recent {
		if id == a.id {
			m.recent = append(m.recent[:i], m.recent[i+1:]...)
			break
		}
	}
	m.recent = append(m.recent, a.id)
}

// known: it wrote within the last 24 hours and is among the last 10,000.
func (m *producersModel) known(id int) bool {
	at, ok := m.last[id]
	if !ok || at.Before(m.clock.Add(-topic.ProducerExpiry)) {
		return false
	}
	for _, other := range m.recent[max(0, len(m.recent)-topic.MaxProducers):] {
		if other == id {
			return true
		}
	}
	return false
}

// remembered: one of the last batches of its producer.
func (m *producersModel) remembered(a attempt) bool {
	n := 0
	for i := len(m.order) - 1; i >= 0; i-- {
		if m.order[i].id != a.id || m.order[i].epoch != a.epoch {
			continue
		}
		if m.order[i] == a {
			return true
		}
		if n++; n == topic.RememberedBatches {
			break
		}
	}
	return false
}

func TestSnapshotGolden(t *testing.T) {
	m := newMachine()
	m.send(3, 0, 0, 1)
	m.now = m.now.Add(topic.ProducerExpiry + time.Hour)
	m.send(9, 4, 0, 200)
	m.now = m.now.Add(time.Minute)
	m.send(300, 0, 0, 2)
	m.send(300, 0, 2, 5)
	m.index++
	m.state.Apply(m.index, storage.EntryNormal, topic.NewSeal(someIncarnation, m.now))
	data := m.state.Snapshot()
	require.Equal(t, golden(t, "producers-v1.golden", data), data)
	m.reopen(t)
	requireRefused(t, m.send(0, 0, 0, 1), topic.ErrSealed, raftlog.OutcomeRefused)
	require.Equal(t, 2, m.state.Producers().Len())
}

// A partition that was closed for a deletion is written in another form.
func TestSnapshotGoldenOfADeletion(t *testing.T) {
	m := newMachine()
	m.send(9, 4, 0, 200)
	for i, kind := range []topic.Kind{topic.KindRetire, topic.KindRestore, topic.KindRetire} {
		m.index++
		m.state.Apply(m.index, storage.EntryNormal, topic.NewClosing(kind, someIncarnation, 300+uint64(i/2), m.now))
	}
	data := m.state.Snapshot()
	require.Equal(t, golden(t, "producers-v2.golden", data), data)
	m.reopen(t)
	closed := m.send(0, 0, 0, 1)
	require.ErrorIs(t, closed.Err, topic.ErrRetired)
	require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(closed.Err))
	m.index++
	m.state.Apply(m.index, storage.EntryNormal, topic.NewClosing(topic.KindRestore, someIncarnation, 301, m.now))
	m.reopen(t)
	require.Equal(t, storage.VerdictData, m.send(0, 0, 0, 1).Verdict)
}

// Property: S11 (red: the number of batches of a producer not checked)
func FuzzSnapshot(f *testing.F) {
	m := newMachine()
	f.Add(m.state.Snapshot())
	closed := newMachine()
	closed.state.Apply(1, storage.EntryNormal, topic.NewClosing(topic.KindRetire, someIncarnation, 300, closed.now))
	spoil(f, closed.state.Snapshot())
	for i := range 20 {
		m.send(i%4, 0, i/4, 1)
	}
	spoil(f, m.state.Snapshot())
	f.Fuzz(func(t *testing.T, data []byte) {
		state, err := topic.ReadSnapshot(data, someIncarnation)
		if err != nil {
			return
		}
		again, err := topic.ReadSnapshot(state.Snapshot(), someIncarnation)
		require.NoError(t, err)
		require.Equal(t, state.Snapshot(), again.Snapshot())
		require.LessOrEqual(t, state.Producers().Len()*7, len(data))
	})
}

func BenchmarkCheck(b *testing.B) {
	p := topic.NewProducers()
	for id := topic.ProducerID(1); id <= topic.MaxProducers; id++ {
		p.Appended(topic.ProducerBatch{ID: id}, 1, 0)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		batch := topic.ProducerBatch{ID: topic.ProducerID(1 + i%topic.MaxProducers), First: topic.Sequence(1 + i/topic.MaxProducers)}
		if _, dup, err := p.Check(batch, 1); dup || err != nil {
			b.Fatal(fmt.Sprint(dup, err))
		}
		p.Appended(batch, 1, 0)
		i++
	}
}
