package storage

import (
	"encoding/hex"
	"fmt"
	"io"
)

// A forced recovery changes a stopped node's directory: its journal, its
// identity, and of some nodes the place of the metadata. No file system makes
// that one step, so the identity says that it has begun, before anything else is
// changed, and Open refuses the directory from then on:
//
//	1  IDENTITY: recovering, for which plan         durable before 2
//	2  one round of the journal: what becomes of    whole or not at all
//	   each replica
//	3  the directory of the metadata, of nodes that durable, with its reason
//	   begin theirs anew: into quarantine
//	4  IDENTITY: the new epoch, no longer           durable: it is done
//	   recovering
//
// Each step looks whether it was done, so a recovery that a crash interrupted is
// begun again from 1 with the same plan and ends as if nothing had happened. A
// build that does not know of recoveries does not know the version of such an
// identity either, and refuses the directory too.

// Recovering is a forced recovery that is under way: the epoch that it leads to,
// and its plan's id.
type Recovering struct {
	Epoch uint64
	Plan  [16]byte
}

// RecoveringError refuses a directory that a forced recovery has begun to change:
// it is neither what it was nor what it will be. The recovery has to be finished,
// with the same plan. If it was met elsewhere only, and includes this directory,
// nothing was changed yet, and the plan has to be applied as well.
type RecoveringError struct {
	Dir string
	Recovering
	Met bool // the node met the cluster that has gone on; the directory is as it was
}

func (e *RecoveringError) Error() string {
	if e.Met {
		return fmt.Sprintf("storage: %s: a forced recovery to epoch %d includes this directory and was not applied to it: apply its plan %s, and do not empty it, as it may hold what no other node has",
			e.Dir, e.Epoch, hex.EncodeToString(e.Plan[:]))
	}
	return fmt.Sprintf("storage: %s: a forced recovery to epoch %d has begun and not ended: apply its plan %s again",
		e.Dir, e.Epoch, hex.EncodeToString(e.Plan[:]))
}

// Unfinished is why a directory must not be opened, nil if no recovery is in the way.
func (id *Identity) Unfinished(dir string) error {
	if id.Recovering.Epoch == 0 {
		return nil
	}
	return &RecoveringError{dir, id.Recovering, id.Fenced != 0}
}

// LockDir locks the directory of a stopped node until the Closer is closed, so
// that it can be read offline. Errors: ErrLocked; what the file system says.
func LockDir(fsys FS, dir string) (io.Closer, error) {
	dir, err := canonical(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("storage: directory %q: %w", dir, err)
	}
	return lockDir(fsys, dir)
}

// QuarantineDir moves a directory beside topics/, whatever is in it, into
// quarantine. A directory that is not there was moved before, or never made:
// nil. The move is durable on return; after an error it may or may not have
// happened. Nothing in it may be open.
func (s *Store) QuarantineDir(name string, reason Reason) error {
	from, err := s.logs.path(name)
	if err != nil {
		return err
	}
	switch name {
	case topicsDir, quarantineDir, journalDir, reserveDir:
		return fmt.Errorf("storage: quarantine %s: it is not to be moved", name)
	}
	s.logs.topics.Lock()
	defer s.logs.topics.Unlock()
	if l := s.logs.openBelow(name); l != nil {
		return fmt.Errorf("storage: quarantine %s: the log of replica %v is open", name, l.replica)
	}
	if there, err := exists(s.fs, from); err != nil || !there {
		return err
	}
	if err := s.logs.moveAside(from, name, reason); err != nil {
		return fmt.Errorf("storage: quarantine %s: %w", name, err)
	}
	return nil
}
