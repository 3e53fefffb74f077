package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A log in quarantine is never opened as a log: it is read, and nothing about it is
// changed, by a QuarantineReader. What it yields is what the log holds, and no more:
//
//	yielded     entries that were committed in the log's group, and applied by this
//	            replica: a log never holds others
//	not there   what the replica had in the journal alone: entries that were not
//	            committed, and the last committed ones, if it was set aside before it
//	            had applied them. Another replica may have these
//
// Every frame is verified as in a log that serves: both checksums, and that index,
// term and base offset continue the frame before it. Of which group the log is its
// first whole frame says, unless the node's journal still does. Where the journal
// knows the replica it vouches for the log up to an entry: what is missing or wrong
// below that is damage. Behind it, and in a log of which the journal knows nothing,
// bytes at the end that are no frame are told as well, because nothing tells what a
// crash left from what was lost.
//
// # Beside a destroy
//
// Both may be asked for at the same time, on a node that runs. A directory that is
// being read is kept by a destroy (Destroyed.Kept), which can be repeated; one that
// is being destroyed is not opened any more (ErrNotQuarantined). So no reader meets
// half of what was there and takes it for damage, and Close has to be called.

// beingRead is why a destroy keeps a directory.
const beingRead = "it is being read"

// quarantineUse says which directories in quarantine are in use, by their bases. It
// is guarded by logSet.mu.
type quarantineUse struct {
	readers map[string]int
	ending  map[string]bool
}

// startReading keeps a directory from being destroyed; false: it is just now.
func (s *logSet) startReading(base string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.use.ending[base] {
		return false
	}
	if s.mu.use.readers == nil {
		s.mu.use.readers = map[string]int{}
	}
	s.mu.use.readers[base]++
	return true
}

func (s *logSet) endReading(base string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.use.readers[base]--; s.mu.use.readers[base] == 0 {
		delete(s.mu.use.readers, base)
	}
}

// startEnding keeps a directory from being read; false: it is just now.
func (s *logSet) startEnding(base string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.use.readers[base] > 0 {
		return false
	}
	if s.mu.use.ending == nil {
		s.mu.use.ending = map[string]bool{}
	}
	s.mu.use.ending[base] = true
	return true
}

func (s *logSet) endEnding(base string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.use.ending, base)
}

// QuarantineReader reads one log in quarantine from its start, or from an offset on.
// It is for one goroutine. It holds one open file and a buffer of about 256 KiB, or
// of the largest frame that it met.
type QuarantineReader struct {
	fs      FS
	entry   QuarantineEntry
	log     QuarantinedLog
	path    string // of the log's directory
	names   []string
	release func()

	group   GroupID // 0: not known yet
	vouched Index   // up to which the journal vouches; 0: for nothing

	k    int      // the segment that is read, of names
	file vfs.File // nil: it is not open
	size int64    // of the file
	at   waypoint // of the next frame
	buf  []byte   // of the file, from bufAt on
	from int64    // where buf begins in the file
	err  error    // sticky, until Skip
}

// ReadQuarantined opens the log of a replica in quarantine. If the directory holds
// several replicas of the partition, and replica is 0, it is the one whose files go
// farthest. journal is what the node's journal says of the replicas that it knows
// (raftlog.Host.Replicas), to say how much of the log it vouches for; it may be nil.
//
// Errors: ErrNotQuarantined, also if the directory has no such log; what the disk
// says. The caller has to call Close: until then nothing destroys the directory.
func (s *Store) ReadQuarantined(dir string, partition uint32, replica ReplicaID, journal []ReplicaState) (*QuarantineReader, error) {
	base, err := quarantinedBase(dir)
	if err != nil {
		return nil, err
	}
	if !s.logs.startReading(base) {
		return nil, fmt.Errorf("%w: %s/%s is being destroyed", ErrNotQuarantined, quarantineDir, base)
	}
	release := func() { s.logs.endReading(base) }
	r, err := readQuarantinedLog(s.logs.fs, s.logs.root, base, partition, replica, journal)
	if err != nil {
		release()
		return nil, err
	}
	r.release = release
	return r, nil
}

// ReadQuarantined is Store.ReadQuarantined for a directory that is not open.
func (o *Offline) ReadQuarantined(dir string, partition uint32, replica ReplicaID) (*QuarantineReader, error) {
	return readQuarantinedLog(o.fs, o.root, dir, partition, replica, o.Replicas)
}

func readQuarantinedLog(fsys FS, root, dir string, partition uint32, replica ReplicaID, journal []ReplicaState) (*QuarantineReader, error) {
	e, err := walkQuarantined(fsys, root, dir)
	if err != nil {
		return nil, err
	}
	return openQuarantinedLog(fsys, root, e, partition, replica, journal)
}

