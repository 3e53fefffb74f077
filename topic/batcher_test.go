package topic_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

var anonymous topic.ProducerBatch

// acks collects what calls are answered, in order.
type acks struct{ got []topic.Ack }

func (a *acks) done(ack topic.Ack) { a.got = append(a.got, ack) }

func values(n, size int) []topic.Record {
	records := make([]topic.Record, n)
	for i := range records {
		records[i].Value = make([]byte, size)
	}
	return records
}

func counts(t *testing.T, batches [][]byte) []int {
	var out []int
	for _, data := range batches {
		b, _, err := topic.ReadBatch(data)
		require.NoError(t, err)
		out = append(out, int(b.Count()))
	}
	return out
}

func TestAnonymousCallsShareBatches(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var (
		h history
		a acks
	)
	for i := range 10 {
		require.NoError(t, r.partition.Append(anonymous, values(1+i%2, 100), a.done))
	}
	require.Equal(t, []int{1}, counts(t, r.waiting()), "the first waits for nobody")
	r.commit(t, &h, 1)
	require.Equal(t, []topic.Ack{{Base: 0, Count: 1}}, a.got)
	require.Equal(t, []int{14}, counts(t, r.waiting()), "the others share the next")
	r.commit(t, &h, 1)
	require.Equal(t, topic.Ack{Base: 1, Count: 2}, a.got[1])
	require.Equal(t, topic.Ack{Base: 13, Count: 2}, a.got[9])
	require.Len(t, a.got, 10)
	require.Empty(t, r.waiting())
}

func TestFullBatchesDoNotWait(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var (
		h history
		a acks
	)
	for range 10 {
		require.NoError(t, r.partition.Append(anonymous, values(1, 400<<10), a.done))
	}
	require.Equal(t, []int{1, 2, 2, 2, 2}, counts(t, r.waiting()), "the last one is open")
	for range 5 {
		r.commit(t, &h, 1)
	}
	require.Equal(t, []int{1}, counts(t, r.waiting()))
	r.commit(t, &h, 1)
	for i, ack := range a.got {
		require.Equal(t, topic.Ack{Base: storage.Offset(i), Count: 1}, ack)
	}
}

func TestProducersDoNotWaitForEachOther(t *testing.T) {
	r := open(t, topic.PartitionConfig{MaxInFlight: 5})
	var (
		h history
		a acks
	)
	for id := range 8 {
		require.NoError(t, r.partition.Append(topic.ProducerBatch{ID: topic.ProducerID(id + 1)}, values(2, 10), a.done))
	}
	require.Len(t, r.waiting(), 5)
	r.commit(t, &h, 2)
	require.Len(t, r.waiting(), 5)
	r.commit(t, &h, 5)
	r.commit(t, &h, 1)
	for i, ack := range a.got {
		require.Equal(t, topic.Ack{Base: storage.Offset(2 * i), Count: 2}, ack)
	}
	require.Len(t, a.got, 8)
}

// Property: P4 (red: a duplicate answered with the offset of its own entry)
func TestRepeatedBatchHasItsOffsets(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var (
		h history
		a acks
	)
	producer := topic.ProducerBatch{ID: 4}
	require.NoError(t, r.partition.Append(anonymous, values(5, 10), a.done))
	require.NoError(t, r.partition.Append(producer, values(3, 10), a.done))
	r.commit(t, &h, 2)
	r.checkpoint(t)
	r.restart(t)
	require.NoError(t, r.partition.Append(producer, values(3, 10), a.done))
	require.NoError(t, r.partition.Append(topic.ProducerBatch{ID: 4, First: 3}, values(1, 10), a.done))
	r.commit(t, &h, 2)
	require.Equal(t, []topic.Ack{{Base: 0, Count: 5}, {Base: 5, Count: 3}, {Base: 5, Count: 3}, {Base: 8, Count: 1}}, a.got)
}

func TestInFlightBytes(t *testing.T) {
	r := open(t, topic.PartitionConfig{MaxInFlightBytes: 3 << 20})
	var (
		h history
		a acks
	)
	for range 3 {
		require.NoError(t, r.partition.Append(anonymous, values(1, 5<<20), a.done))
		require.NoError(t, r.partition.Append(anonymous, values(1, 1<<20), a.done))
	}
	require.Len(t, r.waiting(), 1, "a large one alone")
	for len(a.got) < 6 {
		require.LessOrEqual(t, len(r.waiting()), 2)
		r.commit(t, &h, 1)
	}
}

