package metastore

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// golden compares with a file of testdata; -rewrite writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "%s: what was written before must be read for ever; a new form needs a new version", name)
}

func goldenCommands() []command {
	return []command{
		testGenesis(2),
		noop{},
		createTopic{inc(7), "orders", TopicConfig{Partitions: 12, Replicas: 3, MaxBatchBytes: 1 << 21}},
		createTopic{inc(8), "plain", TopicConfig{}},
		topicDeleting{inc(7)},
		topicDeleted{inc(7)},
		allocateProducer{"billing", [16]byte{7}, 0, false},
		allocateProducer{"billing", [16]byte{7}, 300, true},
		allocateProducer{},
		setAddress{1, raftlog.Nonce{1}, "host:1"},
		setSetting{"key", "value"},
		createTopic{inc(7), "small", TopicConfig{Partitions: 3, MaxRecordBytes: 1 << 10}},
	}
}

func goldenAnswers() []answer {
	topic := &Topic{"orders", inc(7), TopicActive, TopicConfig{2, 1, 1 << 20, MaxRecordBytes}, []Partition{{0, 2, []Assignment{{14, 1}}}, {1, 3, []Assignment{{15, 2}}}}}
	return []answer{
		{index: 5},
		{index: 6, value: topic},
		{index: 7, value: producer{9, 2}},
		{index: 8, err: named(ErrTopicExists, "Orders")},
		{index: 9, err: invalid("TopicConfig.Replicas", 4, "1 to 3")},
		{index: 10, err: &ProducerFencedError{"billing", 3, 300}},
		failedAnswer(&raftlog.NotLeaderError{Group: 1, Leader: 12, Node: 2}),
		failedAnswer(raftlog.Unknown(raftlog.ErrLeadershipLost)),
	}
}

func TestGoldenCommands(t *testing.T) {
	var b strings.Builder
	for _, c := range goldenCommands() {
		data := encodeCommand(c)
		fmt.Fprintf(&b, "%T %x\n", c, data)
		got, err := decodeCommand(data)
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
	golden(t, "commands.v1", b.String())
}

func TestEveryCommandTypeHasAGoldenForm(t *testing.T) {
	seen := map[commandType]bool{}
	for _, c := range goldenCommands() {
		seen[c.kind()] = true
	}
	for kind := commandType(1); kind <= newestCommand; kind++ {
		require.True(t, seen[kind], "type %d", kind)
	}
}

func TestGoldenAnswers(t *testing.T) {
	var b strings.Builder
	for _, a := range goldenAnswers() {
		data := encodeAnswer(a)
		fmt.Fprintf(&b, "%x\n", data)
		got := decodeAnswer(data)
		require.Equal(t, data, encodeAnswer(got))
		require.Equal(t, a.index, got.index)
		require.Equal(t, a.leader, got.leader)
		require.Equal(t, a.value, got.value)
		if a.err != nil {
			require.Equal(t, a.err.Error(), got.err.Error())
			require.Equal(t, raftlog.OutcomeOf(a.err), raftlog.OutcomeOf(got.err))
		}
	}
	golden(t, "answers.v1", b.String())
}

// goldenState is a state that has keys of every table.
func goldenState(t *testing.T) memView {
	v := seeded(t, testGenesis(2))
	for _, c := range []command{
		createTopic{inc(1), "Orders", TopicConfig{Partitions: 2, Replicas: 2}},
		createTopic{inc(2), "gone", TopicConfig{}}, topicDeleting{inc(2)}, topicDeleted{inc(2)},
		allocateProducer{"billing", [16]byte{7}, 0, false}, setSetting{"key", "value"},
	} {
		_, err := v.decided(t, c)
		require.NoError(t, err)
	}
	return v
}

func TestGoldenState(t *testing.T) {
	v := goldenState(t)
	tables := map[byte]bool{}
	var b strings.Builder
	require.NoError(t, dump(v, func(key, value []byte) error {
		tables[key[0]] = true
		fmt.Fprintf(&b, "%c %x %x\n", key[0], key[1:], value)
		return nil
	}))
	require.Len(t, tables, 12, "every table of the layout")
	golden(t, "state.v1", b.String())
}

func TestGoldenSnapshot(t *testing.T) {
	v := goldenState(t)
	var b bytes.Buffer
	at := applied{8, 3, raftlog.ConfState{Voters: []raftlog.ReplicaID{11}, VotersOutgoing: []raftlog.ReplicaID{11, 12}, AutoLeave: true}}
	require.NoError(t, writeSnapshot(&b, v, format{layoutVersion, typeSetSetting}, at))
	golden(t, "snapshot.v1", hex.EncodeToString(b.Bytes()))

	got := memView{}
	require.NoError(t, readSnapshot(&b, func(f format, a applied) error {
		require.Equal(t, format{layoutVersion, typeSetSetting}, f)
		require.Equal(t, at, a)
		return nil
	}, func(key, value []byte) error {
		got[string(key)] = bytes.Clone(value)
		return nil
	}))
	delete(v, "a")
	delete(v, "f")
	require.Equal(t, v, got)
}

// huge is a count of 2^40 items.
var huge = []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x20}

