package topic_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

var (
	someIncarnation  = storage.Incarnation{0: 0xa1, 7: 0x5e, 15: 0x0f}
	otherIncarnation = storage.Incarnation{0: 0xb2, 15: 0xf0}
	someTime         = time.UnixMilli(1_700_000_000_123)
)

// encode makes one batch of the records.
func encode(info topic.BatchInfo, now time.Time, records ...topic.Record) []byte {
	var b topic.BatchBuilder
	b.Reset(now)
	for i := range records {
		b.Append(&records[i])
	}
	return b.Build(info)
}

// decode returns copies of the records of a valid batch.
func decode(b topic.Batch) ([]topic.Record, error) {
	var (
		it  topic.BatchRecords
		out []topic.Record
	)
	for it.Reset(b); it.Next(); {
		out = append(out, clone(it.Record()))
	}
	return out, it.Err()
}

func clone(r *topic.Record) topic.Record {
	c := topic.Record{Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value), Timestamp: r.Timestamp}
	for _, h := range r.Headers {
		c.Headers = append(c.Headers, topic.Header{Key: h.Key, Value: bytes.Clone(h.Value)})
	}
	return c
}

func nullable(t *rapid.T, label string) []byte {
	if rapid.Bool().Draw(t, label+" is null") {
		return nil
	}
	b := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, label)
	return append([]byte{}, b...)
}

func drawRecord(t *rapid.T) topic.Record {
	r := topic.Record{Key: nullable(t, "key"), Value: nullable(t, "value")}
	if rapid.Bool().Draw(t, "has timestamp") {
		r.Timestamp = time.UnixMilli(rapid.Int64Range(-1<<42, 1<<42).Draw(t, "ms"))
	}
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		r.Headers = append(r.Headers, topic.Header{
			Key:   rapid.StringN(0, 80, 200).Draw(t, "header"),
			Value: nullable(t, "header value"),
		})
	}
	return r
}

func TestBatchRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(rapid.Custom(drawRecord), 1, 40).Draw(t, "records")
		info := topic.BatchInfo{
			Incarnation: someIncarnation,
			Codec:       rapid.SampledFrom([]topic.Codec{topic.CodecNone, topic.CodecS2, topic.CodecZstd}).Draw(t, "codec"),
			Producer: topic.ProducerBatch{
				ID:    topic.ProducerID(rapid.Uint64().Draw(t, "id")),
				Epoch: topic.ProducerEpoch(rapid.Uint32().Draw(t, "epoch")),
				First: topic.Sequence(rapid.Uint64Range(0, 1<<62).Draw(t, "first")),
			},
		}
		data := encode(info, someTime, records...)
		b, rest, err := topic.ReadBatch(append(data, "more"...))
		require.NoError(t, err)
		require.Equal(t, "more", string(rest))
		require.Equal(t, info.Incarnation, b.Incarnation())
		require.Equal(t, info.Producer, b.Producer())
		require.Equal(t, topic.KindData, b.Kind())
		require.Equal(t, uint32(len(records)), b.Count())
		require.Equal(t, someTime.UnixMilli(), b.Stamp())

		b.SetBaseOffset(1000)
		b.SetStamp(someTime.UnixMilli() + 7)
		b, _, err = topic.ReadBatch(b.Bytes())
		require.NoError(t, err, "the offset is outside of the checksum, the stamp is signed anew")
		require.Equal(t, storage.Offset(1000), b.BaseOffset())
		require.Equal(t, someTime.UnixMilli()+7, b.Stamp())

		got, err := decode(b)
		require.NoError(t, err)
		latest := int64(-1 << 62)
		for i := range records {
			if records[i].Timestamp.IsZero() {
				records[i].Timestamp = someTime
			}
			latest = max(latest, records[i].Timestamp.UnixMilli())
		}
		require.Equal(t, records, got, "null and empty stay apart")
		require.Equal(t, latest, b.MaxTimestamp())
	})
}

func TestBatchOffsets(t *testing.T) {
	data := encode(topic.BatchInfo{}, someTime, make([]topic.Record, 300)...)
	b, _, err := topic.ReadBatch(data)
	require.NoError(t, err)
	b.SetBaseOffset(77)
	var it topic.BatchRecords
	want := storage.Offset(77)
	for it.Reset(b); it.Next(); want++ {
		require.Equal(t, want, it.Offset())
	}
	require.NoError(t, it.Err())
	require.Equal(t, storage.Offset(377), want)
}

