package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"path"
	"strconv"
	"strings"

	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// groupScan reads one replica: the frames of its log, and behind them what only
// the journal has.
type groupScan struct {
	*group
	st      storage.ReplicaState
	replay  *replay // nil: of the metadata, or of a log that begins later than its partition
	hash    *recordHash
	reached storage.Index // of the last entry that was read
	begun   bool          // Start is known
}

func inspectGroup(off *storage.Offline, st storage.ReplicaState) (*group, error) {
	s := groupScan{st: st, hash: newRecordHash(), reached: st.Log.StartIndex, group: &group{
		Group: uint64(st.Group), Replica: uint64(st.Replica), Dir: st.Dir, SetAside: st.Status == storage.ReplicaSetAside,
		Term: uint64(st.Hard.Term), Commit: uint64(st.Hard.Commit),
	}}
	incarnation := s.setPlace(st)
	if s.Topic != "" && st.Log.StartIndex <= firstIndex {
		s.replay = newReplay(incarnation)
	}
	err := s.readFrames(off)
	if err == nil {
		err = s.readTail()
	}
	s.Records = s.hash.count
	sum := s.hash.sum()
	s.SHA256 = hex.EncodeToString(sum[:])
	return s.group, err
}

// firstIndex is the index above which the entries of a partition begin.
const firstIndex = 1

// readFrames reads what is in the files.
func (s *groupScan) readFrames(off *storage.Offline) error {
	for frame, err := range off.Frames(s.st.Replica) {
		if err != nil {
			return err
		}
		if err := s.frame(&frame.FrameView); err != nil {
			return fmt.Errorf("%s: entry %d: %w", s.st.Dir, frame.Index, err)
		}
		if frame.Proven {
			s.Proven = s.HighWatermark
		}
	}
	return nil
}

// frame takes a frame, whose checksums are right.
func (s *groupScan) frame(f *storage.FrameView) error {
	s.Entries++
	s.reached = f.Index
	verdict, base := f.Verdict, f.BaseOffset
	var b topic.Batch
	if s.replay != nil {
		verdict, b, base = s.replay.apply(f.Index, f.Kind, f.Payload)
		if err := s.replay.check(f, verdict, base); err != nil {
			return err
		}
	} else if verdict == storage.VerdictData && s.Topic != "" {
		var err error
		if b, _, err = topic.ReadBatch(f.Payload); err != nil {
			return err
		}
	}
	return s.records(verdict, b, base)
}

// records takes what an entry has decided to be.
func (s *groupScan) records(verdict storage.Verdict, b topic.Batch, base storage.Offset) error {
	if s.Topic == "" || verdict != storage.VerdictData {
		return nil
	}
	if !s.begun {
		s.Start, s.begun = int64(base), true
	}
	s.HighWatermark = int64(base) + int64(b.Count())
	err := s.hash.batch(b, base)
	s.states = append(s.states, recordState{s.HighWatermark, s.hash.sum()})
	return err
}

// readTail reads what only the journal has: up to the commit it is as good as
// the rest.
func (s *groupScan) readTail() error {
	for _, e := range s.st.Tail {
		switch {
		case e.Index <= s.reached:
		case e.Index > s.st.Hard.Commit:
			s.Tail++
			if b, _, err := topic.ReadBatch(e.Data); s.Topic != "" && err == nil && b.Kind() == topic.KindData {
				s.TailRecords += uint64(b.Count())
			}
		case s.replay == nil:
			s.Entries++
			s.JournalOnly++
			if s.Topic != "" {
				s.Unjudged++
			}
		default:
			s.Entries++
			s.JournalOnly++
			if err := s.records(s.replay.apply(e.Index, e.Kind, e.Data)); err != nil {
				return fmt.Errorf("%s: entry %d, in the journal: %w", s.st.Dir, e.Index, err)
			}
		}
	}
	return nil
}

// setPlace reads topic, incarnation and partition from the directory's name:
// topics/NAME@INCARNATION/PARTITION.REPLICA.
func (g *group) setPlace(st storage.ReplicaState) (incarnation storage.Incarnation) {
	parent, last := path.Split(st.Dir)
	name, life, _ := strings.Cut(path.Base(parent), "@")
	number, _, _ := strings.Cut(last, ".")
	n, err := strconv.ParseUint(number, 10, 32)
	if err == nil {
		incarnation, err = storage.ParseIncarnation(life)
	}
	if err == nil {
		g.Topic, g.Incarnation, g.Partition = name, life, uint32(n)
	}
	return incarnation
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

// digest is a hash.
type digest [sha256.Size]byte

func (h *recordHash) sum() (sum digest) {
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

// batch takes the records of a batch that has the base offset.
func (h *recordHash) batch(b topic.Batch, base storage.Offset) error {
	for h.it.Reset(b); h.it.Next(); {
		r := h.it.Record()
		h.buf = h.buf[:0]
		h.number(int64(base + h.it.Offset() - b.BaseOffset()))
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
