package metastore

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/stelelog/stele/raftlog"
)

// Which state is in use.
//
// The state stands under a generation. A snapshot is received under the next
// one, beside the state in use, and takes its place only once this replica's log
// begins at the snapshot: the state and the log change hands together, or a
// restart would find one without the other. The log's side is a frame in the
// journal of raft (Host.ResetGroup), which names a reset by a random id.
//
//	1  the new state is whole and was checked; behind it, in one synced batch,
//	   the mark: which generation, for which reset
//	2  the frame of the reset is synced           <- from here on it is the new one
//	3  generation in use: the new one; no mark    (one synced batch)
//	4  the old state is removed
//
// A crash before 2 leaves a staged state, marked or not, that the journal does
// not name: it is removed, once the state in use was found to fit the log. A crash between 2 and 3 leaves a mark that the journal
// names: open does 3. After 3 there is at most an old state to be removed. The
// database is synced in 1 before the journal in 2, and its log is one sequence,
// so the marked state is there when the frame is.
//
// Who reads the state must not see half of it go: 4 begins when the generation in
// use has changed in memory, and a reader looks at that again afterwards (look).

// generationKey holds the generation in use, markKey that of a snapshot which is
// whole, and the reset that it waits for.
const (
	generationKey = string(prefixLocal) + "g"
	markKey       = string(prefixLocal) + "s"
	divergedKey   = string(prefixLocal) + "d" // that the state is not what others have
)

// mark names a state that waits for a reset; the zero mark: there is none.
type mark struct {
	generation uint32
	reset      uint64
}

func (m mark) encode() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, m.generation), m.reset)
}

func decodeMark(b []byte) (mark, error) {
	if len(b) != 12 {
		return mark{}, damaged("mark of %d bytes", len(b))
	}
	return mark{binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])}, nil
}

// switches decides at open whether a marked state is the one in use: the journal
// names the reset that it waited for.
func (m mark) switches(inUse uint32, reset uint64) bool {
	return m.reset != 0 && m.reset == reset && m.generation == inUse+1
}

// generation returns the one in use. Like all below it is called inside run.
func (d *database) generation() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.generation
}

func (d *database) setGeneration(g uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.generation = g
}

func (d *database) readGeneration() error {
	v, err := getPebble(d.pebble, []byte(generationKey))
	if err != nil {
		return err
	}
	generation := uint32(1)
	if v != nil {
		if len(v) != 4 {
			return damaged("generation of %d bytes", len(v))
		}
		generation = binary.BigEndian.Uint32(v)
	}
	d.setGeneration(generation)
	return nil
}

// settle finishes a snapshot that a crash interrupted behind its step 2. reset is
// the id of the reset that began this replica's log, as the journal has it; 0: none
// did. It changes nothing if the state, the one in use or the one to be, is one that
// a build which applies commands up to newest cannot read.
func (d *database) settle(reset uint64, newest CommandType) error {
	return d.run(func() error {
		if err := mayRead(d.newest(), newest); err != nil {
			return err
		}
		v, err := getPebble(d.pebble, []byte(markKey))
		if v == nil || err != nil {
			return err
		}
		m, err := decodeMark(v)
		if err != nil || !m.switches(d.generation(), reset) {
			return err
		}
		if err := mayRead(stateView{d.pebble, m.generation}, newest); err != nil {
			return err
		}
		return d.use(m.generation)
	})
}

// tidy removes what a snapshot left that was not to be, or an old state, once the
// group is open over the state in use: an open that is refused leaves all of it.
func (d *database) tidy() error {
	return d.run(func() error {
		if err := d.commit(pebble.NoSync, func(b *pebble.Batch) error { return b.Delete([]byte(markKey), nil) }); err != nil {
			return err
		}
		return d.removeOthers()
	})
}