// Property: R26, P9 (red: the bytes of answered records not given back; the node's budget: TestOverload in raftlog)
func TestOverload(t *testing.T) {
	r := open(t, topic.PartitionConfig{MaxPendingBytes: 1 << 20})
	var (
		h history
		a acks
	)
	require.NoError(t, r.partition.Append(anonymous, values(1, 5<<20), a.done), "what comes alone fits")
	for range 3 {
		err := r.partition.Append(anonymous, values(1, 1), a.done)
		require.ErrorIs(t, err, topic.ErrOverloaded)
		require.ErrorIs(t, err, raftlog.ErrOverloaded)
		require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
	}
	r.commit(t, &h, 1)
	for range 100 {
		require.NoError(t, r.partition.Append(anonymous, values(1, 400<<10), a.done))
		require.NoError(t, r.partition.Append(topic.ProducerBatch{ID: 5}, values(1, 400<<10), a.done))
		require.Error(t, r.partition.Append(anonymous, values(1, 400<<10), a.done))
		for len(r.waiting()) > 0 {
			r.fail(1, raftlog.Retry(raftlog.ErrOverloaded))
		}
	}
}

// Property: R14, P9 (red: a refusal at apply not given to the caller; a real loss of leadership: TestNodesFailUnderLoad)
func TestOutcomes(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var (
		h history
		a acks
	)
	notLeader := &raftlog.NotLeaderError{Group: 7, Leader: 71, Node: 2}
	for _, want := range []error{notLeader, raftlog.Unknown(raftlog.ErrLeadershipLost)} {
		a.got = nil
		for range 3 {
			require.NoError(t, r.partition.Append(anonymous, values(1, 10), a.done))
		}
		r.fail(1, want)
		r.fail(1, want)
		require.Len(t, a.got, 3)
		for _, ack := range a.got {
			require.Equal(t, topic.Ack{Err: want}, ack)
		}
	}
	require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(a.got[2].Err))
	var leader *raftlog.NotLeaderError
	require.ErrorAs(t, fmt.Errorf("produce: %w", notLeader), &leader)

	a.got = nil
	var sealed error
	require.NoError(t, r.partition.Append(topic.ProducerBatch{ID: 1, First: 9}, values(1, 10), a.done))
	require.NoError(t, r.partition.Seal(func(err error) { sealed = errors.Join(err, errors.New("done")) }))
	require.NoError(t, r.partition.Append(anonymous, values(1, 10), a.done))
	r.commit(t, &h, 3)
	require.EqualError(t, sealed, "done")
	require.Equal(t, &topic.OutOfOrderError{Producer: 1, First: 9}, a.got[0].Err)
	require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(a.got[0].Err))
	require.ErrorIs(t, a.got[1].Err, topic.ErrSealed)
	require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(a.got[1].Err))
}

func TestTooLarge(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var a acks
	for _, test := range []struct {
		records []topic.Record
		max     int
	}{
		{values(1, topic.MaxRecordSize+1), topic.MaxRecordSize},
		{values(2, topic.TargetBatchSize/2), topic.TargetBatchSize},
	} {
		var tooLarge *topic.TooLargeError
		err := r.partition.Append(anonymous, test.records, a.done)
		require.ErrorAs(t, err, &tooLarge)
		require.Equal(t, test.max, tooLarge.Max)
		require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
	}
	require.ErrorIs(t, r.partition.Append(anonymous, nil, a.done), raftlog.ErrRefused)
	require.NoError(t, r.partition.Append(anonymous, values(1, topic.MaxRecordSize), a.done))
}

func TestCloseEndsWhatWaits(t *testing.T) {
	r := open(t, topic.PartitionConfig{MaxInFlight: 1})
	var a acks
	for i := range 4 {
		require.NoError(t, r.partition.Append(anonymous, values(1, 10), a.done))
		require.NoError(t, r.partition.Append(topic.ProducerBatch{ID: topic.ProducerID(i + 1)}, values(1, 10), a.done))
	}
	r.partition.Close()
	r.partition.Close()
	require.Len(t, a.got, 7)
	for _, ack := range a.got {
		require.ErrorIs(t, ack.Err, topic.ErrPartitionClosed)
	}
	r.fail(1, raftlog.Unknown(raftlog.ErrClosed))
	require.Len(t, a.got, 8)
	require.ErrorIs(t, r.partition.Append(anonymous, values(1, 10), a.done), topic.ErrPartitionClosed)
	require.ErrorIs(t, r.partition.Seal(func(error) {}), topic.ErrPartitionClosed)
}

