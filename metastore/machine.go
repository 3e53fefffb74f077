package metastore

import (
	"encoding/binary"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
)

// machine is the replicated state machine of group 1: it turns entries into
// batches of the database and keeps the catalog beside it.
//
// Invariants, of a machine whose failure is nil:
//
//  1. at.Index is the applied index in the database's newest batch, and catalog
//     is that of the same batch.
//  2. at never goes back, and each entry above the genesis was applied in its
//     turn: none twice, none skipped.
type machine struct {
	db     *database
	newest CommandType // that it applies
	log    *zap.Logger
	watch  func(raftlog.Index, uint64, error) // of tests; nil: none

	// hashes is told of the commands by which states are compared.
	hashes *hashes

	// trim lets go the front of the group's log, up to what the database has
	// durably; nil: never. It is tried when the log has grown by trimEvery bytes.
	trim      func(durable raftlog.Index) error
	trimEvery int64
	grown     int64 // of who applies

	mu struct {
		sync.Mutex
		at         applied // zero: the state is empty
		catalog    *catalog
		changes    uint64        // of the catalog, but for heartbeats
		departures uint64        // changes of how far members are on their way out
		progress   chan struct{} // closed and replaced when at moves
		changed    chan struct{} // closed and replaced when changes moves
		err        error         // why the machine stopped
	}
}

