// Package deptest holds the tests that keep the arrows between the packages
// pointing one way and the top level small.
package deptest

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/stelelog/stele"

// allowed lists, for each package, which others of this module it may import
// directly. Tests, transporttest and topictest are excepted; what is below
// internal may be imported by all and is listed only for what it imports.
var allowed = map[string][]string{
	"":           {"topic", "membership", "metastore", "raftlog", "storage", "transport"},
	"topic":      {"metastore", "raftlog", "storage"},
	"membership": {"metastore", "raftlog"},
	"metastore":  {"raftlog"},
	"raftlog":    {"storage"},
	"storage":    {},
	"transport":  {},
}

func TestImports(t *testing.T) {
	root := filepath.Join("..", "..")
	for pkg, may := range allowed {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			require.NoError(t, err)
			for _, imp := range parsed.Imports {
				path, err := strconv.Unquote(imp.Path.Value)
				require.NoError(t, err)
				rel, ours := strings.CutPrefix(path, module+"/")
				if !ours || strings.HasPrefix(rel, "internal/") || slices.Contains(may, rel) {
					continue
				}
				t.Errorf("%s imports %s: package %q may import only %v of this module; declare the interface it needs and let the root join them",
					file, path, pkg, may)
			}
		}
	}
}

// storageTypes: metastore and membership take ids from storage. They are
// re-exported by raftlog as aliases, so nothing else of storage is needed.
func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join("..", ".."))
	require.NoError(t, err)
	may := []string{"raftlog", "metastore", "topic", "storage", "membership", "transport", "examples", "internal",
		"doc.go", "README.md", "go.mod", "go.sum", "LICENSE", "CHANGELOG.md"}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || slices.Contains(may, name) || (!e.IsDir() && strings.HasSuffix(name, ".go")) {
			continue
		}
		t.Errorf("%s does not belong at the top level: results and long texts live beside what they speak of", name)
	}
}

// beyondTheClock are the directories that are no part of a node: programs that
// watch real ones, tests, and the clock itself.
var beyondTheClock = []string{"internal/clock/", "internal/deptest/", "internal/testcluster/", "internal/campaign/", "internal/versus/", "examples/"}

// TestClock keeps the wall clock behind its seam.
func TestClock(t *testing.T) {
	root := filepath.Join("..", "..")
	words := []string{"time.Sleep(", "time.Now(", "time.After(", "time.AfterFunc(", "time.Since(", "time.Until(", "time.NewTimer(", "time.NewTicker(", "time.Tick("}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
			return filepath.SkipDir
		}
		rel, _ := filepath.Rel(root, path)
		outside := func(dir string) bool { return strings.HasPrefix(rel, dir) }
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") || slices.ContainsFunc(beyondTheClock, outside) {
			return nil
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, w := range words {
			if strings.Contains(string(text), w) {
				t.Errorf("%s uses %s): take a clock.Clock instead", rel, w)
			}
		}
		return nil
	})
	require.NoError(t, err)
}
