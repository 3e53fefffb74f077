package metastore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2"

	"github.com/stelelog/stele/raftlog"
)

// Kinds of a snapshot's chunks, and of the two that come before them on a stream.
const (
	chunkHeader  byte = 1
	chunkPairs   byte = 2
	chunkEnd     byte = 3
	chunkRequest byte = 4
	chunkAnswer  byte = 5
)

const (
	chunkTarget = 64 << 10 // bytes after which the next pair opens a new chunk
	maxChunk    = chunkTarget + maxCommandBytes + 1<<16
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// errSnapshotOld refuses a snapshot that is not ahead of the state.
var errSnapshotOld = raftlog.Refused(errors.New("metastore: the snapshot is not ahead of the state"))

// errEnough ends a scan that has what it came for.
var errEnough = errors.New("metastore: enough")

// source is the state at one applied index, held while it is given away. It costs
// the database what is overwritten meanwhile.
type source struct {
	db     *database
	held   *pebble.Snapshot
	of     uint32 // generation
	format format
	at     applied
}

// source holds the state as it is now. It may run beside Apply, whose later
// effects it does not have.
func (m *machine) source() (s *source, err error) {
	err = m.db.run(func() (err error) {
		s, err = m.sourceHere()
		return err
	})
	return s, err
}

// sourceHere is source for who is in Pebble.
func (m *machine) sourceHere() (*source, error) {
	var s *source
	for s == nil {
		// A state that a snapshot replaces is removed after the generation in
		// use has changed: equal before and after, it was all there.
		g := m.db.generation()
		held := m.db.pebble.NewSnapshot()
		if m.db.generation() == g {
			s = &source{db: m.db, held: held, of: g}
		} else if err := held.Close(); err != nil {
			return nil, err
		}
	}
	t := newTx(stateView{s.held, s.of})
	var ok bool
	s.at, ok = t.applied()
	if !ok && t.err == nil {
		t.err = raftlog.Retry(errors.New("metastore: the state is empty"))
	}
	s.format = t.format()
	if t.err != nil {
		return nil, errors.Join(t.err, s.held.Close())
	}
	return s, nil
}

func (s *source) close() error { return s.db.run(s.held.Close) }

// chunk is a run of pairs.
type chunk struct {
	body  []byte
	pairs uint64
	last  []byte // key
}

// next returns the pairs behind a key, nil: from the first on; none at the end.
func (s *source) next(behind []byte) (*chunk, error) {
	c := &chunk{last: bytes.Clone(behind)}
	err := s.db.run(func() error {
		first := stateKey(s.of, c.last)
		if c.last != nil {
			first = append(first, 0)
		}
		err := scanRange(s.held, first, after(stateKey(s.of, nil)), func(key, value []byte) error {
			if inHeader(key) {
				return nil
			}
			c.body = appendString(appendString(c.body, string(key)), string(value))
			c.pairs++
			c.last = append(c.last[:0], key...)
			if len(c.body) >= chunkTarget {
				return errEnough
			}
			return nil
		})
		if err == errEnough {
			err = nil
		}
		return err
	})
	return c, err
}

// write writes the state behind a key: sorted keys and values in checksummed
// chunks. They are logical, not Pebble's files, so that nodes of different
// builds can give them to each other. pace is called before each chunk.
func (s *source) write(out *chunkWriter, behind []byte, pace func(bytes int) error) error {
	out.header(s.format, s.at)
	for pairs := uint64(0); out.err == nil; {
		c, err := s.next(behind)
		if err != nil {
			return err
		}
		if c.pairs == 0 {
			out.write(chunkEnd, appendUint(nil, pairs))
			break
		}
		if err := pace(len(c.body)); err != nil {
			return err
		}
		out.write(chunkPairs, c.body)
		behind, pairs = c.last, pairs+c.pairs
	}
	return out.err
}

// inHeader reports whether a key is in the header of a snapshot, and so in no
// chunk.
func inHeader(key []byte) bool { return key[0] == tableApplied || key[0] == tableFormat }

// chunkWriter writes numbered chunks; the first error stays.
type chunkWriter struct {
	w   io.Writer
	n   uint32
	err error
}

func (c *chunkWriter) write(kind byte, body []byte) {
	if c.err != nil {
		return
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(1+len(body)))
	b = binary.BigEndian.AppendUint32(b, chunkSum(c.n, kind, body))
	b = append(append(b, kind), body...)
	c.n++
	if _, err := c.w.Write(b); err != nil {
		c.err = fmt.Errorf("metastore: write snapshot: %w", err)
	}
}

func (c *chunkWriter) header(f format, at applied) {
	body := append(appendUint(nil, snapshotVersion), f.encode()...)
	c.write(chunkHeader, append(body, at.encode()...))
}

func chunkSum(n uint32, kind byte, body []byte) uint32 {
	sum := crc32.Checksum(append(binary.BigEndian.AppendUint32(nil, n), kind), crcTable)
	return crc32.Update(sum, crcTable, body)
}

// chunkReader reads what chunkWriter wrote.
type chunkReader struct {
	r io.Reader
	n uint32
}

func (c *chunkReader) read() (kind byte, body []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return 0, nil, cut(err)
	}
	length := binary.BigEndian.Uint32(head[:])
	if length == 0 || length > maxChunk {
		return 0, nil, fmt.Errorf("%w: snapshot chunk of %d bytes", errMalformed, length)
	}
	// The buffer grows with what arrives, not with what the length claims.
	var b bytes.Buffer
	if _, err := io.CopyN(&b, c.r, int64(length)); err != nil {
		return 0, nil, cut(err)
	}
	kind, body = b.Bytes()[0], b.Bytes()[1:]
	if chunkSum(c.n, kind, body) != binary.BigEndian.Uint32(head[4:]) {
		return 0, nil, fmt.Errorf("%w: checksum of snapshot chunk %d", errMalformed, c.n)
	}
	c.n++
	return kind, body, nil
}

