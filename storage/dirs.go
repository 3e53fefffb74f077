package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// A topic's directory is named after the topic and its incarnation, and holds
// a marker that says the same:
//
//	topics/<name>@<incarnation>/INCARNATION
//	topics/<name>@<incarnation>/<partition>.<replica>/   the partition logs
//
// A name that comes back has another incarnation, so another directory; a late
// write of the old one cannot land in it. The marker tells a directory that was
// copied, restored or renamed from one that was made here. A directory is made
// under a temporary name ("~" cannot begin a topic's) and renamed once its
// marker is synced, so there is never one without a marker that a later topic
// could take for its own. What a crash leaves under a temporary name is removed when
// the store is opened.
const (
	topicsDir     = "topics"
	markerFile    = "INCARNATION"
	markerKind    = "topic"
	markerVersion = 1
	tempPrefix    = "~"
)

// MaxNameLength is the largest length of a topic's name, in bytes: a file name
// has at most 255, and a name in quarantine adds 76 to it ("@", incarnation,
// partition, replica, number).
const MaxNameLength = 179

// NameError says that a name cannot be a topic's.
type NameError struct {
	Name   string
	Reason string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("storage: topic name %q: %s", e.Name, e.Reason)
}

// ValidateName returns a *NameError unless the name is 1 to MaxNameLength of
// the characters A-Z a-z 0-9 . _ - and neither "." nor "..".
func ValidateName(name string) error {
	if name == "" || len(name) > MaxNameLength {
		return &NameError{name, fmt.Sprintf("its length is %d, allowed are 1 to %d", len(name), MaxNameLength)}
	}
	if name == "." || name == ".." {
		return &NameError{name, "it is reserved"}
	}
	for _, c := range name {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return &NameError{name, fmt.Sprintf("it contains %q, allowed are A-Z a-z 0-9 . _ -", c)}
		}
	}
	return nil
}

// MarkerError says that a topic directory is not what its name says.
type MarkerError struct {
	Dir string // relative to the node's
	// Kind is misnamed, unmarked, foreign or damaged; empty: the marker could not be
	// read, or is of a newer release, and may be right.
	Kind   ReasonKind
	Reason string
	Err    error // nil: the marker was read
}

