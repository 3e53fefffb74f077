package storage

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// checkpoint writes the table at the start of a generation, and returns its
// rows if it did: with a *LogsFailedError too.
func (j *journal) checkpoint(
	generation uint64, states []ReplicaState, syncLog func(ReplicaID) error,
) (rows []ReplicaState, err error) {
	j.checkpointing.Lock()
	defer j.checkpointing.Unlock()
	defer j.watchSwitches()()
	if err := j.failure(); err != nil {
		return nil, err
	}
	salt, err := j.saltOf(generation)
	if err != nil {
		return nil, err
	}
	if newest := j.newestNamed(); generation <= newest {
		return nil, fmt.Errorf("storage: a checkpoint at generation %d after one at %d", generation, newest)
	}
	failed := j.syncLogs(states, syncLog)
	rows = rowsOf(states)
	if err := j.rescue(rows, failed.Replicas, tableAt{generation, salt}); err != nil {
		return nil, fmt.Errorf("storage: checkpoint: logs failed (%w), and what they lack cannot be had: %w", failed.Errs[0], err)
	}
	t := &tableCopy{generation: generation, salt: salt, key: j.key, rows: rows}
	if err := j.writeCopy(j.olderSlot(), t); err != nil {
		return nil, j.fail(err)
	}
	j.dropFiles()
	if len(failed.Replicas) > 0 {
		return rows, failed
	}
	return rows, nil
}

// syncLogs syncs the logs of the live replicas and returns those that failed.
func (j *journal) syncLogs(states []ReplicaState, syncLog func(ReplicaID) error) *LogsFailedError {
	failed := &LogsFailedError{}
	for i := range states {
		st := &states[i]
		if st.Status != ReplicaLive || j.isSwitched(st) || j.broken.logsNotSynced {
			continue
		}
		// A log that ended meanwhile is not missed: the frame that ended it is
		// durable, and lies behind the generation's start.
		if err := syncLog(st.Replica); err != nil && !j.isSwitched(st) && !j.broken.failedLogsTrusted {
			failed.Replicas = append(failed.Replicas, st.Replica)
			failed.Errs = append(failed.Errs, fmt.Errorf("log of %v in %v: %w", st.Replica, st.Group, err))
		}
	}
	return failed
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
