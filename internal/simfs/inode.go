package simfs

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"time"
)

// inode is a file or a directory. The file system's lock guards all of it.
type inode struct {
	modTime time.Time

	// A directory: the names as the process sees them, and as the disk has
	// them. What lies between the two is in FS.pending.
	entries map[string]*inode // nil for a file
	durable map[string]*inode
	syncErr error // a sync of this directory failed: all later ones fail too

	// A file.
	pages    map[int64]*page // by page number; an absent page is zero in cache and on disk
	toSync   []int64         // pages with dirty sectors, each once, in order of first write
	size     int64           // as the process sees it
	diskSize int64           // as of the last good sync
	minSize  int64           // the smallest size since the last good sync
}

func newFile() *inode { return &inode{pages: map[int64]*page{}} }

func newDir() *inode {
	return &inode{entries: map[string]*inode{}, durable: map[string]*inode{}}
}

func (n *inode) isDir() bool { return n.entries != nil }

// readAt is io.ReaderAt on the page cache.
func (n *inode) readAt(p []byte, off int64) (int, error) {
	if off >= n.size {
		return 0, io.EOF
	}
	want := len(p)
	p = p[:min(int64(len(p)), n.size-off)]
	for rest := p; len(rest) > 0; {
		in := off % pageSize
		k := min(len(rest), pageSize-int(in))
		if pg := n.pages[off/pageSize]; pg != nil && pg.cache != nil {
			copy(rest[:k], pg.cache[in:])
		} else {
			clear(rest[:k])
		}
		rest, off = rest[k:], off+int64(k)
	}
	if len(p) < want {
		return len(p), io.EOF
	}
	return len(p), nil
}

func (n *inode) write(p []byte, off int64) {
	n.size = max(n.size, off+int64(len(p)))
	for len(p) > 0 {
		in := int(off % pageSize)
		k := min(len(p), pageSize-in)
		n.writePage(off/pageSize, in, p[:k])
		p, off = p[k:], off+int64(k)
	}
}

func (n *inode) writePage(no int64, in int, b []byte) {
	pg := n.pages[no]
	if len(b) == pageSize && isZero(b) {
		if pg != nil {
			pg.cache = nil
			n.mark(no, pg, allSectors)
		}
		return // zeros over zeros: kept or lost, they read the same
	}
	if pg == nil {
		pg = &page{}
		n.pages[no] = pg
	}
	copy(pg.own(len(b) < pageSize)[in:], b)
	n.mark(no, pg, sectorsOf(in, in+len(b)))
}

func (n *inode) mark(no int64, pg *page, mask uint8) {
	pg.dirty |= mask
	pg.failed &^= mask
	if !pg.queued {
		pg.queued = true
		n.toSync = append(n.toSync, no)
	}
}

func (n *inode) truncate(size int64) {
	if size < n.size {
		for no, pg := range n.pages {
			switch from := size - no*pageSize; {
			case from >= pageSize:
			case from > 0:
				clear(pg.own(true)[from:])
				n.mark(no, pg, sectorsOf(int(from), pageSize))
			default:
				pg.cache = nil
				n.mark(no, pg, allSectors)
			}
		}
	}
	n.size = size
	n.minSize = min(n.minSize, size)
}

// sync makes content and size durable and returns the bytes that went to the
// disk. Its cost follows what is dirty, not the file.
func (n *inode) sync() int64 {
	sectors := 0
	for _, no := range n.toSync {
		pg := n.pages[no]
		sectors += pg.sync()
		if pg.cache == nil && pg.disk == nil {
			delete(n.pages, no)
		}
	}
	n.toSync = n.toSync[:0]
	n.diskSize, n.minSize = n.size, n.size
	return int64(sectors) * sectorSize
}

// failSync is a sync that returned an error: the system counts the pages as
// clean and will not write them again. The size, which is metadata, stays to
// be written.
func (n *inode) failSync() {
	for _, no := range n.toSync {
		n.pages[no].failSync()
	}
	n.toSync = n.toSync[:0]
}

// cloneContent copies what n holds but its directory entries.
func (n *inode) cloneContent() *inode {
	c := *n
	c.toSync = slices.Clone(n.toSync)
	c.entries, c.durable, c.pages = nil, nil, nil
	if n.isDir() {
		c.entries = make(map[string]*inode, len(n.entries))
		c.durable = make(map[string]*inode, len(n.durable))
		return &c
	}
	c.pages = make(map[int64]*page, len(n.pages))
	slab := make([]page, 0, len(n.pages))
	for no, pg := range n.pages {
		slab = append(slab, pg.clone())
		c.pages[no] = &slab[len(slab)-1]
	}
	return &c
}

// pageAt returns page no, made if it was absent.
func (n *inode) pageAt(no int64) *page {
	pg := n.pages[no]
	if pg == nil {
		pg = &page{}
		n.pages[no] = pg
	}
	return pg
}

func sortedKeys[K int64 | string, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}

func isZero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }
