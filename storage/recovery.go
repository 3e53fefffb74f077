package storage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// # Why nothing promised is lost
//
// The enemy: power fails at any operation, also while a directory is opened,
// again and again. Then every sector that was written since the last good sync
// of its file is as it was before or as it was written, each by itself. Or the
// process alone dies: then all that was written can be read, none of it need be
// on the disk, and a sync that failed before has made the system forget that.
// So what was read is not thereby durable, and an answer that rests on it would
// be a lie after the next power failure.
//
// Words. A round is one write and one sync, the next one is written only after
// that sync returned. A generation is one life of a journal file. The proven
// end P is the start of the last valid round; if that is the first round of its
// generation, P is the proven end of the predecessor that its header names. A
// copy of the table that names a generation proves its first round.
//
//  1. All below P is durable, for a round is written only after the sync of
//     what is before it. All at or above P may be nothing but page cache.
//  2. A promise (an answer that left this process) rests on rounds whose sync
//     returned. Those form a prefix, and reading finds at least that prefix:
//     the sectors are on the disk, the checksum covers generation, salt and
//     offset, so nothing of an earlier life of the file stands in for a round
//     or ends the reading early. Reading may find one round more than was
//     promised; that is allowed, for whoever sent its entries does not know.
//  3. Open makes a new generation that follows P, not the end that was read:
//     its first round holds the states as of P (carries) and the frames behind
//     P. Only after its sync does raft see any of it. It exists only when all
//     of that round is valid, so a crash leaves the old journal or the new one.
//     Nothing is ever written behind a tear.
//  4. Until then no file is reused that holds a complete generation above P (it
//     may hold promises that only it can prove), nor one at or above the older
//     copy of the table. Both are one rule here: only files below the older
//     copy, or without a complete generation, are free.
//  5. A generation's start is a checkpoint position: the table's rows are the
//     states there, and the first round carries what is not in the logs. So
//     replay from the generation that the newest copy names gives everything.
//     The logs were synced up to the rows' positions before the copy was
//     written, the copy is synced before files are freed, and they are freed
//     behind the other, older copy, so that a torn copy costs nothing.
//     A log that cannot be synced counts up to where the copy before had it, and
//     its row has the entries from there to the captured position: see rescue.go.
//  6. The newest copy may itself be page cache alone. Open first writes and
//     syncs one: the torn one, else that newest one, over itself with the same
//     bytes (a sync alone would not do: see the enemy). The other is never
//     touched before, so at any moment one durable copy has all it needs.
//  7. Damage and tear are told apart by 1: if reading stops at a bad round, and
//     anywhere a valid round is found that was written after it (behind it, or
//     in a later generation, other than as a first round, which open may have
//     written on a lesser proof), then the bad round had been synced, and it is
//     damage. A predecessor that ends short of its proven end is damage too.
//     Else the tail is torn and is cut. What is behind the last mark cannot be
//     told apart.
//
// # Resets
//
// A reset puts another log in the place of a replica's: one that begins at a
// snapshot, empty or with the files that were staged for it. The two logs are in
// different directories, the new one in that of the reset's id, and the replayed
// state says which one it is (LogPosition.Reset). So the frame is the switch:
//
//	1. the staged files, and their names, are synced
//	2. the round of the frame is synced
//	3. the replica is opened: the log that its state does not name is unlinked
//
// A crash before 2 leaves the old log, whole, and a staged one that no state
// names. After it, the new one; its files were synced in 1. Nothing is unlinked
// that a state may still name: a log is opened, in 3, over a state that is
// durable, by this process's round or by the generation that open wrote. Rows of
// the table that still name the old log are harmless, since replay from them
// comes to the frame; a checkpoint whose states were captured before it must not
// miss a log that is gone (journal.isSwitched). What the reset drops is in no
// later carry: a rotation captures what the rounds before it left.
//
// # Trimmed logs
//
// A log that lets go its front says so in its position, and so in the next row of
// the table. The files go only when both copies of the table have such a row,
// since whichever a crash leaves must find the segments that it names; open
// removes what is below the start of the copy that it takes.
//
// # Where this departs from the usual
//
//   - A carry holds every entry above the log position that the row names,
//     committed or not, since offsets and verdicts are decided by the state
//     machine: the store cannot refill a log, so {log up to the position} +
//     {carry} + {later frames} must be everything. Logs are cut at the row's
//     position and refilled through raft, never trusted because their bytes
//     look right. This is safe because it only carries more.
//   - Hence the generation that open writes needs nothing before it, and open
//     rewrites both copies at it, with the log positions of the copy that it
//     read: those logs are synced. So restarts do not make the chain longer.
//   - If open finds two or more complete generations above P, earlier opens
//     were killed before they could prove theirs. Then the newest of them is
//     first written again over itself, same bytes in the same place, and
//     synced; both copies name it, and all other files are free. Each of the
//     others is left alone until then. So not even an open that is killed
//     always at the same operation pins ever more files.
//   - A first round may be larger than the file size that was asked for; the
//     file grows. A file is never written over while it is needed, so where
//     its end lies is of no meaning to the above.
//   - Files grow by zeros ahead of the rounds. Zeros are no round, and what is
//     behind the last round is of no meaning.
//   - A set-aside frame keeps the replica's row and drops its entries: nothing
//     is promised by it any more, and its directory may be gone.

