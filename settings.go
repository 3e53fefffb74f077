package stele

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/stelelog/stele/storage"
)

// The file SETTINGS in the directory of the metadata holds what Config may not
// change in a directory's life, as a text that ends with its checksum:
//
//	stele settings 1\n
//	segment-bytes <decimal>\n
//	crc32c <8 hexadecimal digits>\n      of all bytes before this line
//
// Another version may differ from the second line on.
const (
	settingsFile    = "SETTINGS"
	settingsVersion = 1
	maxSettings     = 4 << 10 // bytes that are read of the file
)

var settingsSum = crc32.MakeTable(crc32.Castagnoli)

// settings are what a directory keeps from its first day.
type settings struct{ segmentBytes int64 }

func (s settings) encode() []byte {
	b := fmt.Appendf(nil, "stele settings %d\nsegment-bytes %d\n", settingsVersion, s.segmentBytes)
	return fmt.Appendf(b, "crc32c %08x\n", crc32.Checksum(b, settingsSum))
}

// decodeSettings reads the text of the file at path. *storage.FormatError if it
// is of a newer release, *storage.DamageError if it is not what was written.
func decodeSettings(path string, text []byte) (settings, error) {
	var s settings
	var version int
	line, _, _ := bytes.Cut(text, []byte("\n"))
	_, err := fmt.Sscanf(string(line), "stele settings %d", &version)
	if err == nil && version > settingsVersion {
		return settings{}, &FormatError{Path: path, Reason: fmt.Sprintf("settings of version %d, this one knows %d", version, settingsVersion)}
	}
	if _, err := fmt.Sscanf(string(text), "stele settings %d\nsegment-bytes %d\n", &version, &s.segmentBytes); err != nil || !bytes.Equal(s.encode(), text) {
		return settings{}, &DamageError{Path: path, Reason: "not a whole text of settings"}
	}
	return s, nil
}

// keepSettings returns what the directory began with, and notes it on the first
// day, durably. joined is what the node was told by the cluster that it joined,
// 0: nothing. A *ConfigError says that something else is configured.
func keepSettings(fsys storage.FS, dir string, cfg *Config, joined int64) (settings, error) {
	path := fsys.PathJoin(dir, settingsFile)
	text, err := readSettings(fsys, path)
	var s settings
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.segmentBytes = cmp.Or(joined, cfg.SegmentBytes, defaultSegment)
		if err := s.fit(cfg, "which the cluster has"); err != nil {
			return s, err
		}
		err = writeSettings(fsys, dir, s)
	case err == nil:
		if s, err = decodeSettings(path, text); err != nil {
			return s, err
		}
	}
	if err != nil {
		return s, fmt.Errorf("stele: settings in %s: %w", path, err)
	}
	return s, s.fit(cfg, "with which "+cfg.Dir+" began")
}

// fit compares what is configured with what has to be.
func (s settings) fit(cfg *Config, why string) error {
	if cfg.SegmentBytes == 0 || cfg.SegmentBytes == s.segmentBytes {
		return nil
	}
	return &ConfigError{"SegmentBytes", cfg.SegmentBytes, fmt.Sprintf("%d, %s", s.segmentBytes, why)}
}

func readSettings(fsys storage.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSettings))
	return text, errors.Join(err, f.Close())
}

// writeSettings replaces the file, whole or not at all.
func writeSettings(fsys storage.FS, dir string, s settings) error {
	path := fsys.PathJoin(dir, settingsFile)
	f, err := fsys.Create(path+"~", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(s.encode())
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(path+"~", path); err != nil {
		return err
	}
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
