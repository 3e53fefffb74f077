package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/stelelog/stele/internal/proof"
)

// What is destroyed is destroyed here, and nowhere else: the files of a topic, or
// of one replica of it, that are in quarantine.
//
//	quarantine/<name>@<incarnation>~<n>/                        a topic's directory
//	quarantine/<name>@<incarnation>.<partition>.<replica>~<n>/  a replica's, out of a
//	                                                            topic's that goes on
//	  INCARNATION   of which topic's life it is, as in topics/
//	  REASON        why it was moved aside
//	  ...           the logs, or the log
//
// Each call demands a proof (package proof), of this cluster and of the recovery
// epoch that the node is in, and compares what it says with the directory's name
// and with its marker. What does not agree stays where it is.
//
// # Why a crash leaves nothing that nobody may take away
//
// A directory is emptied from below: everything but the marker, and that is made
// durable; then the marker; then the directory. Whenever power fails there is
//
//	a directory with its marker   which says what it is: the next call goes on
//	an empty one                  of which the name says it, and there is nothing
//	                              that the marker could be needed for
//	none
//
// The journal's row of a replica that was set aside goes last, when its files are
// gone (raftlog.Host.Destroy). Until then the row says that there is something to
// be done. A row whose directory is gone already is no damage.

// Destroyed is what a call took away. Calls that are repeated find less.
type Destroyed struct {
	Dirs  []string // relative to the node's, as they were called
	Bytes int64    // of the files in them
	// Kept are directories that by their name are what the proof speaks of, and by
	// their markers are not, or that have none. They need a person.
	Kept []KeptDir
}

// KeptDir is a directory that was not destroyed.
type KeptDir struct {
	Dir    string
	Reason string
	Busy   bool // it is being read; else it needs a person
}

// DestroyTopic unlinks all that is in quarantine of the incarnation that p says is
// dead: its directories, however often it was moved aside, and those of single
// replicas. It touches nothing in topics/, and leaves what is held for a person
// (QuarantinedDir.Held): DestroyQuarantined takes that. What is gone is durably gone on return.
// After an error of the disk some of it may be gone; the call may be repeated. A
// *proof.Error, which matches proof.ErrRefused: nothing was touched. Safe for
// concurrent use; it blocks for as long as the disk needs.
func (s *Store) DestroyTopic(p proof.Proof) (Destroyed, error) {
	id := s.home.current()
	inc, err := p.DeadIncarnation(id.ClusterID, id.Epoch)
	if err != nil {
		return Destroyed{}, fmt.Errorf("storage: destroy a topic: %w", err)
	}
	return s.logs.destroy(true, func(_ string, q quarantinedName) bool { return q.incarnation == inc })
}

// DestroyReplica unlinks the directory of a replica that was set aside, and what
// is in quarantine of it. p says that this replica was removed from its group, or
// that its topic's incarnation is dead. The directory is moved to quarantine
// first, with the time at by the caller's clock, so that nothing is ever unlinked
// in topics/. What is held for a person stays. Errors as of DestroyTopic.
//
// The state is that of the replica in the journal: raftlog.Host.Destroy is who
// calls, and lets the journal forget it then.
func (s *Store) DestroyReplica(p proof.Proof, st ReplicaState, at time.Time) (Destroyed, error) {
	id := s.home.current()
	inc, _ := st.Incarnation()
	if err := p.Covers(id.ClusterID, id.Epoch, inc, uint64(st.Group), uint64(st.Replica)); err != nil {
		return Destroyed{}, fmt.Errorf("storage: destroy %v: %w", st.Replica, err)
	}
	if st.Status != ReplicaSetAside {
		return Destroyed{}, fmt.Errorf("storage: destroy %v: it was not set aside", st.Replica)
	}
	d, err := s.logs.destroyReplica(st, at)
	if err != nil {
		err = fmt.Errorf("storage: destroy %v in %s: %w", st.Replica, st.Dir, err)
	}
	return d, err
}

