package metastore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// What a node finds at its start: the log of group 1, the state that was applied
// from it, and perhaps a snapshot that was being received, each of its own age,
// whatever crash, copy or other build has left them so.

// outcome is what a start makes of it.
type outcome string

const (
	begins    outcome = "begins"     // nothing was there: the genesis
	replays   outcome = "replays"    // what the log has and the state lacks is applied
	restores  outcome = "restores"   // the snapshot is the state, for the log begins at it
	logLost   outcome = "log lost"   // refused: ErrLogLost
	stateLost outcome = "state lost" // refused: ErrStateLost
	newer     outcome = "newer"      // refused: *NewerStateError
)

// restartMatrix is by log, then by state (in rows) and snapshot (in columns):
// none, one older than the state, one newer. The journal names the snapshot of the
// log that begins anew and no other; that it names an older one cannot be.
var restartMatrix = map[string]map[string][3]outcome{
	"missing": {
		"missing": {begins, begins, begins},
		"older":   {logLost, logLost, logLost},
		"newer":   {newer, newer, newer},
	},
	"ends before the state": {
		"missing": {replays, replays, replays},
		"older":   {logLost, logLost, logLost},
		"newer":   {newer, newer, newer},
	},
	"ends at the state": {
		"missing": {replays, replays, replays},
		"older":   {replays, replays, replays},
		"newer":   {newer, newer, newer},
	},
	"ends after the state": {
		"missing": {replays, replays, replays},
		"older":   {replays, replays, replays},
		"newer":   {newer, newer, newer},
	},
	"begins at the snapshot": {
		"missing": {stateLost, stateLost, restores},
		"older":   {stateLost, stateLost, restores},
		"newer":   {newer, newer, newer},
	},
}

// restart is a cluster of one, stopped three times: after its first, its second
// and its third topic.
type restart struct {
	t      *testing.T
	images [3]*simfs.FS
	at     [3]applied
	reset  *simfs.FS // whose log begins at the third state
}

const theReset = 77

func (r *restart) open(fs *simfs.FS) (*storage.Store, *raftlog.Host, *Store, error) {
	store, err := storage.Open(storage.Config{FS: fs, Dir: "data", Name: "node-1", Cluster: "test", JournalFileSize: 64 << 10, SegmentSize: 16 << 10})
	require.NoError(r.t, err)
	host, err := raftlog.Open(raftlog.Config{Node: 1, Store: store, Sender: nobody{}})
	require.NoError(r.t, err)
	require.NoError(r.t, fs.MkdirAll("data/meta", 0o755))
	meta, err := Open(r.t.Context(), Config{
		Host: host, FS: fs, Dir: "data/meta/db", Node: 1, Replica: 11, Genesis: testGenesis(1), Caller: nobody{}, Streamer: nobody{},
	})
	return store, host, meta, err
}

type nobody struct{}

func (nobody) Send(raftlog.NodeID, uint8, []byte) {}

func (nobody) Call(context.Context, raftlog.NodeID, string, []byte) ([]byte, error) {
	return nil, raftlog.Retry(errors.New("nobody is there"))
}

func (nobody) OpenStream(context.Context, raftlog.NodeID, string) (Stream, error) {
	return nil, raftlog.Retry(errors.New("nobody is there"))
}

func newRestart(t *testing.T) *restart {
	r := &restart{t: t}
	fs := simfs.New(1)
	for i := range r.images {
		store, host, meta, err := r.open(fs)
		require.NoError(t, err)
		<-meta.CaughtUp()
		_, err = meta.CreateTopic(t.Context(), TopicSpec{Name: fmt.Sprint("topic-", i)})
		require.NoError(t, err)
		r.at[i] = meta.machine.applied()
		host.Abort()
		require.NoError(t, errors.Join(meta.Close(), store.Close()))
		r.images[i] = fs.Image(simfs.Kill)
	}
	// The log of the first image, begun anew at the third state.
	r.reset = r.images[0].Image(simfs.Kill)
	store, host, meta, err := r.open(r.reset)
	require.NoError(t, err)
	begin := raftlog.Begin{Reset: theReset, Index: r.at[2].Index, Term: r.at[2].Term, Conf: r.at[2].Conf}
	require.NoError(t, host.ResetGroup(t.Context(), 11, begin, r.at[2].Term))
	host.Abort()
	require.NoError(t, errors.Join(meta.Close(), store.Close()))
	return r
}

