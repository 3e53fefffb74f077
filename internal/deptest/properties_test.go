package deptest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	carrier  = regexp.MustCompile(`(?m)^\s*// Property: *([A-Z][0-9]+(?: *, *[A-Z][0-9]+)*) *\((red: *[^ )].*)$`)
	mentions = regexp.MustCompile(`(?m)^\s*// Propert(?:y|ies):.*$`)
	sentence = regexp.MustCompile(`(?m)^- ([A-Z][0-9]+) \S`)
)

// TestProperties: every property that a test carries has its sentence in
// internal/properties.md, every carrier says what was broken when it was seen
// to fail, and the page has no sentence that no test carries.
func TestProperties(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "properties.md"))
	require.NoError(t, err)
	known := map[string]bool{}
	for _, m := range sentence.FindAllStringSubmatch(string(page), -1) {
		known[m[1]] = false
	}
	root := filepath.Join("..", "..")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, line := range mentions.FindAllString(string(text), -1) {
			m := carrier.FindStringSubmatch(line)
			if m == nil {
				t.Errorf("%s: %q: want \"// Property: ids (red: what was broken)\"", path, strings.TrimSpace(line))
				continue
			}
			for _, id := range strings.Split(m[1], ",") {
				id = strings.TrimSpace(id)
				if _, ok := known[id]; !ok {
					t.Errorf("%s carries %s, which internal/properties.md does not have", path, id)
				}
				known[id] = true
			}
		}
		return nil
	})
	require.NoError(t, err)
	for id, carried := range known {
		if !carried {
			t.Errorf("internal/properties.md has %s, which no test carries", id)
		}
	}
}
