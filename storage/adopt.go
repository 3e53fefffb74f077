package storage

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// # Adopting
//
// A topic's directory without a marker is nobody's: it may have lost it, be half of a
// copy, or another cluster's. A node never opens one, nor gives it a marker: it sets it
// aside as unmarked (log_foreign.go), and no proof destroys it there. Adopt is how a
// person says what it is. It is a call of its own, about a stopped node's directory.
//
// What the person says is compared with all that is left to ask, before anything is
// changed:
//
//	the directory's name      of a topic, or of a replica: it has to say the same. Any
//	                          other name says nothing
//	what is in it             one log of each replica, and no directory beside them
//	every frame of every log  its checksums, that it continues the one before, and that
//	                          its group is that of all frames of the partition, and of no
//	                          other partition in the directory
//	every batch               the incarnation that it is stamped with (AdoptConfig.Frame);
//	                          one at least has to say it
//	the journal, of a replica that its topic's life, partition and group are these, and
//	that it knows             that the log goes as far as was promised
//
// A topic's name is in no frame. If the directory's name is lost, the person's word is
// all that there is for it.
//
// # Why it stays in quarantine
//
// It would be little work to put the directory back where its replica's log is looked
// for. But a replica answers for what its log holds: it votes, and its acknowledgements
// count towards a quorum. The checks above show that what is there was committed in that
// group, and not that nothing is missing behind it. So an adopted directory is one in
// quarantine like others, of the kind ReasonAdopted: no replica opens it, it waits for a
// person, and what it holds comes back as a new topic, through a quorum. Its replica, if
// that still has a place, gets its log from others.
//
// # Why a crash adopts nothing
//
//	1  what was verified is made durable   nothing can be seen of it
//	2  REASON: adopted, by whose word      without a marker, as before. In topics/ the next
//	                                       start sets it aside as unmarked
//	3  its name in quarantine, if it has   without a marker, in quarantine, where nothing
//	   another one yet                     opens it
//	4  the marker, under a temporary name, done
//	   synced, renamed
//
// The marker is last, because it alone makes a directory somebody's: never is there one
// with a marker that was not verified, and never one in topics/. A call that ended early
// is repeated, with the name that the directory has then.

// AdoptConfig says what a directory without a marker is.
type AdoptConfig struct {
	// FS is the file system. Default: the machine's.
	FS FS
	// Dir is the directory of a node that does not run. Required.
	Dir string
	// Entry is the directory that is meant, relative to Dir: quarantine/<name>~<n>, or
	// topics/<name>. What comes from elsewhere is copied to quarantine/ first, under any
	// name that ends with ~ and a number. Required.
	Entry string
	// Topic and Incarnation are whose it is said to be. Required.
	Topic       string
	Incarnation Incarnation
	// Replica is set if the files of one log are in Entry itself, of this replica and
	// of Partition. Default: Entry holds directories <partition>.<replica>.
	Replica   ReplicaID
	Partition uint32
	// At is when, by the caller's clock. Default: not known.
	At time.Time
	// DryRun verifies, and changes nothing but LOCK.
	DryRun bool
	// Frame says whether a frame of a log is of the topic's incarnation: told, it says
	// so; else it says nothing. An error refuses the directory. Only the state machine
	// knows what is in frames. Required.
	Frame func(log QuarantinedLog, f *FrameView) (told bool, err error)
}

// Adopted is a directory that has the marker that a person gave it.
type Adopted struct {
	// Dir is what it is called now, relative to the node's. With DryRun, and with an error
	// of the disk, what it is to be called.
	Dir  string
	Logs []AdoptedLog // all, by partition and replica
}

// AdoptedLog is a log that was verified from its first frame to its last.
type AdoptedLog struct {
	QuarantinedLog
	Group GroupID // 0: it has no frames
	Next  Index   // behind its last entry
	End   Offset  // behind its last record
}

// AdoptError refuses an adoption. Nothing was changed.
type AdoptError struct {
	Dir     string // of the node
	Entry   string
	Field   string // of AdoptConfig, or what of Entry does not agree
	Value   string
	Allowed string
	Err     error // why; nil: Value says it
}

func (e *AdoptError) Error() string {
	s := fmt.Sprintf("storage: adopt %q in %s: %s is %s, allowed is %s", e.Entry, e.Dir, e.Field, e.Value, e.Allowed)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *AdoptError) Unwrap() error { return e.Err }

