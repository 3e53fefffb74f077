package storage

import (
	"bytes"
	"fmt"
	"slices"
)

// LogsFailedError is what Checkpoint returns if it made a checkpoint though
// some partition logs cannot be synced. It is as good as one without an error:
// journal files are let go as ever. But the logs stay failed, and what is above
// their last proven position is carried from table to table until the node is
// opened again.
type LogsFailedError struct {
	Replicas []ReplicaID // whose logs failed, by replica
	Errs     []error     // of the logs, in that order
}

func (e *LogsFailedError) Error() string {
	return fmt.Sprintf("storage: a checkpoint without the logs of %v, the first because of: %v", e.Replicas, e.Errs[0])
}

func (e *LogsFailedError) Unwrap() []error { return e.Errs }

// rescue makes the rows of logs that cannot be synced true without them. Such a
// log counts up to its proven position, the one in the newest copy of the
// table, to which it was synced before that copy was written. What the row's
// state had applied above it is in the journal still, between the generation
// that this copy names and the one that the next will name. It goes into the
// row itself. So
//
//	{log up to the row's position} + {the row's entries} + {carry} + {later frames}
//
// is everything, as recovery needs it, and no generation before the new one is
// needed for the row. The caller holds checkpointing.
func (j *journal) rescue(rows []ReplicaState, failed []ReplicaID, to tableAt) error {
	rescued := make(map[ReplicaID]ReplicaState, len(failed))
	missing := map[ReplicaID]bool{}
	for i := range rows {
		row := &rows[i]
		if !slices.Contains(failed, row.Replica) {
			continue
		}
		if r, ok := j.rescued[row.Replica]; ok && r.Log.Reset == row.Log.Reset && r.lastIndex() == row.Log.LastIndex {
			rescued[row.Replica] = r
		} else {
			missing[row.Replica] = true
		}
	}
	if len(missing) > 0 {
		p, err := j.replayTo(to, missing)
		if err != nil {
			return err
		}
		for i := range rows {
			if row := &rows[i]; missing[row.Replica] {
				if rescued[row.Replica], err = rescuedRow(p.states[row.Replica], &row.Log); err != nil {
					return fmt.Errorf("%v: %w", row.Replica, err)
				}
			}
		}
	}
	for i := range rows {
		if r, ok := rescued[rows[i].Replica]; ok {
			rows[i].Log, rows[i].Conf, rows[i].Tail = r.Log, r.Conf, r.Tail
		}
	}
	j.rescued = rescued
	return nil
}

// rescuedRow cuts the replayed state behind what was applied, which alone is
// sure not to be replaced by the carry.
func rescuedRow(st *ReplicaState, applied *LogPosition) (ReplicaState, error) {
	if st == nil || st.Log.Reset != applied.Reset || st.Log.LastIndex > applied.LastIndex || st.lastIndex() < applied.LastIndex {
		return ReplicaState{}, fmt.Errorf("the journal does not lead to entry %d of its log", applied.LastIndex)
	}
	r := *st
	r.Tail = slices.Clone(st.Tail[:applied.LastIndex-st.Log.LastIndex])
	for i := range r.Tail {
		r.Tail[i].Data = bytes.Clone(r.Tail[i].Data) // not the whole round
	}
	return r, nil
}

// replayTo replays the frames of some replicas, from the newest copy of the
// table to the start of a later generation: rounds that were synced, in files
// that nobody takes or changes before this checkpoint is over.
func (j *journal) replayTo(to tableAt, replicas map[ReplicaID]bool) (_ *replay, err error) {
	slot := 1 - j.olderSlot()
	path := j.path(tableName(slot))
	b, err := readWhole(j.fs, path)
	if err != nil {
		return nil, err
	}
	t, err := decodeTable(b)
	if err != nil {
		return nil, &DamageError{Path: path, Reason: err.Error()}
	}
	s := &scan{fs: j.fs, dir: j.dir, key: j.key, broken: j.broken}
	defer func() {
		if cerr := s.close(); err == nil {
			err = cerr
		}
	}()
	for _, f := range j.filesBetween(t.generation, to.generation) {
		if err := s.add(f.number, t.generation); err != nil {
			return nil, err
		}
	}
	chain, damage := s.chain(s.find(to.generation, to.salt), tableAt{t.generation, t.salt})
	if damage != nil {
		return nil, damage
	}
	p := newReplay(slices.DeleteFunc(t.rows, func(r ReplicaState) bool { return !replicas[r.Replica] }))
	for _, l := range chain[:len(chain)-1] {
		if err := l.replayOf(replicas, p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// replayOf replays the frames of some replicas of a closed generation.
func (l *link) replayOf(replicas map[ReplicaID]bool, p *replay) error {
	for at := int64(0); at < l.end; {
		r, err := l.file.round(at)
		if err != nil {
			return err
		}
		if r == nil {
			return &DamageError{Path: l.file.path, Offset: at, Reason: fmt.Sprintf(
				"generation %d should have rounds up to byte %d", l.file.first.generation, l.end)}
		}
		r.frames = slices.DeleteFunc(r.frames, func(f Frame) bool { return !replicas[f.Replica] })
		if err := r.applyTo(p); err != nil {
			return err
		}
		at = r.end()
	}
	return nil
}
