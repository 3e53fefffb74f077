package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// ErrNotQuarantined says that nothing of a name is in quarantine, or no longer.
var ErrNotQuarantined = errors.New("storage: there is no such directory in quarantine")

// QuarantineNameError says that a name is not one that a directory in quarantine
// has: "quarantine/<name>~<number>", or only what is behind the slash. It matches
// ErrNotQuarantined.
type QuarantineNameError struct {
	Name   string
	Reason string
}

func (e *QuarantineNameError) Error() string {
	return fmt.Sprintf("storage: %q is no directory in quarantine: %s", e.Name, e.Reason)
}

// Is matches ErrNotQuarantined.
func (e *QuarantineNameError) Is(target error) bool { return target == ErrNotQuarantined }

// QuarantineEntry is what can be said of a directory in quarantine from the names
// and sizes in it, and from its REASON and marker. No log was read.
type QuarantineEntry struct {
	QuarantinedDir

	// What the directory's name says. Topic is empty if that is neither a topic's nor
	// a replica's; then so are the others.
	Topic       string
	Incarnation Incarnation
	OfReplica   bool // of one replica alone; else of all that were here of the topic
	Partition   uint32
	Replica     ReplicaID

	// Foreign is why the marker does not say the same as the name: a *MarkerError;
	// nil: it does. With Foreign, MarkerTopic and MarkerIncarnation are what a marker
	// that is whole says.
	Foreign           error
	MarkerTopic       string
	MarkerIncarnation Incarnation

	Bytes int64 // of all files in it
	Files int
	Logs  []QuarantinedLog // by partition and replica
}

// QuarantinedLog is a partition log in quarantine, by the names of its files.
type QuarantinedLog struct {
	Partition uint32
	Replica   ReplicaID
	Dir       string // relative to the node's
	Reset     uint64 // the reset that began it; 0: none did
	Segments  int
	Bytes     int64
	First     Index  // that its first segment begins with; 0: there is none
	Start     Offset // of the first record in it
	Last      Index  // that its last segment begins with
}

// Describe says what a directory in quarantine holds. It lists directories and reads
// two small files, however large the logs are. Errors: ErrNotQuarantined, and what
// the disk says. Safe for concurrent use; what is destroyed meanwhile may be missing
// in the answer.
func (s *Store) Describe(dir string) (QuarantineEntry, error) {
	return describeQuarantined(s.logs.fs, s.logs.root, dir)
}

// Describe is Store.Describe for a directory that is not open.
func (o *Offline) Describe(dir string) (QuarantineEntry, error) {
	return describeQuarantined(o.fs, o.root, dir)
}

// quarantinedBase returns the last element of the path of a directory in
// quarantine. It admits no way out of the quarantine.
func quarantinedBase(dir string) (base string, err error) {
	base = strings.TrimPrefix(dir, quarantineDir+"/")
	switch _, _, ok := parseQuarantined(base); {
	case strings.ContainsAny(base, "/\\\x00"):
		return "", &QuarantineNameError{dir, "it has more than one element"}
	case !ok:
		return "", &QuarantineNameError{dir, "it does not end with ~ and a number"}
	}
	return base, nil
}

// inQuarantine returns the base and the path of a directory that is there.
func inQuarantine(fsys FS, root, dir string) (base, path string, err error) {
	if base, err = quarantinedBase(dir); err != nil {
		return "", "", err
	}
	path = fsys.PathJoin(root, quarantineDir, base)
	info, err := fsys.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir():
		return "", "", fmt.Errorf("%w: %s/%s", ErrNotQuarantined, quarantineDir, base)
	case err != nil:
		return "", "", fmt.Errorf("storage: %s/%s: %w", quarantineDir, base, err)
	}
	return base, path, nil
}

func describeQuarantined(fsys FS, root, dir string) (QuarantineEntry, error) {
	e, err := walkQuarantined(fsys, root, dir)
	e.Logs = newestLogs(e.Logs)
	return e, err
}

// walkQuarantined describes a directory with all logs of all resets.
func walkQuarantined(fsys FS, root, dir string) (QuarantineEntry, error) {
	base, path, err := inQuarantine(fsys, root, dir)
	if err != nil {
		return QuarantineEntry{}, err
	}
	e := QuarantineEntry{QuarantinedDir: readQuarantined(fsys, root, base)}
	if q, ok := parseQuarantinedName(base); ok {
		e.Topic, e.Incarnation = q.name, q.incarnation
		if q.replica != "" {
			e.OfReplica = true
			e.Partition, e.Replica, _ = parseReplicaBase(q.replica)
		}
	}
	e.readMarker(fsys, path)
	w := quarantineWalk{fs: fsys, e: &e}
	if err := w.dir(path, e.Dir, 0); err != nil {
		return e, fmt.Errorf("storage: list %s: %w", e.Dir, err)
	}
	slices.SortFunc(e.Logs, func(a, b QuarantinedLog) int { return strings.Compare(a.Dir, b.Dir) })
	return e, nil
}