// Adopt gives a directory without a marker the one that cfg says, if nothing that is left
// of it contradicts. It stays in quarantine, or is moved there. On nil that is durable.
// A directory that Adopt gave the same marker is verified again, and that is all.
//
// Errors: *AdoptError, and what tells of a directory that is no node's, is damaged, or
// needs a newer build: nothing was changed. ErrLocked: its node runs. ErrNotQuarantined.
// What the disk says: repeat it.
func Adopt(cfg AdoptConfig) (Adopted, error) {
	if cfg.FS == nil {
		cfg.FS = DiskFS()
	}
	a := &adoption{AdoptConfig: cfg}
	if err := a.validate(); err != nil {
		return Adopted{}, err
	}
	if err := readFormat(a.FS, a.Dir); err != nil { // before a LOCK is left in it
		return Adopted{}, fmt.Errorf("storage: adopt in %s: %w", a.Dir, err)
	}
	lock, err := lockDir(a.FS, a.Dir)
	if err != nil {
		return Adopted{}, err
	}
	if err = a.run(); err == nil {
		return a.done, lock.Close()
	}
	_ = lock.Close()
	return a.done, err
}

// adoption is one call of Adopt.
type adoption struct {
	AdoptConfig
	journal  []ReplicaState
	rel      string // of the directory, relative to the node's
	stem     string // of its name in quarantine
	misnamed bool   // it has to be renamed
	marked   bool   // an earlier call came to its end
	entry    QuarantineEntry
	done     Adopted
}

func (a *adoption) refuse(field, value, allowed string, err error) error {
	return &AdoptError{Dir: a.Dir, Entry: a.Entry, Field: field, Value: value, Allowed: allowed, Err: err}
}

func (a *adoption) validate() error {
	dir, err := canonical(a.FS, a.Dir)
	if err != nil || a.Dir == "" {
		return a.refuse("Dir", strconv.Quote(a.Dir), "the directory of a node", err)
	}
	a.Dir = dir
	if err := ValidateName(a.Topic); err != nil {
		return a.refuse("Topic", fmt.Sprintf("%.80q", a.Topic), "the name of a topic", err)
	}
	if a.Incarnation.IsZero() {
		return a.refuse("Incarnation", "zero", "the id of a topic's life", nil)
	}
	if a.Replica == 0 && a.Partition != 0 {
		return a.refuse("Partition", strconv.FormatUint(uint64(a.Partition), 10), "one with a Replica", nil)
	}
	if a.Frame == nil {
		return a.refuse("Frame", "nil", "who knows what is in frames", nil)
	}
	a.stem = topicBase(a.Topic, a.Incarnation)
	if a.Replica != 0 {
		a.stem = strings.ReplaceAll(ReplicaDir(a.stem, a.Partition, a.Replica), "/", ".")
	}
	return nil
}

func (a *adoption) run() error {
	off, err := ReadOffline(a.FS, a.Dir)
	if err == nil {
		err = off.Identity.Unfinished(a.Dir)
	}
	if err != nil {
		return err
	}
	a.journal = off.Replicas
	if err := a.find(); err != nil {
		return err
	}
	if err := a.readMarker(); err != nil {
		return err
	}
	if err := a.walk(); err != nil {
		return err
	}
	if err := a.verify(); err != nil {
		return err
	}
	s := newLogSet(a.FS, a.Dir, 0, 0)
	a.done.Dir = a.rel
	if a.misnamed {
		number, err := s.nextNumber(a.FS.PathJoin(a.Dir, quarantineDir), a.stem)
		if err != nil && !isMissing(err) {
			return err
		}
		a.done.Dir = quarantineDir + "/" + a.stem + "~" + strconv.FormatUint(max(number, 1), 10)
	}
	if a.DryRun || a.marked {
		return nil
	}
	if err := a.mark(s); err != nil {
		return fmt.Errorf("storage: adopt %s in %s: %w", a.rel, a.Dir, err)
	}
	return nil
}