// goldenRecords touch every field of the format.
func goldenRecords() []topic.Record {
	return []topic.Record{
		{Key: []byte("k"), Value: []byte("value"), Timestamp: someTime},
		{Key: nil, Value: []byte{}, Timestamp: someTime.Add(-time.Hour)},
		{Key: []byte{}, Value: nil, Headers: []topic.Header{{Key: "trace", Value: []byte{1, 2}}, {Key: "", Value: nil}}},
		{Value: bytes.Repeat([]byte("abcdefgh"), 40), Timestamp: someTime.Add(time.Hour)},
	}
}

func TestBatchGolden(t *testing.T) {
	info := topic.BatchInfo{Incarnation: someIncarnation, Producer: topic.ProducerBatch{ID: 0x0102030405060708, Epoch: 9, First: 10}}
	for _, codec := range []topic.Codec{topic.CodecNone, topic.CodecS2, topic.CodecZstd} {
		t.Run(codec.String(), func(t *testing.T) {
			info.Codec = codec
			data := encode(info, someTime, goldenRecords()...)
			golden := golden(t, "batch-v1-"+codec.String()+".golden", data)
			if codec == topic.CodecNone { // another release of a compressor may choose other bytes
				require.Equal(t, golden, data)
			}
			b, rest, err := topic.ReadBatch(golden)
			require.NoError(t, err)
			require.Empty(t, rest)
			require.Equal(t, codec, b.Codec())
			require.Equal(t, info.Producer, b.Producer())
			got, err := decode(b)
			require.NoError(t, err)
			want := goldenRecords()
			want[2].Timestamp = someTime
			require.Equal(t, want, got)
		})
	}
	t.Run("seal", func(t *testing.T) {
		data := topic.NewSeal(someIncarnation, someTime)
		require.Equal(t, golden(t, "seal-v1.golden", data), data)
	})
	t.Run("log start", func(t *testing.T) {
		data := topic.NewLogStart(someIncarnation, storage.LogStart{Index: 300, Term: 7, Offset: 4_000_000_000}, someTime)
		require.Equal(t, golden(t, "logstart-v1.golden", data), data)
		require.Equal(t, topic.KindLogStart, topic.UncheckedBatch(data).Kind())
	})
	for kind, name := range map[topic.Kind]string{topic.KindRetire: "retire", topic.KindRestore: "restore"} {
		t.Run(name, func(t *testing.T) {
			data := topic.NewClosing(kind, someIncarnation, 1<<48+3, someTime)
			require.Equal(t, golden(t, name+"-v1.golden", data), data)
			b, rest, err := topic.ReadBatch(data)
			require.NoError(t, err)
			require.Empty(t, rest)
			require.Equal(t, kind, b.Kind())
			require.EqualValues(t, 1<<48+3, b.Deletion())
		})
	}
}

// golden returns the bytes of a file in testdata, written first if asked.
func golden(t *testing.T, name string, data []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, data, 0o644))
	}
	out, err := os.ReadFile(path)
	require.NoError(t, err)
	return out
}

// TestReadBatchRefuses changes one field of a valid batch at a time, with the
// checksum made right again where the field is under it.
func TestReadBatchRefuses(t *testing.T) {
	put32 := func(off int, v uint32) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[off:], v) }
	}
	tests := map[string]struct {
		change func([]byte)
		signed bool
	}{
		"length beyond the bytes": {put32(8, 1<<20), false},
		"length below a header":   {put32(8, 79), false},
		"checksum":                {func(b []byte) { b[12]++ }, false},
		"a flipped record byte":   {func(b []byte) { b[85]++ }, false},
		"format":                  {func(b []byte) { b[16] = 2 }, true},
		"kind":                    {func(b []byte) { b[17] = 3 }, true},
		"codec":                   {func(b []byte) { b[18] = 3 }, true},
		"reserved":                {func(b []byte) { b[19] = 1 }, true},
		"no records":              {put32(20, 0), true},
		"more records than fit":   {put32(20, 1000), true},
		"records size":            {put32(36, 10), true},
		"records size over limit": {put32(36, topic.MaxRecordSize+1<<10), true},
		"sequence overflow":       {func(b []byte) { binary.LittleEndian.PutUint64(b[40:], 1<<63-1) }, true},
		"a seal with records":     {func(b []byte) { b[17] = byte(topic.KindSeal) }, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			data := encode(topic.BatchInfo{}, someTime, goldenRecords()...)
			b, _, err := topic.ReadBatch(data)
			require.NoError(t, err)
			test.change(data)
			if test.signed {
				b.Sign()
			}
			_, _, err = topic.ReadBatch(data)
			require.ErrorIs(t, err, topic.ErrCorruptBatch)
			require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err))
		})
	}
	for n := range 80 {
		_, _, err := topic.ReadBatch(make([]byte, n))
		require.ErrorIs(t, err, topic.ErrCorruptBatch)
	}
}