func (e *MarkerError) Error() string {
	s := fmt.Sprintf("storage: topic directory %s: %s", e.Dir, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *MarkerError) Unwrap() error { return e.Err }

// TopicDir is a directory in topics/.
type TopicDir struct {
	Dir         string // relative to the node's
	Name        string // of the topic; empty if Dir's name is no topic's
	Incarnation Incarnation
	Foreign     error // nil: the marker says the same; else a *MarkerError
}

// ReplicaDir is the directory of a replica's log in a topic directory, both
// relative to the node's.
func ReplicaDir(topicDir string, partition uint32, r ReplicaID) string {
	return topicDir + "/" + strconv.FormatUint(uint64(partition), 10) + "." + strconv.FormatUint(uint64(r), 10)
}

func topicBase(name string, inc Incarnation) string { return name + "@" + inc.String() }

// parseTopicBase is the inverse of topicBase.
func parseTopicBase(base string) (name string, inc Incarnation, ok bool) {
	name, hex, found := strings.Cut(base, "@")
	inc, err := ParseIncarnation(hex)
	if !found || err != nil || ValidateName(name) != nil || topicBase(name, inc) != base {
		return "", Incarnation{}, false
	}
	return name, inc, true
}

// topicOf returns the topic directory that a log's directory is in; ok is false
// if it is in none. base is the last element of topic.
func topicOf(rel string) (topic, base string, ok bool) {
	rest, ok := strings.CutPrefix(rel, topicsDir+"/")
	if !ok {
		return "", "", false
	}
	base, _, _ = strings.Cut(rest, "/")
	return topicsDir + "/" + base, base, true
}

// encodeMarker makes the sealed text
//
//	stele topic 1
//	name <topic name>
//	incarnation <32 hexadecimal digits>
//	crc32c <8 hexadecimal digits>
func encodeMarker(name string, inc Incarnation) []byte {
	return encodeSealed(markerKind, markerVersion, []field{{"name", name}, {"incarnation", inc.String()}})
}

func decodeMarker(text []byte) (name string, inc Incarnation, err error) {
	version, err := sealedVersion(markerKind, text)
	if err == nil && version != markerVersion {
		err = fmt.Errorf("format version %d, this build knows %d", version, markerVersion)
	}
	if err != nil {
		return "", inc, err
	}
	v, err := decodeSealed(text, "name", "incarnation")
	if err != nil {
		return "", inc, err
	}
	inc, err = ParseIncarnation(v[1])
	return v[0], inc, err
}

// checkMarker compares the marker of the topic directory that a log's directory
// is in with its name. A directory outside of topics/ has none.
func (s *logSet) checkMarker(rel string) error {
	topic, base, ok := topicOf(rel)
	if !ok {
		return nil
	}
	name, inc, ok := parseTopicBase(base)
	if !ok {
		return &MarkerError{Dir: topic, Kind: ReasonMisnamed, Reason: "its name is not that of a topic and an incarnation"}
	}
	path, err := s.path(topic)
	if err != nil {
		return err
	}
	text, err := readSmall(s.fs, s.fs.PathJoin(path, markerFile), maxSealedText)
	if isMissing(err) {
		return &MarkerError{Dir: topic, Kind: ReasonUnmarked, Reason: "it has no marker", Err: err}
	}
	if err != nil {
		return &MarkerError{Dir: topic, Reason: "its marker cannot be read", Err: err}
	}
	haveName, haveInc, err := decodeMarker(text)
	if version, e := sealedVersion(markerKind, text); e == nil && version > markerVersion && sealHolds(text) {
		return &MarkerError{Dir: topic, Reason: "its marker is of a newer release", Err: err}
	}
	if err != nil {
		return &MarkerError{Dir: topic, Kind: ReasonDamaged, Reason: "its marker is not whole", Err: err}
	}
	if haveName != name || haveInc != inc {
		return &MarkerError{Dir: topic, Kind: ReasonForeign, Reason: "its marker names " + topicBase(haveName, haveInc)}
	}
	return nil
}

// CreateTopicDir makes the directory of one incarnation of a topic and returns
// it, relative to the node's. It is durable on return. If it is there already,
// made by whichever process, nothing else happens; with a marker that says
// otherwise it is a *MarkerError. Safe for concurrent use.
func (s *Store) CreateTopicDir(name string, inc Incarnation) (relDir string, err error) {
	return s.logs.createTopicDir(name, inc)
}

func (s *logSet) createTopicDir(name string, inc Incarnation) (string, error) {
	if err := ValidateName(name); err != nil {
		return "", err
	}
	base := topicBase(name, inc)
	rel := topicsDir + "/" + base
	path := s.fs.PathJoin(s.root, topicsDir, base)
	s.topics.Lock()
	defer s.topics.Unlock()
	found, err := exists(s.fs, path)
	if err == nil && found {
		err = s.own(rel)
	} else if err == nil {
		err = s.makeTopicDir(path, s.fs.PathJoin(s.root, topicsDir, tempPrefix+base), encodeMarker(name, inc))
	}
	if err == nil {
		err = s.nameDurable(path)
	}
	if err != nil {
		return "", fmt.Errorf("storage: create %s: %w", rel, err)
	}
	return rel, nil
}

func (s *logSet) makeTopicDir(path, temp string, marker []byte) error {
	if err := s.fs.MkdirAll(temp, 0o755); err != nil {
		return err
	}
	if err := writeSynced(s.fs, s.fs.PathJoin(temp, markerFile), marker); err != nil {
		return err
	}
	if err := syncDir(s.fs, temp); err != nil {
		return err
	}
	return s.fs.Rename(temp, path)
}

// TopicDirs lists the directories in topics/, sorted by name. Unfinished ones
// of CreateTopicDir are left out. Safe for concurrent use.
func (s *Store) TopicDirs() ([]TopicDir, error) { return s.logs.topicDirs() }

func (s *logSet) topicDirs() ([]TopicDir, error) {
	s.topics.RLock()
	defer s.topics.RUnlock()
	bases, err := subdirs(s.fs, s.fs.PathJoin(s.root, topicsDir))
	if err != nil {
		return nil, err
	}
	var dirs []TopicDir
	for _, base := range bases {
		if strings.HasPrefix(base, tempPrefix) {
			continue
		}
		d := TopicDir{Dir: topicsDir + "/" + base}
		d.Name, d.Incarnation, _ = parseTopicBase(base)
		d.Foreign = s.checkMarker(d.Dir)
		var marker *MarkerError
		if d.Foreign != nil && !errors.As(d.Foreign, &marker) {
			return nil, d.Foreign
		}
		dirs = append(dirs, d)
	}
	return dirs, nil
}

// subdirs lists the directories in dir, sorted; none if there is no dir.
func subdirs(fsys FS, dir string) ([]string, error) {
	names, err := listSorted(fsys, dir)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("storage: list %s: %w", dir, err)
	}
	var dirs []string
	for _, name := range names {
		info, err := fsys.Stat(fsys.PathJoin(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // renamed away just now
		}
		if err != nil {
			return nil, fmt.Errorf("storage: list %s: %w", dir, err)
		}
		if info.IsDir() {
			dirs = append(dirs, name)
		}
	}
	return dirs, nil
}