// openMachine reads what the database holds.
func openMachine(db *database, newest CommandType, log *zap.Logger) (*machine, error) {
	m := &machine{db: db, newest: newest, log: log}
	m.mu.progress = make(chan struct{})
	m.mu.changed = make(chan struct{})
	var at applied
	var c *catalog
	err := db.run(func() (err error) {
		at, c, err = loadState(db.newest(), newest)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.mu.at, m.mu.catalog = at, c
	return m, nil
}

// loadState reads the applied state and the catalog of a view, for a build that
// applies commands up to newest.
func loadState(v view, newest CommandType) (applied, *catalog, error) {
	if err := mayRead(v, newest); err != nil {
		return applied{}, nil, err
	}
	t := newTx(v)
	at, _ := t.applied()
	if t.err != nil {
		return at, nil, t.err
	}
	c, err := loadCatalog(v)
	return at, c, err
}

// mayRead refuses a state in which there may be what a build that applies commands
// up to newest does not know (*NewerStateError).
func mayRead(v view, newest CommandType) error {
	t := newTx(v)
	if _, ok := t.applied(); ok {
		if f := t.format(); t.err == nil {
			if err := f.know(newest); err != nil {
				return err
			}
		}
		if k := t.cluster(); k.Version > VersionOf(newest) {
			return &NewerStateError{"cluster version", k.Version, VersionOf(newest)}
		}
	}
	return t.err
}

// seed makes the state at index 1, or checks that the state began with this
// genesis. That of a node that joined stays empty until a snapshot comes.
func (m *machine) seed(g Genesis) error {
	var err error
	switch {
	case g.joined() && m.applied().Index == 0:
		return nil
	case !g.joined():
		err = g.check()
	}
	if err != nil {
		return err
	}
	if m.applied().Index == 0 {
		err = m.step(func(t *tx) error {
			_, refusal, err := decide(t, g)
			if err == nil {
				err = refusal
			}
			return err
		}, func() error { return nil })
	}
	if err != nil {
		return err
	}
	var c cluster
	err = m.db.run(func() error {
		t := newTx(m.db.newest())
		c = t.cluster()
		return t.err
	})
	// After a recovery the state may be of the epoch before: the entry that ends
	// that is in the log, committed, and is applied before anything is answered.
	if err == nil && (c.ID != g.ClusterID || c.Epoch > g.epoch()) {
		err = raftlog.Refused(damaged("it is of cluster %v epoch %d, this node of cluster %v epoch %d", c.ID, c.Epoch, g.ClusterID, g.epoch()))
	}
	return err
}

// Apply implements raftlog.StateMachine. The entries of a call, with the
// applied index and the configuration as of the last of them, are one batch of
// the database, but for those behind one that asks to hash the state (batchOf). Entries that were applied before (the group's log may be
// behind the database) get their verdict again and change nothing.
//
// The verdict depends on the entry alone, so that it is the same whenever the
// log is written; whether a command was refused is in Result.Err.
func (m *machine) Apply(entries []raftlog.Entry, results []raftlog.Result) error {
	if err := m.failure(); err != nil {
		return err
	}
	fresh := 0
	at := m.applied().Index
	for i, e := range entries {
		results[i] = raftlog.Result{Verdict: verdict(e)}
		m.grown += int64(len(e.Data)) + entryBytes
		if e.Index <= at {
			fresh = i + 1
		}
	}
	if fresh == len(entries) {
		return nil
	}
	for fresh < len(entries) {
		n := batchOf(entries[fresh:])
		if err := m.applyBatch(entries[fresh:fresh+n], results[fresh:fresh+n]); err != nil {
			m.stop(err)
			return err
		}
		fresh += n
	}
	return nil
}

// batchOf returns how many entries are one batch of the database: all, or those up
// to one that asks to hash the state behind it.
func batchOf(entries []raftlog.Entry) int {
	for i, e := range entries {
		if isCommand(e, typeHashState) {
			return i + 1
		}
	}
	return len(entries)
}

func isCommand(e raftlog.Entry, kind CommandType) bool {
	return verdict(e) == raftlog.VerdictControl && len(e.Data) >= 2 && CommandType(binary.BigEndian.Uint16(e.Data)) == kind
}

func (m *machine) applyBatch(entries []raftlog.Entry, results []raftlog.Result) error {
	// What runs inside the database may outlive this call, if the database
	// fails: it has its own slice.
	mine := make([]raftlog.Result, len(entries))
	err := m.step(func(t *tx) error {
		for i, e := range entries {
			var err error
			if mine[i].Value, mine[i].Err, err = applyEntry(t, e, m.newest); err != nil {
				return fmt.Errorf("metastore: apply entry %d: %w", e.Index, err)
			}
		}
		return nil
	}, func() error { return m.heldFor(entries[len(entries)-1]) })
	if err != nil {
		return err
	}
	for i, r := range mine {
		results[i].Value, results[i].Err = r.Value, r.Err
	}
	return m.compare(entries)
}

// heldFor holds the state behind the last entry of a batch if that asks to hash it,
// refused or not: a state that is damaged may refuse. It is called in Pebble, before
// anybody sees that the entry was applied.
func (m *machine) heldFor(e raftlog.Entry) error {
	if m.hashes == nil || !isCommand(e, typeHashState) {
		return nil
	}
	c, err := decodeCommand(e.Data, m.newest)
	if err == nil {
		m.hashes.begin(c.(hashState).Nonce)
	}
	return err
}

// compare takes notice of what was agreed. The error is that this state is not it.
func (m *machine) compare(entries []raftlog.Entry) error {
	for _, e := range entries {
		if m.hashes == nil || !isCommand(e, typeStateAgreed) {
			continue
		}
		c, err := decodeCommand(e.Data, m.newest)
		if err != nil {
			return err
		}
		a := c.(stateAgreed)
		if err := m.hashes.agree(&a); err != nil {
			return err
		}
	}
	return nil
}

// Applied implements raftlog.StateMachine. Nothing waits for the group's log: the
// state is in the database. But the log grows with it, and is trimmed now and
// then: of what the database has durably a restart needs nothing, and what is
// asked for by others is in snapshots.
func (m *machine) Applied(raftlog.Index) {
	if m.trim == nil || m.grown < m.trimEvery {
		return
	}
	m.grown = 0
	durable := m.applied().Index
	err := m.db.sync()
	if err == nil {
		err = m.trim(durable)
	}
	if err != nil && m.failure() == nil {
		m.log.Warn("the metadata log cannot be trimmed and grows on", zap.Error(err))
	}
}

// entryBytes is what an entry takes of the log beyond its data, about.
const entryBytes = 64

// entryNormal is the kind of entries that carry a command, or nothing.
const entryNormal raftlog.EntryKind = 0

func verdict(e raftlog.Entry) raftlog.Verdict {
	switch {
	case e.Conf != nil || e.Kind != entryNormal:
		return raftlog.VerdictConfig
	case len(e.Data) == 0:
		return raftlog.VerdictEmpty
	}
	return raftlog.VerdictControl
}

// applyEntry applies one entry: its command, and the applied index with it,
// also of empty, refused and configuration entries.
func applyEntry(t *tx, e raftlog.Entry, newest CommandType) (value any, refusal, err error) {
	at, _ := t.applied()
	if t.err != nil {
		return nil, nil, t.err
	}
	if e.Index != at.Index+1 {
		return nil, nil, damaged("entry %d follows applied index %d", e.Index, at.Index)
	}
	if verdict(e) == raftlog.VerdictControl {
		// The leader decoded what it proposed. An entry that cannot be decoded
		// here was damaged since, or comes from a newer build; this replica
		// stops, and does not differ from the others.
		c, err := decodeCommand(e.Data, newest)
		if err != nil {
			return nil, nil, err
		}
		if value, refusal, err = decide(t, c); err != nil {
			return nil, nil, err
		}
	}
	at.Index, at.Term = e.Index, e.Term
	if e.Conf != nil {
		at.Conf = *e.Conf
	}
	t.put([]byte{tableApplied}, at.encode())
	return value, refusal, nil
}

// step runs f over the newest state, commits what it wrote as one batch, calls
// then, and lets the catalog and all who wait follow. Calls must not be concurrent.
func (m *machine) step(f func(*tx) error, then func() error) error {
	return m.db.run(func() error {
		t := newTx(m.db.newest())
		err := f(t)
		if err != nil {
			return err
		}
		at, _ := t.applied()
		now := t.news() // read before the lock: Pebble may never return
		if t.err != nil {
			return t.err
		}
		if err := m.db.write(t); err != nil {
			return err
		}
		if err := then(); err != nil {
			return err
		}
		if m.watch != nil {
			m.watch(at.Index, fingerprint(m.db.newest()), checkInvariants(m.db.newest()))
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if err := m.mu.catalog.follow(t.changes, now); err != nil {
			return err
		}
		m.mu.departures += t.departures()
		m.publishLocked(at, t.loud())
		return nil
	})
}

func (m *machine) publishLocked(at applied, changed bool) {
	m.mu.at = at
	close(m.mu.progress)
	m.mu.progress = make(chan struct{})
	if changed {
		m.mu.changes++
		close(m.mu.changed)
		m.mu.changed = make(chan struct{})
	}
}

// stop notes why nothing will be applied any more.
func (m *machine) stop(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.err == nil {
		m.mu.err = err
		m.log.Error("metadata is no longer applied on this node", zap.Error(err))
	}
}

// failure returns why the machine stopped, nil while it has not.
func (m *machine) failure() error {
	if err := m.db.failure(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.err
}

// applied returns how far the machine is, by its own batch.
func (m *machine) applied() applied {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.at
}

// read calls f with the catalog as it is now. f must be quick, and keep nothing
// but topics and the list of members, which do not change.
func (m *machine) read(f func(*catalog)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.mu.catalog)
}

// progress returns the applied index and a channel that is closed when there
// is a higher one.
func (m *machine) progress() (raftlog.Index, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.at.Index, m.mu.progress
}