// Property: S11 (red: the size that an s2 block declares not checked)
func TestDecompressIsBounded(t *testing.T) {
	bomb := binary.AppendUvarint(nil, 1<<31)
	bomb = append(bomb, 0, 'x')
	before := allocated()
	_, err := topic.Decompress(topic.CodecS2, nil, bomb, 100)
	require.Less(t, allocated()-before, uint64(1<<20))
	require.ErrorIs(t, err, topic.ErrCorruptBatch)
	_, err = topic.Decompress(topic.CodecS2, nil, binary.AppendUvarint(nil, 100), 100)
	require.ErrorIs(t, err, topic.ErrCorruptBatch)
	_, err = topic.Decompress(7, nil, bomb, 100)
	require.ErrorIs(t, err, topic.ErrCorruptBatch)
}

// TestZstdIsBounded: whatever a frame says of itself, and whatever it becomes.
//
// Property: S11 (red: as large as the frame becomes; red: any window)
func TestZstdIsBounded(t *testing.T) {
	encoder := func(options ...zstd.EOption) *zstd.Encoder {
		e, err := zstd.NewWriter(nil, append([]zstd.EOption{zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false), zstd.WithWindowSize(1 << 20)}, options...)...)
		require.NoError(t, err)
		return e
	}
	hundred := encoder().EncodeAll(make([]byte, 100), nil)
	got, err := topic.Decompress(topic.CodecZstd, nil, hundred, 100)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 100), got)

	var stream bytes.Buffer // says nothing of its size, and is of 64 MiB
	writer := encoder()
	writer.Reset(&stream)
	for range 64 {
		_, err := writer.Write(make([]byte, 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, writer.Close())
	large := encoder().EncodeAll(make([]byte, 64<<20), nil) // says 64 MiB
	require.Less(t, len(large), 1<<15)
	lies := bytes.Clone(encoder(zstd.WithSingleSegment(true)).EncodeAll(make([]byte, 250), nil))
	require.EqualValues(t, 250, lies[5], "its size, of one byte")
	lies[5] = 100
	wide := make([]byte, 12<<20)
	for i := range wide {
		wide[i] = byte(rand.Uint32())
	}
	copy(wide[8<<20:], wide[:1<<20]) // refers 8 MiB back
	window := encoder(zstd.WithWindowSize(16<<20)).EncodeAll(wide, nil)
	require.Less(t, len(window), 12<<20-1<<19)
	for name, c := range map[string]struct {
		frame []byte
		size  int
	}{
		"a size of its own":         {large, 100},
		"no size":                   {stream.Bytes(), 100},
		"more than it says":         {lies, 100},
		"a second frame":            {append(bytes.Clone(hundred), large...), 100},
		"an empty frame behind":     {append(bytes.Clone(hundred), 0x28), 100},
		"half of it":                {hundred[:len(hundred)/2], 100},
		"a window of 16 MiB":        {window, len(wide)},
		"nothing":                   {nil, 5},
		"a frame that is to be let": {[]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0}, 5},
	} {
		before := allocated()
		_, err := topic.Decompress(topic.CodecZstd, nil, c.frame, c.size)
		require.ErrorIs(t, err, topic.ErrCorruptBatch, name)
		require.Less(t, allocated()-before, uint64(c.size+4<<20), name)
	}
}

