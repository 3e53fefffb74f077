package topic

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

// segmentsOf makes segments of so many bytes, each with a record, but for those
// of a negative number.
func segmentsOf(sizes ...int64) (all []storage.SegmentInfo) {
	next := storage.Offset(0)
	for i, size := range sizes {
		all = append(all, storage.SegmentInfo{First: storage.Index(i + 2), Offset: next, Bytes: max(size, -size)})
		if size > 0 {
			next++
		}
	}
	return all
}

// Property: S9 (red: less than Bytes stayed)
func TestKeptBytes(t *testing.T) {
	for _, c := range []struct {
		sizes []int64
		keep  int64
		want  int
	}{
		{nil, 1, 0},
		{[]int64{10}, 1, 0}, // the one that is written
		{[]int64{10, 10}, 0, 0},
		{[]int64{10, 10}, 10, 1},
		{[]int64{10, 10}, 11, 0},
		{[]int64{10, 1}, 10, 0}, // too little would stay
		{[]int64{10, 10, 10, 1}, 11, 2},
		{[]int64{10, 10, 10, 1}, 1, 3},
		{[]int64{10, 10, 10, 1}, 1 << 60, 0},
		{[]int64{0, 10, 10}, 20, 1}, // damaged: of no size
	} {
		require.Equal(t, c.want, keptBytes(segmentsOf(c.sizes...), c.keep), "%+v", c)
	}
}

// Property: S9 (red: a segment without records stopped it; the last one was looked at; an unknown stamp counted as old)
func TestPassed(t *testing.T) {
	const unknown = -1
	for _, c := range []struct {
		stamps []int64 // of each segment's last record; 0: it has none
		want   int     // of those before 100
	}{
		{nil, 0},
		{[]int64{10}, 0}, // the one that is written
		{[]int64{10, 20}, 1},
		{[]int64{99, 100, 101}, 1},
		{[]int64{100, 101}, 0},
		{[]int64{10, 0, 20, 30}, 3},
		{[]int64{10, 0, 0, 200, 300}, 1}, // what follows is not due
		{[]int64{0, 10, 200}, 2},
		{[]int64{0, 200}, 0},
		{[]int64{10, unknown, 20, 200}, 1},
	} {
		sizes := make([]int64, len(c.stamps))
		for i, s := range c.stamps {
			if sizes[i] = 10; s == 0 {
				sizes[i] = -10
			}
		}
		got := passed(segmentsOf(sizes...), 100, func(i int) (int64, bool) { return c.stamps[i], c.stamps[i] != unknown })
		require.Equal(t, c.want, got, "%+v", c)
	}
}

// Property: S9 (red: the mean instead of the median; one of two was enough; one middle of two)
func TestClockDoubt(t *testing.T) {
	const ok, far = 59 * time.Second, 61 * time.Second
	for _, c := range []struct {
		offsets []time.Duration
		nodes   int
		want    string
	}{
		{nil, 1, ""},
		{nil, 2, "1 of 2 nodes are known"},
		{nil, 3, "1 of 3 nodes are known"},
		{[]time.Duration{0}, 3, ""},
		{[]time.Duration{0}, 4, "2 of 4 nodes are known"},
		{[]time.Duration{far}, 2, "off that of the others"},
		{[]time.Duration{ok}, 2, ""},
		{[]time.Duration{-ok}, 2, ""},
		{[]time.Duration{far}, 3, "off that of the others"}, // one of the two is wrong
		{[]time.Duration{far, 0}, 3, ""},                    // and it is that one
		{[]time.Duration{far, far}, 3, "off that of the others"},
		{[]time.Duration{-far, -far}, 3, "off that of the others"},
		{[]time.Duration{-time.Hour, time.Hour}, 3, ""},
		{[]time.Duration{ok, far, far}, 4, "off that of the others"},
		{[]time.Duration{0, 0, time.Hour}, 5, ""},
	} {
		got := clockDoubt(c.offsets, c.nodes)
		if c.want == "" {
			require.Empty(t, got, "%+v", c)
		} else {
			require.Contains(t, got, c.want, "%+v", c)
		}
	}
}

// What a build does not know stops it, and what is no batch is decided alike by
// all.
func TestNewerEntries(t *testing.T) {
	incarnation := storage.Incarnation{1}
	entry := func(change func(Batch)) []byte {
		b := Batch{newLogStart(incarnation, storage.LogStart{Index: 1, Term: 1}, time.UnixMilli(1))}
		change(b)
		b.sign()
		return b.data
	}
	for name, c := range map[string]struct {
		data  []byte
		newer bool
	}{
		"a log start":   {entry(func(Batch) {}), false},
		"a seal":        {newSeal(incarnation, time.UnixMilli(1)), false},
		"another kind":  {entry(func(b Batch) { b.data[offKind] = byte(newestKind) + 1 }), true},
		"another form":  {entry(func(b Batch) { b.data[offFormat]++ }), true},
		"kind 0":        {entry(func(b Batch) { b.data[offKind] = 0 }), true},
		"no batch":      {[]byte("not a batch"), false},
		"empty":         {nil, false},
		"two":           {append(newSeal(incarnation, time.UnixMilli(1)), 1), false},
		"damaged":       {append(entry(func(b Batch) { b.data[offKind] = 9 })[:logStartSize-1], 77), false},
		"an older form": {entry(func(b Batch) { b.data[offFormat] = 0 }), true},
	} {
		err := newerEntry(c.data)
		require.Equal(t, c.newer, err != nil, "%s: %v", name, err)
		if c.newer {
			require.ErrorIs(t, err, ErrNewerEntry)
		}
	}
	for name, spoil := range map[string]func(Batch){
		"no entry":  func(b Batch) { clear(b.data[offStartIndex:offStartTerm]) },
		"no term":   func(b Batch) { clear(b.data[offStartTerm:offStartOffset]) },
		"an offset": func(b Batch) { b.data[offStartOffset+7] = 0x80 },
		"records":   func(b Batch) { b.data[offCount] = 1 },
		"a codec":   func(b Batch) { b.data[offCodec] = 1 },
	} {
		_, _, err := ReadBatch(entry(spoil))
		require.ErrorIs(t, err, ErrCorruptBatch, name)
	}
	s := newPartitionState(incarnation)
	for i, start := range []storage.LogStart{{Index: 5, Term: 1}, {Index: 6, Term: 1}, {Index: 4, Term: 1, Offset: 1}, {Index: 4, Term: 1}} {
		d := s.apply(5, storage.EntryNormal, newLogStart(incarnation, start, time.UnixMilli(1)))
		require.Equal(t, i == 3, d.verdict == storage.VerdictControl, fmt.Sprint(start))
		require.Equal(t, i == 3, d.start == start)
	}
}
