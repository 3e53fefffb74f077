package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The README's first program is this one, word for word, and runs twice over
// one directory.
func TestFirstProgram(t *testing.T) {
	program, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.Less(t, strings.Count(string(program), "\n"), 40)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, body, _ := strings.Cut(string(program), "import (")
	require.Contains(t, string(readme), "import ("+body)

	t.Chdir(t.TempDir())
	main()
	main()
}
