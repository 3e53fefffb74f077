package simfs

import (
	"io"
	"os"
	"syscall"
)

// Lock creates or empties the file and holds it until the Closer is closed or
// the file system crashes. A second Lock of the same path fails with EAGAIN.
func (fs *FS) Lock(name string) (io.Closer, error) {
	name = clean(name)
	if err := fs.begin(Op{Kind: OpLock, Path: name}, nil); err != nil {
		return nil, pathError("lock", name, err)
	}
	defer fs.mu.Unlock()
	if fs.locks[name] {
		return nil, pathError("lock (held by another owner)", name, syscall.EAGAIN)
	}
	n, err := fs.lookupLocked("lock", name)
	if os.IsNotExist(err) {
		n, err = fs.createLocked("lock", name)
	}
	if err != nil {
		return nil, err
	}
	if n.isDir() {
		return nil, pathError("lock", name, syscall.EISDIR)
	}
	n.truncate(0)
	fs.locks[name] = true
	return &lock{fs: fs, name: name}, nil
}

type lock struct {
	fs   *FS
	name string // empty once closed
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.name == "" {
		return os.ErrClosed
	}
	delete(l.fs.locks, l.name)
	l.name = ""
	return nil
}