// find looks for the directory, and compares its name.
func (a *adoption) find() error {
	if base, ok := strings.CutPrefix(a.Entry, topicsDir+"/"); ok {
		return a.findTopic(base)
	}
	base, _, err := inQuarantine(a.FS, a.Dir, a.Entry)
	if err != nil {
		return err
	}
	a.rel = quarantineDir + "/" + base
	stem, _, _ := parseQuarantined(base)
	a.misnamed = stem != a.stem
	if _, ok := parseQuarantinedName(base); ok && a.misnamed {
		return a.refuse("Entry", strconv.Quote(stem), strconv.Quote(a.stem)+", which is what is said of it", nil)
	}
	return nil
}

func (a *adoption) findTopic(base string) error {
	what := "a directory of a topic"
	a.rel, a.misnamed = topicsDir+"/"+base, true
	if base == "" || base == "." || base == ".." || strings.HasPrefix(base, tempPrefix) || strings.ContainsAny(base, "/\\\x00") {
		return a.refuse("Entry", strconv.Quote(a.Entry), what, nil)
	}
	info, err := a.FS.Stat(a.FS.PathJoin(a.Dir, topicsDir, base))
	if isMissing(err) || err == nil && !info.IsDir() {
		return a.refuse("Entry", strconv.Quote(a.Entry), what, err)
	}
	if err != nil {
		return fmt.Errorf("storage: %s: %w", a.rel, err)
	}
	if a.Replica != 0 {
		return a.refuse("Replica", a.Replica.String(), "0 for what is in "+topicsDir, nil)
	}
	if _, _, ok := parseTopicBase(base); ok && base != a.stem {
		return a.refuse("Entry", strconv.Quote(base), strconv.Quote(a.stem)+", which is what is said of it", nil)
	}
	return nil
}

func (a *adoption) path(more ...string) string {
	return a.FS.PathJoin(append([]string{a.Dir, a.rel}, more...)...)
}

// readMarker refuses a directory that has a marker, but for what this made.
func (a *adoption) readMarker() error {
	const allowed = "none: a directory with one is not adopted"
	text, err := readSmall(a.FS, a.path(markerFile), maxSealedText)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return a.refuse("marker", "there", allowed, err)
	}
	name, inc, err := decodeMarker(text)
	if err != nil {
		return a.refuse("marker", "there", allowed, err)
	}
	why, err := readReason(a.FS, a.path())
	a.marked = err == nil && why.Kind == ReasonAdopted && name == a.Topic && inc == a.Incarnation && !a.misnamed
	if !a.marked {
		return a.refuse("marker", topicBase(name, inc), allowed, nil)
	}
	return nil
}

// walk lists the logs as whose they are said to be.
func (a *adoption) walk() error {
	e := &a.entry
	e.Dir, e.Topic, e.Incarnation = a.rel, a.Topic, a.Incarnation
	e.OfReplica, e.Partition, e.Replica = a.Replica != 0, a.Partition, a.Replica
	w := quarantineWalk{fs: a.FS, e: e}
	if err := w.dir(a.path(), a.rel, 0); err != nil {
		return fmt.Errorf("storage: list %s: %w", a.rel, err)
	}
	segments, dirs := 0, map[string]bool{a.rel: true}
	for _, l := range e.Logs {
		segments, dirs[l.Dir] = segments+l.Segments, true
	}
	const allowed = "one with logs in directories <partition>.<replica>, or with Replica, a log"
	if segments == 0 {
		return a.refuse("Entry", "without a segment of a log", allowed, nil)
	}
	if newest := newestLogs(e.Logs); len(newest) < len(e.Logs) {
		i := slices.IndexFunc(e.Logs, func(l QuarantinedLog) bool { return !slices.Contains(newest, l) })
		return a.refuse("Entry", "with more than one log of a replica, one in "+e.Logs[i].Dir, "one of each: move the others away", nil)
	}
	return a.noneElse(a.path(), a.rel, dirs, allowed)
}

// noneElse refuses directories in which nobody looks: what has the marker may be
// destroyed one day as what the marker says.
func (a *adoption) noneElse(path, rel string, dirs map[string]bool, allowed string) error {
	names, err := listSorted(a.FS, path)
	if err != nil {
		return fmt.Errorf("storage: list %s: %w", rel, err)
	}
	for _, name := range names {
		at, below := a.FS.PathJoin(path, name), rel+"/"+name
		info, err := a.FS.Stat(at)
		if err != nil {
			return fmt.Errorf("storage: %s: %w", below, err)
		}
		if !info.IsDir() {
			continue
		}
		if !dirs[below] {
			return a.refuse("Entry", "with the directory "+below, allowed+", and no others", nil)
		}
		if err := a.noneElse(at, below, dirs, allowed); err != nil {
			return err
		}
	}
	return nil
}

