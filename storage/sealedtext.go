package storage

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The small files of a node's directory (FORMAT, IDENTITY, the markers and
// reasons) are sealed texts, so that a person can read them and a changed one
// is noticed:
//
//	stele <kind> <version>\n
//	<key> <value>\n          keys in the order of the kind's version; values
//	...                      that are chosen by people are quoted as in Go
//	crc32c <8 hexadecimal digits>\n      of all bytes before this line
//
// A reader looks at the version first: another version may look different from
// the second line on.

// castagnoli is the polynomial of every checksum in this package.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// maxSealedText bounds what is read of a sealed text. A genesis is the largest
// value, some hundred bytes for each initial member.
const maxSealedText = 4 << 20

// field is one line of a sealed text.
type field struct{ key, value string }

// encodeSealed makes a sealed text.
func encodeSealed(kind string, version int, fields []field) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "stele %s %d\n", kind, version)
	for _, f := range fields {
		fmt.Fprintf(&b, "%s %s\n", f.key, f.value)
	}
	fmt.Fprintf(&b, "crc32c %08x\n", crc32.Checksum(b.Bytes(), castagnoli))
	return b.Bytes()
}

// errSealed is wrapped by every error about a text that is not whole.
var errSealed = errors.New("not a whole text")

// sealedVersion reads the first line of a sealed text of the kind.
func sealedVersion(kind string, text []byte) (version int, err error) {
	line, _, ok := bytes.Cut(text, []byte("\n"))
	number, found := strings.CutPrefix(string(line), "stele "+kind+" ")
	if !ok || !found {
		return 0, fmt.Errorf("%w: does not begin with %q", errSealed, "stele "+kind)
	}
	version, err = strconv.Atoi(number)
	if err != nil || version < 1 || strconv.Itoa(version) != number {
		return 0, fmt.Errorf("%w: version %q", errSealed, number)
	}
	return version, nil
}

const sealSize = len("crc32c 00000000\n")

// sealHolds reports whether a text's last line is the checksum of what is before it.
func sealHolds(text []byte) bool {
	n := len(text) - sealSize
	return n >= 0 && string(text[n:]) == fmt.Sprintf("crc32c %08x\n", crc32.Checksum(text[:n], castagnoli))
}

// decodeSealed checks the seal and returns the values of the keys, which are
// all there, in that order, and no other.
func decodeSealed(text []byte, keys ...string) ([]string, error) {
	if len(text) < sealSize {
		return nil, fmt.Errorf("%w: %d bytes", errSealed, len(text))
	}
	if !sealHolds(text) {
		return nil, fmt.Errorf("%w: checksum differs", errSealed)
	}
	lines := strings.Split(string(text[:len(text)-sealSize]), "\n")
	if len(lines) != len(keys)+2 || lines[len(lines)-1] != "" {
		return nil, fmt.Errorf("%w: want %d lines of values", errSealed, len(keys))
	}
	values := make([]string, len(keys))
	for i, key := range keys {
		value, ok := strings.CutPrefix(lines[i+1], key+" ")
		if !ok {
			return nil, fmt.Errorf("%w: line %d: want %q", errSealed, i+2, key)
		}
		values[i] = value
	}
	return values, nil
}

// readSmall reads a whole file that is known to be small.
func readSmall(fsys FS, path string, limit int64) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, &DamageError{Path: path, Reason: "cannot be read", Err: err}
	}
	if int64(len(text)) > limit {
		return nil, &DamageError{Path: path, Reason: fmt.Sprintf("is larger than %d bytes", limit)}
	}
	return text, nil
}

// replaceFile puts data at path, whole or not at all: after a crash there is
// what was there before, or data. It is durable on return.
func replaceFile(fsys FS, path string, data []byte) error {
	temp := path + tempSuffix
	if err := writeSynced(fsys, temp, data); err != nil {
		return err
	}
	if err := fsys.Rename(temp, path); err != nil {
		return err
	}
	return syncDir(fsys, fsys.PathDir(path))
}

// tempSuffix ends the name of a file that is not in use yet.
const tempSuffix = ".tmp"

// writeSynced writes a new file and syncs its content. Its name is not durable.
func writeSynced(fsys FS, path string, data []byte) error {
	f, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// Write may scribble on what it is given.
	if _, err = f.Write(bytes.Clone(data)); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes the entries of a directory durable.
func syncDir(fsys FS, path string) error {
	d, err := fsys.OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// listSorted lists a directory in the order of the names.
func listSorted(fsys FS, dir string) ([]string, error) {
	names, err := fsys.List(dir)
	slices.Sort(names)
	return names, err
}

// exists reports whether there is something at path.
func exists(fsys FS, path string) (bool, error) {
	_, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