// readMarker compares the marker with the name.
func (e *QuarantineEntry) readMarker(fsys FS, path string) {
	text, err := readSmall(fsys, fsys.PathJoin(path, markerFile), maxSealedText)
	if isMissing(err) {
		e.Foreign = &MarkerError{Dir: e.Dir, Reason: "it has no marker", Err: err}
		return
	}
	if err != nil {
		e.Foreign = &MarkerError{Dir: e.Dir, Reason: "its marker cannot be read", Err: err}
		return
	}
	e.MarkerTopic, e.MarkerIncarnation, err = decodeMarker(text)
	switch {
	case err != nil:
		e.MarkerTopic, e.MarkerIncarnation = "", Incarnation{}
		e.Foreign = &MarkerError{Dir: e.Dir, Reason: "its marker is not whole", Err: err}
	case e.MarkerTopic != e.Topic || e.MarkerIncarnation != e.Incarnation:
		e.Foreign = &MarkerError{Dir: e.Dir, Reason: "its marker names " + topicBase(e.MarkerTopic, e.MarkerIncarnation)}
	}
}

// parseReplicaBase is the inverse of what ReplicaDir makes.
func parseReplicaBase(base string) (uint32, ReplicaID, bool) {
	if !isReplicaBase(base) {
		return 0, 0, false
	}
	p, r, _ := strings.Cut(base, ".")
	partition, _ := strconv.ParseUint(p, 10, 32)
	replica, _ := strconv.ParseUint(r, 10, 64)
	return uint32(partition), ReplicaID(replica), true
}

// maxWalk bounds how deep a directory in quarantine is looked into: what a node made
// has four levels.
const maxWalk = 16

// quarantineWalk sums up what is in a directory.
type quarantineWalk struct {
	fs FS
	e  *QuarantineEntry
}

func (w *quarantineWalk) dir(path, rel string, depth int) error {
	names, err := listSorted(w.fs, path)
	if isMissing(err) || depth > maxWalk {
		return nil // destroyed just now
	}
	if err != nil {
		return err
	}
	log, isLog := w.log(rel, depth)
	for _, name := range names {
		at := w.fs.PathJoin(path, name)
		info, err := w.fs.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case info.IsDir():
			if err := w.dir(at, rel+"/"+name, depth+1); err != nil {
				return err
			}
			continue
		}
		w.e.Files++
		w.e.Bytes += info.Size()
		if i, o, ok := parseSegmentName(name); ok && isLog {
			if log.Segments++; log.Segments == 1 {
				log.First, log.Start = i, o
			}
			log.Bytes, log.Last = log.Bytes+info.Size(), i
		}
	}
	if isLog {
		w.e.Logs = append(w.e.Logs, log)
	}
	return nil
}

// log says whose log a directory holds, by its name; false: it holds none.
func (w *quarantineWalk) log(rel string, depth int) (l QuarantinedLog, ok bool) {
	l.Dir = rel
	at := strings.LastIndexByte(rel, '/')
	if digits, is := strings.CutSuffix(rel[at+1:], resetSuffix); is && depth > 0 {
		reset, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || resetName(reset) != rel[at+1:] {
			return l, false
		}
		l.Reset, rel, depth = reset, rel[:at], depth-1
	}
	l.Partition, l.Replica, ok = w.replicaOf(rel, depth)
	return l, ok
}

// replicaOf returns whose directory this is by its name.
func (w *quarantineWalk) replicaOf(rel string, depth int) (uint32, ReplicaID, bool) {
	switch {
	case depth == 0:
		return w.e.Partition, w.e.Replica, w.e.OfReplica
	case depth == 1 && !w.e.OfReplica:
		return parseReplicaBase(rel[strings.LastIndexByte(rel, '/')+1:])
	}
	return 0, 0, false
}

// newestLogs leaves one log of each replica: a replica's directory may hold more than
// one, of which a reset has replaced the others, or would have. It is the one whose
// files go farthest.
func newestLogs(logs []QuarantinedLog) (kept []QuarantinedLog) {
	for _, l := range logs {
		i := slices.IndexFunc(kept, func(k QuarantinedLog) bool { return k.Partition == l.Partition && k.Replica == l.Replica })
		switch {
		case i < 0:
			kept = append(kept, l)
		case l.Last > kept[i].Last:
			kept[i] = l
		}
	}
	slices.SortFunc(kept, func(a, b QuarantinedLog) int {
		if a.Partition != b.Partition {
			return int(int64(a.Partition) - int64(b.Partition))
		}
		return strings.Compare(a.Dir, b.Dir)
	})
	return kept
}