func TestEncodingAllocatesOnlyTheBatch(t *testing.T) {
	records := make([]topic.Record, 500)
	for i := range records {
		records[i] = topic.Record{Key: []byte("key"), Value: []byte(strings.Repeat("v", 100)), Headers: []topic.Header{{Key: "trace", Value: []byte("1")}}}
	}
	for _, codec := range []topic.Codec{topic.CodecNone, topic.CodecS2, topic.CodecZstd} {
		var b topic.BatchBuilder
		var it topic.BatchRecords
		round := func() {
			b.Reset(someTime)
			for i := range records {
				b.Append(&records[i])
			}
			batch, _, err := topic.ReadBatch(b.Build(topic.BatchInfo{Codec: codec}))
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for it.Reset(batch); it.Next(); {
				n += len(it.Record().Headers)
			}
			if it.Err() != nil || n != len(records) {
				t.Fatal(n, it.Err())
			}
		}
		// The least of many: what a pool lends is lost to it now and then, by a
		// collection or under the race detector.
		least := testing.AllocsPerRun(1, round)
		for range 20 {
			least = min(least, testing.AllocsPerRun(1, round))
		}
		require.LessOrEqual(t, least, 1.0, "codec %s", codec)
	}
}

func TestFitting(t *testing.T) {
	of := func(sizes ...int) []topic.Record {
		var out []topic.Record
		for _, n := range sizes {
			out = append(out, topic.Record{Value: make([]byte, n)})
		}
		return out
	}
	tests := []struct {
		sizes []int
		want  int
	}{
		{nil, 0},
		{[]int{0}, 1},
		{[]int{10, 10, 10}, 3},
		{[]int{topic.TargetBatchSize / 2, topic.TargetBatchSize / 2}, 1},
		{[]int{topic.TargetBatchSize * 3, 1}, 1},
		{[]int{1, topic.TargetBatchSize * 3}, 1},
		{[]int{1, topic.MaxRecordSize + 1}, 1},
		{[]int{topic.MaxRecordSize}, 1},
	}
	for _, test := range tests {
		n, err := topic.Fitting(of(test.sizes...))
		require.NoError(t, err)
		require.Equal(t, test.want, n, "%v", test.sizes)
	}
	_, err := topic.Fitting(of(topic.MaxRecordSize+1, 1))
	var tooLarge *topic.TooLargeError
	require.ErrorAs(t, err, &tooLarge)
	require.Equal(t, topic.TooLargeError{Size: topic.MaxRecordSize + 1, Max: topic.MaxRecordSize}, *tooLarge)
}

// TestLargestRecordTravels shows that the limit of a record is one that its
// batch's decoder accepts.
func TestLargestRecordTravels(t *testing.T) {
	for _, codec := range []topic.Codec{topic.CodecNone, topic.CodecS2, topic.CodecZstd} {
		r := topic.Record{Key: make([]byte, 1<<20), Value: make([]byte, 15<<20-2*12-5), Headers: []topic.Header{{Key: "hdr"}, {Value: []byte("ab")}}}
		require.Equal(t, topic.MaxRecordSize, r.Size())
		data := encode(topic.BatchInfo{Codec: codec}, someTime, r)
		require.LessOrEqual(t, len(data), topic.MaxBatchSize)
		b, _, err := topic.ReadBatch(data)
		require.NoError(t, err)
		got, err := decode(b)
		require.NoError(t, err)
		require.Len(t, got[0].Value, len(r.Value))
	}
}

// Property: S11 (red: a number of headers believed before there are bytes for them)
func TestHeadersAreBounded(t *testing.T) {
	data := encode(topic.BatchInfo{}, someTime, topic.Record{Value: make([]byte, 300)})
	at := bytes.Index(data[80:], []byte{0xad, 0x02}) + 80 // the value's length, which becomes 0
	copy(data[at:], []byte{0x81, 0x00, 0xff, 0xff, 0xff, 0x7f})
	resign(data)
	b, _, err := topic.ReadBatch(data)
	require.NoError(t, err)
	before := allocated()
	_, err = decode(b)
	require.Less(t, allocated()-before, uint64(1<<20))
	require.ErrorIs(t, err, topic.ErrCorruptBatch)
}

// allocated is the number of bytes that the process has allocated so far.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// spoil adds data and its neighbours: each byte replaced in turn.
func spoil(f *testing.F, data []byte) {
	f.Add(data)
	for i := range data {
		for _, to := range []byte{1, 0xff} {
			bad := bytes.Clone(data)
			bad[i] = to
			f.Add(bad)
		}
	}
}

