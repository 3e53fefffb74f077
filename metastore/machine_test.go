package metastore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
)

// applyTo applies entries up to index to, those that the machine has skipped
// by it, in calls of random size.
func applyTo(t *testing.T, m *machine, r *rand.Rand, log []raftlog.Entry, to raftlog.Index) {
	t.Helper()
	for at := m.applied().Index; at < to; at = m.applied().Index {
		from := at + 1 - raftlog.Index(r.IntN(int(min(at, 3)))) // up to two that it has
		n := min(int(to-from)+1, 3+r.IntN(8))
		entries := log[from-2:][:n]
		require.NoError(t, m.Apply(entries, make([]raftlog.Result, n)))
		m.Applied(from + raftlog.Index(n) - 1)
	}
}

// history is the hash of the state at each index, by one replica that applies
// entry by entry.
func history(t *testing.T, log []raftlog.Entry, g Genesis) map[raftlog.Index][32]byte {
	t.Helper()
	v := seeded(t, g)
	hashes := map[raftlog.Index][32]byte{}
	var err error
	hashes[1], err = stateHash(v)
	require.NoError(t, err)
	for _, e := range log {
		x := newTx(v)
		_, _, err := applyEntry(x, e, NewestCommand)
		require.NoError(t, err)
		v.commit(x)
		hashes[e.Index], err = stateHash(v)
		require.NoError(t, err)
	}
	return hashes
}

// Property: R11, I1 (red: placement over shuffled members; the incarnation drawn again at apply; a restored state without its tombstones; partitions: internal/testcluster compares what is applied, in each whole cluster)
func TestReplicasAtOneIndexAreEqual(t *testing.T) {
	for seed := range seeds(40) {
		g := testGenesis(3)
		log := script(seed, 3, 60)
		want := history(t, log, g)
		r := rand.New(rand.NewPCG(seed, 1))
		for replica := range 3 {
			fs := simfs.New(seed)
			m := mustOpenMachine(t, fs, g)
			for to := raftlog.Index(1); int(to) < len(log)+1; {
				to = min(to+1+raftlog.Index(r.IntN(25)), raftlog.Index(len(log)+1))
				applyTo(t, m, r, log, to)
				require.Equal(t, want[to], m.hash(t), "seed %d, replica %d, index %d", seed, replica, to)
				m.requireCatalog(t)
				switch r.IntN(3) {
				case 0: // a restart
					require.NoError(t, m.db.close())
					m = mustOpenMachine(t, fs, g)
					require.Equal(t, to, m.applied().Index)
				case 1: // another replica goes on from a snapshot
					var b bytes.Buffer
					at, err := m.snapshot(&b)
					require.NoError(t, err)
					require.Equal(t, m.applied(), at)
					require.NoError(t, m.db.close())
					fs = simfs.New(seed + 1)
					m = mustOpenMachine(t, fs, g)
					behind := raftlog.Index(1 + r.IntN(int(to-1)))
					applyTo(t, m, r, log, behind)
					require.NoError(t, m.restore(&b))
				}
				require.Equal(t, want[to], m.hash(t), "seed %d, replica %d, index %d", seed, replica, to)
				m.requireCatalog(t)
			}
			require.NoError(t, m.db.close())
		}
	}
}

