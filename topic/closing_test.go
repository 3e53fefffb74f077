package topic

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

var closingIncarnation = storage.Incarnation{1}

func closingEntry(kind Kind, number uint64) []byte {
	return newClosing(kind, closingIncarnation, number, time.UnixMilli(1))
}

func oneRecord(p ProducerBatch) []byte {
	var b BatchBuilder
	b.Reset(time.UnixMilli(1))
	b.Append(&Record{Value: []byte("v")})
	return b.Build(BatchInfo{Incarnation: closingIncarnation, Producer: p})
}

// Property: I11, R11 (red: a retire that came late closed what had been opened since; a restore of an earlier deletion opened; a passed retire was answered as done; a seal was opened; a snapshot forgot the deletion)
//
// Entries of several deletions in any order, each any number of times, with a seal now
// and then: what is open is what the highest number says, whatever came last. Between
// a retire that was answered as done and the restore of that deletion or a later one
// nothing is appended. A replica that was made from a snapshot decides the same.
func TestLateEntriesOfDeletionsChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newPartitionState(closingIncarnation)
		var index storage.Index
		apply := func(data []byte) decision {
			index++
			copied, err := readSnapshot(s.appendSnapshot(nil), closingIncarnation)
			require.NoError(t, err)
			want := s.apply(index, storage.EntryNormal, data)
			require.Equal(t, want, copied.apply(index, storage.EntryNormal, data), "from a snapshot")
			require.Equal(t, s.appendSnapshot(nil), copied.appendSnapshot(nil))
			return want
		}
		var highest uint64 // twice the number, and one more if it was opened
		sealed := false
		for range rapid.IntRange(1, 40).Draw(t, "entries") {
			n := rapid.Uint64Range(1, 4).Draw(t, "number")
			switch rapid.IntRange(0, 30).Draw(t, "kind") {
			case 0:
				require.NoError(t, apply(newSeal(closingIncarnation, time.UnixMilli(1))).err)
				sealed = true
			case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10:
				d := apply(closingEntry(KindRetire, n))
				require.Equal(t, 2*n >= highest, d.err == nil, "it says whether it is closed: %v", d.err)
				highest = max(highest, 2*n)
			case 11, 12, 13, 14, 15, 16, 17, 18, 19, 20:
				d := apply(closingEntry(KindRestore, n))
				require.Equal(t, 2*n+1 >= highest&^1 && !sealed, d.err == nil, "%v", d.err)
				if !sealed {
					highest = max(highest, 2*n+1)
				}
			}
			d := apply(oneRecord(ProducerBatch{}))
			open := !sealed && (highest == 0 || highest%2 == 1)
			require.Equal(t, open, d.verdict == storage.VerdictData, "sealed %v, highest %d: %v", sealed, highest, d.err)
			switch {
			case sealed:
				require.ErrorIs(t, d.err, ErrSealed)
			case !open:
				require.ErrorIs(t, d.err, ErrRetired)
			}
			if d.err != nil {
				require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(d.err))
			}
		}
	})
}

// Property: P4, P1 (red: a restore forgot the producers)
//
// What is remembered of producers, and the next offset, are the same behind a deletion
// that was taken back: a batch of before is a repetition, the next one follows.
func TestAProducerGoesOnBehindADeletion(t *testing.T) {
	s := newPartitionState(closingIncarnation)
	index := storage.Index(0)
	apply := func(data []byte) decision { index++; return s.apply(index, storage.EntryNormal, data) }
	for i := range 3 {
		require.Equal(t, storage.VerdictData, apply(oneRecord(ProducerBatch{ID: 7, First: Sequence(i)})).verdict)
	}
	require.NoError(t, apply(closingEntry(KindRetire, 1)).err)
	require.ErrorIs(t, apply(oneRecord(ProducerBatch{ID: 7, First: 3})).err, ErrRetired)
	require.ErrorIs(t, apply(oneRecord(ProducerBatch{ID: 7, First: 2})).err, ErrRetired, "of a repetition it says nothing either")
	require.NoError(t, apply(closingEntry(KindRestore, 1)).err)
	again := apply(oneRecord(ProducerBatch{ID: 7, First: 2}))
	require.Equal(t, storage.VerdictDuplicate, again.verdict)
	require.Equal(t, storage.Offset(2), again.base)
	next := apply(oneRecord(ProducerBatch{ID: 7, First: 3}))
	require.Equal(t, storage.VerdictData, next.verdict)
	require.Equal(t, storage.Offset(3), next.base)
}

