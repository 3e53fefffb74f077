package storage

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// checkpoint writes the table at the start of a generation.
func (j *journal) checkpoint(generation uint64, states []ReplicaState, syncLog func(ReplicaID) error) error {
	j.checkpointing.Lock()
	defer j.checkpointing.Unlock()
	defer j.watchSwitches()()
	if err := j.failure(); err != nil {
		return err
	}
	salt, err := j.saltOf(generation)
	if err != nil {
		return err
	}
	if newest := j.newestNamed(); generation <= newest {
		return fmt.Errorf("storage: a checkpoint at generation %d after one at %d", generation, newest)
	}
	for i := range states {
		st := &states[i]
		if st.Status != ReplicaLive || j.isSwitched(st) || j.broken.logsNotSynced {
			continue
		}
		// A log that ended meanwhile is not missed: the frame that ended it is
		// durable, and lies behind the generation's start.
		if err := syncLog(st.Replica); err != nil && !j.isSwitched(st) {
			return fmt.Errorf("storage: checkpoint: log of %v in %v: %w", st.Replica, st.Group, err)
		}
	}
	t := &tableCopy{generation: generation, salt: salt, key: j.key, rows: rowsOf(states)}
	if err := j.writeCopy(j.olderSlot(), t); err != nil {
		return j.fail(err)
	}
	j.dropFiles()
	return nil
}

// watchSwitches keeps what rounds switch until the checkpoint is over.
func (j *journal) watchSwitches() (stop func()) {
	set := func(on bool) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.mu.checkpointing = on
	}
	set(true)
	return func() { set(false) }
}

func (j *journal) olderSlot() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.copies[1].generation < j.mu.copies[0].generation {
		return 1
	}
	return 0
}

// newestNamed returns the newest generation that the table names.
func (j *journal) newestNamed() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return max(j.mu.copies[0].generation, j.mu.copies[1].generation)
}

// writeCopy writes a copy of the table over the one in the slot and syncs it.
// The slot's copy is of no use from the first byte on: the other one must be
// durable, or hold the same.
func (j *journal) writeCopy(slot int, t *tableCopy) error {
	b := encodeTable(nil, t)
	path := j.path(tableName(slot))
	f, err := j.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("storage: open %s: %w", path, err)
	}
	_, err = f.WriteAt(b, 0)
	if err == nil && !j.broken.tableNotSynced {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("storage: write %s: %w", path, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.copies[slot] = tableAt{t.generation, t.salt}
	return nil
}

// syncCopy is what a test does instead of writeCopy.
func (j *journal) syncCopy(slot int) error {
	f, err := j.fs.OpenReadWrite(j.path(tableName(slot)), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