// Property: I7 (red: the incarnation not compared)
func TestAppendBatch(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var (
		h history
		a acks
	)
	batch := func(info topic.BatchInfo, n, size int) []byte {
		info.Incarnation = someIncarnation
		return encode(info, someTime, values(n, size)...)
	}
	own := topic.ProducerBatch{ID: 9, Epoch: 1}
	for _, data := range [][]byte{
		batch(topic.BatchInfo{}, 2, 10),                       // goes at once
		batch(topic.BatchInfo{Codec: topic.CodecS2}, 3, 1000), // waits, and is joined by
		batch(topic.BatchInfo{}, 4, 10),
		batch(topic.BatchInfo{}, 1, 200<<10), // as it is
		batch(topic.BatchInfo{Producer: own}, 5, 10),
	} {
		require.NoError(t, r.partition.AppendBatch(data, a.done))
	}
	require.Equal(t, []int{2, 7, 1, 5}, counts(t, r.waiting()))
	for _, data := range r.waiting() {
		b, _, err := topic.ReadBatch(data)
		require.NoError(t, err)
		require.Greater(t, b.Stamp(), someTime.UnixMilli(), "stamped here")
	}
	r.commit(t, &h, 4)
	require.Equal(t, []topic.Ack{{Base: 0, Count: 2}, {Base: 2, Count: 3}, {Base: 5, Count: 4}, {Base: 9, Count: 1}, {Base: 10, Count: 5}}, a.got)
	all, err := r.readAll(1 << 20)
	require.NoError(t, err)
	for _, rec := range all {
		require.Equal(t, someTime, rec.Timestamp)
	}

	foreign := encode(topic.BatchInfo{Incarnation: otherIncarnation}, someTime, values(1, 1)...)
	require.ErrorIs(t, r.partition.AppendBatch(foreign, a.done), topic.ErrTopicIncarnationMismatch)
	for _, bad := range [][]byte{
		nil,
		append(batch(topic.BatchInfo{}, 1, 1), batch(topic.BatchInfo{}, 1, 1)...),
		topic.NewSeal(someIncarnation, someTime),
		miscounted(batch(topic.BatchInfo{}, 3, 10), 2),
		miscounted(batch(topic.BatchInfo{}, 3, 10), 4),
	} {
		require.ErrorIs(t, r.partition.AppendBatch(bad, a.done), topic.ErrCorruptBatch)
	}
	require.Empty(t, r.waiting())
}

// miscounted changes the count that a batch declares.
func miscounted(data []byte, count byte) []byte {
	data[20] = count
	resign(data)
	return data
}

// eager is a group that has always committed already.
type eager struct {
	*replica
	next storage.Offset
}

func (g *eager) Propose(data []byte, done func(raftlog.Proposal)) {
	b, _, err := topic.ReadBatch(data)
	base := g.next
	if err == nil {
		g.next += storage.Offset(b.Count())
	}
	done(raftlog.Proposal{Result: raftlog.Result{Verdict: storage.VerdictData, BaseOffset: base}, Err: err})
}

// BenchmarkAppend is the way of a record through a batcher and back, with a
// batch of its own and in company.
func BenchmarkAppend(b *testing.B) {
	setup := func(b *testing.B) *topic.Partition {
		r := &replica{fs: simfs.New(1), cfg: topic.PartitionConfig{Topic: "orders", Incarnation: someIncarnation}}
		r.state = emptyLog()
		r.start(b)
		b.Cleanup(func() { r.stop(b) })
		p, err := topic.NewPartition(r.cfg)
		require.NoError(b, err)
		p.Bind(&eager{replica: r})
		return p
	}
	record := []topic.Record{benchmarkRecord()}
	b.Run("alone", func(b *testing.B) {
		p := setup(b)
		b.ReportAllocs()
		for b.Loop() {
			_ = p.Append(anonymous, record, func(topic.Ack) {})
		}
	})
	b.Run("shared", func(b *testing.B) {
		r := &replica{fs: simfs.New(1), cfg: topic.PartitionConfig{Topic: "orders", Incarnation: someIncarnation}}
		r.state = emptyLog()
		r.start(b)
		b.Cleanup(func() { r.stop(b) })
		b.ReportAllocs()
		answered, sent := 0, 0
		for b.Loop() {
			_ = r.partition.Append(anonymous, record, func(topic.Ack) { answered++ })
			if sent++; sent%512 == 0 {
				for _, e := range r.take(1) {
					e.done(raftlog.Proposal{})
				}
			}
		}
	})
}
