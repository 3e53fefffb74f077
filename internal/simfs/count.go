package simfs

import "strings"

// Counts is what was asked of a set of files.
type Counts struct {
	Reads, BytesRead     int64
	Writes, BytesWritten int64
	Syncs, BytesSynced   int64 // BytesSynced: whole sectors
}

func (c *Counts) add(o Counts) {
	c.Reads += o.Reads
	c.BytesRead += o.BytesRead
	c.Writes += o.Writes
	c.BytesWritten += o.BytesWritten
	c.Syncs += o.Syncs
	c.BytesSynced += o.BytesSynced
}

// Counts returns the sum over all files whose absolute path, as they were
// opened, begins with prefix ("/" for all; "/data/log-" is a prefix too). An
// image starts at zero, so after a crash it tells what the reopen cost.
func (fs *FS) Counts(prefix string) Counts {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var sum Counts
	for path, c := range fs.counts {
		if strings.HasPrefix(path, prefix) {
			sum.add(*c)
		}
	}
	return sum
}

func (fs *FS) countsLocked(path string) *Counts {
	c := fs.counts[path]
	if c == nil {
		c = &Counts{}
		fs.counts[path] = c
	}
	return c
}