// openJournal recovers the journal of a node's directory, or makes one. The
// returned states are durable: raft may answer on them.
func openJournal(cfg Config, adopted bool) (*journal, []ReplicaState, error) {
	j := &journal{
		fs: cfg.FS, dir: cfg.FS.PathJoin(cfg.Dir, journalDir), target: cfg.JournalFileSize,
		rand: cfg.Rand, logger: cfg.Logger, broken: cfg.broken,
	}
	if err := j.ensure(cfg.Dir, adopted); err != nil {
		return nil, nil, err
	}
	r, err := readJournal(j.fs, j.dir, j.broken)
	if err != nil {
		return nil, nil, err
	}
	j.logger.Info("journal recovered", zap.Int("replicas", len(r.states)),
		zap.Uint64("generation", r.end.generation), zap.Int64("end", r.end.offset), zap.Int64("proven", r.proven.offset))
	if err := j.settle(r); err != nil {
		return nil, nil, errors.Join(err, j.close())
	}
	return j, r.states, nil
}

// settle makes durable what was read, on new ground.
func (j *journal) settle(r *recovered) error {
	t := r.copies[r.newest]
	j.key = t.key
	j.mu.files = r.files
	for _, f := range r.files {
		j.mu.lastNumber = max(j.mu.lastNumber, f.number)
	}
	for slot, c := range r.copies {
		if c != nil {
			j.mu.copies[slot] = tableAt{c.generation, c.salt}
		}
	}
	j.writing.gate = newGate(r.states, r.destroyed)
	if j.broken.noRotation {
		return j.goOn(r)
	}
	durable, err := j.proveCopy(r)
	if err != nil {
		return err
	}
	// The process that made the newest file may have died before this.
	if err := syncDir(j.fs, j.dir); err != nil {
		return fmt.Errorf("storage: sync %s: %w", j.dir, err)
	}
	if r.rivals >= 2 && !j.broken.neverProveNewest {
		if err := j.proveNewest(r, durable); err != nil {
			return err
		}
	}
	prev := r.proven
	if j.broken.prevIsReadEnd {
		prev = r.end
	}
	generation := max(r.highest, j.mu.copies[0].generation, j.mu.copies[1].generation) + 1
	if j.broken.sameGeneration {
		generation = r.proven.generation + 1
	}
	if err := j.begin(generation, prev, r.atProven, r.after); err != nil {
		return err
	}
	return j.moveTable(j.writing.at, r.atProven, durable)
}

// proveCopy makes a copy of the table durable, rule 6, and returns its slot.
func (j *journal) proveCopy(r *recovered) (slot int, err error) {
	slot = r.newest
	if r.copies[1-slot] == nil {
		slot = 1 - slot
	}
	switch {
	case j.broken.noRewrite:
		return slot, nil
	case j.broken.syncWithoutWrite:
		return slot, j.syncCopy(slot)
	}
	return slot, j.writeCopy(slot, r.copies[r.newest])
}

