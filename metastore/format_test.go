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
	"time"

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
		setVersion{2},
		admit{Admission{"node-4", raftlog.Nonce{4}, "host:4", typeSeed, true, 3, 900}, 1000},
		heartbeats{{Heartbeat{1, raftlog.Nonce{1}, 19}, 1000}, {Heartbeat{2, raftlog.Nonce{2}, 19}, 1001}},
		markDead{{1, 1000}, {3, 0}},
		setDeparture{2, raftlog.Nonce{2}, DrainsForced},
		removeMember{2},
		startMove{MoveRequest{inc(7), 3, 0, 4, 14}, 1000},
		finishMove{endMove{inc(7), 3, 1, 300}},
		cancelMove{endMove{inc(7), 3, 1, 300}},
		seed{[]setSetting{{"a", "1"}, {"b", "2"}}, []createTopic{{inc(9), "first", TopicConfig{Partitions: 3}}, {inc(10), "second", TopicConfig{MaxRecordBytes: 100}}}},
		goldenRecovery(),
		endHold{300},
		createTopic{inc(7), "kept", TopicConfig{Partitions: 3, MaxRecordBytes: 1 << 10, Retention: Retention{time.Hour, 1 << 33}}},
		createTopic{inc(8), "aged", TopicConfig{Retention: Retention{Age: 1500 * time.Millisecond}}},
		setRetention{inc(7), Retention{MaxRetentionAge, MaxRetentionBytes}},
		setRetention{inc(7), Retention{}},
		seed{nil, []createTopic{{inc(9), "first", TopicConfig{}}, {inc(10), "second", TopicConfig{Retention: Retention{Bytes: 100}}}}},
		retireTopic{inc(7), makeID(1, 300), 1000, 1000 + 3_600_000},
		stepTopic{inc(7), 1, TopicRestoring, 0},
		stepTopic{inc(7), 300, TopicDeleting, 5000},
		hashState{[16]byte{7}},
		stateAgreed{300, [16]byte{7}, digest{8, 9}, []raftlog.ReplicaID{11, 12, 300}},
	}
}

// movedPartition is one whose first move is over and whose second one is under
// way.
func movedPartition() Partition {
	return Partition{
		Index: 3, Group: 7, Replicas: []Assignment{{14, 1}, {300, 4}}, Generation: 3,
		Target: &Target{Assignment{301, 3}, 14, 1000}, first: []raftlog.ReplicaID{14, 15},
	}
}

func goldenAnswers() []answer {
	topic := &Topic{"orders", inc(7), TopicActive, TopicConfig{Partitions: 2, Replicas: 1, MaxBatchBytes: 1 << 20, MaxRecordBytes: MaxRecordBytes}, []Partition{{Index: 0, Group: 2, Replicas: []Assignment{{14, 1}}}, {Index: 1, Group: 3, Replicas: []Assignment{{15, 2}}}}, Deletion{}}
	retired := *topic
	retired.State, retired.Deletion = TopicRetired, Deletion{300, 298, 1000, 61_000}
	return []answer{
		{index: 5},
		{index: 6, value: topic},
		{index: 7, value: producer{9, 2}},
		{index: 8, err: named(ErrTopicExists, "Orders")},
		{index: 9, err: invalid("TopicConfig.Replicas", 4, "1 to 3")},
		{index: 10, err: &ProducerFencedError{"billing", 3, 300}},
		{index: 11, value: Member{4, "node-4", raftlog.Nonce{4}, 300, "host:4", Liveness{1000, typeSeed, true, true, Drains, 3}}},
		{index: 12, value: []error{nil, ErrStale, &RemovedError{3, "node-3"}}},
		{index: 13, value: movedPartition()},
		{index: 14, value: true},
		{index: 15, err: &RemovedError{3, "node-3"}},
		{index: 16, err: &ClusterVersionError{Needs: 2, Has: 1}},
		{index: 17, err: &OlderReleaseError{typeCreateLimited, typeSeed}},
		{index: 18, err: ErrNonceRefused}, {index: 19, err: named(ErrNameTaken, "node-3")}, {index: 20, err: ErrStale},
		{index: 21, err: ErrMemberDead}, {index: 22, err: ErrMemberDraining}, {index: 23, err: ErrMemberLeaving},
		{index: 24, err: ErrNotDraining}, {index: 25, err: ErrNotLeaving}, {index: 26, err: ErrMemberInUse},
		{index: 27, err: ErrMovePending}, {index: 28, err: ErrTooManyMoves}, {index: 29, err: ErrReplicaExists},
		{index: 30, err: ErrTooFewNodes},
		failedAnswer(&raftlog.NotLeaderError{Group: 1, Leader: 12, Node: 2}),
		failedAnswer(raftlog.Unknown(raftlog.ErrLeadershipLost)),
		{index: 31, value: &retired},
		{index: 32, err: &TopicRetiredError{"orders", inc(7), 1000, 61_000}},
		{index: 33, err: named(ErrTopicRestoring, "orders")},
	}
}

