package simfs

import (
	"errors"
	"os"
	"path"
	"strings"
	"syscall"
)

// clean returns the absolute form of p, under which it is known everywhere.
func clean(p string) string { return path.Clean("/" + p) }

func split(abs string) []string {
	if abs == "/" {
		return nil
	}
	return strings.Split(abs[1:], "/")
}

func (fs *FS) lookupLocked(op, name string) (*inode, error) {
	at := fs.root
	for _, part := range split(clean(name)) {
		if !at.isDir() {
			return nil, pathError(op, name, syscall.ENOTDIR)
		}
		if at = at.entries[part]; at == nil {
			return nil, pathError(op, name, os.ErrNotExist)
		}
	}
	return at, nil
}

// parentLocked returns the directory of name, which exists, and the name in it.
func (fs *FS) parentLocked(op, name string) (*inode, string, error) {
	name = clean(name)
	if name == "/" {
		return nil, "", pathError(op, name, syscall.EINVAL)
	}
	dir, err := fs.lookupLocked(op, path.Dir(name))
	if err != nil {
		return nil, "", pathError(op, name, cause(err))
	}
	if !dir.isDir() {
		return nil, "", pathError(op, name, syscall.ENOTDIR)
	}
	return dir, path.Base(name), nil
}

func pathError(op, name string, err error) error {
	return &os.PathError{Op: op, Path: name, Err: err}
}

// cause takes the error out of a PathError, for one that names both paths.
func cause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
