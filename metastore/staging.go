package metastore

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"

	"github.com/stelelog/stele/raftlog"
)

// staging is a snapshot on its way into the database, under the generation after
// the one in use (see generations.go). What has come is kept when a stream is
// cut, so that another one can bring the rest. One goroutine at a time uses it;
// entries may be applied meanwhile.
type staging struct {
	m          *machine
	generation uint32
	at         applied // of the snapshot; Index 0: nothing has come
	last       []byte  // the last key that was written; nil: none
	buffered   []pair
	size       int     // of buffered, in bytes
	hash       *digest // that the state must have; nil: its cluster does not agree on states
}

type pair struct{ key, value []byte }

// stage begins anew: what there was of an earlier snapshot is removed.
func (m *machine) stage() (*staging, error) {
	st := &staging{m: m}
	return st, m.db.run(func() error {
		st.generation = m.db.generation() + 1
		return m.db.clear(st.generation)
	})
}

// receive reads one snapshot, or the rest of the one that was cut, and returns
// nil when all of it is there. It refuses one that is not ahead of the state, and
// one that is not the one which was cut.
func (st *staging) receive(in *chunkReader) error {
	st.buffered, st.size = nil, 0
	err := readState(in, st.header, st.put)
	if err == nil {
		err = st.flush()
	}
	return err
}

func (st *staging) header(f format, at applied) ([]byte, error) {
	if at.Index <= st.m.applied().Index {
		return nil, errSnapshotOld
	}
	if st.at.Index != 0 {
		if at.Index != st.at.Index || at.Term != st.at.Term {
			return nil, fmt.Errorf("%w: the rest of a snapshot at %d, of one at %d", errMalformed, at.Index, st.at.Index)
		}
		return st.last, nil
	}
	st.at = at
	return nil, errors.Join(st.put([]byte{tableFormat}, f.encode()), st.put([]byte{tableApplied}, at.encode()), st.flush())
}

// put takes a pair; it is written with the next ones.
func (st *staging) put(key, value []byte) error {
	p := pair{append([]byte(nil), key...), append([]byte{}, value...)}
	st.buffered = append(st.buffered, p)
	if st.size += len(key) + len(value); st.size < chunkTarget {
		return nil
	}
	return st.flush()
}

// flush writes what was taken. The batch is not synced: the mark is, behind it.
func (st *staging) flush() error {
	pairs, generation := st.buffered, st.generation
	st.buffered, st.size = nil, 0
	if len(pairs) == 0 {
		return nil
	}
	err := st.m.db.run(func() error {
		return st.m.db.commit(pebble.NoSync, func(b *pebble.Batch) error {
			for _, p := range pairs {
				if err := b.Set(stateKey(generation, p.key), p.value, nil); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if last := pairs[len(pairs)-1].key; err == nil && !inHeader(last) {
		st.last = last
	}
	return err
}

// check reads the whole state that was received, and returns its catalog.
func (st *staging) check() (c *catalog, err error) {
	generation := st.generation
	err = st.m.db.run(func() error {
		v := stateView{st.m.db.pebble, generation}
		at, loaded, err := loadState(v, st.m.newest)
		if err == nil {
			err = checkInvariants(v)
		}
		if err == nil && at.Index != st.at.Index {
			err = damaged("a snapshot at %d has the state of %d", st.at.Index, at.Index)
		}
		c = loaded
		return err
	})
	return c, err
}

// discard removes what was received.
func (st *staging) discard() error {
	generation := st.generation
	st.at, st.last = applied{}, nil
	return st.m.db.run(func() error { return st.m.db.clear(generation) })
}

// mark makes the received state durable, for the reset that will put it in use.
func (st *staging) mark(reset uint64) error {
	m := mark{st.generation, reset}
	return st.m.db.run(func() error { return st.m.db.setMark(m) })
}

// use puts the received state, which was checked, in the place of the one in use.
// Nothing may be applied meanwhile. Who watches is told.
func (st *staging) use(c *catalog) error {
	generation, at := st.generation, st.at
	return st.m.db.run(func() error {
		if err := st.m.db.use(generation); err != nil {
			return err
		}
		st.m.mu.Lock()
		defer st.m.mu.Unlock()
		st.m.mu.catalog = c
		st.m.publishLocked(at, true)
		return nil
	})
}

// restore replaces the state by that of a snapshot, which must be ahead of it;
// one that is late, broken or cut changes nothing. It must not run beside Apply.
// It is all that a store does but for the log's part of it.
func (m *machine) restore(r io.Reader) error {
	st, err := m.stage()
	if err != nil {
		return err
	}
	err = st.receive(&chunkReader{r: r})
	var c *catalog
	if err == nil {
		c, err = st.check()
	}
	if err == nil {
		err = st.mark(1)
	}
	if err == nil {
		err = st.use(c)
	}
	if err != nil {
		err = errors.Join(err, st.discard())
	}
	return err
}

// of refuses a state of another cluster, or of another recovery of it: a damaged
// or misled node must not take it over.
func (st *staging) of(g Genesis) error {
	generation := st.generation
	return st.m.db.run(func() error {
		t := newTx(stateView{st.m.db.pebble, generation})
		c := t.cluster()
		if t.err == nil && (c.ID != g.ClusterID || c.Epoch != g.epoch()) {
			t.err = raftlog.Refused(damaged("a snapshot of cluster %v epoch %d", c.ID, c.Epoch))
		}
		return t.err
	})
}
