package metastore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
)

func goldenRequests() []snapshotRequest {
	return []snapshotRequest{
		{replica: 14, above: 0},
		{replica: 14, above: 300, index: 400, term: 7, behind: []byte("m\x00key")},
	}
}

func goldenSnapshotAnswers() []snapshotAnswer {
	return []snapshotAnswer{
		{kind: answerWhole, term: 7},
		{kind: answerRest, term: 300},
		{kind: answerRefused, reason: "not here"},
		{kind: answerAgreed, term: 7, hash: &digest{1, 2}},
		{kind: answerAgreedRest, term: 300, hash: &digest{3}},
	}
}

func TestGoldenStreams(t *testing.T) {
	var b strings.Builder
	for _, r := range goldenRequests() {
		fmt.Fprintf(&b, "%x\n", r.encode())
		got, err := decodeSnapshotRequest(r.encode())
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
	for _, a := range goldenSnapshotAnswers() {
		fmt.Fprintf(&b, "%x\n", a.encode())
		got, err := decodeSnapshotAnswer(a.encode())
		require.NoError(t, err)
		require.Equal(t, a, got)
	}
	golden(t, "streams.v1", b.String())
}

// Property: S11 (red: the length of the key was believed)
func FuzzStreams(f *testing.F) {
	for _, r := range goldenRequests() {
		f.Add(r.encode())
	}
	for _, a := range goldenSnapshotAnswers() {
		f.Add(a.encode())
	}
	f.Add(append([]byte{streamVersion, 1, 0, 1, 1}, huge...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeSnapshotRequest(b); err == nil {
			require.Equal(t, b, r.encode())
		}
		if a, err := decodeSnapshotAnswer(b); err == nil {
			require.Equal(t, b, a.encode())
		}
	})
}

func TestWhoGivesASnapshot(t *testing.T) {
	good := serveFacts{At: applied{Index: 9, Term: 2, Conf: raftlog.ConfState{Voters: []raftlog.ReplicaID{11}, Learners: []raftlog.ReplicaID{14}}}, Replica: 14, Above: 8}
	require.NoError(t, good.refusal())
	for want, change := range map[string]func(*serveFacts){
		"failed: gone":                  func(f *serveFacts) { f.Failed = errors.New("gone") },
		"is at 9, more than 9":          func(f *serveFacts) { f.Above = 9 },
		"no part in the group":          func(f *serveFacts) { f.Replica = 15 },
		"is at 0, more than 0 is asked": func(f *serveFacts) { f.At, f.Above = applied{}, 0 },
	} {
		f := good
		change(&f)
		require.ErrorContains(t, f.refusal(), want)
	}
	for _, conf := range []raftlog.ConfState{
		{Voters: []raftlog.ReplicaID{14}}, {VotersOutgoing: []raftlog.ReplicaID{14}}, {LearnersNext: []raftlog.ReplicaID{14}},
	} {
		f := good
		f.At.Conf = conf
		require.NoError(t, f.refusal())
	}
}

func TestWhichMarksSwitch(t *testing.T) {
	for _, c := range []struct {
		m     mark
		inUse uint32
		reset uint64
		want  bool
	}{
		{mark{}, 1, 0, false},     // no snapshot, no reset
		{mark{2, 7}, 1, 0, false}, // the frame did not come
		{mark{2, 7}, 1, 7, true},  // it did
		{mark{2, 7}, 1, 8, false}, // an earlier one did
		{mark{2, 7}, 2, 7, false}, // it is in use
		{mark{2, 0}, 1, 0, false}, // no id is 0
		{mark{3, 7}, 1, 7, false}, // of no state that is here
		{mark{2, 1}, 1, 1 << 63, false},
	} {
		require.Equal(t, c.want, c.m.switches(c.inUse, c.reset), "%+v", c)
	}
	_, err := decodeMark([]byte{1})
	require.Error(t, err)
	m, err := decodeMark(mark{5, 1 << 60}.encode())
	require.NoError(t, err)
	require.Equal(t, mark{5, 1 << 60}, m)
}

// Property: R24 (red: a rest of another index was taken)
func TestACutSnapshotGoesOnWhereItWas(t *testing.T) {
	g := testGenesis(3)
	log := []raftlog.Entry{}
	for i := range raftlog.Index(12) {
		log = append(log, raftlog.Entry{Index: 2 + i, Term: 1, Data: encodeCommand(createTopic{inc(1 + int(i)), fmt.Sprint("topic-", i), TopicConfig{Partitions: 900, Replicas: 3}})})
	}
	want := history(t, log, g)
	donor := mustOpenMachine(t, simfs.New(1), g)
	applyTo(t, donor, rand.New(rand.NewPCG(1, 1)), log, 13)
	s, err := donor.source()
	require.NoError(t, err)
	stream := func(behind []byte) []byte {
		var b bytes.Buffer
		require.NoError(t, s.write(&chunkWriter{w: &b}, behind, func(int) error { return nil }))
		return b.Bytes()
	}
	whole := stream(nil)
	require.Greater(t, len(whole), 4*chunkTarget)
	m := mustOpenMachine(t, simfs.New(2), g)
	r := rand.New(rand.NewPCG(3, 1))
	for round := range 8 {
		st, err := m.stage()
		require.NoError(t, err)
		sent, cuts := 0, 0
		for {
			b := stream(st.last)
			n := len(b)
			if cuts < 1+round {
				n = r.IntN(len(b))
			}
			sent += n
			err := st.receive(&chunkReader{r: bytes.NewReader(b[:n])})
			if err == nil {
				break
			}
			require.ErrorIs(t, err, errCut)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			cuts++
			require.Equal(t, raftlog.Index(1), m.applied().Index)
		}
		require.Less(t, sent, len(whole)+cuts*4*chunkTarget, "most of it travels once")
		c, err := st.check()
		require.NoError(t, err)
		if round < 7 {
			require.NoError(t, st.discard())
			continue
		}
		require.NoError(t, st.mark(5))
		require.NoError(t, st.use(c))
	}
	require.Equal(t, want[13], m.hash(t))
	m.requireCatalog(t)

	// The rest of another state.
	applyTo(t, donor, r, append(log, raftlog.Entry{Index: 14, Term: 1}), 14)
	later, err := donor.source()
	require.NoError(t, err)
	st, err := mustOther(t, g).stage()
	require.NoError(t, err)
	require.ErrorIs(t, st.receive(&chunkReader{r: bytes.NewReader(whole[:len(whole)/2])}), errCut)
	var b bytes.Buffer
	require.NoError(t, later.write(&chunkWriter{w: &b}, st.last, func(int) error { return nil }))
	require.ErrorIs(t, st.receive(&chunkReader{r: &b}), errMalformed)
	require.NoError(t, st.m.db.close())
	require.NoError(t, s.close())
	require.NoError(t, later.close())
	require.NoError(t, donor.db.close())
	require.NoError(t, m.db.close())
}

func mustOther(t *testing.T, g Genesis) *machine { return mustOpenMachine(t, simfs.New(3), g) }

// Property: C6, R24 (red: a marked state was used whatever the journal said; a mark that the journal named was dropped; the mark was not synced)
//
// Whatever a crash leaves of a snapshot, open makes of it what the journal says.
func TestOpenFinishesOrRemovesASnapshot(t *testing.T) {
	g := testGenesis(3)
	log := script(5, 3, 60)
	want := history(t, log, g)
	snapshot := snapshotAt(t, g, log, 51)
	fs := simfs.New(5)
	m := mustOpenMachine(t, fs, g)
	r := rand.New(rand.NewPCG(1, 1))
	applyTo(t, m, r, log, 20)
	require.NoError(t, m.db.run(m.db.pebble.Flush))
	var images []*simfs.FS
	fs.SetHook(imagesOf(fs, &images))
	st, err := m.stage()
	require.NoError(t, err)
	require.NoError(t, st.receive(&chunkReader{r: bytes.NewReader(snapshot)}))
	c, err := st.check()
	require.NoError(t, err)
	require.NoError(t, st.mark(77))
	fs.SetHook(nil)
	marked := len(images)
	images = append(images, fs.Image(simfs.Strict))
	fs.SetHook(imagesOf(fs, &images))
	require.NoError(t, st.use(c))
	fs.SetHook(nil)
	used := len(images)
	images = append(images, fs.Image(simfs.Strict))
	require.NoError(t, m.db.close())
	for i, image := range images {
		resets := []uint64{0, 76, 77}
		if i != marked && i != used {
			resets = resets[i%3:][:1] // one of them will do
		}
		for _, reset := range resets {
			disk := image.Image(simfs.Kill)
			m, err := reopened(t, disk, g, reset)
			require.NoError(t, err)
			at := m.applied().Index
			switch {
			case i >= used, reset == 77 && i >= marked:
				require.Equal(t, raftlog.Index(51), at, "crash %d, reset %d", i, reset)
			case reset != 77 && i <= marked:
				require.Equal(t, raftlog.Index(20), at, "crash %d, reset %d", i, reset)
			}
			require.Equal(t, want[at], m.hash(t), "crash %d, reset %d", i, reset)
			require.NoError(t, m.db.run(func() error {
				others := 0
				err := scanRange(m.db.pebble, []byte{prefixState}, []byte{prefixState + 1}, func([]byte, []byte) error { others++; return nil })
				mine := 0
				_ = m.db.newest().scan(nil, func([]byte, []byte) error { mine++; return nil })
				require.Equal(t, mine, others, "only one state is left")
				return err
			}))
			require.NoError(t, m.db.close())
			m, err = reopened(t, disk, g, reset)
			require.NoError(t, err)
			require.Equal(t, at, m.applied().Index, "and stays")
			require.NoError(t, m.db.close())
		}
	}
}
