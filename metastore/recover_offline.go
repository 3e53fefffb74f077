package metastore

import (
	"errors"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/stelelog/stele/raftlog"
)

// Offline is what the metadata of a stopped node say: the state of its database
// and, on top of it, what its log holds beyond that, committed or not.
type Offline struct {
	// Applied is where the database is; 0: it has no state.
	Applied raftlog.Index
	// The rest is as of the log's last entry.
	ClusterID raftlog.ClusterID
	Epoch     uint64
	Plan      [16]byte // of the recovery that began Epoch
	Members   []Member // by node id
	Topics    []Topic  // by name
	// Diverged: the state was found to be damaged, and no node is ever opened with it.
	// Nothing else is said then. nil: it was not.
	Diverged *StateDivergedError
}

// OfflineConfig says where the metadata of a stopped node are. All fields are
// required, but for Reset and Genesis.
type OfflineConfig struct {
	FS  vfs.FS
	Dir string // of the database
	// Reset is the id of the reset that began the log of this node's replica; 0:
	// none did.
	Reset uint64
	// Genesis is what the state begins with if the database has none, as of a node
	// that was stopped a moment after it was founded.
	Genesis Genesis
	// Log yields the entries of the replica's log above an index, at which the
	// configuration is conf: in order, and those that are not known to be committed
	// too. See raftlog.EntriesAbove.
	Log func(above raftlog.Index, conf raftlog.ConfState) iter.Seq2[raftlog.Entry, error]
}

// ReadOffline reads the metadata of a stopped node whose directory is locked. The
// database is opened for reading alone: nothing of the state is changed. See
// Offline.Diverged. Errors:
// *NewerStateError; what is damaged; those of Log.
func ReadOffline(config OfflineConfig) (*Offline, error) {
	if there, err := isDatabase(config.FS, config.Dir); err != nil || !there {
		return offlineOver(config, emptyView{}, err)
	}
	d := &database{log: zap.NewNop(), failed: make(chan struct{})}
	var o *Offline
	err := d.run(func() (err error) {
		// Nothing of it may end the process, as with a database in use.
		if d.pebble, err = pebble.Open(config.Dir, &pebble.Options{
			FS: config.FS, ReadOnly: true, Logger: pebbleLogger{d}, MaxOpenFiles: 64,
		}); err != nil {
			return fmt.Errorf("metastore: open %s: %w", config.Dir, err)
		}
		if err := d.mayBeUsed(); err != nil {
			o = new(Offline)
			if errors.As(err, &o.Diverged) {
				return nil
			}
			return err
		}
		generation, err := generationOf(d, config.Reset)
		if err != nil {
			return err
		}
		o, err = offlineOver(config, stateView{d.pebble, generation}, nil)
		return err
	})
	return o, errors.Join(err, d.close())
}

// isDatabase reports whether there is anything in the directory.
func isDatabase(fs vfs.FS, dir string) (bool, error) {
	if _, err := fs.Stat(fs.PathDir(dir)); err != nil {
		return false, nil // nor is the one that it is in
	}
	if _, err := fs.Stat(dir); err != nil {
		return false, nil
	}
	names, err := fs.List(dir)
	return len(names) > 0, err
}

// emptyView is the state of a database that was never made.
type emptyView struct{}

func (emptyView) get([]byte) ([]byte, error)                       { return nil, nil }
func (emptyView) scan([]byte, func(key, value []byte) error) error { return nil }

// generationOf is the generation that open would use: see settle.
func generationOf(d *database, reset uint64) (uint32, error) {
	if err := d.readGeneration(); err != nil {
		return 0, err
	}
	v, err := getPebble(d.pebble, []byte(markKey))
	if err != nil || v == nil {
		return d.generation(), err
	}
	m, err := decodeMark(v)
	if err == nil && m.switches(d.generation(), reset) {
		return m.generation, nil
	}
	return d.generation(), err
}

// offlineOver applies the log over what the database has.
func offlineOver(config OfflineConfig, base view, err error) (*Offline, error) {
	if err != nil {
		return nil, err
	}
	if _, _, err := loadState(base, NewestCommand); err != nil {
		return nil, err
	}
	t := newTx(base)
	at, begun := t.applied()
	o := &Offline{Applied: at.Index}
	if !begun && !config.Genesis.joined() {
		if _, refusal, err := decide(t, config.Genesis); err != nil || refusal != nil {
			return nil, errors.Join(err, refusal)
		}
		at, begun = t.applied()
	}
	if !begun {
		return o, t.err
	}
	for e, err := range config.Log(at.Index, at.Conf) {
		if err == nil {
			_, _, err = applyEntry(t, e, NewestCommand)
		}
		if err != nil {
			return nil, fmt.Errorf("metastore: entry %d of the log: %w", e.Index, err)
		}
	}
	c, err := loadCatalog(t)
	if err != nil {
		return nil, err
	}
	o.ClusterID, o.Epoch, o.Members = c.cluster.ID, c.cluster.Epoch, c.members
	for _, r := range c.recoveries {
		o.Plan = r.Plan
	}
	for _, topic := range c.sorted() {
		o.Topics = append(o.Topics, *topic)
	}
	return o, nil
}
