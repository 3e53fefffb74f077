package simfs

import "math/bits"

const (
	sectorSize     = 512
	pageSize       = 4096
	sectorsPerPage = pageSize / sectorSize

	allSectors uint8 = 1<<sectorsPerPage - 1
)

// block is the content of one page. A nil *block reads as zeros, so that a
// file of zeros costs nothing.
type block [pageSize]byte

// page is one page of a file, in the page cache and on the disk.
//
//  1. A block that disk points to is never written again: images share it.
//  2. cache may be written in place only while cache != disk.
//  3. A sector in which cache and disk differ is in dirty or in failed, never
//     in both.
type page struct {
	cache, disk *block
	dirty       uint8 // sectors that the next sync writes
	failed      uint8 // sectors whose sync failed: clean for the system, absent from the disk
	queued      bool  // in the file's list of pages to sync
}

func (p *page) unsynced() uint8 { return p.dirty | p.failed }

// own makes the cache private to this page and returns it; fill says whether
// it must hold the present content (a caller that overwrites all of it saves
// the copy).
func (p *page) own(fill bool) *block {
	if p.cache == nil || p.cache == p.disk {
		b := new(block)
		if fill && p.cache != nil {
			*b = *p.cache
		}
		p.cache = b
	}
	return p.cache
}

// sync writes the dirty sectors to the disk and returns how many there were.
// Failed sectors stay as they are: for the system they are clean.
func (p *page) sync() int {
	n := bits.OnesCount8(p.dirty)
	if p.failed == 0 {
		p.disk = p.cache
	} else {
		p.disk = mix(p.disk, p.cache, p.dirty)
	}
	p.dirty, p.queued = 0, false
	return n
}

func (p *page) failSync() {
	p.failed |= p.dirty
	p.dirty, p.queued = 0, false
}

// clone returns a page that shares no block that either side may write.
func (p *page) clone() page {
	c := *p
	if c.cache != c.disk {
		c.cache = copyOf(c.cache)
	}
	return c
}

// damage applies f to what both the cache and the disk hold.
func (p *page) damage(f func(*block)) {
	shared := p.cache == p.disk
	p.disk = orNew(copyOf(p.disk))
	f(p.disk)
	if shared {
		p.cache = p.disk
		return
	}
	p.cache = orNew(copyOf(p.cache))
	f(p.cache)
}

// mix returns base with the sectors of mask taken from over.
func mix(base, over *block, mask uint8) *block {
	switch mask {
	case 0:
		return base
	case allSectors:
		return copyOf(over)
	}
	out := orNew(copyOf(base))
	for s := range sectorsPerPage {
		if mask&(1<<s) == 0 {
			continue
		}
		dst := out[s*sectorSize : (s+1)*sectorSize]
		if over == nil {
			clear(dst)
		} else {
			copy(dst, over[s*sectorSize:])
		}
	}
	return out
}

func copyOf(b *block) *block {
	if b == nil {
		return nil
	}
	c := *b
	return &c
}

func orNew(b *block) *block {
	if b == nil {
		return new(block)
	}
	return b
}

// sectorsOf is the mask of the sectors that bytes [from, to) of a page touch.
func sectorsOf(from, to int) uint8 {
	if from >= to {
		return 0
	}
	lo, hi := from/sectorSize, (to-1)/sectorSize
	return allSectors << lo & (allSectors >> (sectorsPerPage - 1 - hi))
}
