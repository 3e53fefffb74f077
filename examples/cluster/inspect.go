package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/stelelog/stele/storage"
)

const inspectAbout = `
Inspect reads the directories of stopped nodes and tells what they hold. It
verifies the checksums of identity, markers, checkpoint table, journal, side files
and every record in the logs; it decides again what became of every entry, and holds
that against the logs. Nothing is changed. Of several directories it also compares
the replicas of each partition, each as far as it goes, with the longest one. It does
not read the database of the metadata, the index files beside the logs, which are
hints and can be made again, and what is in quarantine.

Exit status: 1 if anything is damaged or replicas differ, and where; else 2 if
anything could not be read, as while a node runs.
`

// inspection is all that inspect found.
type inspection struct {
	Directories []*directory  `json:"directories"`
	Compared    []*comparison `json:"compared,omitempty"` // of several directories
	Damaged     bool          `json:"damaged"`            // or different
	Unread      bool          `json:"unread"`             // something could not be read
}

// directory is what one node's directory holds.
type directory struct {
	Dir         string       `json:"dir"`
	Identity    *identity    `json:"identity,omitempty"`
	Tables      []table      `json:"tables"`
	Journal     []journal    `json:"journal"`
	Groups      []*group     `json:"groups"`
	Topics      []topicDir   `json:"topics"`
	Quarantined []quarantine `json:"quarantined"`
	Damage      []string     `json:"damage"`                // what is wrong and where; empty: nothing
	CannotRead  []string     `json:"cannot_read,omitempty"` // what was not read, and why: that is no damage
}

type identity struct {
	Name      string `json:"name"`
	Cluster   string `json:"cluster"`
	ClusterID string `json:"cluster_id"`
	Node      uint64 `json:"node"` // 0: not part of a cluster yet
	Nonce     string `json:"nonce"`
	Epoch     uint64 `json:"recovery_epoch"`
	Recovery  string `json:"recovery,omitempty"` // what is to be done about one; empty: nothing
}

// table is a copy of the checkpoint table.
type table struct {
	File       string `json:"file"`
	Generation uint64 `json:"generation"`     // of the journal, where replay begins
	Torn       string `json:"torn,omitempty"` // why it is not whole; the other one is, so that it is not needed
}

// journal is a file of the journal.
type journal struct {
	File       string `json:"file"`
	Bytes      int64  `json:"bytes"`
	Generation uint64 `json:"generation"` // 0: it is free
}

type topicDir struct {
	Dir         string `json:"dir"`
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
}

type quarantine struct {
	Dir    string `json:"dir"`
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
}

// group is a replica of a raft group.
type group struct {
	Topic       string    `json:"topic,omitempty"` // empty: the metadata
	Partition   uint32    `json:"partition"`
	Incarnation string    `json:"incarnation,omitempty"`
	Group       uint64    `json:"group"`
	Replica     uint64    `json:"replica"`
	Dir         string    `json:"dir"`
	SetAside    bool      `json:"set_aside,omitempty"` // of no use any more: its topic was deleted, it moved, or a forced recovery ended it
	Segments    []segment `json:"segments"`

	Term   uint64 `json:"term"`
	Commit uint64 `json:"commit"` // index of the last entry that this replica knows to be committed

	// Entries are all up to Commit. The last ones of them, JournalOnly many, are
	// not in the files of the log yet, or not whole there, as after a crash: the
	// node would write them again from the journal. Unjudged ones of those are in
	// a log that does not begin with the partition's first entry, so that what
	// became of them cannot be decided here: their records are not counted. Tail
	// are those behind Commit, which the journal holds: they are durable, and who
	// knows whether the others have them; TailRecords is how many records they are
	// if they count.
	Entries     uint64 `json:"entries"`
	JournalOnly uint64 `json:"journal_only_entries"`
	Unjudged    uint64 `json:"unjudged_entries,omitempty"`
	Tail        uint64 `json:"tail_entries"`
	TailRecords uint64 `json:"tail_records"`

	// The records up to Commit are those of offsets Start to before HighWatermark,
	// of which those before Proven are in files that the checkpoint table vouches
	// for.
	Start         int64  `json:"start_offset"`
	Proven        int64  `json:"proven_offset"`
	HighWatermark int64  `json:"high_watermark"`
	Records       uint64 `json:"records"`
	SHA256        string `json:"sha256"`          // of the records in order: see recordHash
	Broken        string `json:"error,omitempty"` // why it was not read to its end

	states []recordState // behind each entry with records, to compare
}

// segment is a file of a log.
type segment struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

// recordState is the hash of all records below an offset.
type recordState struct {
	next int64
	sum  digest
}

// name is a group's name for people.
func (g *group) name() string {
	if g.Topic == "" {
		return "metadata"
	}
	return fmt.Sprintf("%s/%d", g.Topic, g.Partition)
}