// openQuarantinedLog opens a log of a directory that was walked.
func openQuarantinedLog(fsys FS, root string, e QuarantineEntry, partition uint32, replica ReplicaID, journal []ReplicaState) (*QuarantineReader, error) {
	r := &QuarantineReader{fs: fsys, entry: e, release: func() {}}
	r.entry.Logs = newestLogs(e.Logs)
	found := false
	for _, l := range r.entry.Logs {
		if l.Partition == partition && (replica == 0 || l.Replica == replica) && (!found || l.Last > r.log.Last) {
			r.log, found = l, true
		}
	}
	if st := r.known(journal); st != nil { // which of the replica's logs is the log
		for _, l := range e.Logs {
			if l.Replica == r.log.Replica && l.Partition == partition && l.Reset == st.Log.Reset {
				r.log = l
			}
		}
	}
	if !found {
		what := fmt.Sprintf("partition %d", partition)
		if replica != 0 {
			what = fmt.Sprintf("replica %v of %s", replica, what)
		}
		return nil, fmt.Errorf("%w: no log of %s in %s", ErrNotQuarantined, what, e.Dir)
	}
	return r, r.open(root, journal)
}

// open lists the segments. Those that the journal says the log has let go are left
// out.
func (r *QuarantineReader) open(root string, journal []ReplicaState) error {
	var start Index
	if st := r.known(journal); st != nil {
		r.group = st.Group
		if st.Log.Exists && st.Log.Reset == r.log.Reset {
			r.vouched, start = st.Log.LastIndex, st.Log.StartIndex
		}
	}
	r.path = r.fs.PathJoin(root, r.log.Dir)
	names, err := listSorted(r.fs, r.path)
	if err != nil {
		return fmt.Errorf("storage: list %s: %w", r.log.Dir, err)
	}
	for _, name := range names {
		if i, _, ok := parseSegmentName(name); ok && i > start {
			r.names = append(r.names, name)
		}
	}
	if len(r.names) > 0 {
		r.begin(0)
	}
	r.at.index = max(r.at.index, start+1)
	return nil
}

// known returns what the journal says of the replica, if it is of this directory. That
// of a replica that lives is not of one that was adopted: Adopt compared them, and since
// then the replica has gone on with a log of its own.
func (r *QuarantineReader) known(journal []ReplicaState) *ReplicaState {
	i := slices.IndexFunc(journal, func(st ReplicaState) bool { return st.Replica == r.log.Replica })
	if i < 0 {
		return nil
	}
	if journal[i].Status == ReplicaLive && r.entry.Reason.Kind == ReasonAdopted {
		return nil
	}
	inc, ok := journal[i].Incarnation()
	if partition, of := journal[i].Partition(); !ok || !of || inc != r.entry.Incarnation || partition != r.log.Partition || r.entry.Foreign != nil {
		return nil
	}
	return &journal[i]
}

// begin goes to the start of a segment, by its name.
func (r *QuarantineReader) begin(k int) {
	i, o, _ := parseSegmentName(r.names[k])
	r.closeFile()
	r.k, r.err = k, nil
	r.at = waypoint{index: i, offset: o, termBefore: r.at.termBefore}
}

// Seek goes to the segment that holds an offset, or to the first one. The frames
// before the offset in it are read, too.
func (r *QuarantineReader) Seek(o Offset) {
	to := 0
	for k := range r.names {
		if _, first, _ := parseSegmentName(r.names[k]); first <= o {
			to = k
		}
	}
	if len(r.names) > 0 {
		r.at.termBefore = 0
		r.begin(to)
	}
}

// Entry is the directory that is read, as it was when the reader was opened.
func (r *QuarantineReader) Entry() QuarantineEntry { return r.entry }

// Log is which of its logs.
func (r *QuarantineReader) Log() QuarantinedLog { return r.log }

// Group is the raft group of the log; 0: it is not known yet, or there are no frames.
func (r *QuarantineReader) Group() GroupID { return r.group }

// Vouched is the last entry for which the node's journal vouches; 0: none.
func (r *QuarantineReader) Vouched() Index { return r.vouched }

// Next is the entry that is read next, and Offset the offset that the next record
// has: behind an error, of the first that cannot be read.
func (r *QuarantineReader) Next() Index { return r.at.index }

// Offset is the offset that the next record has.
func (r *QuarantineReader) Offset() Offset { return r.at.offset }

// Read returns the next frame. Its Payload is borrowed until the next call. The
// error is io.EOF behind the last frame; a *DamageError where what is there is not
// the frame of entry Next, or is missing: later calls return it again, until Skip.
func (r *QuarantineReader) Read() (FrameView, error) {
	if r.err != nil {
		return FrameView{}, r.err
	}
	f, err := r.read()
	if err != nil {
		r.err = err
		r.closeFile()
	}
	return f, err
}

