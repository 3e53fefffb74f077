package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

const inspectAbout = `
Inspect reads the directories of stopped nodes, verifies every checksum, and
tells what they hold. Nothing is changed. Of several directories it also compares
the replicas of each partition, as far as the shorter one goes.

Exit status: 1 if anything is damaged or replicas differ, and where.
`

// inspection is all that inspect found.
type inspection struct {
	Directories []*directory  `json:"directories"`
	Compared    []*comparison `json:"compared,omitempty"` // of several directories
	Damaged     bool          `json:"damaged"`            // or different
}

// directory is what one node's directory holds.
type directory struct {
	Dir         string       `json:"dir"`
	Identity    *identity    `json:"identity,omitempty"`
	Groups      []*group     `json:"groups"`
	Topics      []topicDir   `json:"topics"`
	Quarantined []quarantine `json:"quarantined"`
	Damage      []string     `json:"damage"` // what is wrong and where; empty: nothing
}

type identity struct {
	Name      string `json:"name"`
	Cluster   string `json:"cluster"`
	ClusterID string `json:"cluster_id"`
	Node      uint64 `json:"node"` // 0: not part of a cluster yet
	Nonce     string `json:"nonce"`
	Epoch     uint64 `json:"recovery_epoch"`
}

type topicDir struct {
	Dir         string `json:"dir"`
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
}

type quarantine struct {
	Dir    string `json:"dir"`
	Reason string `json:"reason"`
}

// group is a replica of a raft group.
type group struct {
	Topic       string `json:"topic,omitempty"` // empty: the metadata
	Partition   uint32 `json:"partition"`
	Incarnation string `json:"incarnation,omitempty"`
	Group       uint64 `json:"group"`
	Replica     uint64 `json:"replica"`
	Dir         string `json:"dir"`
	SetAside    bool   `json:"set_aside,omitempty"` // of no use any more: its topic was deleted

	Term    uint64 `json:"term"`
	Commit  uint64 `json:"commit"`  // index known to be committed
	Applied uint64 `json:"applied"` // index of the last entry in the log's files
	// Entries are those in the files of the log, of any kind; Tail those that
	// only the journal has yet, and TailRecords the records in them, which may
	// turn out to be repetitions.
	Entries     uint64 `json:"entries"`
	Tail        uint64 `json:"tail_entries"`
	TailRecords uint64 `json:"tail_records"`

	// Offsets of records in the files. HighWatermark is what this replica knows
	// by itself to be readable.
	Start         int64  `json:"start_offset"`
	Next          int64  `json:"next_offset"`
	HighWatermark int64  `json:"high_watermark"`
	Records       uint64 `json:"records"`
	SHA256        string `json:"sha256"` // of the records in order: see recordHash

	states []recordState // of the hash, behind each entry with records
}

// recordState is the hash of all records below an offset.
type recordState struct {
	next storage.Offset
	sum  [sha256.Size]byte
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
		d := inspectDir(dir)
		all.Directories = append(all.Directories, d)
		all.Damaged = all.Damaged || len(d.Damage) > 0
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
	} else {
		all.print(io.out)
	}
	if all.Damaged {
		return errors.New(all.verdict())
	}
	return nil
}

// inspectDir reads one directory as far as it can be read.
func inspectDir(dir string) *directory {
	d := &directory{Dir: dir, Groups: []*group{}, Topics: []topicDir{}, Quarantined: []quarantine{}, Damage: []string{}}
	fail := func(err error) { d.Damage = append(d.Damage, err.Error()) }
	fs := storage.DiskFS()
	lock := fs.PathJoin(dir, "LOCK")
	if _, err := fs.Stat(lock); err == nil { // none is made: nothing is changed
		held, err := fs.Lock(lock)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			fail(fmt.Errorf("%s: %w: stop its node first", dir, storage.ErrLocked))
			return d
		}
		if err == nil {
			defer held.Close()
		}
	}
	off, err := storage.ReadOffline(fs, dir)
	if err != nil {
		fail(err)
		return d
	}
	id := off.Identity
	d.Identity = &identity{id.Name, id.Cluster, id.ClusterID.String(), uint64(id.Node), id.Nonce.String(), id.Epoch}
	for _, t := range off.TopicDirs {
		d.Topics = append(d.Topics, topicDir{t.Dir, t.Name, t.Incarnation.String()})
		if t.Foreign != nil {
			fail(t.Foreign)
		}
	}
	for _, q := range off.Quarantined {
		d.Quarantined = append(d.Quarantined, quarantine{q.Dir, q.Reason})
	}
	for _, st := range off.Replicas {
		g, err := inspectGroup(off, st)
		if err != nil {
			fail(err)
		}
		d.Groups = append(d.Groups, g)
	}
	return d
}

// inspectGroup reads one replica's log, every frame and every record.
func inspectGroup(off *storage.Offline, st storage.ReplicaState) (*group, error) {
	g := &group{
		Group: uint64(st.Group), Replica: uint64(st.Replica), Dir: st.Dir, SetAside: st.Status == storage.ReplicaSetAside,
		Term: uint64(st.Hard.Term), Commit: uint64(st.Hard.Commit), Applied: uint64(st.Log.StartIndex),
	}
	g.setPlace(st)
	h := newRecordHash()
	var failed error
	first := true
	for frame, err := range off.Frames(st.Replica) {
		if err != nil {
			failed = err
			break
		}
		g.Entries++
		g.Applied = uint64(frame.Index)
		if frame.Verdict != storage.VerdictData {
			g.Next = int64(frame.NextOffset())
			continue
		}
		if first {
			g.Start, first = int64(frame.BaseOffset), false
		}
		g.Next = int64(frame.NextOffset())
		if err := h.batch(&frame.FrameView); err != nil {
			failed = fmt.Errorf("%s: entry %d: %w", st.Dir, frame.Index, err)
			break
		}
		g.states = append(g.states, recordState{frame.NextOffset(), h.sum()})
	}
	if first {
		g.Start = g.Next
	}
	g.HighWatermark, g.Records = g.Next, h.count
	sum := h.sum()
	g.SHA256 = hex.EncodeToString(sum[:])
	for _, e := range st.Tail {
		if uint64(e.Index) <= g.Applied {
			continue
		}
		g.Tail++
		if b, _, err := topic.ReadBatch(e.Data); st.Group != storage.MetadataGroup && err == nil && b.Kind() == topic.KindData {
			g.TailRecords += uint64(b.Count())
		}
	}
	return g, failed
}

