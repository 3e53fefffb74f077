package storage

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"
)

// ErrClosed is the error of a call on a closed Store or Log.
var ErrClosed = errors.New("storage: closed")

// Config describes a Store. A zero field has its default.
type Config struct {
	// FS is the file system. Default: the machine's.
	FS FS
	// Dir is the node's directory; it is made if missing. Required.
	Dir string
	// Name and Cluster are what the host calls the node and its cluster. A
	// fresh directory takes them for its life; later they must be the same.
	Name    string
	Cluster string
	// JournalFileSize is the size in bytes at which the journal goes on in
	// another file: 16 KiB to 1 GiB. Default 128 MiB. A round that needs more
	// gets more.
	JournalFileSize int64
	// SegmentSize is the size in bytes of a segment of a partition log: 4 KiB
	// to 1 GiB. Default 64 MiB. Segments can be compared between nodes that
	// have the same.
	SegmentSize int64
	// MaxOpenFiles bounds the open segment files of all partition logs
	// together: 8 to 1,048,576. Default 1024.
	MaxOpenFiles int
	// Reserve is how many bytes of the disk are kept for what keeps the node
	// alive: half of it in ballast files below Dir, which are made by Space, and
	// given back when a write finds no room. 1 MiB to 1 TiB. Default: none.
	Reserve int64
	// OnFull is called when a write found no room, from the goroutine that
	// writes: it must not block. Space then says Low. Default: none.
	OnFull func()
	// Logger gets what an operator should know. Default: none.
	Logger *zap.Logger
	// Rand makes nonces and salts, which must not come again, not even after a
	// restart. Default: the system's random source.
	Rand func() uint64
	// Recover opens a directory that a forced recovery has begun to change, to
	// finish it. Else that is a *RecoveringError.
	Recover bool

	broken breakage // rules that a test breaks
}

func (c Config) withDefaults() Config {
	if c.FS == nil {
		c.FS = DiskFS()
	}
	if c.JournalFileSize == 0 {
		c.JournalFileSize = 128 << 20
	}
	if c.SegmentSize == 0 {
		c.SegmentSize = 64 << 20
	}
	if c.MaxOpenFiles == 0 {
		c.MaxOpenFiles = 1024
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Rand == nil {
		c.Rand = systemRand
	}
	return c
}

func (c Config) validate() error {
	if c.Dir == "" {
		return errors.New("storage: Config.Dir is empty: it must name a directory")
	}
	for _, f := range []struct {
		name          string
		value, lo, hi int64
	}{
		{"JournalFileSize", c.JournalFileSize, 16 << 10, 1 << 30},
		{"SegmentSize", c.SegmentSize, minSegment, maxSegment},
		{"MaxOpenFiles", int64(c.MaxOpenFiles), 8, 1 << 20},
	} {
		if f.value < f.lo || f.value > f.hi {
			return outOfRange(f.name, f.value, f.lo, f.hi)
		}
	}
	if c.Reserve != 0 && (c.Reserve < 1<<20 || c.Reserve > 1<<40) {
		return fmt.Errorf("storage: Config.Reserve is %d: it must be 0 or %d to %d", c.Reserve, 1<<20, int64(1)<<40)
	}
	return nil
}

// Bounds of Config.SegmentSize.
const (
	minSegment = 4 << 10
	maxSegment = 1 << 30
)

func outOfRange(field string, value, low, high int64) error {
	return fmt.Errorf("storage: Config.%s is %d: it must be %d to %d", field, value, low, high)
}

func systemRand() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return binary.LittleEndian.Uint64(b[:])
}

// Store is a node's directory: its identity, its journal with the checkpoint
// table, and the partition logs. See the package documentation for who may call
// what at the same time.
type Store struct {
	home    *home
	fs      FS
	reserve *reserve
	journal *journal
	logs    *logSet

	mu struct {
		sync.Mutex
		replicas []ReplicaState // recovered, until they are handed over
		closed   bool
	}
}

// Open opens a node's directory, which is made if it is missing, and locks it
// until Close. What it returns is durable: whatever an earlier process did not
// live to sync is synced or cut.
//
// Errors: ErrLocked; *ForeignError, if the directory holds something else;
// *FormatError, of a newer release; *IdentityError, if it is another node's;
// *RecoveringError, if a forced recovery has begun and not ended;
// *DamageError, if what was durable is not what was written. After any error nothing stays locked, and trying again is harmless.
func Open(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	var err error
	if cfg.Dir, err = canonical(cfg.FS, cfg.Dir); err != nil {
		return nil, fmt.Errorf("storage: directory %q: %w", cfg.Dir, err)
	}
	spare := newReserve(cfg)
	if cfg.Reserve > 0 {
		cfg.FS = reserveFS{cfg.FS, spare}
	}
	h, err := openHome(cfg.FS, cfg.Dir, cfg.Name, cfg.Cluster, cfg.Rand)
	if err != nil {
		return nil, err
	}
	id := h.current()
	if err := id.Unfinished(cfg.Dir); err != nil && !cfg.Recover {
		return nil, errors.Join(err, h.close())
	}
	j, replicas, err := openJournal(cfg, id.Node != 0 || !id.ClusterID.IsZero() || id.Genesis != nil)
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	s := &Store{home: h, fs: cfg.FS, reserve: spare, journal: j}
	s.logs = newLogSet(cfg.FS, cfg.Dir, cfg.SegmentSize, cfg.MaxOpenFiles)
	s.logs.clearUnfinished()
	s.logs.checkpointed(replicas)
	s.mu.replicas = replicas
	return s, nil
}