func (r *QuarantineReader) read() (FrameView, error) {
	for {
		if r.k >= len(r.names) {
			return FrameView{}, r.atEnd()
		}
		if r.file == nil {
			if err := r.openFile(); err != nil {
				return FrameView{}, err
			}
		}
		if r.at.pos < r.size {
			return r.frame()
		}
		r.closeFile()
		r.at.pos = 0
		if r.k++; r.k == len(r.names) {
			continue
		}
		i, o, _ := parseSegmentName(r.names[r.k])
		if i != r.at.index || o != r.at.offset {
			r.k-- // Skip goes on with the next one
			return FrameView{}, r.damage(fmt.Sprintf("entry %d at offset %d should follow it, the next segment is %s", r.at.index, r.at.offset, r.names[r.k+1]), nil)
		}
	}
}

// atEnd is what there is to say behind the last segment.
func (r *QuarantineReader) atEnd() error {
	if r.at.index <= r.vouched {
		return &DamageError{Path: r.path, Reason: fmt.Sprintf("the log ends before entry %d, the journal has it to %d", r.at.index, r.vouched)}
	}
	return io.EOF
}

func (r *QuarantineReader) openFile() error {
	f, err := r.fs.Open(r.fs.PathJoin(r.path, r.names[r.k]))
	if isMissing(err) {
		if there, e := exists(r.fs, r.path); e == nil && !there {
			return fmt.Errorf("%w any more: %s", ErrNotQuarantined, r.log.Dir)
		}
	}
	if err != nil {
		return r.damage("cannot be opened", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(r.damage("cannot be read", err), f.Close())
	}
	r.file, r.size, r.buf, r.from = f, info.Size(), r.buf[:0], 0
	return nil
}

func (r *QuarantineReader) closeFile() {
	if r.file != nil {
		_ = r.file.Close() // it was only read
		r.file = nil
	}
}

func (r *QuarantineReader) damage(reason string, err error) error {
	path := r.path
	if r.k < len(r.names) {
		path = r.fs.PathJoin(path, r.names[r.k])
	}
	return &DamageError{Path: path, Offset: r.at.pos, Reason: reason, Err: err}
}

// frame reads the frame at r.at and goes behind it.
func (r *QuarantineReader) frame() (FrameView, error) {
	b, err := r.bytes(min(frameHeader, r.size-r.at.pos))
	if err != nil {
		return FrameView{}, err
	}
	if r.group == 0 {
		r.group = groupOf(b)
	}
	f, size, err := decodeHeader(b, r.group)
	if err == nil {
		err = f.follows(r.at)
	}
	whole := int64(frameHeader + size)
	if err == nil && whole > r.size-r.at.pos {
		err = fmt.Errorf("entry %d is cut off", f.Index)
	}
	if err != nil {
		return FrameView{}, r.damage(err.Error(), nil)
	}
	if b, err = r.bytes(whole); err != nil {
		return FrameView{}, err
	}
	if err := f.setPayload(b, size); err != nil {
		return FrameView{}, r.damage(err.Error(), nil)
	}
	r.at = r.at.behind(&f, size)
	return f, nil
}

// groupOf is the group that a whole frame header names; 0: it is none.
func groupOf(b []byte) GroupID {
	if len(b) < frameHeader || binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:frameHeader], castagnoli) {
		return 0
	}
	return GroupID(binary.LittleEndian.Uint64(b[8:]))
}

// quarantineChunk is how much is read at a time.
const quarantineChunk = 256 << 10

// bytes returns n bytes at r.at, which the file has.
func (r *QuarantineReader) bytes(n int64) ([]byte, error) {
	at := r.at.pos - r.from
	if at < 0 || at+n > int64(len(r.buf)) {
		size := min(max(n, quarantineChunk), r.size-r.at.pos)
		r.buf = grow(r.buf[:0], size)
		if _, err := r.file.ReadAt(r.buf, r.at.pos); err != nil {
			r.buf = r.buf[:0]
			return nil, r.damage("cannot be read", err)
		}
		r.from, at = r.at.pos, 0
	}
	return r.buf[at : at+n], nil
}

// Skip leaves what cannot be read behind and goes on with the next segment, whose
// name says what it begins with. It reports whether there is one. Next and Offset
// say where it goes on.
func (r *QuarantineReader) Skip() bool {
	if r.k+1 >= len(r.names) {
		return false
	}
	r.begin(r.k + 1)
	return true
}

// Close ends the reader, and lets the directory be destroyed. It is idempotent.
func (r *QuarantineReader) Close() {
	r.closeFile()
	r.k, r.names, r.err, r.buf = 0, nil, ErrClosed, nil
	r.release()
	r.release = func() {}
}