// DestroyQuarantined unlinks one directory in quarantine. p says that the incarnation
// in its name is dead, or, of the directory of one replica, that this replica was
// removed from the group. ErrNotQuarantined: there is none of that name. All else is
// as of DestroyTopic.
func (s *Store) DestroyQuarantined(p proof.Proof, dir string, group GroupID) (Destroyed, error) {
	base, _, err := inQuarantine(s.logs.fs, s.logs.root, dir)
	if err != nil {
		return Destroyed{}, err
	}
	id := s.home.current()
	q, _ := parseQuarantinedName(base)
	_, replica, _ := parseReplicaBase(q.replica)
	if err := p.Covers(id.ClusterID, id.Epoch, q.incarnation, uint64(group), uint64(replica)); err != nil {
		return Destroyed{}, fmt.Errorf("storage: destroy %s/%s: %w", quarantineDir, base, err)
	}
	return s.logs.destroy(false, func(b string, _ quarantinedName) bool { return b == base })
}

// Incarnation returns the life of the topic in whose directory the replica's log
// is; false: in none.
func (st *ReplicaState) Incarnation() (Incarnation, bool) {
	_, base, ok := topicOf(st.Dir)
	if !ok {
		return Incarnation{}, false
	}
	_, inc, ok := parseTopicBase(base)
	return inc, ok
}

// Partition returns the partition that the name of the replica's directory says;
// false: it is not in that of a topic.
func (st *ReplicaState) Partition() (uint32, bool) {
	topic, _, ok := topicOf(st.Dir)
	base := strings.TrimPrefix(st.Dir, topic+"/")
	if !ok || !isReplicaBase(base) {
		return 0, false
	}
	p, _, _ := strings.Cut(base, ".")
	n, err := strconv.ParseUint(p, 10, 32)
	return uint32(n), err == nil
}

// Incarnation returns the life of the topic whose directory, or whose replica's,
// this is by its name; false: of none.
func (d QuarantinedDir) Incarnation() (Incarnation, bool) {
	q, ok := parseQuarantinedName(strings.TrimPrefix(d.Dir, quarantineDir+"/"))
	return q.incarnation, ok
}

// Replica returns the replica whose directory this is by its name; false: it is not
// that of one replica.
func (d QuarantinedDir) Replica() (ReplicaID, bool) {
	q, _ := parseQuarantinedName(strings.TrimPrefix(d.Dir, quarantineDir+"/"))
	_, text, ok := strings.Cut(q.replica, ".")
	r, err := strconv.ParseUint(text, 10, 64)
	return ReplicaID(r), ok && err == nil
}

// Held reports whether nothing destroys it of its own accord: its reason waits for a
// person (ReasonKind.HeldForPerson), or is there and cannot be read. One without a
// reason was about to be destroyed when power failed.
func (d QuarantinedDir) Held() bool { return isHeld(d.Reason, d.ReasonErr) }

func isHeld(why Reason, err error) bool {
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return why.Kind.HeldForPerson()
}

// readReason reads the reason of a directory in quarantine.
func readReason(fsys FS, path string) (why Reason, err error) {
	text, err := readSmall(fsys, fsys.PathJoin(path, reasonFile), maxSealedText)
	if err == nil {
		_, why, err = decodeReason(text)
	}
	return why, err
}

// quarantinedName is what the name of a directory in quarantine says.
type quarantinedName struct {
	name        string
	incarnation Incarnation
	replica     string // "<partition>.<replica>"; empty: the whole topic's
}

// parseQuarantinedName reads a name with its number; false: it is not that of a
// topic's directory or a replica's.
func parseQuarantinedName(base string) (q quarantinedName, ok bool) {
	stem, _, ok := parseQuarantined(base)
	if !ok {
		return q, false
	}
	at := strings.IndexByte(stem, '@')
	end := at + 1 + 2*len(q.incarnation)
	if at < 0 || len(stem) < end {
		return q, false
	}
	q.name, q.incarnation, ok = parseTopicBase(stem[:end])
	if !ok || len(stem) == end {
		return q, ok
	}
	if stem[end] != '.' {
		return q, false
	}
	q.replica = stem[end+1:]
	return q, isReplicaBase(q.replica)
}

// isReplicaBase reports whether a name is one that ReplicaDir makes.
func isReplicaBase(base string) bool {
	p, r, found := strings.Cut(base, ".")
	partition, err := strconv.ParseUint(p, 10, 32)
	replica, err2 := strconv.ParseUint(r, 10, 64)
	return found && errors.Join(err, err2) == nil && ReplicaDir("", uint32(partition), ReplicaID(replica)) == "/"+base
}