// moveTable makes both copies of the table name the generation, which is
// durable and was written by this open; the copy that is known to be durable
// is the second. The states are those at the generation's start.
func (j *journal) moveTable(at position, states []ReplicaState, durable int) error {
	t := &tableCopy{generation: at.generation, salt: at.salt, key: j.key, rows: rowsOf(states)}
	if j.broken.durableFirst {
		durable = 1 - durable
	}
	for _, slot := range [...]int{1 - durable, durable} {
		if err := j.writeCopy(slot, t); err != nil {
			return err
		}
	}
	j.dropFiles()
	return nil
}

// proveNewest writes the newest generation, which has only a first round, over
// itself. It is proven then.
func (j *journal) proveNewest(r *recovered, durable int) error {
	for _, note := range r.files {
		if note.generation != r.end.generation || note.salt != r.end.salt {
			continue
		}
		b := make([]byte, r.end.offset)
		f, err := j.fs.OpenReadWrite(j.path(journalName(note.number)), vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		if _, err = f.ReadAt(b, 0); err == nil {
			if _, err = f.WriteAt(b, 0); err == nil {
				err = f.SyncData()
			}
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("storage: write %s again: %w", j.path(journalName(note.number)), err)
		}
	}
	if err := j.moveTable(r.end, r.atProven, durable); err != nil {
		return err
	}
	r.proven, r.atProven, r.after = r.end, r.states, nil
	return nil
}

// goOn is what a test does instead of a rotation.
func (j *journal) goOn(r *recovered) error {
	for _, note := range r.files {
		if note.generation == r.end.generation {
			name := journalName(note.number)
			f, err := j.fs.OpenReadWrite(j.path(name), vfs.WriteCategoryUnspecified)
			if err != nil {
				return err
			}
			w := &j.writing
			w.file, w.name, w.at, w.size = f, name, r.end, note.size
		}
	}
	return nil
}

// ensure makes the journal of a directory that has none yet. Only a directory
// that holds nothing else, and was never adopted, can be in that state: the
// journal is made before anything is promised, under a temporary name.
func (j *journal) ensure(home string, adopted bool) error {
	ok, err := exists(j.fs, j.dir)
	if err != nil {
		return fmt.Errorf("storage: %s: %w", j.dir, err)
	}
	if ok {
		return nil
	}
	names, err := j.fs.List(home)
	if err != nil {
		return fmt.Errorf("storage: list %s: %w", home, err)
	}
	for _, n := range names {
		known := n == lockFile || n == formatFile || n == identityFile || strings.HasSuffix(n, tempSuffix)
		if adopted || !known {
			return &DamageError{Path: j.dir, Reason: "is missing"}
		}
	}
	if err := j.create(home); err != nil {
		return fmt.Errorf("storage: make %s: %w", j.dir, err)
	}
	return nil
}

// create makes a journal of one empty generation.
func (j *journal) create(home string) error {
	temp := j.dir + tempSuffix
	if err := j.fs.RemoveAll(temp); err != nil {
		return err
	}
	if err := j.fs.MkdirAll(temp, 0o755); err != nil {
		return err
	}
	t := &tableCopy{generation: 1, salt: j.rand(), key: j.rand()}
	b := emptyRound(nil)
	putRoundHeader(b, t.key, roundHeader{generation: t.generation, salt: t.salt})
	if err := writeSynced(j.fs, j.fs.PathJoin(temp, journalName(1)), padPage(b)); err != nil {
		return err
	}
	for slot := range j.mu.copies {
		if err := writeSynced(j.fs, j.fs.PathJoin(temp, tableName(slot)), encodeTable(nil, t)); err != nil {
			return err
		}
	}
	if err := syncDir(j.fs, temp); err != nil {
		return err
	}
	if err := j.fs.Rename(temp, j.dir); err != nil {
		return err
	}
	return syncDir(j.fs, home)
}