// errCut says that a snapshot ended before its end: the rest may still come.
var errCut = errors.New("metastore: the snapshot was cut")

func cut(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", errCut, err)
}

// readState checks a snapshot from its header to its end and calls put with
// each pair, in ascending order, all behind the key last, which header returns:
// what comes may be the rest of a snapshot whose beginning is there.
func readState(in *chunkReader, header func(format, applied) (last []byte, err error), put func(key, value []byte) error) error {
	kind, body, err := in.read()
	if err != nil {
		return err
	}
	if kind != chunkHeader {
		return fmt.Errorf("%w: snapshot without a header", errMalformed)
	}
	d := decoder{b: body}
	if v := d.uint(); d.err == nil && v > snapshotVersion {
		return &NewerStateError{"snapshot version", v, snapshotVersion}
	}
	f := d.format()
	if err := f.know(NewestCommand); d.err == nil && err != nil {
		return err // of the version that it is, the rest may mean something else
	}
	at := d.applied()
	if err := d.end(); err != nil {
		return err
	}
	last, err := header(f, at)
	if err != nil {
		return err
	}
	return readPairs(in, bytes.Clone(last), put)
}

func readPairs(in *chunkReader, last []byte, put func(key, value []byte) error) error {
	var pairs uint64
	for {
		kind, body, err := in.read()
		if err != nil {
			return err
		}
		d := decoder{b: body}
		if kind == chunkEnd {
			if n := d.uint(); d.err == nil && n != pairs {
				d.fail("the end counts %d pairs, there were %d", n, pairs)
			}
			return d.end()
		}
		if kind != chunkPairs {
			return fmt.Errorf("%w: snapshot chunk of kind %d", errMalformed, kind)
		}
		for d.err == nil && len(d.b) > 0 {
			key := d.bytes(int(d.uintMax(maxChunk)))
			value := d.bytes(int(d.uintMax(maxChunk)))
			if d.err == nil && (len(key) == 0 || bytes.Compare(last, key) >= 0 || inHeader(key)) {
				d.fail("key %q follows %q", key, last)
			}
			if d.err != nil {
				break
			}
			if err := put(key, value); err != nil {
				return err
			}
			last = append(last[:0], key...)
			pairs++
		}
		if d.err != nil {
			return d.err
		}
	}
}
