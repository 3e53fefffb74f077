package topic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// startSomewhere has a replica propose that the log begins with one of its
// segments, and returns the entry; nil if there is but one.
func (r *replica) startSomewhere(t require.TestingT, rng *rand.Rand) []byte {
	segments, err := r.log.Segments()
	require.NoError(t, err)
	if len(segments) < 2 {
		return nil
	}
	start, err := r.log.SegmentStart(segments[1+rng.IntN(len(segments)-1)])
	require.NoError(t, err)
	require.NoError(t, r.partition.SetLogStart(start, func(err error) { require.NoError(t, err) }))
	return r.take(1)[0].data
}

// Property: S9, P1, P2, P4, R11, I11 (red: no side file with a log start: offsets and producers were lost; each replica took its own start)
//
// A replica decides where the log begins. Others apply the same entries in other
// steps, and go on from checkpoints: they begin with the same record, hold the same
// segments, and know the same of producers, also of those whose records are gone.
func TestReplicasRemoveTheSame(t *testing.T) {
	for seed := range seeds(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 2))
			var all, h history
			randomEntries(rng, &all)
			steady, restarted := openWith(t, 16<<10), openWith(t, 16<<10)
			var want []raftlog.Result
			for _, e := range all.after(1) {
				if len(e.Data) > 100<<10 { // large batches alone would be segments of their own
					e.Data = nil
				}
				entries := []raftlog.Entry{h.commit(e.Kind, e.Data)}
				if rng.IntN(2) == 0 {
					filler := encode(topic.BatchInfo{Incarnation: otherIncarnation}, someTime, topic.Record{Value: bytes.Repeat([]byte("."), 1+rng.IntN(8<<10))})
					entries = append(entries, h.commit(storage.EntryNormal, filler))
				}
				if rng.IntN(8) == 0 {
					if data := steady.startSomewhere(t, rng); data != nil {
						entries = append(entries, h.commit(storage.EntryNormal, data))
					}
				}
				got, err := steady.apply(entries)
				require.NoError(t, err)
				want = append(want, got...)
			}
			require.Greater(t, steady.log.Start().Index, storage.Index(1))

			at, lowest, asides := storage.Index(1), storage.Index(1), 0
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
				require.GreaterOrEqual(t, restarted.log.Start().Index, lowest)
				switch rng.IntN(6) {
				case 0:
					restarted.checkpoint(t)
					lowest = restarted.state.Log.StartIndex
				case 1:
					at = restarted.restart(t)
					if restarted.log.Position().StartIndex > 1 {
						asides++
					}
				}
			}
			t.Log("restarts of a log without its front:", asides)
			requireSameLog(t, steady, restarted)
			hw, err := steady.partition.HighWatermark()
			require.NoError(t, err)
			for _, r := range []*replica{steady, restarted} {
				start := r.log.StartOffset()
				if start == 0 {
					continue // what went had no records
				}
				_, err := r.partition.Fetch(topic.FetchRequest{From: start - 1, MaxBytes: 1}, nil)
				require.Equal(t, &topic.OutOfRangeError{Topic: "orders", Offset: start - 1, Start: start, End: hw}, err)
			}
		})
	}
}

func requireSameLog(t *testing.T, a, b *replica) {
	t.Helper()
	require.Equal(t, a.log.Start(), b.log.Start())
	require.Equal(t, a.log.Position().AuxIndex, b.log.Position().AuxIndex)
	one, err := a.log.Segments()
	require.NoError(t, err)
	two, err := b.log.Segments()
	require.NoError(t, err)
	require.Equal(t, one, two)
	from := a.log.StartOffset()
	records, err := a.readFrom(from, 1)
	require.NoError(t, err)
	others, err := b.readFrom(from, 3<<20)
	require.NoError(t, err)
	require.Equal(t, records, others)
	hw, err := a.partition.HighWatermark()
	require.NoError(t, err)
	require.Len(t, records, int(hw-from))
}

// Property: C9 (red: it was refused, as bytes are that are no batch)
func TestAnEntryOfANewerBuildEndsTheReplica(t *testing.T) {
	r := open(t, topic.PartitionConfig{})
	var h history
	data := topic.NewSeal(someIncarnation, someTime)
	data[17] = 200 // kind
	topic.UncheckedBatch(data).Sign()
	_, err := r.apply([]raftlog.Entry{h.commit(storage.EntryNormal, data)})
	require.ErrorIs(t, err, topic.ErrNewerEntry)
	require.Equal(t, storage.Index(1), r.log.Position().LastIndex, "nothing was decided")
}