// Dir is the node's directory: absolute on the machine's file system, whatever
// the process's working directory becomes.
func (s *Store) Dir() string { return s.home.dir }

// SetSegmentSize is for who learns it only when the directory is open: before any
// log is, and not while another call is under way. The error is that of Open for
// a Config with this SegmentSize.
func (s *Store) SetSegmentSize(bytes int64) error {
	if bytes < minSegment || bytes > maxSegment {
		return outOfRange("SegmentSize", bytes, minSegment, maxSegment)
	}
	s.logs.segmentSize = bytes
	return nil
}

// FS is the file system through which whoever else writes below Dir has to go,
// so that its writes too find room in the reserve.
func (s *Store) FS() FS { return s.fs }

// Space says what is left of the disk. Call it every second or so, and more often
// when it says Low: it also gives ballast back when the disk is nearly full, and
// makes it, a piece with each call, while there is room. It blocks for some
// system calls, and for a sync when it makes a piece.
func (s *Store) Space() (Space, error) {
	s.mu.Lock()
	closed := s.mu.closed
	s.mu.Unlock()
	if closed {
		return Space{}, ErrClosed
	}
	return s.reserve.poll()
}

// Replicas returns what is known of every replica, by replica: what Open has
// recovered, not what was written since. It hands them over, so that their
// entries can be dropped: a later call returns nil.
func (s *Store) Replicas() []ReplicaState {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.mu.replicas
	s.mu.replicas = nil
	return r
}

// WriteRound appends the frames to the journal, all or none of them, and syncs:
// they are durable on nil. Without frames it writes a mark, behind which
// nothing is taken for a torn tail; an idle node writes one. Blocks for one
// write and one sync. One goroutine at a time calls WriteRound and Rotate.
//
// After an error nothing is known of these frames before the next Open, and all
// later calls fail with it. That includes a frame that recovery would refuse:
// of an unknown replica, with a gap, of a lower term.
//
// Neither the frames nor what they point to is kept.
func (s *Store) WriteRound(frames []Frame) error { return s.journal.writeRound(frames) }

// NeedsRotation reports whether the current generation of the journal has
// reached JournalFileSize: the next round should be a Rotate.
func (s *Store) NeedsRotation() bool { return s.journal.needsRotation() }

// Rotate does what WriteRound does, at the beginning of a new generation of the
// journal, whose number it returns. The states are those of all replicas, those
// set aside too, as of the last round, with every entry above Log.LastIndex in
// Tail; frames are what comes after. Entries above Log.LastIndex that are
// missing would be lost, so states that are not where the journal is are an
// error, and final as any other.
//
// A Checkpoint should follow. States may be changed after the call, but the
// Checkpoint needs them as they were.
func (s *Store) Rotate(states []ReplicaState, frames []Frame) (generation uint64, err error) {
	return s.journal.rotate(states, frames)
}

// Checkpoint makes the table name the generation and the states that began it:
// as they were given to the Rotate that returned it, but for Tail, which is not
// looked at. It first syncs the open logs of the live replicas, and then lets go
// the journal files that no copy of the table needs. Blocks for all of these
// syncs; runs beside WriteRound and Rotate, one Checkpoint at a time.
//
// A log that fails to sync, or has failed before, holds up nothing: the table
// keeps the position to which the log was synced for the checkpoint before, and
// takes the entries from there to st.Log.LastIndex from the journal into the
// row. They are there: the journal from the checkpoint before on is let go only
// behind this one. They are final, since they were applied. A node that is
// opened again gets them in Tail, and its log is cut and written again from
// them. The error is then a *LogsFailedError, and the checkpoint is made. It
// costs the space of these entries, in memory and in each table, until the
// replica ends or the node is opened again; they are at most what the journal
// held when the log failed. Should the journal not be readable, the error is
// another, the table stays as it was, and a later checkpoint may be tried.
//
// If the table fails, the Store has failed as with WriteRound.
func (s *Store) Checkpoint(generation uint64, states []ReplicaState) error {
	rows, err := s.journal.checkpoint(generation, states, s.logs.sync)
	if rows != nil {
		s.logs.checkpointed(rows)
	}
	return err
}

// Close waits for the round and the checkpoint that run, closes what is open
// and unlocks the directory. It syncs nothing: what was promised is durable, and
// the next Open starts from that. Later calls do nothing and return nil; other
// methods fail with ErrClosed from then on.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.mu.closed
	s.mu.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	err := s.journal.close()
	s.logs.close()
	return errors.Join(err, s.home.close())
}
