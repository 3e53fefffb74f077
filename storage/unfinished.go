package storage

import (
	"errors"
	"slices"
	"strings"
)

// clearUnfinished removes what a crash left of directories that were being made:
// nothing was ever in them but the marker. Nobody else uses the store yet. One that
// holds anything else stays, as does one that cannot be removed: it is in nobody's
// way, and the next process tries again.
func (s *logSet) clearUnfinished() {
	root := s.fs.PathJoin(s.root, topicsDir)
	bases, err := subdirs(s.fs, root)
	if err != nil {
		return // whoever needs the list meets the error
	}
	for _, base := range bases {
		made, unfinished := strings.CutPrefix(base, tempPrefix)
		if _, _, ok := parseTopicBase(made); !ok || !unfinished {
			continue
		}
		path := s.fs.PathJoin(root, base)
		names, err := s.fs.List(path)
		if err != nil || slices.ContainsFunc(names, func(name string) bool { return name != markerFile }) {
			continue
		}
		for _, name := range names {
			err = errors.Join(err, s.fs.Remove(s.fs.PathJoin(path, name)))
		}
		if err == nil {
			_ = s.fs.Remove(path)
		}
	}
}
