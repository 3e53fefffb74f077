package storage

import (
	"fmt"
	"strconv"
	"strings"
)

// What must not be served is moved aside, and removed only by destroy.go:
//
//	quarantine/<name>@<incarnation>~<n>/    with a file REASON
//	quarantine/<name>@<incarnation>.<partition>.<replica>~<n>/   of one replica
//
// n counts from 1, so that the same incarnation can be moved aside again. The
// reason (reason.go) is written before the directory is renamed: whatever is in
// quarantine says why. Nothing in it is ever opened as a log.
const (
	quarantineDir = "quarantine"

	// maxQuarantined is the length to which a name is cut that no topic has.
	maxQuarantined = 240
)

// QuarantinedDir is a directory that was moved aside.
type QuarantinedDir struct {
	Dir    string // relative to the node's
	From   string // what it was called in topics/, of a replica with '.' for '/'
	Number uint64 // n of its name
	// Reason is why it is there. ReasonErr says that there is none to be read:
	// it is missing, or not whole, and Reason is zero.
	Reason    Reason
	ReasonErr error
}

// QuarantineTopic moves a directory of topics/ aside, whatever is in it. The
// move is durable on return; after an error it may or may not have happened. No
// log in it may be open. Safe for concurrent use.
func (s *Store) QuarantineTopic(dir TopicDir, reason Reason) error {
	return s.logs.quarantine(dir.Dir, reason)
}

func (s *logSet) quarantine(rel string, reason Reason) error {
	topic, base, ok := topicOf(rel)
	if !ok || topic != rel {
		return fmt.Errorf("storage: quarantine %s: it is not a topic directory", rel)
	}
	from, err := s.path(rel)
	if err != nil {
		return err
	}
	s.topics.Lock()
	defer s.topics.Unlock()
	if l := s.openBelow(rel); l != nil {
		return fmt.Errorf("storage: quarantine %s: the log of replica %v is open", rel, l.replica)
	}
	if err := s.moveAside(from, base, reason); err != nil {
		return fmt.Errorf("storage: quarantine %s: %w", rel, err)
	}
	return nil
}

func (s *logSet) moveAside(from, base string, reason Reason) error {
	if err := reason.Kind.validate(); err != nil {
		return err
	}
	to := s.fs.PathJoin(s.root, quarantineDir)
	if err := s.fs.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := s.nameDurable(to); err != nil {
		return err
	}
	stem := base[:min(len(base), maxQuarantined)]
	number, err := s.nextNumber(to, stem)
	if err != nil {
		return err
	}
	text := encodeReason(base, reason)
	if err := replaceFile(s.fs, s.fs.PathJoin(from, reasonFile), text); err != nil {
		return err
	}
	if err := s.fs.Rename(from, s.fs.PathJoin(to, stem+"~"+strconv.FormatUint(number, 10))); err != nil {
		return err
	}
	s.forgetNames(from)
	// The new name first: a crash between the two must not lose both.
	if err := syncDir(s.fs, to); err != nil {
		return err
	}
	return syncDir(s.fs, s.fs.PathDir(from))
}

// nextNumber is above all that are taken for the stem.
func (s *logSet) nextNumber(dir, stem string) (uint64, error) {
	names, err := s.fs.List(dir)
	if err != nil {
		return 0, err
	}
	var last uint64
	for _, name := range names {
		if have, n, ok := parseQuarantined(name); ok && have == stem {
			last = max(last, n)
		}
	}
	return last + 1, nil
}

func parseQuarantined(name string) (stem string, number uint64, ok bool) {
	i := strings.LastIndexByte(name, '~')
	if i < 0 {
		return "", 0, false
	}
	number, err := strconv.ParseUint(name[i+1:], 10, 64)
	return name[:i], number, err == nil
}

// Quarantined lists what was moved aside, sorted by name. Safe for concurrent
// use.
func (s *Store) Quarantined() ([]QuarantinedDir, error) {
	return listQuarantined(s.logs.fs, s.logs.root)
}

func listQuarantined(fsys FS, root string) ([]QuarantinedDir, error) {
	names, err := subdirs(fsys, fsys.PathJoin(root, quarantineDir))
	if err != nil {
		return nil, err
	}
	var dirs []QuarantinedDir
	for _, name := range names {
		if _, _, ok := parseQuarantined(name); ok {
			dirs = append(dirs, readQuarantined(fsys, root, name))
		}
	}
	return dirs, nil
}

// readQuarantined reads what a directory says of itself, whose base parseQuarantined
// takes.
func readQuarantined(fsys FS, root, base string) QuarantinedDir {
	d := QuarantinedDir{Dir: quarantineDir + "/" + base}
	d.From, d.Number, _ = parseQuarantined(base)
	text, err := readSmall(fsys, fsys.PathJoin(root, quarantineDir, base, reasonFile), maxSealedText)
	var from string
	if err == nil {
		from, d.Reason, err = decodeReason(text)
	}
	if d.ReasonErr = err; err == nil {
		d.From = from
	}
	return d
}
