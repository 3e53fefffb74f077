package storage

import (
	"errors"
	"fmt"
)

// ErrLocked is the error of opening a directory that is open already, here or
// in another process.
var ErrLocked = errors.New("storage: the directory is in use")

// DamageError says that stored bytes are not what was written there, or cannot
// be read. It is never a torn tail, which no promise rests on: what is damaged
// was promised to be durable. Nothing is changed where damage was found.
type DamageError struct {
	Path   string // of the file or directory
	Offset int64  // in the file, where the damaged unit begins; 0 if all of it is
	Reason string
	Err    error // from the file system; nil if the bytes were read and are wrong
}

func (e *DamageError) Error() string {
	s := fmt.Sprintf("storage: %s is damaged at byte %d: %s", e.Path, e.Offset, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *DamageError) Unwrap() error { return e.Err }

// FormatError says that an intact file is of a format that this release does
// not read: most likely a newer release wrote it.
type FormatError struct {
	Path   string
	Reason string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("storage: %s: %s: is it of a newer release?", e.Path, e.Reason)
}
