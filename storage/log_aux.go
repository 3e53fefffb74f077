package storage

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// MaxAux is the largest side file of a log, in bytes of data.
const MaxAux = 256 << 20

// WriteAux writes what the state machine knows at the entry i, which is at or
// below LastIndex and above all side files before, and makes it the position's
// AuxIndex. Sync makes it durable. One call at a time, and none beside Append.
func (l *Log) WriteAux(i Index, data []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	pos := &l.writer.pos
	if i > pos.LastIndex || i <= pos.AuxIndex || len(data) > MaxAux {
		return fmt.Errorf("storage: side file of %d bytes at entry %d: the log ends at %d, the last one is of %d",
			len(data), i, pos.LastIndex, pos.AuxIndex)
	}
	if err := l.writeAux(i, data); err != nil {
		return l.fail(fmt.Errorf("storage: write aside in %s: %w", l.dir, err))
	}
	pos.AuxIndex = i
	l.publish()
	l.mu.Lock()
	l.mu.aux = append(l.mu.aux, i)
	l.mu.Unlock()
	return nil
}

// writeAux writes under a temporary name, so that a side file that has its own
// name is whole. The name, and the sync, are left to Sync: a state machine
// that writes aside need not wait for the disk.
func (l *Log) writeAux(i Index, data []byte) error {
	if err := l.makeDir(); err != nil { // a log without entries has no files
		return err
	}
	f, err := l.logs.fs.Create(l.auxPath(i)+tempSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(encodeAux(l.group, i, data))
	return errors.Join(err, f.Close())
}

func (l *Log) auxPath(i Index) string { return l.logs.fs.PathJoin(l.dir, auxName(i)) }

// settleAux syncs a side file and gives it its name, which is not durable yet.
func (l *Log) settleAux(i Index) error {
	temp := l.auxPath(i) + tempSuffix
	f, err := l.logs.fs.OpenReadWrite(temp, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return l.logs.fs.Rename(temp, l.auxPath(i))
}

// RewriteAux writes the side file that the position names again, for one that is
// not as it was written: data is what it held. It is durable on return. Safe beside
// all other methods.
func (l *Log) RewriteAux(i Index, data []byte) error {
	l.syncing.Lock() // what was written aside has its name, or waits for it
	defer l.syncing.Unlock()
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	l.mu.RLock()
	unsettled := slices.Contains(l.mu.aux, i)
	l.mu.RUnlock()
	if i == 0 || i != l.writer.pos.AuxIndex || unsettled || len(data) > MaxAux {
		return fmt.Errorf("storage: side file of %d bytes at entry %d cannot be written again: that of entry %d is the last", len(data), i, l.writer.pos.AuxIndex)
	}
	err := l.writeAux(i, data)
	if err == nil {
		err = l.settleAux(i)
	}
	if err == nil {
		err = syncDir(l.logs.fs, l.dir)
	}
	if err != nil {
		return l.fail(fmt.Errorf("storage: write aside in %s: %w", l.dir, err))
	}
	return nil
}

// Asides returns the entries of the side files that have a name, oldest first: those
// that ReadAux may read. Only names are looked at.
func (l *Log) Asides() (all []Index, err error) {
	names, err := listSorted(l.logs.fs, l.dir)
	if isMissing(err) {
		return nil, nil
	}
	for _, name := range names {
		if i, ok := parseAuxName(name); ok {
			all = append(all, i)
		}
	}
	return all, err
}

// ReadAux returns what WriteAux wrote at the entry i. One that is not there is
// fs.ErrNotExist; if the position names it, or it is not as it was written, it is a
// *DamageError. Safe beside all other methods.
func (l *Log) ReadAux(i Index) ([]byte, error) {
	view, err := l.view()
	if err != nil {
		return nil, err
	}
	if err := l.own(); err != nil {
		return nil, err
	}
	path := l.auxPath(i)
	b, err := readSmall(l.logs.fs, path, auxHeader+MaxAux)
	if isMissing(err) {
		b, err = readSmall(l.logs.fs, path+tempSuffix, auxHeader+MaxAux)
	}
	if isMissing(err) { // it was given its name just now
		b, err = readSmall(l.logs.fs, path, auxHeader+MaxAux)
	}
	if isMissing(err) && i == view.pos.AuxIndex {
		return nil, &DamageError{Path: path, Reason: "is missing", Err: err}
	}
	if err != nil {
		return nil, err
	}
	data, err := decodeAux(b, l.group, i)
	if err != nil {
		return nil, &DamageError{Path: path, Reason: err.Error()}
	}
	return data, nil
}

// named is what a row of the table says of a log's beginning.
type named struct {
	reset uint64 // of the log
	start Index  // the log holds entries above it
	aux   Index  // the side file; 0: none
}

// checkpointed is called with the rows of the newest copy of the table once they
// are durable. The other copy names what the rows before named, so the side
// files and the trimmed segments of the same log below both are needed no more.
// A failure to remove one is no failure: it is removed at the next open, a side
// file with the next.
func (s *logSet) checkpointed(rows []ReplicaState) {
	now := map[ReplicaID]named{}
	for i := range rows {
		if p := &rows[i].Log; p.AuxIndex != 0 || p.StartIndex > 1 {
			now[rows[i].Replica] = named{p.Reset, p.StartIndex, p.AuxIndex}
		}
	}
	s.mu.Lock()
	before := s.mu.named
	s.mu.named = now
	s.mu.Unlock()
	for r, n := range now {
		b, ok := before[r]
		if !ok || b.reset != n.reset {
			continue
		}
		l, _ := s.lookup(r)
		if l == nil || l.Position().Reset != n.reset {
			continue
		}
		if b.aux != n.aux && n.aux != 0 {
			l.removeAux(min(b.aux, n.aux))
		}
		l.dropTrimmed(min(b.start, n.start))
	}
}

// removeAux removes the side files below keep.
func (l *Log) removeAux(keep Index) {
	names, err := l.logs.fs.List(l.dir)
	if err != nil || l.own() != nil {
		return
	}
	for _, name := range names {
		if i, ok := parseAuxName(name); ok && i < keep {
			_ = l.logs.fs.Remove(l.logs.fs.PathJoin(l.dir, name))
		}
	}
}
