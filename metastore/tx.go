package metastore

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/stelelog/stele/raftlog"
)

// view is the state as a decision reads it.
type view interface {
	// get returns the value of key, nil if there is none. The caller must not
	// change it.
	get(key []byte) ([]byte, error)
	// scan calls f for each key that begins with prefix, in ascending order,
	// until f returns an error. f must not keep what it is given.
	scan(prefix []byte, f func(key, value []byte) error) error
}

// tx collects what one or more commands write, over a view of the state
// before them. It is a view itself: later commands see what earlier ones wrote.
//
// The typed accessors decode. A value that cannot be read or decoded is damage,
// not a result: it stays in err, the accessors return zero from then on, and
// whoever drives the commands must look at it before believing any result.
type tx struct {
	base    view
	writes  map[string][]byte // nil: removed
	changes []change          // what the catalog has to follow
	keep    bool              // a command refused, and what it wrote stays all the same
	err     error
}

func newTx(base view) *tx { return &tx{base: base, writes: map[string][]byte{}} }

// mergeInto hands everything to the transaction below.
func (t *tx) mergeInto(below *tx) {
	maps.Copy(below.writes, t.writes)
	below.changes = append(below.changes, t.changes...)
}

func (t *tx) get(key []byte) ([]byte, error) {
	if v, ok := t.writes[string(key)]; ok {
		return v, nil
	}
	return t.base.get(key)
}

func (t *tx) scan(prefix []byte, f func(key, value []byte) error) error {
	mine := t.written(string(prefix))
	err := t.base.scan(prefix, func(key, value []byte) error {
		for len(mine) > 0 && mine[0] < string(key) {
			if err := t.emit(mine[0], f); err != nil {
				return err
			}
			mine = mine[1:]
		}
		if len(mine) > 0 && mine[0] == string(key) {
			return nil // it follows with what it is now
		}
		return f(key, value)
	})
	for _, key := range mine {
		if err != nil {
			return err
		}
		err = t.emit(key, f)
	}
	return err
}

// written returns the keys below prefix that this transaction touched, sorted.
func (t *tx) written(prefix string) (keys []string) {
	for key := range t.writes {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func (t *tx) emit(key string, f func(key, value []byte) error) error {
	if v := t.writes[key]; v != nil {
		return f([]byte(key), v)
	}
	return nil
}

func (t *tx) put(key, value []byte) { t.writes[string(key)] = value }
func (t *tx) remove(key []byte)     { t.writes[string(key)] = nil }

// fail notes damage; the first one stays.
func (t *tx) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// record reads and decodes the value of key; false: there is none.
func record[T any](t *tx, key []byte, decode func(*decoder) T) (v T, ok bool) {
	if t.err != nil {
		return v, false
	}
	b, err := t.get(key)
	if err != nil {
		t.fail(err)
	}
	if err != nil || b == nil {
		return v, false
	}
	d := decoder{b: b}
	got := decode(&d)
	if err := d.end(); err != nil {
		t.fail(damaged("key %q: %w", key, err))
		return v, false
	}
	return got, true
}

// must is record for what cannot be missing.
func must[T any](t *tx, key []byte, decode func(*decoder) T) T {
	v, ok := record(t, key, decode)
	if !ok {
		t.fail(damaged("key %q is missing", key))
	}
	return v
}

func (t *tx) topic(i raftlog.Incarnation) (topicHead, bool) {
	return record(t, keyIncarnation(tableTopic, i), (*decoder).topicRecord)
}

func (t *tx) tombstone(i raftlog.Incarnation) (name string, ok bool) {
	return record(t, keyIncarnation(tableTombstone, i), (*decoder).tombstone)
}

// named returns the topic that has the name, however it is written.
func (t *tx) named(name string) (raftlog.Incarnation, bool) {
	return record(t, keyName(name), func(d *decoder) raftlog.Incarnation { return d.id16() })
}

func (t *tx) partition(i raftlog.Incarnation, index uint32) Partition {
	return must(t, keyPartition(i, index), func(d *decoder) Partition { return d.partition(index) })
}

func (t *tx) load(n raftlog.NodeID) load {
	v, _ := record(t, keyNode(tableLoad, n), (*decoder).load)
	return v
}

func (t *tx) putLoad(n raftlog.NodeID, l load) { t.put(keyNode(tableLoad, n), l.encode()) }

func (t *tx) cluster() cluster { return must(t, []byte{tableCluster}, (*decoder).cluster) }

func (t *tx) applied() (applied, bool) {
	return record(t, []byte{tableApplied}, (*decoder).applied)
}

func (t *tx) format() format { return must(t, []byte{tableFormat}, (*decoder).format) }

// next returns the next id of a sequence.
func (t *tx) next(c counter) uint64 {
	key := []byte{tableCounter, byte(c)}
	n := must(t, key, (*decoder).uint)
	if n > maxCounter {
		t.fail(damaged("counter %q is used up", byte(c)))
	}
	t.put(key, appendUint(nil, n+1))
	return makeID(t.cluster().Epoch, n)
}

// change is what readers of topics and members have to follow.
type change struct {
	created *Topic
	state   TopicState // of incarnation, which becomes this; TopicDeleted: it goes
	// deletion goes with state.
	deletion Deletion
	moved    *Partition          // of incarnation, which becomes this
	config   *TopicConfig        // of incarnation, which becomes this
	of       raftlog.Incarnation // of state, moved and config
	members  bool                // some member's record or liveness
	departs  bool                // with members: how far one is on its way out
	cluster  bool                // the cluster's version, or its recoveries
	quiet    bool                // nothing that decides where anything is
}

// news is what of a state the catalog takes as a whole.
type news struct {
	members     []Member // if a change says so
	cluster     cluster
	nextReplica uint64
	newest      CommandType // that was ever applied
	recoveries  []Recovery  // if a change says so of the cluster; by epoch
}

// news returns that of the state with what t wrote.
func (t *tx) news() (n news) {
	if slices.ContainsFunc(t.changes, func(c change) bool { return c.members }) {
		n.members = t.members()
	}
	if slices.ContainsFunc(t.changes, func(c change) bool { return c.cluster }) {
		n.recoveries = t.recoveries()
	}
	n.cluster, _ = record(t, []byte{tableCluster}, (*decoder).cluster) // none: the state is empty
	f, _ := record(t, []byte{tableFormat}, (*decoder).format)
	n.newest = f.Newest
	n.nextReplica, _ = record(t, []byte{tableCounter, byte(counterReplica)}, (*decoder).uint)
	return n
}

// loud reports whether those who watch are to be told.
func (t *tx) loud() bool {
	return slices.ContainsFunc(t.changes, func(c change) bool { return !c.quiet })
}

// departures counts the changes of how far members are on their way out.
func (t *tx) departures() (n uint64) {
	for _, c := range t.changes {
		if c.departs {
			n++
		}
	}
	return n
}

// dump returns a view's keys and values in order, for hashes and comparisons.
func dump(v view, f func(key, value []byte) error) error {
	var last []byte
	return v.scan(nil, func(key, value []byte) error {
		if last != nil && bytes.Compare(last, key) >= 0 {
			return damaged("key %q follows %q", key, last)
		}
		last = append(last[:0], key...)
		return f(key, value)
	})
}