// Property: S9, X1 (red: a log start behind a retire was applied)
//
// What is deleted with a grace begins no later behind the retire, whoever decided that
// it should; behind the restore it does, and behind a seal.
func TestNothingIsRemovedBehindADeletion(t *testing.T) {
	s := newPartitionState(closingIncarnation)
	index := storage.Index(0)
	apply := func(data []byte) decision { index++; return s.apply(index, storage.EntryNormal, data) }
	begin := func(i storage.Index) []byte {
		return newLogStart(closingIncarnation, storage.LogStart{Index: i, Term: 1, Offset: storage.Offset(i)}, time.UnixMilli(1))
	}
	for range 4 {
		require.Equal(t, storage.VerdictData, apply(oneRecord(ProducerBatch{})).verdict)
	}
	require.Equal(t, storage.Index(1), apply(begin(1)).start.Index)
	require.NoError(t, apply(closingEntry(KindRetire, 1)).err)
	late := apply(begin(2))
	require.ErrorIs(t, late.err, ErrRetired)
	require.Zero(t, late.start)
	require.NoError(t, apply(closingEntry(KindRestore, 1)).err)
	require.Equal(t, storage.Index(2), apply(begin(2)).start.Index)
	require.NoError(t, apply(newSeal(closingIncarnation, time.UnixMilli(1))).err)
	require.Equal(t, storage.Index(3), apply(begin(3)).start.Index)
}

func TestClosingEntriesThatAreNone(t *testing.T) {
	for _, kind := range []Kind{KindRetire, KindRestore} {
		for name, spoil := range map[string]func(Batch) Batch{
			"deletion 0": func(b Batch) Batch { clear(b.data[offDeletion:]); return b },
			"records":    func(b Batch) Batch { b.data[offCount] = 1; return b },
			"a size":     func(b Batch) Batch { b.data[offRecordsSize] = 1; return b },
			"a codec":    func(b Batch) Batch { b.data[offCodec] = 1; return b },
			"no number": func(b Batch) Batch {
				binary.LittleEndian.PutUint32(b.data[offLength:], batchHeader)
				return Batch{b.data[:batchHeader]}
			},
			"a tail": func(b Batch) Batch {
				binary.LittleEndian.PutUint32(b.data[offLength:], closingSize+1)
				return Batch{append(b.data, 0)}
			},
		} {
			b := spoil(Batch{closingEntry(kind, 3)})
			b.sign()
			_, _, err := ReadBatch(b.data)
			require.ErrorIs(t, err, ErrCorruptBatch, fmt.Sprint(kind, name))
			require.NoError(t, newerEntry(b.data), "and all builds that know it refuse it")
		}
		require.Equal(t, kind == KindRetire, isEssential(closingEntry(kind, 1)), "it is taken in on a full disk")
		p, err := NewPartition(PartitionConfig{Topic: "orders", Incarnation: closingIncarnation})
		require.NoError(t, err)
		require.ErrorIs(t, p.close(kind, 0, func(error) {}), raftlog.ErrRefused)
	}
	s := newPartitionState(closingIncarnation)
	s.closing = closing{last: 1}
	data := s.appendSnapshot(nil)
	data[4] = 0 // the deletion
	_, err := readSnapshot(data, closingIncarnation)
	require.ErrorIs(t, err, errCorruptSnapshot)
}
