package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"
)

const (
	lockFile      = "LOCK"
	formatFile    = "FORMAT"
	formatKind    = "directory"
	formatVersion = 1 // of the layout of a node's directory
)

// home is a node's directory: locked, of a known format, and with an identity.
//
// The files are made in the order LOCK, FORMAT, IDENTITY, and each is durable
// before the next; whatever is made later is made in a directory that has an
// identity. So a directory without one that holds anything else has lost it.
type home struct {
	fs    FS
	dir   string
	lock  io.Closer
	fresh bool

	mu struct {
		sync.Mutex
		identity Identity
	}
}

// ForeignError says that a directory holds something and was never a node's.
// Nothing was made or changed in it.
type ForeignError struct {
	Dir   string
	Entry string // one of those that are not ours
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("storage: %s is not empty and not a Stele directory: it holds %q", e.Dir, e.Entry)
}

// openHome locks the directory, which is made if it is missing, and reads its
// identity, or begins a life if it is empty. A LOCK, a FORMAT and temporary
// files alone count as empty. On an error nothing stays locked.
func openHome(fsys FS, dir, name, cluster string, random func() uint64) (_ *home, err error) {
	// Even a LOCK would be too much to leave in a stranger's directory.
	if err := checkForeign(fsys, dir); err != nil {
		return nil, err
	}
	if err := makeDirs(fsys, dir); err != nil {
		return nil, fmt.Errorf("storage: make %s: %w", dir, err)
	}
	h := &home{fs: fsys, dir: dir}
	if h.lock, err = lockDir(fsys, dir); err != nil {
		return nil, err
	}
	if err := h.identify(name, cluster, random); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *home) close() error { return h.lock.Close() }

func (h *home) identify(name, cluster string, random func() uint64) error {
	empty, err := isEmpty(h.fs, h.dir)
	if err != nil {
		return fmt.Errorf("storage: list %s: %w", h.dir, err)
	}
	switch err := readFormat(h.fs, h.dir); {
	case empty && isMissing(err):
		path := h.fs.PathJoin(h.dir, formatFile)
		if err := replaceFile(h.fs, path, encodeSealed(formatKind, formatVersion, nil)); err != nil {
			return fmt.Errorf("storage: write %s: %w", path, err)
		}
	case isMissing(err):
		if err := checkForeign(h.fs, h.dir); err != nil { // it came just now
			return err
		}
		return &DamageError{Path: h.fs.PathJoin(h.dir, formatFile), Reason: "is missing", Err: err}
	case err != nil:
		return err
	}
	path := h.fs.PathJoin(h.dir, identityFile)
	id, err := readIdentity(h.fs, h.dir)
	switch {
	case empty && isMissing(err):
		h.fresh = true
		if id, err = newIdentity(h.fs, h.dir, name, cluster, random); err != nil {
			return fmt.Errorf("storage: write %s: %w", path, err)
		}
	case isMissing(err):
		return &DamageError{Path: path, Reason: "is missing", Err: err}
	case err != nil:
		return err
	default:
		if err := id.check(path, name, cluster); err != nil {
			return err
		}
	}
	// The process that made these names may have died before it synced them.
	if err := syncDir(h.fs, h.dir); err != nil {
		return fmt.Errorf("storage: sync %s: %w", h.dir, err)
	}
	h.mu.identity = id
	return nil
}

// isEmpty reports whether nothing in the directory can have been relied on.
func isEmpty(fsys FS, dir string) (bool, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(names, isReliable), nil
}

// isReliable reports whether something of the name can have been relied on.
func isReliable(name string) bool {
	return name != lockFile && strings.TrimSuffix(name, tempSuffix) != formatFile && name != identityFile+tempSuffix
}

// checkForeign returns a *ForeignError if there is something in the directory
// and nothing that every node's has. One that lost only some of it is damaged.
func checkForeign(fsys FS, dir string) error {
	names, err := listSorted(fsys, dir)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("storage: list %s: %w", dir, err)
	}
	for _, own := range [...]string{formatFile, identityFile, journalDir} {
		if slices.Contains(names, own) {
			return nil
		}
	}
	if i := slices.IndexFunc(names, isReliable); i >= 0 {
		return &ForeignError{Dir: dir, Entry: names[i]}
	}
	return nil
}

// readFormat returns nil if this build knows the directory's format.
func readFormat(fsys FS, dir string) error {
	path := fsys.PathJoin(dir, formatFile)
	text, err := readSmall(fsys, path, maxSealedText)
	if err != nil {
		return err
	}
	version, err := sealedVersion(formatKind, text)
	if err == nil {
		if version > formatVersion {
			return &FormatError{Path: path, Reason: fmt.Sprintf("format version %d, this one knows %d", version, formatVersion)}
		}
		_, err = decodeSealed(text)
	}
	if err != nil {
		return &DamageError{Path: path, Reason: err.Error()}
	}
	return nil
}

func lockDir(fsys FS, dir string) (io.Closer, error) {
	path := fsys.PathJoin(dir, lockFile)
	lock, err := fsys.Lock(path)
	if err == nil {
		return lock, nil
	}
	// A file that cannot be made is a *fs.PathError; a lock that another holds
	// is a bare errno or text, and EAGAIN in any case.
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) && !errors.Is(err, syscall.EAGAIN) {
		return nil, fmt.Errorf("storage: lock %s: %w", path, err)
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrLocked, path, err)
}

// makeDirs makes a directory and its missing parents, and makes all of their
// names durable, also that of dir if it was there: the process that made it
// may have died before it synced it.
func makeDirs(fsys FS, dir string) error {
	var made []string // innermost first
	for at := dir; ; {
		ok, err := exists(fsys, at)
		if err != nil {
			return err
		}
		made = append(made, at)
		parent := fsys.PathDir(at)
		if ok || parent == at {
			break
		}
		at = parent
	}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := len(made) - 1; i >= 0; i-- {
		if err := syncParent(fsys, made[i]); err != nil {
			return err
		}
	}
	return nil
}

// syncParent makes the name of path durable. The parent of a mount point or of
// the root may be closed to us; what is above a directory that was there before
// is the host's.
func syncParent(fsys FS, path string) error {
	parent := fsys.PathDir(path)
	if parent == path {
		return nil
	}
	err := syncDir(fsys, parent)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}
