package topic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

func seeds(n int) int {
	if testing.Short() {
		return max(1, n/5)
	}
	return n
}

// randomEntries fills a history with batches of all sorts, and what a group
// puts between them. Some batches are large, so that producer state is written
// aside in between.
func randomEntries(rng *rand.Rand, h *history) {
	now := someTime
	next := map[int]int{}
	var sent [][]byte
	for i := range 80 {
		now = now.Add(time.Duration(rng.IntN(int(2 * time.Hour))))
		info := topic.BatchInfo{Incarnation: someIncarnation, Codec: topic.Codec(rng.IntN(3))}
		records := make([]topic.Record, 1+rng.IntN(4))
		for j := range records {
			records[j].Value = fmt.Appendf(nil, "%d.%d", i, j)
		}
		if rng.IntN(8) == 0 {
			info.Codec = topic.CodecNone
			records[0].Value = bytes.Repeat(records[0].Value, 1<<18)
		}
		if id := rng.IntN(5); id > 0 {
			info.Producer = topic.ProducerBatch{ID: topic.ProducerID(id), First: topic.Sequence(next[id])}
			next[id] += len(records)
		}
		switch rng.IntN(12) {
		case 0:
			h.commit(storage.EntryNormal, nil)
		case 1:
			h.commit(storage.EntryConfChangeV2, []byte("configuration"))
		case 2:
			h.commit(storage.EntryNormal, []byte("not a batch"))
		case 3:
			info.Incarnation = otherIncarnation
		case 4, 5, 6:
			if len(sent) > 0 {
				h.commit(storage.EntryNormal, sent[rng.IntN(len(sent))])
			}
		}
		sent = append(sent, encode(info, now, records...))
		h.commit(storage.EntryNormal, sent[len(sent)-1])
		if i == 70 {
			h.commit(storage.EntryNormal, topic.NewSeal(someIncarnation, now))
		}
	}
}

// Property: P1, P2, P4, P5, R11 (red: duplicates counted into the offsets; red: the entries behind the side file not replayed; red: the side file ignored; elections and other nodes: TestNodesFailUnderLoad)
func TestReplicasAgree(t *testing.T) {
	for seed := range seeds(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			var h history
			randomEntries(rng, &h)
			steady, restarted := open(t, topic.PartitionConfig{}), open(t, topic.PartitionConfig{})
			want, err := steady.apply(h.after(1))
			require.NoError(t, err)
			require.NotZero(t, steady.log.Position().AuxIndex)

			at, asides := storage.Index(1), 0
			for int(at) <= len(h.entries) {
				n := min(1+rng.IntN(7), len(h.after(at)))
				got, err := restarted.apply(h.after(at)[:n])
				require.NoError(t, err)
				for i, r := range got {
					if r.Verdict != 0 { // left to the group: the entry has no content
						require.Equal(t, want[int(at)-1+i], r, "entry %d", int(at)+1+i)
					}
				}
				at += storage.Index(n)
				switch rng.IntN(6) {
				case 0:
					restarted.checkpoint(t)
				case 1:
					at = restarted.restart(t)
					if restarted.log.Position().AuxIndex > 0 {
						asides++
					}
				}
			}
			require.Equal(t, steady.log.Position().AuxIndex, restarted.log.Position().AuxIndex)
			t.Log("restarts from a side file:", asides)
			requireSameRecords(t, steady, restarted)
		})
	}
}

// requireSameRecords compares what two replicas show, read in different steps.
func requireSameRecords(t *testing.T, a, b *replica) {
	t.Helper()
	one, err := a.readAll(1)
	require.NoError(t, err)
	two, err := b.readAll(3 << 20)
	require.NoError(t, err)
	require.Equal(t, one, two)
	for i, r := range one {
		require.Equal(t, storage.Offset(i), r.offset)
	}
	hw, err := a.partition.HighWatermark()
	require.NoError(t, err)
	require.Equal(t, int(hw), len(one))
}