// Property: S11 (red: the lengths of keys and values not checked against what is left)
func FuzzBatch(f *testing.F) {
	for _, codec := range []topic.Codec{topic.CodecNone, topic.CodecS2, topic.CodecZstd} {
		spoil(f, encode(topic.BatchInfo{Codec: codec}, someTime, goldenRecords()...))
		f.Add(encode(topic.BatchInfo{Codec: codec}, someTime, make([]topic.Record, 100)...))
	}
	f.Add(topic.NewSeal(someIncarnation, someTime))
	spoil(f, topic.NewLogStart(someIncarnation, storage.LogStart{Index: 300, Term: 7, Offset: 9}, someTime))
	spoil(f, topic.NewClosing(topic.KindRetire, someIncarnation, 3, someTime))
	spoil(f, topic.NewClosing(topic.KindRestore, someIncarnation, 3, someTime))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		data = bytes.Clone(data)
		if len(data) >= 80 && len(data) <= topic.MaxBatchSize { // let mutations past length and checksum
			binary.LittleEndian.PutUint32(data[8:], uint32(len(data)))
			resign(data)
		}
		b, rest, err := topic.ReadBatch(data)
		if err != nil {
			require.ErrorIs(t, err, topic.ErrCorruptBatch)
			return
		}
		require.Empty(t, rest)
		if b.Kind() == topic.KindLogStart { // nothing but what it says is applied
			start := b.LogStart()
			again := topic.NewLogStart(b.Incarnation(), start, time.UnixMilli(b.Stamp()))
			state := topic.NewState(b.Incarnation())
			got := state.Apply(300, storage.EntryNormal, data)
			require.Equal(t, start.Index < 300 && start.Offset == 0, got.Verdict == storage.VerdictControl)
			got = state.Apply(300, storage.EntryNormal, again)
			require.Equal(t, start.Index < 300 && start.Offset == 0, got.Verdict == storage.VerdictControl)
			return
		}
		if b.Kind() == topic.KindRetire || b.Kind() == topic.KindRestore { // as of a log start
			again := topic.NewClosing(b.Kind(), b.Incarnation(), b.Deletion(), time.UnixMilli(b.Stamp()))
			one, two := topic.NewState(b.Incarnation()), topic.NewState(b.Incarnation())
			require.Equal(t, one.Apply(3, storage.EntryNormal, data), two.Apply(3, storage.EntryNormal, again))
			require.Equal(t, one.Snapshot(), two.Snapshot())
			return
		}
		if b.Kind() == topic.KindSeal {
			return
		}
		var it topic.BatchRecords
		last := storage.Offset(-1)
		b.SetBaseOffset(0)
		size := 0
		for it.Reset(b); it.Next(); last = it.Offset() {
			require.Greater(t, it.Offset(), last)
			require.Less(t, it.Offset(), storage.Offset(b.Count()))
			size += len(it.Record().Key) + len(it.Record().Value)
		}
		require.LessOrEqual(t, size, topic.MaxBatchSize)
		if it.Err() != nil {
			require.ErrorIs(t, it.Err(), topic.ErrCorruptBatch)
		}
	})
}

// resign makes the checksum of mutated bytes right.
func resign(data []byte) {
	b := topic.UncheckedBatch(data)
	b.Sign()
}

func BenchmarkEncode(b *testing.B) {
	for _, codec := range []topic.Codec{topic.CodecNone, topic.CodecS2, topic.CodecZstd} {
		b.Run(codec.String(), func(b *testing.B) {
			r := benchmarkRecord()
			var builder topic.BatchBuilder
			b.ReportAllocs()
			b.SetBytes(int64(r.Size()))
			builder.Reset(someTime)
			for b.Loop() {
				builder.Append(&r)
				if builder.Size() > topic.TargetBatchSize-1024 {
					builder.Build(topic.BatchInfo{Codec: codec})
					builder.Reset(someTime)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, codec := range []topic.Codec{topic.CodecNone, topic.CodecS2, topic.CodecZstd} {
		b.Run(codec.String(), func(b *testing.B) {
			r := benchmarkRecord()
			records := make([]topic.Record, 8000)
			for i := range records {
				records[i] = r
			}
			data := encode(topic.BatchInfo{Codec: codec}, someTime, records...)
			var it topic.BatchRecords
			b.ReportAllocs()
			b.SetBytes(int64(r.Size()))
			n := 0
			for b.Loop() {
				if !it.Next() {
					batch, _, err := topic.ReadBatch(data)
					require.NoError(b, err)
					it.Reset(batch)
				}
				n++
			}
			require.NoError(b, it.Err(), fmt.Sprint(n))
		})
	}
}

func benchmarkRecord() topic.Record {
	return topic.Record{Key: []byte("customer-17"), Value: []byte(strings.Repeat("0123456789abcdef", 8)), Timestamp: someTime}
}