// removeOthers removes all states but the one in use.
func (d *database) removeOthers() error {
	g := d.generation()
	for _, r := range [...][2][]byte{
		{[]byte{prefixState}, stateKey(g, nil)},
		{after(stateKey(g, nil)), []byte{prefixState + 1}},
	} {
		found := false
		err := scanRange(d.pebble, r[0], r[1], func([]byte, []byte) error { found = true; return errEnough })
		if err != nil && err != errEnough {
			return err
		}
		if !found {
			continue
		}
		if err := d.commit(pebble.NoSync, func(b *pebble.Batch) error { return b.DeleteRange(r[0], r[1], nil) }); err != nil {
			return err
		}
	}
	return nil
}

// clear removes the state of a generation that is not in use, and the mark.
func (d *database) clear(generation uint32) error {
	first := stateKey(generation, nil)
	return d.commit(pebble.NoSync, func(b *pebble.Batch) error {
		if err := b.DeleteRange(first, after(first), nil); err != nil {
			return err
		}
		return b.Delete([]byte(markKey), nil)
	})
}

// setMark makes the mark durable, and all that was written before it.
func (d *database) setMark(m mark) error {
	return d.commit(pebble.Sync, func(b *pebble.Batch) error { return b.Set([]byte(markKey), m.encode(), nil) })
}

// use makes a generation the one in use, durably, and removes the one that was.
func (d *database) use(generation uint32) error {
	err := d.commit(pebble.Sync, func(b *pebble.Batch) error {
		if err := b.Set([]byte(generationKey), binary.BigEndian.AppendUint32(nil, generation), nil); err != nil {
			return err
		}
		return b.Delete([]byte(markKey), nil)
	})
	if err != nil {
		return err
	}
	d.setGeneration(generation)
	return d.removeOthers()
}

// commit commits what fill puts into a batch.
func (d *database) commit(sync *pebble.WriteOptions, fill func(*pebble.Batch) error) error {
	b := d.pebble.NewBatch()
	defer b.Close()
	err := fill(b)
	if err == nil {
		err = b.Commit(sync)
	}
	if err != nil {
		return fmt.Errorf("metastore: write: %w", err)
	}
	return nil
}

// look calls f with the state as it is now, and again if a snapshot took its
// place meanwhile: f may have seen half of it.
func (d *database) look(f func(view) error) error {
	return d.run(func() error {
		for {
			g := d.generation()
			err := f(stateView{d.pebble, g})
			if d.generation() == g {
				return err
			}
		}
	})
}

// sync makes durable what was written before the call.
func (d *database) sync() error {
	return d.run(func() error {
		if err := d.pebble.LogData(nil, pebble.Sync); err != nil {
			return fmt.Errorf("metastore: write: %w", err)
		}
		return nil
	})
}

// encodeDiverged is what is kept of it. Who found it is in the log of the node.
func encodeDiverged(e *StateDivergedError) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(e.Index))
	return append(append(b, e.Own[:]...), e.Agreed[:]...)
}

func decodeDiverged(b []byte) (*StateDivergedError, error) {
	const sum = len(digest{})
	if len(b) != 8+2*sum {
		return nil, damaged("note of a damaged state of %d bytes", len(b))
	}
	e := &StateDivergedError{Index: raftlog.Index(binary.BigEndian.Uint64(b))}
	copy(e.Own[:], b[8:])
	copy(e.Agreed[:], b[8+sum:])
	return e, nil
}

// noteDiverged makes durable that this state is not to be used any more.
func (d *database) noteDiverged(e *StateDivergedError) error {
	return d.run(func() error {
		return d.commit(pebble.Sync, func(b *pebble.Batch) error { return b.Set([]byte(divergedKey), encodeDiverged(e), nil) })
	})
}

// mayBeUsed refuses a database whose state was found to be damaged.
func (d *database) mayBeUsed() error {
	return d.run(func() error {
		v, err := getPebble(d.pebble, []byte(divergedKey))
		if v == nil || err != nil {
			return err
		}
		e, err := decodeDiverged(v)
		if err != nil {
			return err
		}
		return e
	})
}