// Property: C6 (red: the applied index in a batch of its own, after the effects)
func TestACrashAtAnyOperationAppliesNothingTwice(t *testing.T) {
	g := testGenesis(3)
	log := script(4, 3, 48)
	want := history(t, log, g)
	last := raftlog.Index(len(log) + 1)
	seen := map[raftlog.Index]bool{}
	recover := func(image *simfs.FS, moment string) {
		m := mustOpenMachine(t, image, g)
		at := m.applied().Index
		seen[at] = true
		require.Equal(t, want[at], m.hash(t), "%s: index %d", moment, at)
		applyTo(t, m, rand.New(rand.NewPCG(1, 1)), log, last)
		require.Equal(t, want[last], m.hash(t), "%s: index %d, replayed", moment, at)
		m.requireCatalog(t)
		require.NoError(t, m.db.close())
	}

	var images []*simfs.FS
	fs := simfs.New(4)
	fs.SetHook(imagesOf(fs, &images))
	m := mustOpenMachine(t, fs, g)
	for i := 0; i < len(log); i += 4 {
		require.NoError(t, m.Apply(log[i:i+4], make([]raftlog.Result, 4)))
		if i%16 == 8 { // crashes are to meet tables and manifest too
			require.NoError(t, m.db.run(m.db.pebble.Flush))
		} else { // and every state of the log
			require.NoError(t, m.db.run(func() error { return m.db.pebble.LogData(nil, pebble.Sync) }))
		}
	}
	require.NoError(t, m.db.close())
	fs.SetHook(nil)
	for i, image := range images {
		recover(image, fmt.Sprintf("crash %d", i))
	}
	require.Greater(t, len(images), 20)
	require.Greater(t, len(seen), 4, "crashes at many indices")
}

// imagesOf collects what crashes before each operation leave. Before a sync
// there is much that can be kept or lost, so there are many.
func imagesOf(fs *simfs.FS, images *[]*simfs.FS) simfs.Hook {
	var mu sync.Mutex
	stride, many := int64(1), 20
	if testing.Short() {
		stride, many = 5, 3
	}
	return func(op simfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if op.Seq == 0 {
			return nil
		}
		if op.Kind == simfs.OpSync {
			for range many {
				*images = append(*images, fs.Image(simfs.Random))
			}
		}
		if op.Seq%stride == 0 {
			*images = append(*images, fs.Image(simfs.Random), fs.Image(simfs.Strict))
		}
		return nil
	}
}

// Property: C6 (red: the generation in use switched when the header was read; the switch not synced)
func TestACrashDuringRestoreLeavesTheOldStateOrTheNew(t *testing.T) {
	g := testGenesis(3)
	log := script(5, 3, 60)
	want := history(t, log, g)
	donor := mustOpenMachine(t, simfs.New(1), g)
	r := rand.New(rand.NewPCG(1, 1))
	applyTo(t, donor, r, log, 51)
	var snapshot bytes.Buffer
	_, err := donor.snapshot(&snapshot)
	require.NoError(t, err)
	require.NoError(t, donor.db.close())

	fs := simfs.New(5)
	m := mustOpenMachine(t, fs, g)
	applyTo(t, m, r, log, 20)
	require.NoError(t, m.db.run(m.db.pebble.Flush))
	var images []*simfs.FS
	fs.SetHook(imagesOf(fs, &images))
	require.NoError(t, m.restore(bytes.NewReader(snapshot.Bytes())))
	fs.SetHook(nil)
	images = append(images, fs.Image(simfs.Strict)) // durable when restore returned
	require.NoError(t, m.db.close())
	for i, image := range images {
		m := mustOpenMachine(t, image, g)
		at := m.applied().Index
		require.Contains(t, []raftlog.Index{20, 51}, at)
		if i == len(images)-1 {
			require.Equal(t, raftlog.Index(51), at)
		}
		require.Equal(t, want[at], m.hash(t), "crash %d: index %d", i, at)
		if at == 20 {
			require.NoError(t, m.restore(bytes.NewReader(snapshot.Bytes())), "crash %d: again", i)
		}
		applyTo(t, m, r, log, 61)
		require.Equal(t, want[61], m.hash(t), "crash %d: index %d", i, at)
		require.NoError(t, m.db.close())
	}
}