func runInspect(_ context.Context, args []string, io console) error {
	f := newFlags("inspect", inspectAbout, io)
	asJSON := f.Bool("json", false, "print one JSON object, for programs")
	if err := f.parse(args, true); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return &usageError{"want one directory or several"}
	}
	var all inspection
	for _, dir := range f.Args() {
		d := inspectDir(filepath.Clean(dir))
		all.Directories = append(all.Directories, d)
		all.Damaged = all.Damaged || len(d.Damage) > 0
		all.Unread = all.Unread || len(d.CannotRead) > 0
	}
	if len(all.Directories) > 1 {
		all.compare()
	}
	if *asJSON {
		enc := json.NewEncoder(io.out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(all); err != nil {
			return err
		}
	} else if err := all.print(io.out); err != nil {
		return err
	}
	switch {
	case all.Damaged:
		return errors.New(all.verdict())
	case all.Unread:
		return &unreadError{all.verdict()}
	}
	return nil
}

// unreadError says that not all could be read. Nothing of it is damage.
type unreadError struct{ text string }

func (e *unreadError) Error() string { return e.text }

// inspectDir reads one directory as far as it can be read.
func inspectDir(dir string) *directory {
	d := &directory{Dir: dir, Groups: []*group{}, Topics: []topicDir{}, Quarantined: []quarantine{}, Damage: []string{}}
	if err := isNodeDir(dir); err != nil {
		d.unread(err)
		return d
	}
	unlock, err := lockStopped(dir)
	if err != nil {
		d.unread(err)
		return d
	}
	defer unlock()
	off, err := storage.ReadOffline(storage.DiskFS(), dir)
	if err != nil {
		d.note(err)
		return d
	}
	id := off.Identity
	d.Identity = &identity{id.Name, id.Cluster, id.ClusterID.String(), uint64(id.Node), id.Nonce.String(), id.Epoch, ""}
	if err := id.Unfinished(dir); err != nil {
		d.Identity.Recovery = err.Error()
	} else if id.Fenced != 0 {
		d.Identity.Recovery = fmt.Sprintf("its node was fenced: the cluster went on without it in recovery epoch %d", id.Fenced)
	}
	for _, t := range off.Tables {
		line := table{File: t.Path, Generation: t.Generation}
		if t.Err != nil {
			line.Torn = t.Err.Error()
		}
		d.Tables = append(d.Tables, line)
	}
	for _, f := range off.Journal {
		d.Journal = append(d.Journal, journal{f.Path, f.Bytes, f.Generation})
	}
	for _, t := range off.TopicDirs {
		d.Topics = append(d.Topics, topicDir{t.Dir, t.Name, t.Incarnation.String()})
		d.note(t.Foreign)
	}
	for _, q := range off.Quarantined {
		d.Quarantined = append(d.Quarantined, quarantine{q.Dir, string(q.Reason.Kind), q.Reason.Text})
	}
	for _, st := range off.Replicas {
		g, err := inspectGroup(off, st)
		if err != nil {
			g.Broken = err.Error()
		}
		d.note(err)
		d.note(off.SideFiles(st.Replica))
		g.Segments = filesOf(filepath.Join(dir, filepath.FromSlash(st.Dir)))
		d.Groups = append(d.Groups, g)
	}
	return d
}

// note notes what is wrong, if anything is, once: damage, unless the bytes could
// not be looked at, or are of a newer release.
func (d *directory) note(err error) {
	var newer *storage.FormatError
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrPermission), errors.As(err, &newer):
		d.unread(err)
	case !slices.Contains(d.Damage, err.Error()):
		d.Damage = append(d.Damage, err.Error())
	}
}

// unread notes what was not read, once.
func (d *directory) unread(err error) {
	if !slices.Contains(d.CannotRead, err.Error()) {
		d.CannotRead = append(d.CannotRead, err.Error())
	}
}

// isNodeDir is why there is nothing in a path to judge. A directory that has any
// of what every node's has is a node's, and what it lacks was lost.
func isNodeDir(dir string) error {
	if _, err := os.ReadDir(dir); err != nil {
		return err
	}
	for _, name := range []string{"FORMAT", "IDENTITY", "journal"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s is no directory of a node: it has no FORMAT, IDENTITY and journal", dir)
}

// lockStopped keeps a node from being started meanwhile. It refuses a directory
// whose node runs, and makes no file where there is none.
func lockStopped(dir string) (unlock func(), err error) {
	disk, name := storage.DiskFS(), filepath.Join(dir, "LOCK")
	if _, err := disk.Stat(name); err != nil {
		return func() {}, nil // perhaps a copy; what is missing is told by reading
	}
	lock, err := disk.Lock(name)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, fmt.Errorf("%s: %w: stop its node first", dir, storage.ErrLocked)
	case err != nil:
		return func() {}, nil // read-only, most likely
	}
	return func() { _ = lock.Close() }, nil
}

// filesOf lists the files of a log, which are in a directory below if it was
// copied from another node; what cannot be read is told elsewhere.
func filesOf(dir string) []segment {
	files := []segment{}
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			name, _ := filepath.Rel(dir, path)
			files = append(files, segment{filepath.ToSlash(name), info.Size()})
		}
		return nil
	})
	return files
}
