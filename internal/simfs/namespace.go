package simfs

// edit is one directory entry set to node, or removed (node nil).
type edit struct {
	dir  *inode
	name string
	node *inode
}

// change is one namespace operation that no directory sync has made durable.
// It reaches the disk as a whole or not at all, so that a rename is atomic.
//
// On the way there changes may overtake each other, as far as a journalling
// file system could be seen to let them. A later change waits for an earlier
// one if they set the same entry, if they name the same file (a link is never
// lost while the unlink of the older name is kept), or if it removes the
// directory that the earlier one changed. In particular the entries of a
// directory do not wait for the entry that names the directory, nor that for
// them.
type change struct {
	edits   []edit
	nodes   []*inode // files and directories whose name changes
	emptied *inode   // the directory that is removed or replaced
}

func (c *change) apply() {
	for _, e := range c.edits {
		if e.node == nil {
			delete(e.dir.durable, e.name)
		} else {
			e.dir.durable[e.name] = e.node
		}
	}
}

type entryKey struct {
	dir  *inode
	name string
}

// footprint is what a set of changes touches.
type footprint struct {
	entries map[entryKey]bool
	nodes   map[*inode]bool
	dirs    map[*inode]bool // directories with a changed entry
	emptied map[*inode]bool
}

func newFootprint() footprint {
	return footprint{map[entryKey]bool{}, map[*inode]bool{}, map[*inode]bool{}, map[*inode]bool{}}
}

func (f footprint) add(c *change) {
	for _, e := range c.edits {
		f.entries[entryKey{e.dir, e.name}] = true
		f.dirs[e.dir] = true
	}
	for _, n := range c.nodes {
		f.nodes[n] = true
	}
	if c.emptied != nil {
		f.emptied[c.emptied] = true
	}
}

// meets says that c and a change of f name the same entry or the same file.
func (f footprint) meets(c *change) bool {
	for _, e := range c.edits {
		if f.entries[entryKey{e.dir, e.name}] {
			return true
		}
	}
	for _, n := range c.nodes {
		if f.nodes[n] {
			return true
		}
	}
	return false
}

// waitsFor says that c cannot be durable before some change of the earlier f.
func (c *change) waitsFor(f footprint) bool {
	return f.meets(c) || c.emptied != nil && f.dirs[c.emptied]
}

// neededBy says that some change of the later f cannot be durable before c.
func (c *change) neededBy(f footprint) bool {
	for _, e := range c.edits {
		if f.emptied[e.dir] {
			return true
		}
	}
	return f.meets(c)
}

func (c *change) touches(dir *inode) bool {
	for _, e := range c.edits {
		if e.dir == dir {
			return true
		}
	}
	return false
}

// syncDir makes the changes of dir durable, and those that they wait for.
func (fs *FS) syncDirLocked(dir *inode) {
	need := newFootprint()
	durable := make([]bool, len(fs.pending))
	for i := len(fs.pending) - 1; i >= 0; i-- {
		if c := fs.pending[i]; c.touches(dir) || c.neededBy(need) {
			durable[i] = true
			need.add(c)
		}
	}
	var rest []*change
	for i, c := range fs.pending {
		if durable[i] {
			c.apply()
		} else {
			rest = append(rest, c)
		}
	}
	fs.pending = rest
}

// settleNames applies the kept changes to the disk; one that waits for a lost
// one is lost as well.
func (fs *FS) settleNames(kept []bool) {
	lost := newFootprint()
	for i, c := range fs.pending {
		if kept[i] && !c.waitsFor(lost) {
			c.apply()
		} else {
			lost.add(c)
		}
	}
	fs.pending = nil
}