// setPlace reads topic, incarnation and partition from the directory's name:
// topics/NAME@INCARNATION/PARTITION.REPLICA.
func (g *group) setPlace(st storage.ReplicaState) {
	parent, last := path.Split(st.Dir)
	name, incarnation, ok := strings.Cut(path.Base(parent), "@")
	if !ok {
		return
	}
	number, _, _ := strings.Cut(last, ".")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return
	}
	g.Topic, g.Incarnation, g.Partition = name, incarnation, uint32(n)
}

// recordHash is a running hash of records. Of each it takes, as integers of 8
// bytes, little-endian: offset, timestamp in ms since 1970 UTC, then key, value,
// number of headers, and key and value of each header. A byte string is its
// length and its bytes; null has the length 2^64-1.
type recordHash struct {
	hash  hash.Hash
	count uint64
	buf   []byte
	it    topic.BatchRecords
}

func newRecordHash() *recordHash { return &recordHash{hash: sha256.New()} }

func (h *recordHash) sum() (sum [sha256.Size]byte) {
	h.hash.Sum(sum[:0])
	return sum
}

func (h *recordHash) number(n int64) { h.buf = binary.LittleEndian.AppendUint64(h.buf, uint64(n)) }

func (h *recordHash) bytes(b []byte) {
	if b == nil {
		h.number(-1)
		return
	}
	h.number(int64(len(b)))
	h.buf = append(h.buf, b...)
}

// batch takes the records of a frame.
func (h *recordHash) batch(f *storage.FrameView) error {
	b, rest, err := topic.ReadBatch(f.Payload)
	switch {
	case err != nil:
		return err
	case len(rest) > 0 || b.Count() != f.Count:
		return fmt.Errorf("a batch of %d records and %d more bytes, the log says %d records", b.Count(), len(rest), f.Count)
	}
	for h.it.Reset(b); h.it.Next(); {
		r := h.it.Record()
		h.buf = h.buf[:0]
		h.number(int64(f.BaseOffset + h.it.Offset() - b.BaseOffset()))
		h.number(r.Timestamp.UnixMilli())
		h.bytes(r.Key)
		h.bytes(r.Value)
		h.number(int64(len(r.Headers)))
		for _, header := range r.Headers {
			h.bytes([]byte(header.Key))
			h.bytes(header.Value)
		}
		h.hash.Write(h.buf)
		h.count++
	}
	return h.it.Err()
}

// comparison is what the replicas of one partition have in common.
type comparison struct {
	Topic       string   `json:"topic"`
	Partition   uint32   `json:"partition"`
	Incarnation string   `json:"incarnation"`
	Replicas    []string `json:"replicas"` // directories
	Next        []int64  `json:"next_offsets"`
	Common      int64    `json:"common"` // offset up to which they were compared
	Same        bool     `json:"same"`
}

type placeKey struct {
	topic, incarnation string
	partition          uint32
}

// compare compares the replicas of each partition up to the end of the shortest
// one: one that lags is no damage.
func (all *inspection) compare() {
	var keys []placeKey
	of := map[placeKey][]*group{}
	dirs := map[*group]string{}
	for _, d := range all.Directories {
		for _, g := range d.Groups {
			if g.Topic == "" || g.SetAside {
				continue
			}
			k := placeKey{g.Topic, g.Incarnation, g.Partition}
			if of[k] == nil {
				keys = append(keys, k)
			}
			of[k], dirs[g] = append(of[k], g), d.Dir
		}
	}
	for _, k := range keys {
		c := compareGroups(of[k])
		c.Topic, c.Incarnation, c.Partition = k.topic, k.incarnation, k.partition
		for _, g := range of[k] {
			c.Replicas = append(c.Replicas, dirs[g])
			c.Next = append(c.Next, g.Next)
		}
		all.Compared = append(all.Compared, c)
		all.Damaged = all.Damaged || !c.Same
	}
}

func compareGroups(groups []*group) *comparison {
	c := &comparison{Same: true, Common: groups[0].Next}
	for _, g := range groups {
		c.Common = min(c.Common, g.Next)
	}
	first, ok := groups[0].sumAt(c.Common)
	for _, g := range groups[1:] {
		sum, found := g.sumAt(c.Common)
		c.Same = c.Same && ok && found && sum == first
	}
	return c
}

// sumAt is the hash of the records below an offset; false if no entry ends there,
// which cannot be if another replica has one.
func (g *group) sumAt(next int64) ([sha256.Size]byte, bool) {
	if next == g.Start {
		return newRecordHash().sum(), true
	}
	lo, hi := 0, len(g.states)
	for lo < hi {
		mid := (lo + hi) / 2
		if cmp.Less(int64(g.states[mid].next), next) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(g.states) || int64(g.states[lo].next) != next {
		return [sha256.Size]byte{}, false
	}
	return g.states[lo].sum, true
}