// destroyReplica moves a replica's directory to quarantine, if it is in topics/,
// and destroys what is there of it.
func (s *logSet) destroyReplica(st ReplicaState, at time.Time) (Destroyed, error) {
	topic, base, ok := topicOf(st.Dir)
	name, inc, named := parseTopicBase(base)
	replica := strings.TrimPrefix(st.Dir, topic+"/")
	if !ok || !named || !isReplicaBase(replica) || !strings.HasSuffix(replica, "."+strconv.FormatUint(uint64(st.Replica), 10)) {
		return Destroyed{}, errors.New("its directory is not one that a replica has")
	}
	kept, err := s.asideReplica(st, topic, name, inc, base+"."+replica, Reason{ReasonMovedAway, "its place is elsewhere", at})
	if err != nil || len(kept.Kept) > 0 {
		return kept, err
	}
	return s.destroy(true, func(_ string, q quarantinedName) bool { return q.incarnation == inc && q.replica == replica })
}

// asideReplica moves the directory of a replica out of its topic's.
func (s *logSet) asideReplica(st ReplicaState, topic, name string, inc Incarnation, stem string, why Reason) (kept Destroyed, err error) {
	from, err := s.path(st.Dir)
	if err != nil {
		return kept, err
	}
	s.topics.Lock()
	defer s.topics.Unlock()
	if s.isOpenIn(st.Dir) { // perhaps without a file yet
		return kept, errors.New("its log is open")
	}
	if found, err := exists(s.fs, from); err != nil || !found {
		return kept, err // it never had files, or they are gone or aside
	}
	if err := s.checkMarker(topic); err != nil {
		var foreign *MarkerError
		if errors.As(err, &foreign) {
			kept.Kept = []KeptDir{{Dir: st.Dir, Reason: err.Error()}}
			return kept, nil
		}
		return kept, err
	}
	if err := replaceFile(s.fs, s.fs.PathJoin(from, markerFile), encodeMarker(name, inc)); err != nil {
		return kept, err
	}
	return kept, s.moveAside(from, stem, why)
}

// QuarantineReplica moves the directory of a replica that was set aside out of that of
// its topic, which goes on, with a marker of its own. One that is not there was moved
// before, or never had files: nil. A topic directory that is another one: a
// *MarkerError, and nothing is moved. The move, and all that is in the files, is durable
// on return; after another error it may or may not have happened. Safe for concurrent use.
func (s *Store) QuarantineReplica(st ReplicaState, why Reason) error {
	topic, base, ok := topicOf(st.Dir)
	name, inc, named := parseTopicBase(base)
	replica := strings.TrimPrefix(st.Dir, topic+"/")
	if !ok || !named || !isReplicaBase(replica) || st.Status != ReplicaSetAside {
		return fmt.Errorf("storage: quarantine %v in %q: it was not set aside, or is in no topic", st.Replica, st.Dir)
	}
	if err := s.logs.own(st.Dir); err != nil {
		return err
	}
	path, err := s.logs.path(st.Dir)
	if err == nil {
		err = s.logs.syncBelow(path)
	}
	var kept Destroyed
	if err == nil {
		kept, err = s.logs.asideReplica(st, topic, name, inc, base+"."+replica, why)
	}
	if err == nil && len(kept.Kept) > 0 {
		err = errors.New(kept.Kept[0].Reason)
	}
	if err != nil {
		return fmt.Errorf("storage: quarantine %v in %s: %w", st.Replica, st.Dir, err)
	}
	return nil
}

