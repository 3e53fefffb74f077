package storage

import (
	"fmt"
	"io"
	"slices"
)

// recovered is what the files of a journal say, before anything is changed.
type recovered struct {
	copies    [2]*tableCopy // nil: torn
	torn      [2]error      // why a copy is nil
	newest    int           // index of the copy that was replayed from
	files     []journalFile
	highest   uint64   // no number of a generation above it was seen
	end       position // of the last valid round
	lastRound *round   // the last valid round
	proven    position // see recovery.go
	rivals    int      // complete generations above proven, the newest included

	atProven []ReplicaState // as of proven
	after    []Frame        // what follows proven, without carries
	states   []ReplicaState // as of the end

	destroyed destroyedIDs // in what was replayed
}

// link is a generation that is replayed, from its beginning to end; the newest
// to its first bad round.
type link struct {
	file *scannedFile
	end  int64
	open bool
}

// readJournal reads the journal of a directory and changes nothing.
func readJournal(fsys FS, dir string, broken breakage) (*recovered, error) {
	r := &recovered{}
	if err := r.readTables(fsys, dir); err != nil {
		return nil, err
	}
	t := r.copies[r.newest]
	needed := t.generation
	if o := r.copies[1-r.newest]; o != nil {
		needed = o.generation
	}
	s, err := scanFiles(fsys, dir, t.key, needed, broken)
	if err != nil {
		return nil, err
	}
	err = r.readFiles(s)
	if cerr := s.close(); err == nil && cerr != nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func tableName(slot int) string { return fmt.Sprintf("checkpoint.%d", slot) }

// readTables reads both copies of the table.
func (r *recovered) readTables(fsys FS, dir string) error {
	for slot := range r.copies {
		path := fsys.PathJoin(dir, tableName(slot))
		b, err := readWhole(fsys, path)
		if isMissing(err) {
			r.torn[slot] = err
			continue
		} else if err != nil {
			return err
		}
		if r.copies[slot], r.torn[slot] = decodeTable(b); r.torn[slot] != nil {
			r.copies[slot] = nil
		}
	}
	a, b := r.copies[0], r.copies[1]
	switch {
	case a == nil && b == nil:
		return &DamageError{Path: fsys.PathJoin(dir, tableName(0)), Reason: fmt.Sprintf(
			"no copy of the checkpoint table is intact: %v; %v", r.torn[0], r.torn[1])}
	case a != nil && b != nil && a.key != b.key:
		return &DamageError{Path: fsys.PathJoin(dir, tableName(1)),
			Reason: "the two copies of the checkpoint table are of different directories"}
	case a == nil || b != nil && b.generation > a.generation:
		r.newest = 1
	}
	return nil
}

func readWhole(fsys FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, &DamageError{Path: path, Reason: "cannot be read", Err: err}
	}
	return b, nil
}

func (r *recovered) readFiles(s *scan) error {
	newest := s.newest()
	t := r.copies[r.newest]
	chain, damage := s.chain(newest, tableAt{t.generation, t.salt})
	if damage != nil {
		return damage
	}
	p, err := r.replayChain(s, chain)
	if err != nil {
		return err
	}
	if err := s.search(newest, r.end.offset); err != nil {
		return err
	}
	if err := r.settleProven(p); err != nil {
		return err
	}
	r.noteFiles(s)
	return nil
}

// chain walks from the newest generation to the one that a copy of the table
// names; the result begins with that one.
func (s *scan) chain(newest *scannedFile, to tableAt) ([]link, *DamageError) {
	unreachable := &DamageError{Path: s.dir, Reason: fmt.Sprintf(
		"the checkpoint table names generation %d of the journal, which is not there", to.generation)}
	if newest == nil {
		return nil, unreachable
	}
	chain := []link{{file: newest, open: true}}
	for {
		first := chain[len(chain)-1].file.first
		if first.generation <= to.generation {
			if (tableAt{first.generation, first.salt}) != to {
				return nil, unreachable
			}
			slices.Reverse(chain)
			return chain, nil
		}
		f := s.find(first.prev.generation, first.prev.salt)
		if f == nil {
			return nil, &DamageError{Path: s.dir, Reason: fmt.Sprintf(
				"generation %d of the journal, which generation %d follows, is not there",
				first.prev.generation, first.generation)}
		}
		chain = append(chain, link{file: f, end: first.prev.offset})
	}
}

// replayChain replays all rounds of the chain but the last valid one.
func (r *recovered) replayChain(s *scan, chain []link) (*replay, error) {
	p := newReplay(r.copies[r.newest].rows)
	for _, l := range chain {
		at := int64(0)
		for l.open || at < l.end {
			next, err := l.file.round(at)
			if err != nil {
				return nil, err
			}
			if next == nil {
				break
			}
			if r.lastRound != nil {
				if err := r.lastRound.applyTo(p); err != nil {
					return nil, err
				}
			}
			r.lastRound, at = next, next.end()
		}
		if !l.open && at != l.end && !s.broken.closedMayEndShort {
			return nil, &DamageError{Path: l.file.path, Offset: at, Reason: fmt.Sprintf(
				"generation %d should have rounds up to byte %d", l.file.first.generation, l.end)}
		}
		r.end = position{l.file.first.generation, l.file.first.salt, at}
	}
	return p, nil
}

// settleProven decides what of the rounds is proven, and captures the states
// there and at the end.
func (r *recovered) settleProven(p *replay) error {
	last := r.lastRound
	switch {
	case last.offset > 0:
		r.proven = position{last.generation, last.salt, last.offset}
	case r.copies[r.newest].generation == r.end.generation:
		r.proven = r.end
		if err := last.applyTo(p); err != nil {
			return err
		}
		last.frames = nil
	default:
		r.proven = last.prev
		last.frames = slices.DeleteFunc(last.frames, func(f Frame) bool { return f.Kind == FrameCarry })
	}
	r.atProven = p.capture()
	if err := last.applyTo(p); err != nil {
		return err
	}
	r.after, r.states, r.destroyed = last.frames, p.capture(), p.destroyed
	return nil
}

// noteFiles records which file holds which generation. A file without a
// complete one is free.
func (r *recovered) noteFiles(s *scan) {
	for _, f := range s.files {
		r.highest = max(r.highest, f.first.generation)
		note := journalFile{number: f.number, size: f.size}
		if f.complete {
			note.generation, note.salt = f.first.generation, f.first.salt
			if f.first.generation > r.proven.generation {
				r.rivals++
				if s.broken.reuseAboveProven {
					note.generation = 0
				}
			}
		}
		r.files = append(r.files, note)
	}
}