func TestApplyRefusesGapsAndUnknownCommands(t *testing.T) {
	g := testGenesis(1)
	for name, e := range map[string]raftlog.Entry{
		"a gap":            {Index: 3, Term: 1},
		"an unknown type":  {Index: 2, Term: 1, Data: []byte{0, byte(NewestCommand) + 1, 1}},
		"an unknown build": {Index: 2, Term: 1, Data: []byte{0, byte(typeNoop), commandVersion + 1}},
		"damage":           {Index: 2, Term: 1, Data: []byte{0, byte(typeCreateTopic), 1, 9}},
	} {
		m := mustOpenMachine(t, simfs.New(1), g)
		before := m.hash(t)
		err := m.Apply([]raftlog.Entry{e}, make([]raftlog.Result, 1))
		require.Error(t, err, name)
		if e.Index == 2 && e.Data[1] != byte(typeCreateTopic) {
			var unknown *UnknownCommandError
			require.ErrorAs(t, err, &unknown, name)
		}
		require.Equal(t, before, m.hash(t), name)
		require.Error(t, m.failure(), name)
		require.Error(t, m.Apply([]raftlog.Entry{{Index: 2, Term: 1}}, make([]raftlog.Result, 1)), "%s: it stays stopped", name)
		require.NoError(t, m.db.close())
	}
}

func TestEveryEntryAdvancesTheAppliedIndex(t *testing.T) {
	m := mustOpenMachine(t, simfs.New(1), testGenesis(1))
	conf := &raftlog.ConfState{Voters: []raftlog.ReplicaID{11}, Learners: []raftlog.ReplicaID{30}}
	entries := []raftlog.Entry{
		{Index: 2, Term: 2},
		{Index: 3, Term: 2, Kind: 2, Conf: conf},
		{Index: 4, Term: 2, Data: encodeCommand(createTopic{inc(1), "no good", TopicConfig{}})},
		{Index: 5, Term: 3, Data: encodeCommand(noop{})},
	}
	for i := range entries {
		results := make([]raftlog.Result, 1)
		require.NoError(t, m.Apply(entries[i:i+1], results))
		require.Equal(t, entries[i].Index, m.applied().Index)
		require.Equal(t, entries[i].Term, m.applied().Term)
		require.Equal(t, i == 2, results[0].Err != nil)
	}
	require.Equal(t, *conf, m.applied().Conf)
	require.NoError(t, m.db.close())
}

// Property: C9 (red: format.know always content; while the cluster's version is raised: TestAMemberHoldsTheVersionBack of the root)
func TestAStateOfANewerBuildIsRefusedUntouched(t *testing.T) {
	for what, f := range map[string]format{
		"layout version":      {layoutVersion + 1, 1},
		"newest command type": {layoutVersion, NewestCommand + 1},
	} {
		fs := simfs.New(1)
		g := testGenesis(1)
		m := mustOpenMachine(t, fs, g)
		require.NoError(t, m.db.run(func() error {
			x := newTx(m.db.newest())
			x.put([]byte{tableFormat}, f.encode())
			return m.db.write(x)
		}))
		var before [32]byte
		require.NoError(t, m.db.run(func() (err error) { before, err = stateHash(m.db.newest()); return err }))
		var b bytes.Buffer
		_, err := m.snapshot(&b)
		require.NoError(t, err)
		require.NoError(t, m.db.close())

		_, err = openTestMachine(fs, g)
		var newer *NewerStateError
		require.ErrorAs(t, err, &newer)
		require.Equal(t, what, newer.What)
		require.ErrorIs(t, err, raftlog.ErrRefused)
		db, err := openDatabase(t.Context(), fs, "db", zap.NewNop())
		require.NoError(t, err)
		require.NoError(t, db.run(func() error {
			after, err := stateHash(db.newest())
			require.Equal(t, before, after)
			return err
		}))
		require.NoError(t, db.close())

		other := mustOpenMachine(t, simfs.New(2), g)
		require.ErrorAs(t, other.restore(&b), &newer, "and so is its snapshot")
		require.NoError(t, other.db.close())
	}
}

func TestAnotherClustersStateIsRefused(t *testing.T) {
	fs := simfs.New(1)
	m := mustOpenMachine(t, fs, testGenesis(1))
	require.NoError(t, m.db.close())
	g := testGenesis(1)
	g.ClusterID[0]++
	_, err := openTestMachine(fs, g)
	require.ErrorIs(t, err, raftlog.ErrRefused)
}
