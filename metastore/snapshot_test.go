package metastore

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
)

// snapshotAt returns the snapshot of a log's state at an index.
func snapshotAt(t *testing.T, g Genesis, log []raftlog.Entry, at raftlog.Index) []byte {
	t.Helper()
	m := mustOpenMachine(t, simfs.New(1), g)
	applyTo(t, m, rand.New(rand.NewPCG(1, 1)), log, at)
	var b bytes.Buffer
	_, err := m.snapshot(&b)
	require.NoError(t, err)
	require.NoError(t, m.db.close())
	return b.Bytes()
}

// writeSnapshot writes what a source would, of a view.
func writeSnapshot(w io.Writer, v view, f format, at applied) error {
	out := chunkWriter{w: w}
	out.header(f, at)
	var body []byte
	var pairs uint64
	err := v.scan(nil, func(key, value []byte) error {
		if !inHeader(key) {
			body = appendString(appendString(body, string(key)), string(value))
			pairs++
		}
		return nil
	})
	if len(body) > 0 {
		out.write(chunkPairs, body)
	}
	out.write(chunkEnd, appendUint(nil, pairs))
	return errors.Join(err, out.err)
}

// readSnapshot reads a whole one.
func readSnapshot(r io.Reader, header func(format, applied) error, put func(key, value []byte) error) error {
	return readState(&chunkReader{r: r}, func(f format, at applied) ([]byte, error) { return nil, header(f, at) }, put)
}

// snapshot writes the state as of one applied index, which it returns.
func (m *machine) snapshot(w io.Writer) (applied, error) {
	s, err := m.source()
	if err != nil {
		return applied{}, err
	}
	err = s.write(&chunkWriter{w: w}, nil, func(int) error { return nil })
	return s.at, errors.Join(err, s.close())
}

func TestASnapshotOfManyChunksRestores(t *testing.T) {
	g := testGenesis(3)
	log := []raftlog.Entry{{Index: 2, Term: 1, Data: encodeCommand(createTopic{inc(1), "big", TopicConfig{Partitions: 3_000, Replicas: 3}})}}
	want := history(t, log, g)
	snapshot := snapshotAt(t, g, log, 2)
	require.Greater(t, len(snapshot), chunkTarget)
	m := mustOpenMachine(t, simfs.New(2), g)
	before, next := m.mu.changes, m.mu.changed
	require.NoError(t, m.restore(bytes.NewReader(snapshot)))
	require.Equal(t, want[2], m.hash(t))
	m.requireCatalog(t)
	require.Greater(t, m.mu.changes, before, "who watches is told")
	<-next
	require.NoError(t, m.db.close())
}

// Property: R24 (red: a stream that ends between two chunks taken as complete; a snapshot at the applied index taken)
func TestALateBrokenOrCutSnapshotChangesNothing(t *testing.T) {
	g := testGenesis(3)
	log := script(6, 3, 60)
	want := history(t, log, g)
	snapshot := snapshotAt(t, g, log, 40)
	m := mustOpenMachine(t, simfs.New(2), g)
	r := rand.New(rand.NewPCG(1, 1))
	applyTo(t, m, r, log, 30)
	refused := func(b []byte, why string, args ...any) {
		t.Helper()
		require.Error(t, m.restore(bytes.NewReader(b)), append([]any{why}, args...)...)
	}
	stride := 1
	if testing.Short() {
		stride = 7
	}
	for cut := r.IntN(stride); cut < len(snapshot); cut += stride {
		refused(snapshot[:cut], "cut at %d", cut)
	}
	for at := r.IntN(stride); at < len(snapshot); at += stride {
		b := bytes.Clone(snapshot)
		b[at] ^= 1 << r.IntN(8)
		refused(b, "flipped at %d", at)
	}
	refused(snapshotAt(t, g, log, 30), "not ahead")
	refused(snapshotAt(t, g, log, 12), "late")
	require.Equal(t, want[30], m.hash(t))
	m.requireCatalog(t)
	applyTo(t, m, r, log, 35)
	require.NoError(t, m.restore(bytes.NewReader(snapshot)))
	require.ErrorIs(t, m.restore(bytes.NewReader(snapshot)), errSnapshotOld, "a duplicate")
	require.Equal(t, want[40], m.hash(t))
	applyTo(t, m, r, log, 61)
	require.Equal(t, want[61], m.hash(t))
	require.NoError(t, m.db.close())
}

func TestASnapshotThatContradictsItselfIsRefused(t *testing.T) {
	g := testGenesis(1)
	v := seeded(t, g)
	_, err := v.decided(t, createTopic{inc(1), "orders", TopicConfig{}})
	require.NoError(t, err)
	v[string(keyNode(tableLoad, 1))] = load{5, 5}.encode()
	var b bytes.Buffer
	require.NoError(t, writeSnapshot(&b, v, format{layoutVersion, NewestCommand}, applied{9, 2, raftlog.ConfState{}}))
	m := mustOpenMachine(t, simfs.New(1), g)
	before := m.hash(t)
	var state *StateError
	require.ErrorAs(t, m.restore(&b), &state)
	require.Equal(t, before, m.hash(t))
	require.NoError(t, m.db.close())
}

func TestASnapshotWriterThatFailsEndsIt(t *testing.T) {
	m := mustOpenMachine(t, simfs.New(1), testGenesis(1))
	want := errors.New("gone")
	_, err := m.snapshot(failingWriter{want})
	require.ErrorIs(t, err, want)
	require.NoError(t, m.db.close())
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

var _ io.Writer = failingWriter{}