func TestGoldenCommands(t *testing.T) {
	var b strings.Builder
	for _, c := range goldenCommands() {
		data := encodeCommand(c)
		fmt.Fprintf(&b, "%T %x\n", c, data)
		got, err := decodeCommand(data, NewestCommand)
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
	golden(t, "commands.v1", b.String())
}

func TestEveryCommandTypeHasAGoldenForm(t *testing.T) {
	seen := map[CommandType]bool{}
	for _, c := range goldenCommands() {
		seen[c.kind()] = true
	}
	for kind := CommandType(1); kind <= NewestCommand; kind++ {
		require.Equal(t, !kind.unassigned(), seen[kind], "type %d", kind)
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
		if each, ok := a.value.([]error); ok {
			for i, err := range each {
				requireSameError(t, err, got.value.([]error)[i])
			}
		} else {
			require.Equal(t, a.value, got.value)
		}
		requireSameError(t, a.err, got.err)
	}
	golden(t, "answers.v1", b.String())
}

// requireSameError checks that an error is the same after it travelled.
func requireSameError(t *testing.T, want, got error) {
	t.Helper()
	if want == nil {
		require.NoError(t, got)
		return
	}
	require.Equal(t, want.Error(), got.Error())
	require.Equal(t, raftlog.OutcomeOf(want), raftlog.OutcomeOf(got))
	for code := codeOther; code <= newestCode; code++ {
		if is := sentinel(code); is != nil {
			require.Equal(t, errors.Is(want, is), errors.Is(got, is), "%v is %v", got, is)
		}
	}
}

// TestEveryErrorTravels: all codes have a golden form, or an older one.
func TestEveryErrorTravels(t *testing.T) {
	seen := map[byte]bool{codeOther: true, codeTopicNotFound: true, codeTopicDeleting: true, codeMemberNotFound: true}
	for _, a := range goldenAnswers() {
		if a.err != nil {
			seen[appendError(nil, a.err)[0]] = true
		}
	}
	for code := codeOther; code <= newestCode; code++ {
		require.True(t, seen[code], "code %d", code)
	}
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

// goldenStateOfTwo is a state of version 2 that has keys of every table.
func goldenStateOfTwo(t *testing.T) memView {
	v := goldenState(t)
	for _, c := range []command{
		setVersion{2},
		admit{Admission{"node-3", raftlog.Nonce{3}, "host:3", typeEndHold, true, 0, 0}, 1000},
		startMove{MoveRequest{inc(1), 0, 0, 3, 13}, 1001},
		finishMove{endMove{inc(1), 0, 1, 20}},
		startMove{MoveRequest{inc(1), 1, 0, 3, 0}, 1002},
		admit{Admission{"node-4", raftlog.Nonce{4}, "host:4", typeEndHold, false, 0, 0}, 1003},
		setDeparture{4, raftlog.Nonce{4}, Drains}, setDeparture{4, raftlog.Nonce{4}, Leaves}, removeMember{4},
		heartbeats{{Heartbeat{1, raftlog.Nonce{1}, typeEndHold}, 2000}}, markDead{{1, 2000}}, setDeparture{2, raftlog.Nonce{2}, DrainsForced},
		seed{},
	} {
		_, err := v.decided(t, c)
		require.NoError(t, err, "%T", c)
	}
	_, err := v.decided(t, admit{Admission{"node-1", raftlog.Nonce{5}, "host:5", typeEndHold, false, 1, 7}, 2001})
	require.ErrorIs(t, err, ErrNonceRefused)
	_, err = v.decided(t, recovery{1, [16]byte{1}, 3000, []RecoveredMember{{1, raftlog.Nonce{1}, 1<<48 + 1}}, []ForcedGroup{{2, 14}}, nil})
	require.NoError(t, err)
	_, err = v.decided(t, allocateProducer{"billing", [16]byte{8}, 0, false})
	require.NoError(t, err)
	return v
}

// goldenStateOfThree is a state of version 3 with topics that were deleted with a
// grace.
func goldenStateOfThree(t *testing.T) memView {
	v := goldenState(t)
	v.do(t, setVersion{3}, createTopic{inc(3), "back", TopicConfig{}}, createTopic{inc(4), "ends", TopicConfig{}},
		retireTopic{inc(1), 1, 1000, 61_000}, stepTopic{inc(1), 1, TopicRetired, 0}, retireTopic{inc(1), 2, 2000, 62_000},
		retireTopic{inc(3), 1, 1000, 61_000}, stepTopic{inc(3), 1, TopicRestoring, 0}, stepTopic{inc(3), 1, TopicActive, 0},
		retireTopic{inc(4), 1, 1000, 61_000}, stepTopic{inc(4), 1, TopicDeleting, 61_000})
	return v
}

// TestGoldenState: a state of version 1 is what the first release makes of it.
func TestGoldenState(t *testing.T) {
	for name, of := range map[string]struct {
		state  memView
		tables int
	}{
		"state.v1": {goldenState(t), len(tables) - len(tablesOfTwo)},
		"state.v2": {goldenStateOfTwo(t), len(tables)},
		"state.v3": {goldenStateOfThree(t), len(tables) - len(tablesOfTwo)},
	} {
		seen := map[byte]bool{}
		var b strings.Builder
		require.NoError(t, dump(of.state, func(key, value []byte) error {
			seen[key[0]] = true
			fmt.Fprintf(&b, "%c %x %x\n", key[0], key[1:], value)
			return nil
		}))
		require.Len(t, seen, of.tables, "every table of the layout")
		golden(t, name, b.String())
	}
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

// Property: S11 (red: decoder.count without its bound: 2^40 members in 30 bytes)
func FuzzCommand(f *testing.F) {
	for _, c := range goldenCommands() {
		f.Add(encodeCommand(c))
	}
	f.Add(append(append([]byte{0, 1, 1}, make([]byte, 17)...), huge...))
	for _, kind := range []CommandType{typeHeartbeats, typeMarkDead, typeSeed, typeRecover} {
		f.Add(append([]byte{0, byte(kind), 1}, huge...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCommand(b, NewestCommand)
		if err == nil {
			require.Equal(t, b, encodeCommand(c))
			_ = c.check()
		}
	})
}

// Property: S11 (red: as of FuzzCommand, in a topic's partitions)
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

// Property: S11 (red: chunkReader made a buffer of the length that a chunk claims)
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

// Property: S11 (red: chunkReader took a chunk without a kind)
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

// Property: S11 (red: as of FuzzCommand, in a partition's replicas)
func FuzzRecords(f *testing.F) {
	f.Add(byte(0), applied{5, 1, raftlog.ConfState{Voters: []raftlog.ReplicaID{1, 2}}}.encode())
	f.Add(byte(0), append([]byte{5, 1}, huge...))
	f.Add(byte(6), append([]byte{recordVersion, 7}, huge...))
	f.Add(byte(3), encodeMember(testGenesis(1).Members[0]))
	f.Add(byte(5), topicHead{TopicActive, "orders", TopicConfig{1, 2, 3, 1 << 10, Retention{time.Hour, 9}}, Deletion{}}.encode())
	f.Add(byte(5), topicHead{TopicRetired, "orders", TopicConfig{Partitions: 1}, Deletion{300, 298, 1000, 61_000}}.encode())
	f.Add(byte(8), namedProducer{producer{9, 2}, [16]byte{7}}.encode())
	f.Add(byte(6), appendPartition(nil, Partition{Index: 0, Group: 7, Replicas: []Assignment{{1, 2}}}))
	f.Add(byte(6), appendPartition(nil, movedPartition()))
	f.Add(byte(6), append([]byte{2, 7, 0, 1}, huge...))
	f.Add(byte(9), appendLiveness(nil, Liveness{1000, NewestCommand, true, true, Leaves, 3}))
	f.Add(byte(10), removal{raftlog.Nonce{3}, "node-3"}.encode())
	f.Add(byte(11), encodeOut(3))
	f.Fuzz(func(t *testing.T, which byte, b []byte) {
		d := decoder{b: b}
		var again func() []byte
		switch which % 12 {
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
		case 9:
			v := d.liveness()
			again = func() []byte { return appendLiveness(nil, v) }
		case 10:
			v := d.removal()
			again = v.encode
		case 11:
			v := d.out()
			again = func() []byte { return encodeOut(v) }
		}
		if d.end() == nil {
			require.Equal(t, b, again())
		}
	})
}
