package storage

import (
	"fmt"
	"slices"
)

// Sync makes durable what was appended and written aside before the call: the
// files, oldest first, and the names of new ones up to the node's directory.
// It may run beside all other methods, so what is appended meanwhile need not
// wait for it.
func (l *Log) Sync() error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.mu.Lock()
	err := l.mu.err
	segments := slices.Clone(l.mu.unsynced)
	names, aux := l.mu.newNames, l.mu.aux
	l.mu.newNames, l.mu.aux = false, nil
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if err := l.syncAll(segments, names, aux); err != nil {
		return l.fail(fmt.Errorf("storage: sync %s: %w", l.dir, err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.unsynced = slices.DeleteFunc(l.mu.unsynced, func(s *segment) bool { return !s.dirty() })
	return l.mu.err
}

func (l *Log) syncAll(segments []*segment, names bool, aux []Index) error {
	for _, s := range segments {
		if err := l.syncSegment(s); err != nil {
			return err
		}
	}
	for _, i := range aux {
		if err := l.settleAux(i); err != nil {
			return err
		}
	}
	if !names && len(aux) == 0 {
		return nil
	}
	if err := syncDir(l.logs.fs, l.dir); err != nil {
		return err
	}
	if l.named {
		return nil
	}
	err := l.logs.nameDurable(l.dir)
	l.named = err == nil
	return err
}

func (l *Log) syncSegment(s *segment) error {
	if !s.dirty() {
		return nil
	}
	hd, err := l.logs.files.pinWriter(s)
	if err != nil {
		return err
	}
	defer l.logs.files.unpin(hd)
	s.saveIndex()
	return s.syncFile(hd.file)
}
