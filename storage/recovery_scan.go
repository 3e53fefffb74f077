package storage

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// scan is a journal's files as they are read, never written.
type scan struct {
	fs     FS
	dir    string
	key    uint64
	broken breakage
	files  []*scannedFile
}

// scannedFile is a file of the journal and the generation that it holds, if
// its first round has an intact header.
type scannedFile struct {
	scan     *scan
	number   uint64
	path     string
	size     int64
	file     vfs.File
	first    roundHeader // generation 0: none
	complete bool        // the first round is valid
}

// round is a valid round.
type round struct {
	roundHeader
	path   string
	frames []Frame
}

func (r *round) applyTo(p *replay) error {
	if err := p.apply(r.frames); err != nil {
		return &DamageError{Path: r.path, Offset: r.offset, Reason: err.Error()}
	}
	return nil
}

// scanFiles opens all journal files and reads the headers of their first
// rounds; the bodies only where it matters, from the generation needed on.
func scanFiles(fsys FS, dir string, key, needed uint64, broken breakage) (_ *scan, err error) {
	s := &scan{fs: fsys, dir: dir, key: key, broken: broken}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	names, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("storage: list %s: %w", dir, err)
	}
	for _, name := range names {
		number, ok := parseJournalName(name)
		if !ok {
			continue
		}
		if err := s.add(number, needed); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(s.files, func(a, b *scannedFile) int { return cmp.Compare(a.number, b.number) })
	return s, nil
}

func (s *scan) add(number, needed uint64) error {
	f := &scannedFile{scan: s, number: number, path: s.fs.PathJoin(s.dir, journalName(number))}
	var err error
	if f.file, err = s.fs.Open(f.path); err != nil {
		return fmt.Errorf("storage: open %s: %w", f.path, err)
	}
	s.files = append(s.files, f)
	info, err := f.file.Stat()
	if err != nil {
		return fmt.Errorf("storage: stat %s: %w", f.path, err)
	}
	f.size = info.Size()
	var header [headerSize]byte
	if err := f.read(header[:], 0); err != nil {
		return err
	}
	h, ok := parseRoundHeader(header[:], s.key)
	if !ok || h.offset != 0 || h.generation == 0 || h.prev.generation >= h.generation {
		return nil
	}
	f.first = h
	if h.generation >= needed {
		body, err := f.body(h)
		if err != nil {
			return err
		}
		f.complete = body != nil
	}
	return nil
}

func (s *scan) close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.file.Close())
	}
	return errors.Join(errs...)
}

// find returns the file that holds the complete generation, or nil.
func (s *scan) find(generation, salt uint64) *scannedFile {
	for _, f := range s.files {
		if f.complete && f.first.generation == generation && f.first.salt == salt {
			return f
		}
	}
	return nil
}

// newest returns the file of the newest complete generation, or nil.
func (s *scan) newest() *scannedFile {
	var newest *scannedFile
	for _, f := range s.files {
		if f.complete && (newest == nil || f.first.generation > newest.first.generation) {
			newest = f
		}
	}
	return newest
}

// read fills b from offset at; behind the end of the file it reads zeros.
func (f *scannedFile) read(b []byte, at int64) error {
	n, err := f.file.ReadAt(b, at)
	if err != nil && err != io.EOF {
		return &DamageError{Path: f.path, Offset: at, Reason: "cannot be read", Err: err}
	}
	clear(b[n:])
	return nil
}

// body returns the body that belongs to the header, or nil if it is not there.
func (f *scannedFile) body(h roundHeader) ([]byte, error) {
	at := h.offset + headerSize
	if at > f.size || int64(h.bodyLen) > f.size-at {
		return nil, nil
	}
	body := make([]byte, h.bodyLen)
	if err := f.read(body, at); err != nil {
		return nil, err
	}
	if crc32.Checksum(body, castagnoli) != h.bodyCRC {
		return nil, nil
	}
	return body, nil
}

// header reads the header at offset at; ok says that a round of the file's
// generation may begin there.
func (f *scannedFile) header(at int64) (h roundHeader, ok bool, err error) {
	if at+headerSize > f.size {
		return h, false, nil
	}
	var b [headerSize]byte
	if err := f.read(b[:], at); err != nil {
		return h, false, err
	}
	if h, ok = parseRoundHeader(b[:], f.scan.key); !ok {
		return h, false, nil
	}
	ours := h.generation == f.first.generation && h.salt == f.first.salt && h.offset == at
	if f.scan.broken.anyGeneration {
		h.offset, ours = at, true
	}
	return h, ours, nil
}

// round reads the round at offset at, or returns nil if there is no valid one.
func (f *scannedFile) round(at int64) (*round, error) {
	h, ok, err := f.header(at)
	if err != nil || !ok {
		return nil, err
	}
	body, err := f.body(h)
	if err != nil || body == nil {
		return nil, err
	}
	frames, err := decodeFrames(body)
	if err != nil {
		return nil, &DamageError{Path: f.path, Offset: at, Reason: err.Error()}
	}
	return &round{roundHeader: h, path: f.path, frames: frames}, nil
}

// searchChunk is the most that a search reads at a time: whole pages.
const searchChunk = 1 << 20

// search looks for a round that can only have been written after the one that
// should be at reached, the first that is not valid in the newest generation,
// was synced: then that is not a torn tail.
func (s *scan) search(newest *scannedFile, reached int64) error {
	if s.broken.noSearch {
		return nil
	}
	// Chunks begin on pages, as rounds do, whatever size a crash left a file with.
	size := int64(pageSize)
	for _, f := range s.files {
		size = max(size, min(pageAlign(f.size), searchChunk))
	}
	buf := make([]byte, size)
	for _, f := range s.files {
		from := int64(pageSize)
		if f == newest {
			from = reached
		}
		for at := from; at < f.size; at += int64(len(buf)) {
			chunk := buf[:min(int64(len(buf)), f.size-at)]
			if err := f.read(chunk, at); err != nil {
				return err
			}
			if err := f.searchPages(chunk, at, newest, reached); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *scannedFile) searchPages(chunk []byte, at int64, newest *scannedFile, reached int64) error {
	for in := 0; in+headerSize <= len(chunk); in += pageSize {
		h, ok := parseRoundHeader(chunk[in:], f.scan.key)
		if !ok || h.offset != at+int64(in) || h.generation < newest.first.generation {
			continue
		}
		body, err := f.body(h)
		if err != nil {
			return err
		}
		if body != nil {
			return &DamageError{Path: newest.path, Offset: reached, Reason: fmt.Sprintf(
				"no valid round of generation %d, though one of generation %d follows at byte %d of %s",
				newest.first.generation, h.generation, h.offset, f.path)}
		}
	}
	return nil
}
