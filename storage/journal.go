package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

const (
	journalDir    = "journal"
	journalSuffix = ".journal"

	// growBy is how far a file's first life is filled with zeros ahead of the
	// rounds: a round that overwrites syncs in half the time of one that makes
	// the file longer.
	growBy = 4 << 20
	// keepBuffer is the largest buffer that is kept for the next round.
	keepBuffer = 16 << 20
	// spareFiles is how many free files are kept to be written again.
	spareFiles = 2
)

// journal writes rounds, generations and the checkpoint table. What it writes,
// and in which order, is what recovery.go argues from.
type journal struct {
	fs     FS
	dir    string
	target int64 // file size
	key    uint64
	rand   func() uint64
	logger *zap.Logger
	broken breakage

	// writing is held for the length of a round or a rotation.
	writing struct {
		sync.Mutex
		gate gate
		file vfs.File // of the generation at; nil before the first and once closed
		name string
		at   position // end of the last synced round
		size int64    // of the file
		buf  []byte
	}
	// checkpointing is held for the length of a checkpoint. It guards rescued:
	// what the rows of the newest copy have of failed logs.
	checkpointing sync.Mutex
	rescued       map[ReplicaID]ReplicaState
	// mu is a leaf.
	mu struct {
		sync.Mutex
		failed     error // sticky
		files      []journalFile
		lastNumber uint64 // of a file
		copies     [2]tableAt
		// switched tells a running checkpoint which logs are gone since its
		// states were captured: the replica's newest reset, or gone.
		switched      map[ReplicaID]uint64
		checkpointing bool
	}
}

// journalFile is a file of the journal.
type journalFile struct {
	number     uint64
	size       int64
	generation uint64 // that it holds, complete or being written; 0: none
	salt       uint64
}

// tableAt is what a copy of the table names; the zero value: nothing.
type tableAt struct{ generation, salt uint64 }

// gone stands for the log of a replica that was destroyed or set aside.
const gone = math.MaxUint64

func journalName(number uint64) string {
	return strconv.FormatUint(number, 10) + journalSuffix
}

// parseJournalName is the reverse of journalName and knows no other spelling.
func parseJournalName(name string) (number uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, journalSuffix)
	if !ok {
		return 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, err == nil && number > 0 && journalName(number) == name
}

func (j *journal) path(name string) string { return j.fs.PathJoin(j.dir, name) }

// fail makes err the error of all later calls.
func (j *journal) fail(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.failed == nil {
		j.mu.failed = err
	}
	return j.mu.failed
}

func (j *journal) failure() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.failed
}

// writeRound writes frames behind the last round and syncs.
func (j *journal) writeRound(frames []Frame) error {
	w := &j.writing
	w.Lock()
	defer w.Unlock()
	if err := j.failure(); err != nil {
		return err
	}
	if err := w.gate.admit(frames); err != nil {
		return j.fail(err)
	}
	w.buf = appendBody(emptyRound(w.buf), frames)
	h := roundHeader{generation: w.at.generation, salt: w.at.salt, offset: w.at.offset}
	if err := j.putRound(h); err != nil {
		return j.fail(err)
	}
	j.noteSwitched(frames)
	return nil
}

// rotate begins a generation behind prev and returns its number.
func (j *journal) rotate(states []ReplicaState, frames []Frame) (uint64, error) {
	w := &j.writing
	w.Lock()
	defer w.Unlock()
	if err := j.failure(); err != nil {
		return 0, err
	}
	err := w.gate.admitCapture(states)
	if err == nil {
		err = w.gate.admit(frames)
	}
	if err != nil {
		return 0, j.fail(err)
	}
	generation := w.at.generation + 1
	if err := j.begin(generation, w.at, states, frames); err != nil {
		return 0, j.fail(err)
	}
	j.forgetSwitched()
	j.noteSwitched(frames)
	return generation, nil
}