// Property: I7, I11, P9 (red: the incarnation not compared; red: the seal forgotten at a snapshot; a whole DeleteTopic: TestDeletedTopicsTakeNoRecords)
func TestRefusedAtApply(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var h history
	now := someTime
	good := encode(topic.BatchInfo{Incarnation: someIncarnation}, now, topic.Record{Value: []byte("v")})
	stale := encode(topic.BatchInfo{Incarnation: otherIncarnation}, now, topic.Record{Value: []byte("v")})
	two := append(bytes.Clone(good), good...)
	send := func(data []byte) raftlog.Result {
		results, err := r.apply([]raftlog.Entry{h.commit(storage.EntryNormal, data)})
		require.NoError(t, err)
		return results[0]
	}
	refused := func(data []byte, want error, outcome raftlog.Outcome) {
		t.Helper()
		got := send(data)
		require.Equal(t, storage.VerdictRefused, got.Verdict)
		require.ErrorIs(t, got.Err, want)
		require.Equal(t, outcome, raftlog.OutcomeOf(got.Err))
	}
	require.Equal(t, storage.VerdictData, send(good).Verdict)
	refused(stale, topic.ErrTopicIncarnationMismatch, raftlog.OutcomeRetry)
	refused(two, topic.ErrCorruptBatch, raftlog.OutcomeRefused)
	refused([]byte("x"), topic.ErrCorruptBatch, raftlog.OutcomeRefused)
	refused(topic.NewSeal(otherIncarnation, now), topic.ErrTopicIncarnationMismatch, raftlog.OutcomeRetry)
	require.Equal(t, storage.Offset(1), send(good).BaseOffset, "nothing was appended")
	require.Equal(t, storage.VerdictControl, send(topic.NewSeal(someIncarnation, now)).Verdict)
	refused(good, topic.ErrSealed, raftlog.OutcomeRefused)
	r.checkpoint(t)
	require.Equal(t, r.log.Position().LastIndex, r.restart(t))
	refused(good, topic.ErrSealed, raftlog.OutcomeRefused)
	require.Equal(t, storage.VerdictControl, send(topic.NewSeal(someIncarnation, now)).Verdict, "sealing again is harmless")
	filler := encode(topic.BatchInfo{Incarnation: someIncarnation}, now, topic.Record{Value: make([]byte, 5<<20)})
	refused(filler, topic.ErrSealed, raftlog.OutcomeRefused)
	r.checkpoint(t)
	require.Equal(t, r.state.Log.LastIndex, r.state.Log.AuxIndex)
	r.restart(t)
	refused(good, topic.ErrSealed, raftlog.OutcomeRefused)
	all, err := r.readAll(1 << 20)
	require.NoError(t, err)
	require.Len(t, all, 2)
}

// Property: S10 (red: all entries replayed; the node's part: TestReopenReadsNoLog of the root)
func TestReopenReadsBounded(t *testing.T) {
	reads := func(batches int) (opened, first int64) {
		r := open(t, topic.PartitionConfig{})
		var h history
		for range batches {
			data := encode(topic.BatchInfo{Incarnation: someIncarnation}, someTime, topic.Record{Value: make([]byte, 1<<20)})
			_, err := r.apply([]raftlog.Entry{h.commit(storage.EntryNormal, data)})
			require.NoError(t, err)
		}
		r.checkpoint(t)
		r.stop(t)
		bytesRead := func() int64 { return int64(r.fs.Counts("/node/topics").BytesRead) }
		before := bytesRead()
		r.start(t)
		_, err := r.apply([]raftlog.Entry{h.commit(storage.EntryNormal, nil)}) // a leader's first entry
		require.NoError(t, err)
		_, err = r.partition.HighWatermark()
		require.NoError(t, err)
		opened = bytesRead() - before
		data := encode(topic.BatchInfo{Incarnation: someIncarnation}, someTime, topic.Record{Value: []byte("v")})
		results, err := r.apply([]raftlog.Entry{h.commit(storage.EntryNormal, data)})
		require.NoError(t, err)
		require.Equal(t, storage.Offset(batches), results[0].BaseOffset)
		return opened, bytesRead() - before - opened
	}
	openedSmall, firstSmall := reads(3)
	openedLarge, firstLarge := reads(31)
	require.InDelta(t, openedSmall, openedLarge, 64<<10, "until there are records to append, no log is read")
	require.Less(t, openedLarge, int64(256<<10))
	require.Less(t, firstLarge, int64(6<<20))
	require.InDelta(t, firstSmall, firstLarge, 2<<20)
}

// Property: P3, P9 (red: the reader's watermark ignored; red: Readable ignored; across nodes: TestASessionNeverGoesBack)
func TestFetch(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var h history
	for i := range 5 {
		var records []topic.Record
		for j := range 10 {
			records = append(records, topic.Record{Value: fmt.Append(nil, i*10+j)})
		}
		_, err := r.apply([]raftlog.Entry{
			h.commit(storage.EntryNormal, encode(topic.BatchInfo{Incarnation: someIncarnation}, someTime, records...)),
			h.commit(storage.EntryNormal, nil),
			h.commit(storage.EntryNormal, []byte("refused")),
		})
		require.NoError(t, err)
	}
	fetch := func(from, seen storage.Offset) (topic.Fetched, error) {
		return r.partition.Fetch(topic.FetchRequest{From: from, MaxBytes: 1, Seen: seen}, nil)
	}
	f, err := fetch(23, 50)
	require.NoError(t, err)
	require.Equal(t, storage.Offset(30), f.Next)
	require.Equal(t, storage.Offset(50), f.HighWatermark)
	b, rest, err := topic.ReadBatch(f.Data)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Equal(t, storage.Offset(20), b.BaseOffset(), "the batch is whole")

	f, err = fetch(50, 0)
	require.NoError(t, err)
	require.Empty(t, f.Data)
	require.Equal(t, storage.Offset(50), f.Next)

	_, err = fetch(20, 51)
	require.Equal(t, &topic.BehindError{Seen: 51, HighWatermark: 50}, err)
	require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
	for _, from := range []storage.Offset{-1, 51} {
		_, err = fetch(from, 0)
		require.Equal(t, &topic.OutOfRangeError{Topic: "orders", Offset: from, Start: 0, End: 50}, err)
		require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
	}
	r.unreadable.Store(true)
	_, err = fetch(20, 0)
	require.ErrorIs(t, err, topic.ErrNotReadable)
	require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
	r.unreadable.Store(false)
	r.partition.Close()
	_, err = fetch(20, 0)
	require.ErrorIs(t, err, topic.ErrPartitionClosed)
	require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err))
}