// syncBelow makes the files durable that are below a directory, and their names. A
// partition log's need not be: they rest on the journal, which forgets a replica's
// entries when it is set aside.
func (s *logSet) syncBelow(dir string) error {
	names, err := listSorted(s.fs, dir)
	if isMissing(err) {
		return nil
	}
	for _, name := range names {
		path := s.fs.PathJoin(dir, name)
		info, err := s.fs.Stat(path)
		if err == nil && info.IsDir() {
			err = s.syncBelow(path)
		} else if err == nil {
			err = s.syncFile(path)
		}
		if err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	return syncDir(s.fs, dir)
}

func (s *logSet) syncFile(path string) error {
	f, err := s.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// isOpenIn reports whether the log of a replica's directory is open or staged.
func (s *logSet) isOpenIn(rel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, logs := range [...]map[ReplicaID]*Log{s.mu.open, s.mu.staged} {
		for _, l := range logs {
			if l.rel == rel {
				return true
			}
		}
	}
	return false
}

// destroy unlinks the directories in quarantine whose names are meant, if their
// markers agree. sweeping: what is held for a person stays.
func (s *logSet) destroy(sweeping bool, meant func(base string, q quarantinedName) bool) (all Destroyed, err error) {
	s.destroying.Lock()
	defer s.destroying.Unlock()
	root := s.fs.PathJoin(s.root, quarantineDir)
	bases, err := subdirs(s.fs, root)
	if err != nil {
		return all, err
	}
	for _, base := range bases {
		q, ok := parseQuarantinedName(base)
		if !ok || !meant(base, q) {
			continue
		}
		path := s.fs.PathJoin(root, base)
		if sweeping && isHeld(readReason(s.fs, path)) {
			continue
		}
		if why, err := s.isNot(q, path); err != nil {
			return all, err
		} else if why != "" {
			all.Kept = append(all.Kept, KeptDir{Dir: quarantineDir + "/" + base, Reason: why})
			continue
		}
		if !s.startEnding(base) {
			all.Kept = append(all.Kept, KeptDir{quarantineDir + "/" + base, beingRead, true})
			continue
		}
		bytes, err := s.unlink(path)
		s.endEnding(base)
		all.Bytes += bytes
		if err != nil {
			return all, fmt.Errorf("storage: destroy %s/%s: %w", quarantineDir, base, err)
		}
		all.Dirs = append(all.Dirs, quarantineDir+"/"+base)
	}
	// Also of what an earlier call unlinked and did not live to sync.
	if len(bases) > 0 {
		err = syncDir(s.fs, root)
	}
	return all, err
}

// isNot says why a directory in quarantine is not what its name says; "": it is.
func (s *logSet) isNot(q quarantinedName, path string) (why string, err error) {
	text, err := readSmall(s.fs, s.fs.PathJoin(path, markerFile), maxSealedText)
	switch {
	case isMissing(err):
		names, err := s.fs.List(path)
		if err == nil && len(names) > 0 {
			why = "it has no marker"
		}
		return why, err
	case err != nil:
		return "its marker cannot be read: " + err.Error(), nil
	}
	name, inc, err := decodeMarker(text)
	switch {
	case err != nil:
		return "its marker is not whole: " + err.Error(), nil
	case name != q.name || inc != q.incarnation:
		return "its marker names " + topicBase(name, inc), nil
	}
	return "", nil
}

// unlink empties a directory, its marker last, and removes it. It returns the
// bytes of the files that are gone. Of a link to a directory, which a person may have
// put in the place of what was moved to another disk, only the link goes.
func (s *logSet) unlink(path string) (bytes int64, err error) {
	if s.fs.Remove(path) == nil { // nothing else that holds anything can be removed so
		s.forgetName(path)
		return 0, nil
	}
	marked := false
	bytes, err = s.unlinkIn(path, func(name string) bool {
		marked = marked || name == markerFile
		return name == markerFile
	})
	if err == nil && marked {
		err = syncDir(s.fs, path)
	}
	if err == nil && marked {
		n, e := s.unlinkIn(path, func(string) bool { return false })
		bytes, err = bytes+n, e
	}
	if err == nil {
		err = s.fs.Remove(path)
	}
	s.forgetName(path)
	return bytes, err
}

// unlinkIn removes what is in a directory, but for names that stay.
func (s *logSet) unlinkIn(path string, stays func(string) bool) (bytes int64, err error) {
	names, err := listSorted(s.fs, path)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if stays(name) {
			continue
		}
		at := s.fs.PathJoin(path, name)
		info, err := s.fs.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist): // or it is a link that leads nowhere
			err = nil
		case err == nil && info.IsDir():
			// A link to a directory goes like a file, and nothing that it leads to.
			if s.fs.Remove(at) == nil {
				s.forgetName(at)
				continue
			}
			var n int64
			n, err = s.unlinkIn(at, func(string) bool { return false })
			bytes += n
			s.forgetName(at)
		case err == nil:
			bytes += info.Size()
		}
		if err == nil {
			err = s.fs.Remove(at)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return bytes, err
		}
	}
	return bytes, nil
}