// begin writes the first round of a generation and makes it the current one.
// The caller holds writing.
func (j *journal) begin(generation uint64, prev position, states []ReplicaState, frames []Frame) error {
	w := &j.writing
	salt := j.rand()
	if j.broken.sameGeneration {
		salt = 0
	}
	taken, isNew := j.takeFile(generation, salt)
	name := journalName(taken.number)
	f, err := j.fs.OpenReadWrite(j.path(name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if isNew && !j.broken.dirNotSynced {
		if err := syncDir(j.fs, j.dir); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	old := w.file
	w.file, w.name, w.size = f, name, taken.size
	w.buf = emptyRound(w.buf)
	if !j.broken.noCarry {
		w.buf = appendCarries(w.buf, states)
	}
	w.buf = appendBody(w.buf, frames)
	if err := j.putRound(roundHeader{generation: generation, salt: salt, prev: prev}); err != nil {
		if old != nil {
			err = errors.Join(err, old.Close())
		}
		return err
	}
	if old == nil {
		return nil
	}
	return old.Close()
}

// emptyRound returns buf with room for a header and nothing else.
func emptyRound(buf []byte) []byte {
	var header [headerSize]byte
	return append(buf[:0], header[:]...)
}

func appendBody(b []byte, frames []Frame) []byte {
	for i := range frames {
		b = appendJournalFrame(b, &frames[i])
	}
	return b
}

func appendCarries(b []byte, states []ReplicaState) []byte {
	for i := range states {
		st := &states[i]
		b = appendJournalFrame(b, &Frame{
			Kind: FrameCarry, Group: st.Group, Replica: st.Replica, Hard: st.Hard, Entries: st.Tail,
		})
	}
	return b
}

// putRound seals the round in buf, writes it at h.offset and syncs it. The
// caller holds writing.
func (j *journal) putRound(h roundHeader) error {
	w := &j.writing
	body := len(w.buf) - headerSize
	if body > math.MaxUint32 {
		return fmt.Errorf("storage: a round of %d bytes is larger than a journal's round can be", body)
	}
	h.bodyLen, h.bodyCRC = uint32(body), crc32.Checksum(w.buf[headerSize:], castagnoli)
	putRoundHeader(w.buf, j.key, h)
	w.buf = padPage(w.buf)
	if err := j.growFile(h.end()); err != nil {
		return fmt.Errorf("storage: grow the journal: %w", err)
	}
	if _, err := w.file.WriteAt(w.buf, h.offset); err != nil {
		return fmt.Errorf("storage: write the journal: %w", err)
	}
	if err := j.syncRound(); err != nil {
		return fmt.Errorf("storage: sync the journal: %w", err)
	}
	w.at = position{generation: h.generation, salt: h.salt, offset: h.end()}
	if cap(w.buf) > keepBuffer {
		w.buf = nil
	}
	return nil
}

func (j *journal) syncRound() error {
	if j.broken.answerBeforeSync {
		return nil
	}
	err := j.writing.file.SyncData()
	if err != nil && j.broken.retrySync {
		return j.writing.file.SyncData()
	}
	return err
}

// padPage appends zeros up to a whole number of pages, so that a round never
// makes the system read what it overwrites.
func padPage(b []byte) []byte {
	var zeros [pageSize]byte
	return append(b, zeros[:pageAlign(int64(len(b)))-int64(len(b))]...)
}

// growFile makes the file longer than a round that ends at end, if it is
// shorter, by zeros behind that round. The round's own sync makes the size
// durable. On a full disk it does without the zeros.
func (j *journal) growFile(end int64) error {
	w := &j.writing
	f := unreserved(w.file) // zeros are worth no ballast
	if end <= w.size {
		return nil
	}
	size := end
	if end < j.target {
		size = min(j.target, (end+growBy-1)/growBy*growBy)
	}
	zeros := make([]byte, min(size-end, 1<<20))
	for at := end; at < size; {
		n := min(size-at, int64(len(zeros)))
		if _, err := f.WriteAt(zeros[:n], at); isNoSpace(err) {
			size = at // nothing was promised of the zeros: the round itself may find room
			break
		} else if err != nil {
			return err
		}
		at += n
	}
	w.size = size
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.mu.files {
		if journalName(j.mu.files[i].number) == w.name {
			j.mu.files[i].size = size
		}
	}
	return nil
}

// needsRotation reports whether the current generation has reached its size.
func (j *journal) needsRotation() bool {
	j.writing.Lock()
	defer j.writing.Unlock()
	return j.writing.at.offset >= j.target
}

// noteSwitched records for a running checkpoint which logs the synced frames
// ended.
func (j *journal) noteSwitched(frames []Frame) {
	for i := range frames {
		f := &frames[i]
		var to uint64
		switch f.Kind {
		case FrameReset:
			to = f.Begin.Reset
		case FrameDestroyed, FrameSetAside:
			to = gone
		default:
			continue
		}
		j.mu.Lock()
		if j.mu.switched == nil {
			j.mu.switched = map[ReplicaID]uint64{}
		}
		j.mu.switched[f.Replica] = to
		j.mu.Unlock()
	}
}

// forgetSwitched is called when states were captured that know of all that was
// switched; a checkpoint that still runs has older ones.
func (j *journal) forgetSwitched() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.mu.checkpointing {
		clear(j.mu.switched)
	}
}

// isSwitched reports whether the log that st names is gone.
func (j *journal) isSwitched(st *ReplicaState) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	to, ok := j.mu.switched[st.Replica]
	return ok && (to == gone || to != st.Log.Reset)
}

// close waits for the round and the checkpoint that run; later calls fail with
// ErrClosed.
func (j *journal) close() error {
	_ = j.fail(ErrClosed)
	j.checkpointing.Lock()
	defer j.checkpointing.Unlock()
	j.writing.Lock()
	defer j.writing.Unlock()
	f := j.writing.file
	j.writing.file = nil
	if f == nil {
		return nil
	}
	return f.Close()
}
