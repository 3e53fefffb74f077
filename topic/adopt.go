package topic

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// AdoptConfig says what a directory without a marker is, which is on a node that does
// not run. storage.Adopt has what is compared with it, and why it is enough.
type AdoptConfig struct {
	// FS is the file system. Default: the machine's.
	FS storage.FS
	// Dir is the node's directory. Required.
	Dir string
	// Entry is the directory that is meant, relative to Dir: quarantine/<name>~<n>, or
	// topics/<name>. What comes from elsewhere is copied to quarantine/ first, under any
	// name that ends with ~ and a number. Required.
	Entry string
	// Topic and Incarnation are whose it is said to be. Required.
	Topic       string
	Incarnation storage.Incarnation
	// Replica is set if the files of one log are in Entry itself: of this replica, and
	// of Partition. Default: Entry holds directories <partition>.<replica>.
	Replica   storage.ReplicaID
	Partition uint32
	// At is when, for its reason. Default: not known.
	At time.Time
	// DryRun verifies, and changes nothing.
	DryRun bool
}

// Adopt gives a directory without a marker, on a node that does not run, the one that a
// person says it should have, if nothing that is left of it contradicts: every frame of
// every log is verified, and every batch has to be of that incarnation. It does not bring
// the directory back into service: it stays in quarantine, or is moved there, of the kind
// storage.ReasonAdopted, from where RestoreQuarantined makes a topic of its records. On
// nil that is durable. It may be repeated. It reads all of the logs, with a buffer of
// about 256 KiB.
//
//	Retry    storage.ErrLocked: the node runs; what the disk says; ctx ended
//	Refused  *storage.AdoptError and storage.ErrNotQuarantined: nothing was changed;
//	         what is wrong with the node's directory as a whole
//
// RestoreQuarantined does not ask for a marker: a directory that is damaged, which is
// refused here, can be restored in part as it is.
func Adopt(ctx context.Context, cfg AdoptConfig) (storage.Adopted, error) {
	if ctx == nil {
		return storage.Adopted{}, ErrNoContext
	}
	got, err := storage.Adopt(storage.AdoptConfig{
		FS: cfg.FS, Dir: cfg.Dir, Entry: cfg.Entry, Topic: cfg.Topic, Incarnation: cfg.Incarnation,
		Replica: cfg.Replica, Partition: cfg.Partition, At: cfg.At, DryRun: cfg.DryRun,
		Frame: func(_ storage.QuarantinedLog, f *storage.FrameView) (bool, error) {
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			return tellsIncarnation(f, cfg.Incarnation)
		},
	})
	var refused *storage.AdoptError
	var damage *storage.DamageError
	var format *storage.FormatError
	var recovering *storage.RecoveringError
	switch {
	case err == nil:
		return got, nil
	case errors.As(err, &damage) && damage.Err != nil && !errors.Is(damage.Err, fs.ErrNotExist): // it was not read
		return got, raftlog.Retry(err)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return storage.Adopted{}, raftlog.Retry(fmt.Errorf("topic: adopt %q: %w", cfg.Entry, ctx.Err()))
	case errors.As(err, &refused), errors.As(err, &damage), errors.As(err, &format), errors.As(err, &recovering), errors.Is(err, storage.ErrNotQuarantined):
		return got, raftlog.Refused(err)
	}
	return got, raftlog.Retry(err)
}

// tellsIncarnation compares the batch in a frame with the life of a topic: of what was
// applied as that topic's. What was refused may well be another life's.
func tellsIncarnation(f *storage.FrameView, inc storage.Incarnation) (told bool, err error) {
	switch f.Verdict {
	case storage.VerdictData, storage.VerdictDuplicate, storage.VerdictControl:
	default:
		return false, nil
	}
	b, rest, err := ReadBatch(f.Payload)
	switch {
	case err != nil:
		return false, err
	case len(rest) > 0 || (b.Kind() == KindData) != (f.Verdict != storage.VerdictControl) || f.Verdict == storage.VerdictData && b.Count() != f.Count:
		return false, corrupt("%d records of kind %d and %d bytes more, in a frame of %d", b.Count(), b.Kind(), len(rest), f.Count)
	case b.Incarnation() != inc:
		return false, fmt.Errorf("topic: its batch is of incarnation %v", b.Incarnation())
	}
	return true, nil
}
