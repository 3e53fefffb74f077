package storage

import (
	"cmp"
	"fmt"
	"slices"

	"go.uber.org/zap"
)

// takeFile returns the file for a new generation: one that lies behind the
// older copy of the table, whoever falls back to that, or a new one. Whatever
// the sync of the new generation says, the file is not taken again before it
// lies behind the older copy.
func (j *journal) takeFile(generation, salt uint64) (_ journalFile, isNew bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	free := j.freeLocked()
	if len(free) > 0 {
		f := free[0]
		f.generation, f.salt = generation, salt
		return *f, false
	}
	j.mu.lastNumber++
	f := journalFile{number: j.mu.lastNumber, generation: generation, salt: salt}
	j.mu.files = append(j.mu.files, f)
	return f, true
}

// freeLocked returns the files that hold no generation which a copy of the
// table still needs, the largest first: they are whole already.
func (j *journal) freeLocked() []*journalFile {
	needed := min(j.mu.copies[0].generation, j.mu.copies[1].generation)
	if j.broken.reuseBehindNewer {
		needed = max(j.mu.copies[0].generation, j.mu.copies[1].generation)
	}
	var free []*journalFile
	for i := range j.mu.files {
		if f := &j.mu.files[i]; f.generation < needed {
			free = append(free, f)
		}
	}
	slices.SortStableFunc(free, func(a, b *journalFile) int { return cmp.Compare(b.size, a.size) })
	return free
}

// dropFiles removes the free files that are too many or too large to be kept.
// A removal that a crash undoes brings back a file that is as free as before,
// so there is nothing to sync, and one that fails costs only the space.
func (j *journal) dropFiles() {
	for _, f := range j.surplus() {
		if err := j.fs.Remove(j.path(journalName(f.number))); err != nil && !isMissing(err) {
			j.logger.Warn("cannot remove a journal file that is of no use any more",
				zap.String("file", journalName(f.number)), zap.Error(err))
		}
	}
}

// surplus takes the files that are to be removed out of the list. Their numbers
// are not used again by this process.
func (j *journal) surplus() []journalFile {
	j.mu.Lock()
	defer j.mu.Unlock()
	kept := 0
	var drop []journalFile
	for _, f := range j.freeLocked() {
		if kept < spareFiles && f.size <= 2*j.target {
			kept++
			continue
		}
		drop = append(drop, *f)
	}
	j.mu.files = slices.DeleteFunc(j.mu.files, func(f journalFile) bool { return slices.Contains(drop, f) })
	return drop
}

// filesBetween returns the files of the generations from lo to hi.
func (j *journal) filesBetween(lo, hi uint64) []journalFile {
	j.mu.Lock()
	defer j.mu.Unlock()
	var files []journalFile
	for _, f := range j.mu.files {
		if f.generation >= lo && f.generation <= hi {
			files = append(files, f)
		}
	}
	return files
}

// saltOf returns the salt of a generation that this process wrote.
func (j *journal) saltOf(generation uint64) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.mu.files {
		if j.mu.files[i].generation == generation {
			return j.mu.files[i].salt, nil
		}
	}
	return 0, fmt.Errorf("storage: the journal has no generation %d", generation)
}
