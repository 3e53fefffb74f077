//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package storage

import (
	"io"
	"os"
	"syscall"
)

// Lock locks the file at name, which it makes if it is missing, until the
// result is closed. The lock belongs to the open file, not to the process or to
// the path (flock, not fcntl): a second one fails in this process too, and under
// whatever name the directory is reached, and a failed one releases nothing.
func (diskFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err // a bare errno: EWOULDBLOCK if another has it
	}
	return f, nil
}
