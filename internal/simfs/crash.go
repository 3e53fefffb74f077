package simfs

import (
	"maps"
	"math/rand/v2"
)

// Survival says what of the un-synced state a crash leaves.
type Survival int

const (
	// Strict is a power loss that loses all that was not synced.
	Strict Survival = iota
	// Random is a power loss in which every un-synced sector, file size and
	// directory change is kept or lost by the seed.
	Random
	// Lucky is a power loss just after the system wrote back all it had:
	// only what a failed sync dropped is lost.
	Lucky
	// Kill is the death of the process. The page cache survives, and is as
	// un-synced as before: a later power loss can still take it.
	Kill
)

// Crash stops fs and returns the file system that the next process finds, with
// no lock held and all counters at zero. Every later operation on fs and its
// open files fails with ErrCrashed. Crashing fs again gives another image of
// the same instant, drawn anew.
func (fs *FS) Crash(s Survival) *FS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.crashed = true
	return fs.imageLocked(s)
}

// Image is Crash that leaves fs running: what fs does later is not in the
// image. Taken in a Hook, it is a crash in mid-flight after which the old
// process, say a store that cannot be closed on a failing disk, still ends well.
func (fs *FS) Image(s Survival) *FS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.imageLocked(s)
}

func (fs *FS) imageLocked(s Survival) *FS {
	img := fs.cloneLocked()
	if s == Kill {
		return img
	}
	kept := make([]bool, len(img.pending))
	switch s {
	case Random:
		kept = draw(fs.rng, len(img.pending))
	case Lucky:
		fill(kept)
	}
	img.settleNames(kept)
	settleTree(img.root, s, fs.rng)
	return img
}

// cloneLocked copies fs, its page cache and its un-synced state.
func (fs *FS) cloneLocked() *FS {
	img := New(fs.rng.Uint64())
	img.ticks, img.size = fs.ticks, fs.size
	seen := map[*inode]*inode{}
	var clone func(*inode) *inode
	clone = func(n *inode) *inode {
		if n == nil {
			return nil
		}
		if c := seen[n]; c != nil {
			return c
		}
		c := n.cloneContent()
		seen[n] = c
		for name, child := range n.entries {
			c.entries[name] = clone(child)
		}
		for name, child := range n.durable {
			c.durable[name] = clone(child)
		}
		return c
	}
	img.root = clone(fs.root)
	for _, c := range fs.pending {
		cc := &change{emptied: clone(c.emptied)}
		for _, e := range c.edits {
			cc.edits = append(cc.edits, edit{clone(e.dir), e.name, clone(e.node)})
		}
		for _, n := range c.nodes {
			cc.nodes = append(cc.nodes, clone(n))
		}
		img.pending = append(img.pending, cc)
	}
	return img
}

// settleTree makes what the disk has the content of dir and all below it, in
// the order of the names. A second link finds its file settled.
func settleTree(dir *inode, s Survival, rng *rand.Rand) {
	dir.entries, dir.syncErr = maps.Clone(dir.durable), nil
	for _, name := range sortedKeys(dir.entries) {
		if n := dir.entries[name]; n.isDir() {
			settleTree(n, s, rng)
		} else {
			n.settle(s, rng)
		}
	}
}

// settle makes one possible content of the disk the content of the file.
func (n *inode) settle(s Survival, rng *rand.Rand) {
	base := min(n.diskSize, n.minSize)
	cut := base < n.diskSize // a truncation is not durable
	size := n.size
	switch {
	case s == Strict, s == Random && cut && rng.IntN(2) == 0:
		// Without the truncation no block behind it was given anew.
		size = n.diskSize
	case s == Random:
		size, cut = drawSize(rng, base, n.size), false
	default:
		cut = false
	}

	var open []int64
	sectors := 0
	for _, no := range sortedKeys(n.pages) {
		if n.pages[no].unsynced() != 0 {
			open = append(open, no)
			sectors += sectorsPerPage
		}
	}
	kept := make([]bool, sectors)
	if s == Random {
		kept = draw(rng, sectors)
	}
	for i, no := range open {
		pg := n.pages[no]
		mask := uint8(0)
		for sec := range sectorsPerPage {
			if kept[i*sectorsPerPage+sec] {
				mask |= 1 << sec
			}
		}
		if s == Lucky {
			mask = pg.dirty
		}
		n.settlePage(no, pg, mask&pg.unsynced(), base, cut)
	}
	n.toSync = nil
	n.trim(size)
}

// settlePage keeps the sectors of mask. If cut, the truncation to base was
// lost and with it all that was written behind it; else the disk reads as
// zeros behind base where nothing was kept.
func (n *inode) settlePage(no int64, pg *page, mask uint8, base int64, cut bool) {
	in := int(max(0, min(base-no*pageSize, pageSize)))
	disk := pg.disk
	if cut {
		mask &= sectorsOf(0, in)
	} else if in < pageSize && disk != nil {
		disk = copyOf(disk)
		clear(disk[in:])
	}
	b := mix(disk, pg.cache, mask)
	*pg = page{cache: b, disk: b}
}

// trim sets the size on disk; nothing is un-synced afterwards.
func (n *inode) trim(size int64) {
	n.size, n.diskSize, n.minSize = size, size, size
	for no, pg := range n.pages {
		switch from := size - no*pageSize; {
		case from <= 0:
			delete(n.pages, no)
		case from < pageSize && pg.disk != nil:
			b := copyOf(pg.disk)
			clear(b[from:])
			pg.cache, pg.disk = b, b
		}
	}
}

// drawSize draws the size on disk of a file that grew: the old one, the new
// one, or that of some page in between.
func drawSize(rng *rand.Rand, from, to int64) int64 {
	if from >= to {
		return to
	}
	switch rng.IntN(3) {
	case 0:
		return from
	case 1:
		return to
	}
	mid := from + rng.Int64N(to-from)
	return max(from, mid-mid%pageSize)
}

// draw says for each of n un-synced things, in order, whether it is kept. Fair
// coins alone would never lose only one sector of a large write, nor keep only
// its beginning, so the pattern is drawn first.
func draw(rng *rand.Rand, n int) []bool {
	kept := make([]bool, n)
	if n == 0 {
		return kept
	}
	switch rng.IntN(6) {
	case 0: // none
	case 1:
		fill(kept)
	case 2:
		fill(kept[:rng.IntN(n+1)])
	case 3:
		fill(kept)
		kept[rng.IntN(n)] = false
	default:
		for i := range kept {
			kept[i] = rng.IntN(2) == 0
		}
	}
	return kept
}

func fill(b []bool) {
	for i := range b {
		b[i] = true
	}
}