// TestFetchStopsAtTheWatermark reads between the writing of the log and the
// word that it may be read.
func TestFetchStopsAtTheWatermark(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var h history
	next := func() []raftlog.Entry {
		data := encode(topic.BatchInfo{Incarnation: someIncarnation}, someTime, make([]topic.Record, 10)...)
		return []raftlog.Entry{h.commit(storage.EntryNormal, data)}
	}
	_, err := r.apply(next())
	require.NoError(t, err)
	changed := r.partition.Changed()
	unpublished := next()
	results := make([]raftlog.Result, 1)
	require.NoError(t, r.partition.Apply(unpublished, results))
	require.NoError(t, r.write(unpublished, results))
	f, err := r.partition.Fetch(topic.FetchRequest{MaxBytes: 1 << 20}, nil)
	require.NoError(t, err)
	require.Equal(t, storage.Offset(10), f.Next)
	_, rest, err := topic.ReadBatch(f.Data)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Len(t, f.Data, 80+10*5+5, "one timestamp in full")
	select {
	case <-changed:
		t.Fatal("nothing has changed yet")
	default:
	}
	r.partition.Applied(unpublished[0].Index)
	<-changed
	f, err = r.partition.Fetch(topic.FetchRequest{MaxBytes: 1 << 20}, f.Buf)
	require.NoError(t, err)
	require.Equal(t, storage.Offset(20), f.Next)
	waiting := r.partition.Changed()
	r.partition.Close()
	<-waiting
	<-r.partition.Changed()
}

// Property: P9, S4 (red: the damage passed on as it is)
func TestFetchOfDamage(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var h history
	data := encode(topic.BatchInfo{Incarnation: someIncarnation}, someTime, topic.Record{Value: make([]byte, 1000)})
	_, err := r.apply([]raftlog.Entry{h.commit(storage.EntryNormal, data)})
	require.NoError(t, err)
	names, err := r.fs.List("/node/" + r.state.Dir)
	require.NoError(t, err)
	require.Len(t, names, 1)
	require.NoError(t, r.fs.Flip("/node/"+r.state.Dir+"/"+names[0], 700, 3))
	_, err = r.partition.Fetch(topic.FetchRequest{MaxBytes: 1}, nil)
	var damage *storage.DamageError
	require.ErrorAs(t, err, &damage)
	require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err), "another replica has it")
}

func TestPartitionConfig(t *testing.T) {
	for _, cfg := range []topic.PartitionConfig{
		{},
		{Incarnation: someIncarnation, Codec: 3},
		{Incarnation: someIncarnation, MaxPendingBytes: -1},
		{Incarnation: someIncarnation, MaxInFlight: 1 << 20},
		{Incarnation: someIncarnation, MaxInFlightBytes: 1 << 31},
	} {
		_, err := topic.NewPartition(cfg)
		require.ErrorContains(t, err, "PartitionConfig.")
	}
}

// TestClosedBeforeBound shows that an opening that failed holds up nobody.
func TestClosedBeforeBound(t *testing.T) {
	p, err := topic.NewPartition(topic.PartitionConfig{Incarnation: someIncarnation})
	require.NoError(t, err)
	data := encode(topic.BatchInfo{Incarnation: someIncarnation}, someTime, topic.Record{})
	applied := make(chan error)
	go func() {
		applied <- p.Apply([]raftlog.Entry{{Index: 2, Data: data}}, make([]raftlog.Result, 1))
	}()
	p.Close()
	require.ErrorIs(t, <-applied, topic.ErrPartitionClosed)
	_, err = p.HighWatermark()
	require.ErrorIs(t, err, topic.ErrPartitionClosed)
	require.ErrorIs(t, p.Append(topic.ProducerBatch{}, make([]topic.Record, 1), nil), topic.ErrPartitionClosed)
}
