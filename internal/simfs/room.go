package simfs

import "math"

// SetSize makes the disk so large, in bytes; 0 makes it as large as nobody
// counts. What makes a file longer, or a new one, fails with ENOSPC when there
// is no room, a write after as many whole pages as there is room for. A disk may
// become smaller than what is on it, as if somebody else had filled it. Images
// are of the same size.
func (fs *FS) SetSize(size int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.size = size
}

// roomLocked is how many bytes are free.
func (fs *FS) roomLocked() int64 {
	if fs.size == 0 {
		return math.MaxInt64
	}
	return max(0, fs.size-fs.root.usage(map[*inode]bool{}))
}

// fitsLocked returns how far a file that is to end at end can be extended: to
// end, or less.
func (fs *FS) fitsLocked(n *inode, end int64) int64 {
	has := pagesOf(n.size)
	if fs.size == 0 || end <= has {
		return end
	}
	return min(end, has+fs.roomLocked()/pageSize*pageSize)
}

// pagesOf rounds up to whole pages.
func pagesOf(size int64) int64 { return (size + pageSize - 1) / pageSize * pageSize }