// verify reads all logs.
func (a *adoption) verify() error {
	told := false
	groups := map[uint32]GroupID{}
	slices.SortFunc(a.entry.Logs, func(l, m QuarantinedLog) int {
		return cmp.Or(cmp.Compare(l.Partition, m.Partition), strings.Compare(l.Dir, m.Dir))
	})
	for _, l := range a.entry.Logs {
		if err := a.compareJournal(&l); err != nil {
			return err
		}
		got, said, err := a.verifyLog(l.Partition, l.Replica)
		if err != nil {
			return err
		}
		told = told || said
		if got.Group != 0 {
			for p, g := range groups {
				if (p == l.Partition) != (g == got.Group) {
					return a.refuse("group", fmt.Sprintf("%v in %s", got.Group, got.Dir), fmt.Sprintf("one for each partition, and partition %d has %v", p, g), nil)
				}
			}
			groups[l.Partition] = got.Group
		}
		a.done.Logs = append(a.done.Logs, got)
	}
	if !told {
		return a.refuse("Incarnation", a.Incarnation.String(), "that of a record, and there is none", nil)
	}
	return nil
}

// compareJournal compares what is said of a log with the journal's row of its replica.
func (a *adoption) compareJournal(l *QuarantinedLog) error {
	for i := range a.journal {
		st := &a.journal[i]
		if st.Replica != l.Replica {
			continue
		}
		inc, ok := st.Incarnation()
		partition, of := st.Partition()
		if !ok || !of || inc != a.Incarnation || partition != l.Partition {
			return a.refuse("Replica", l.Replica.String()+" of partition "+strconv.FormatUint(uint64(l.Partition), 10), "that of "+st.Dir+", where the journal has it", nil)
		}
	}
	return nil
}

// verifyLog reads the log of a replica to its end.
func (a *adoption) verifyLog(partition uint32, replica ReplicaID) (got AdoptedLog, told bool, err error) {
	r, err := openQuarantinedLog(a.FS, a.Dir, a.entry, partition, replica, a.journal)
	if err != nil {
		return got, false, err
	}
	defer r.Close()
	promised := r.group // by the journal; 0: by none
	r.group = 0
	for {
		f, err := r.Read()
		var damage *DamageError
		switch {
		case err == io.EOF:
			return AdoptedLog{QuarantinedLog: r.Log(), Group: r.Group(), Next: r.Next(), End: r.Offset()}, told, nil
		case errors.As(err, &damage) && damage.Err == nil: // else it was not read
			return got, false, a.refuse("log", fmt.Sprintf("damaged at entry %d", r.Next()), "one of which every frame is as it was written", err)
		case err != nil:
			return got, false, err
		case promised != 0 && r.Group() != promised:
			return got, false, a.refuse("group", fmt.Sprintf("%v in %s", r.Group(), r.Log().Dir), fmt.Sprintf("%v, which the journal has of %v", promised, replica), nil)
		}
		said, err := a.Frame(r.Log(), &f)
		if err != nil {
			return got, false, a.refuse("log", fmt.Sprintf("%s at entry %d", r.Log().Dir, f.Index), "one of the incarnation "+a.Incarnation.String(), err)
		}
		told = told || said
	}
}

// mark makes it an adopted directory in quarantine: see above.
func (a *adoption) mark(s *logSet) error {
	if err := s.syncBelow(a.path()); err != nil {
		return err
	}
	why := Reason{ReasonAdopted, "a person said that it is of the topic " + a.Topic + ", and nothing in it contradicts; it was called " + a.rel + " and had no marker", a.At}
	if before, err := readReason(a.FS, a.path()); err == nil && before.Kind == ReasonAdopted {
		why.Text = before.Text // an earlier call began
	}
	if a.misnamed {
		if err := s.moveAside(a.path(), a.stem, why); err != nil {
			return err
		}
		a.rel = a.done.Dir
	} else if err := replaceFile(a.FS, a.path(reasonFile), encodeReason(a.stem, why)); err != nil {
		return err
	}
	return replaceFile(a.FS, a.path(markerFile), encodeMarker(a.Topic, a.Incarnation))
}
