package topic

import (
	"fmt"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

const (
	// snapshotEvery is how many bytes of entries follow a side file with the
	// producer state before the next one is written. A large state waits until
	// there are snapshotShare times its size, so that it does not outweigh the
	// log. Nothing but entries counts: the files lie at the same indices on all
	// replicas, and a reopened one goes on as if it had never stopped.
	snapshotEvery = 4 << 20
	snapshotShare = 8

	replayBytes = 1 << 20 // of entries read at once
)

// applier is what Apply and Applied share. They are called one at a time.
type applier struct {
	state *partitionState // nil: not read from the log yet
	since int             // bytes of entries since the last snapshot
	every int             // bytes after which the next one is due

	start storage.LogStart // that the log is to begin with; zero: nothing is to be done

	snapshot      []byte // not written yet
	snapshotIndex storage.Index
	err           error // of the last attempt to write it
}

// Apply decides about committed entries; see raftlog.StateMachine. The first
// records that a reopened replica is given make it read the end of its log.
func (p *Partition) Apply(entries []raftlog.Entry, results []raftlog.Result) error {
	a := &p.applied
	if a.err != nil {
		return a.err
	}
	for i := range entries {
		e := &entries[i]
		if a.state == nil && (e.Kind != storage.EntryNormal || len(e.Data) == 0) {
			// It changes nothing, and idle partitions are not to be read.
			results[i] = raftlog.Result{}
			continue
		}
		if a.state == nil {
			if err := p.load(entries[0].Index); err != nil {
				return err
			}
		}
		if err := newerEntry(e.Data); err != nil && e.Kind == storage.EntryNormal {
			return fmt.Errorf("topic: entry %d of %s/%d: %w", e.Index, p.cfg.Topic, p.cfg.Partition, err)
		}
		results[i] = result(a.apply(e.Index, e.Kind, e.Data))
	}
	if a.state != nil {
		p.batches.latest.Store(a.state.producers.now)
	}
	return nil
}

// result is what the log and the proposer get of a decision.
func result(d decision) raftlog.Result {
	r := raftlog.Result{Verdict: d.verdict, BaseOffset: d.base, Count: d.count, Err: d.err}
	if d.verdict == storage.VerdictDuplicate {
		// In the log a duplicate has no offsets; its proposer gets the first ones.
		r.BaseOffset, r.Count, r.Value = 0, 0, d.base
	}
	return r
}

// apply applies one entry and takes a snapshot where one is due.
func (a *applier) apply(index storage.Index, kind storage.EntryKind, data []byte) decision {
	d := a.state.apply(index, kind, data)
	if kind == storage.EntryNormal {
		a.since += len(data)
	}
	if d.start.Index > a.start.Index {
		a.start = d.start
	}
	// What goes is not to be needed to make the state again: it is written aside
	// as of the very entry that says so, whatever the log begins with here.
	if a.since >= a.every || d.start.Index != 0 {
		a.snapshot, a.snapshotIndex = a.state.appendSnapshot(nil), index
		a.restart(len(a.snapshot))
	}
	return d
}

// restart begins to count towards the snapshot after one of the given size.
func (a *applier) restart(size int) {
	a.since, a.every = 0, max(snapshotEvery, snapshotShare*size)
}

// Applied publishes what is in the log now, writes the snapshot that is due,
// and wakes readers; see raftlog.StateMachine.
func (p *Partition) Applied(storage.Index) {
	a := &p.applied
	if a.snapshot != nil {
		a.err = p.group.Log().WriteAux(a.snapshotIndex, a.snapshot)
		a.snapshot = nil
	}
	if a.state == nil {
		p.Wake()
		return
	}
	p.mu.Lock()
	p.mu.hw = a.state.next
	p.wakeLocked()
	p.mu.Unlock()
	if a.err == nil && a.start.Index != 0 {
		a.err = p.begin(a.start)
		a.start = storage.LogStart{}
	}
}

// begin lets go the front of the log, behind what is written aside.
func (p *Partition) begin(start storage.LogStart) error {
	log := p.group.Log()
	removed, err := log.TrimTo(start)
	if err == nil && removed > 0 && p.cfg.OnLogStart != nil {
		p.cfg.OnLogStart(log.Start(), removed)
	}
	return err
}

// waitBound waits for Bind; false: Close came instead. Close after Bind does not
// matter here, since an error would fail the group.
func (p *Partition) waitBound() bool {
	select {
	case <-p.bound:
		return true
	case <-p.closed:
	}
	select {
	case <-p.bound:
		return true
	default:
		return false
	}
}

// load makes the state of all entries before next: from the side file that the
// log names, and the entries behind it. Both are bounded by snapshotEvery,
// however long the log is.
func (p *Partition) load(next storage.Index) error {
	if !p.waitBound() {
		return ErrPartitionClosed
	}
	a, log := &p.applied, p.group.Log()
	at := log.Position()
	if at.LastIndex+1 != next {
		return fmt.Errorf("topic: the log of %s/%d ends at entry %d, and entry %d is to be applied", p.cfg.Topic, p.cfg.Partition, at.LastIndex, next)
	}
	size, err := p.loadSnapshot(at)
	if err != nil {
		return err
	}
	a.restart(size)
	for i := max(a.state.index, at.StartIndex) + 1; i <= at.LastIndex; {
		entries, err := log.Entries(i, at.LastIndex+1, replayBytes)
		if err != nil {
			return fmt.Errorf("topic: replay entry %d: %w", i, err)
		}
		for _, e := range entries {
			a.apply(e.Index, e.Kind, e.Data)
		}
		i += storage.Index(len(entries))
	}
	if a.state.next != at.NextOffset {
		return fmt.Errorf("topic: the log of %s/%d ends at offset %d, its entries at %d", p.cfg.Topic, p.cfg.Partition, at.NextOffset, a.state.next)
	}
	return nil
}

// loadSnapshot makes the state of the newest side file, and returns its size.
func (p *Partition) loadSnapshot(at storage.LogPosition) (int, error) {
	p.applied.state = newPartitionState(p.cfg.Incarnation)
	if at.AuxIndex == 0 {
		return 0, nil
	}
	data, err := p.group.Log().ReadAux(at.AuxIndex)
	if err != nil {
		return 0, fmt.Errorf("topic: producer state at entry %d: %w", at.AuxIndex, err)
	}
	state, err := readSnapshot(data, p.cfg.Incarnation)
	if err == nil && state.index != at.AuxIndex {
		err = fmt.Errorf("%w: it is that of entry %d", errCorruptSnapshot, state.index)
	}
	if err != nil {
		return 0, fmt.Errorf("topic: producer state at entry %d: %w", at.AuxIndex, err)
	}
	p.applied.state = state
	return len(data), nil
}
