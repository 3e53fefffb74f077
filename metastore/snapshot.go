package metastore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/stelelog/stele/raftlog"
)

// Kinds of a snapshot's chunks.
const (
	chunkHeader byte = 1
	chunkPairs  byte = 2
	chunkEnd    byte = 3
)

const (
	chunkTarget = 64 << 10 // bytes after which the next pair opens a new chunk
	maxChunk    = chunkTarget + maxCommandBytes + 1<<16
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// errSnapshotOld refuses a snapshot that is not ahead of the state.
var errSnapshotOld = raftlog.Refused(errors.New("metastore: the snapshot is not ahead of the state"))

// snapshot writes the state as of one applied index, which it returns: sorted
// keys and values in checksummed chunks. They are logical, not Pebble's files,
// so that nodes of different builds can give them to each other. It may run
// beside Apply, whose later effects it does not hold.
func (m *machine) snapshot(w io.Writer) (at applied, err error) {
	err = m.db.run(func() error {
		s := m.db.pebble.NewSnapshot()
		defer s.Close()
		v := stateView{s, m.db.generation()}
		t := newTx(v)
		var ok bool
		at, ok = t.applied()
		f := t.format()
		if t.err == nil && !ok {
			t.err = raftlog.Retry(errors.New("metastore: the state is empty"))
		}
		if t.err != nil {
			return t.err
		}
		return writeSnapshot(w, v, f, at)
	})
	return at, err
}

func writeSnapshot(w io.Writer, v view, f format, at applied) error {
	out := chunkWriter{w: w}
	header := append(appendUint(nil, snapshotVersion), f.encode()...)
	out.write(chunkHeader, append(header, at.encode()...))
	var body []byte
	var pairs uint64
	err := v.scan(nil, func(key, value []byte) error {
		if key[0] == tableApplied || key[0] == tableFormat {
			return nil // in the header
		}
		body = appendString(appendString(body, string(key)), string(value))
		pairs++
		if len(body) >= chunkTarget {
			out.write(chunkPairs, body)
			body = body[:0]
		}
		return out.err
	})
	if err != nil {
		return err
	}
	if len(body) > 0 {
		out.write(chunkPairs, body)
	}
	out.write(chunkEnd, appendUint(nil, pairs))
	return out.err
}

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
		return 0, nil, fmt.Errorf("metastore: read snapshot: %w", noEOF(err))
	}
	length := binary.BigEndian.Uint32(head[:])
	if length == 0 || length > maxChunk {
		return 0, nil, fmt.Errorf("%w: snapshot chunk of %d bytes", errMalformed, length)
	}
	// The buffer grows with what arrives, not with what the length claims.
	var b bytes.Buffer
	if _, err := io.CopyN(&b, c.r, int64(length)); err != nil {
		return 0, nil, fmt.Errorf("metastore: read snapshot: %w", noEOF(err))
	}
	kind, body = b.Bytes()[0], b.Bytes()[1:]
	if chunkSum(c.n, kind, body) != binary.BigEndian.Uint32(head[4:]) {
		return 0, nil, fmt.Errorf("%w: checksum of snapshot chunk %d", errMalformed, c.n)
	}
	c.n++
	return kind, body, nil
}

// noEOF: a snapshot that ends before its end was cut.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readSnapshot checks a snapshot from its header to its end and calls put with
// each pair, in ascending order.
func readSnapshot(r io.Reader, header func(format, applied) error, put func(key, value []byte) error) error {
	in := chunkReader{r: r}
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
	if err := header(f, at); err != nil {
		return err
	}
	return readPairs(&in, put)
}

func readPairs(in *chunkReader, put func(key, value []byte) error) error {
	var last []byte
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
			if d.err == nil && (len(key) == 0 || bytes.Compare(last, key) >= 0 || key[0] == tableApplied || key[0] == tableFormat) {
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

// restore replaces the state by that of a snapshot, which must be ahead of it;
// one that is late, broken or cut changes nothing. It must not run beside
// Apply.
//
// The new state is built beside the old one, under the next generation, and
// checked as a whole. Then one synced batch changes the generation in use and
// drops the old state: a crash leaves the one or the other.
func (m *machine) restore(r io.Reader) error {
	return m.db.run(func() error {
		next := m.db.generation() + 1
		if err := m.db.clear(next); err != nil { // what a crash left of an earlier try
			return err
		}
		at, err := m.stage(r, next)
		if err != nil {
			return errors.Join(err, m.db.clear(next))
		}
		staged := stateView{m.db.pebble, next}
		_, catalog, err := loadState(staged, m.newest)
		if err == nil {
			err = checkInvariants(staged)
		}
		if err != nil {
			return errors.Join(err, m.db.clear(next))
		}
		if err := m.db.use(next); err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.mu.catalog = catalog
		m.publishLocked(at, true)
		return nil
	})
}

// stage writes a snapshot's state under a generation that is not in use.
func (m *machine) stage(r io.Reader, generation uint32) (at applied, err error) {
	b := m.db.pebble.NewBatch()
	defer func() { err = errors.Join(err, b.Close()) }()
	put := func(key, value []byte) error {
		if err := b.Set(stateKey(generation, key), value, nil); err != nil {
			return fmt.Errorf("metastore: write: %w", err)
		}
		if b.Len() < chunkTarget {
			return nil
		}
		defer b.Reset()
		return commit(b)
	}
	err = readSnapshot(r, func(f format, to applied) error {
		if to.Index <= m.applied().Index {
			return errSnapshotOld
		}
		at = to
		return errors.Join(put([]byte{tableFormat}, f.encode()), put([]byte{tableApplied}, at.encode()))
	}, put)
	if err == nil {
		err = commit(b)
	}
	return at, err
}
