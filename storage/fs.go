package storage

import (
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FS is the file-system seam: Pebble's, which the metadata store uses as it
// is, and the one operation more that a segment file needs. Implementations
// are safe for concurrent use.
type FS interface {
	vfs.FS
	// Truncate sets the size of the file at name, which exists. The new size
	// is durable after the next Sync of a handle of that file.
	Truncate(name string, size int64) error
}

// DiskFS is the machine's file system.
func DiskFS() FS { return diskFS{vfs.Default} }

type diskFS struct{ vfs.FS }

// canonical returns dir in the one form in which the paths below it are
// compared.
func canonical(fsys FS, dir string) (string, error) {
	if _, ok := fsys.(diskFS); ok {
		return filepath.Abs(dir)
	}
	return fsys.PathJoin(dir), nil
}

func (diskFS) Truncate(name string, size int64) error { return os.Truncate(name, size) }