// disk puts a log, a state and a snapshot on a disk of their own.
func (r *restart) disk(log, state string, snapshot int) *simfs.FS {
	t, fs := r.t, simfs.New(9)
	from := map[string]*simfs.FS{
		"ends before the state": r.images[0], "ends at the state": r.images[1], "ends after the state": r.images[2], "begins at the snapshot": r.reset,
	}[log]
	if from == nil {
		store, err := storage.Open(storage.Config{FS: fs, Dir: "data", Name: "node-1", Cluster: "test", JournalFileSize: 64 << 10})
		require.NoError(t, err)
		require.NoError(t, store.Close())
	} else {
		_, err := vfs.Clone(from, fs, "data", "data", vfs.CloneSync)
		require.NoError(t, err)
		require.NoError(t, fs.RemoveAll("data/meta/db"))
	}
	require.NoError(t, fs.MkdirAll("data/meta", 0o755))
	if state != "missing" {
		_, err := vfs.Clone(r.images[1], fs, "data/meta/db", "data/meta/db", vfs.CloneSync)
		require.NoError(t, err)
	}
	if state == "missing" && snapshot == 0 {
		return fs
	}
	db, err := openDatabase(t.Context(), fs, "data/meta/db", zap.NewNop())
	require.NoError(t, err)
	require.NoError(t, db.run(func() error {
		if snapshot == 0 {
			return nil
		}
		if snapshot == 1 {
			return r.stage(db, r.images[0], theReset-1)
		}
		return r.stage(db, r.images[2], theReset)
	}))
	require.NoError(t, db.close())
	if state == "newer" {
		r.newerType(fs, 0)
	}
	return fs
}

// newerType makes a state one of a build that knows a command more: 0 the one in
// use, 1 the one staged.
func (r *restart) newerType(fs *simfs.FS, which uint32) {
	db, err := openDatabase(r.t.Context(), fs, "data/meta/db", zap.NewNop())
	require.NoError(r.t, err)
	require.NoError(r.t, db.run(func() error {
		return db.commit(pebble.NoSync, func(b *pebble.Batch) error {
			return b.Set(stateKey(db.generation()+which, []byte{tableFormat}), format{layoutVersion, NewestCommand + 1}.encode(), nil)
		})
	}))
	require.NoError(r.t, db.close())
}

// stage puts the state on another disk beside the one in use, marked for a reset.
func (r *restart) stage(db *database, from *simfs.FS, reset uint64) error {
	other, err := openDatabase(r.t.Context(), from.Image(simfs.Kill), "data/meta/db", zap.NewNop())
	require.NoError(r.t, err)
	generation := db.generation() + 1
	require.NoError(r.t, db.commit(pebble.NoSync, func(b *pebble.Batch) error {
		return other.newest().scan(nil, func(key, value []byte) error { return b.Set(stateKey(generation, key), value, nil) })
	}))
	require.NoError(r.t, other.close())
	return db.setMark(mark{generation, reset})
}

// content is all that a database holds.
func (r *restart) content(fs *simfs.FS) map[string]string {
	all := map[string]string{}
	db, err := openDatabase(r.t.Context(), fs, "data/meta/db", zap.NewNop())
	require.NoError(r.t, err)
	require.NoError(r.t, db.run(func() error {
		it, err := db.pebble.NewIter(nil)
		require.NoError(r.t, err)
		for it.First(); it.Valid(); it.Next() {
			all[string(it.Key())] = string(it.Value())
		}
		return it.Close()
	}))
	require.NoError(r.t, db.close())
	return all
}

// Whatever of log, state and snapshot is there, and of which age, a start goes on
// from all that was promised, or refuses with advice and leaves all of it.
//
// Property: C6, C8, C9 (red: a snapshot that the journal names took the place of a newer build's state; one of a newer build was put in use; what was staged was removed though the open was refused; the genesis was made where a state is lost; a snapshot that the journal names was dropped; a log that ends too early had no advice)
func TestTheRestartMatrix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRestart(t)
		for log, states := range restartMatrix {
			for state, outcomes := range states {
				for snapshot, want := range outcomes {
					name := fmt.Sprintf("log %s, state %s, snapshot %s", log, state, []string{"none", "older", "newer"}[snapshot])
					r.try(name, r.disk(log, state, snapshot), log, want)
				}
			}
		}
		fs := r.disk("begins at the snapshot", "older", 2)
		r.newerType(fs, 1)
		r.try("the snapshot is of a newer build", fs, "", newer)
	})
}

func (r *restart) try(name string, fs *simfs.FS, log string, want outcome) {
	t := r.t
	var before map[string]string
	if want == newer || want == logLost || want == stateLost {
		before = r.content(fs)
	}
	for range 2 { // a second start finds what the first one left
		store, host, meta, err := r.open(fs)
		if before != nil {
			var newerState *NewerStateError
			switch want {
			case newer:
				require.ErrorAs(t, err, &newerState, name)
			case logLost:
				require.ErrorIs(t, err, ErrLogLost, name)
				require.ErrorContains(t, err, "move this node's directory away", name)
			case stateLost:
				require.ErrorIs(t, err, ErrStateLost, name)
				require.ErrorContains(t, err, "move this node's directory away", name)
			}
			requireOneOutcome(t, raftlog.OutcomeRefused, err)
			host.Abort()
			require.NoError(t, store.Close(), name)
			require.Equal(t, before, r.content(fs), "%s: nothing has changed", name)
			continue
		}
		require.NoError(t, err, name)
		<-meta.CaughtUp()
		topics := 3
		switch {
		case want == begins:
			topics = 0
		case log == "ends before the state":
			topics = 1
		case log == "ends at the state":
			topics = 2
		}
		require.Len(t, meta.Topics(), topics, name)
		host.Abort()
		require.NoError(t, errors.Join(meta.Close(), store.Close()), name)
	}
}