// Property: S11 (red: decoder.count without its bound: 2^40 members in 30 bytes; open: decoders of other packages)
func FuzzCommand(f *testing.F) {
	for _, c := range goldenCommands() {
		f.Add(encodeCommand(c))
	}
	f.Add(append(append([]byte{0, 1, 1}, make([]byte, 17)...), huge...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCommand(b)
		if err == nil {
			require.Equal(t, b, encodeCommand(c))
			_ = c.check()
		}
	})
}

// Property: S11 (red: as of FuzzCommand, in a topic's partitions; open: decoders of other packages)
func FuzzAnswer(f *testing.F) {
	for _, a := range goldenAnswers() {
		f.Add(encodeAnswer(a))
	}
	f.Add(append(append([]byte{answerVersion, 1, 1, resultTopic}, make([]byte, 16)...), append([]byte{1, 0, 0}, huge...)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		a := decodeAnswer(b)
		if a.err != nil {
			outcomes := 0
			for _, o := range []error{raftlog.ErrRetry, raftlog.ErrRefused, raftlog.ErrOutcomeUnknown} {
				if errors.Is(a.err, o) {
					outcomes++
				}
			}
			require.Equal(t, 1, outcomes)
		}
	})
}

// Property: S11 (red: chunkReader made a buffer of the length that a chunk claims; open: decoders of other packages)
func TestASnapshotChunkCostsWhatItBrings(t *testing.T) {
	input := make([]byte, 40)
	binary.BigEndian.PutUint32(input, maxChunk)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := (&chunkReader{r: bytes.NewReader(input)}).read()
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxChunk/4))
}

// Property: S11 (red: chunkReader took a chunk without a kind; open: decoders of other packages)
func FuzzSnapshot(f *testing.F) {
	var b bytes.Buffer
	v := memView{"n1": []byte("x"), "n2": nil}
	if err := writeSnapshot(&b, v, format{1, 1}, applied{5, 1, raftlog.ConfState{Voters: []raftlog.ReplicaID{1}}}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(make([]byte, 8))
	f.Fuzz(func(t *testing.T, b []byte) {
		var again bytes.Buffer
		got := memView{}
		var head format
		var at applied
		err := readSnapshot(bytes.NewReader(b), func(f format, a applied) error {
			head, at = f, a
			return nil
		}, func(k, v []byte) error {
			got[string(k)] = bytes.Clone(v)
			return nil
		})
		if err == nil {
			require.NoError(t, writeSnapshot(&again, got, head, at))
		}
	})
}

// Property: S11 (red: as of FuzzCommand, in a partition's replicas; open: decoders of other packages)
func FuzzRecords(f *testing.F) {
	f.Add(byte(0), applied{5, 1, raftlog.ConfState{Voters: []raftlog.ReplicaID{1, 2}}}.encode())
	f.Add(byte(0), append([]byte{5, 1}, huge...))
	f.Add(byte(6), append([]byte{recordVersion, 7}, huge...))
	f.Add(byte(3), encodeMember(testGenesis(1).Members[0]))
	f.Add(byte(5), topicHead{TopicActive, "orders", TopicConfig{1, 2, 3, 1 << 10}}.encode())
	f.Add(byte(8), namedProducer{producer{9, 2}, [16]byte{7}}.encode())
	f.Add(byte(6), appendPartition(nil, Partition{0, 7, []Assignment{{1, 2}}}))
	f.Fuzz(func(t *testing.T, which byte, b []byte) {
		d := decoder{b: b}
		var again func() []byte
		switch which % 9 {
		case 0:
			v := d.applied()
			again = v.encode
		case 1:
			v := d.format()
			again = v.encode
		case 2:
			v := d.cluster()
			again = v.encode
		case 3:
			v := d.memberRecord()
			again = func() []byte { return encodeMember(v) }
		case 4:
			v := d.load()
			again = v.encode
		case 5:
			v := d.topicRecord()
			again = v.encode
		case 6:
			v := d.partition(0)
			again = func() []byte { return appendPartition(nil, v) }
		case 7:
			v := d.tombstone()
			again = func() []byte { return encodeTombstone(v) }
		case 8:
			v := d.namedProducer()
			again = v.encode
		}
		if d.end() == nil {
			require.Equal(t, b, again())
		}
	})
}
