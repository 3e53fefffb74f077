package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// The whole program: a cluster on the hosts' servers, a crash, nothing lost,
// and the hosts' own pages on the same addresses.
func TestProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("real time: a crash")
	}
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, 3000))
	for _, line := range []string{
		"hello from node-1: ready, leads ",
		"hello from node-3: ready, leads ",
		"partition 2: 1000 records came back as they were sent",
	} {
		require.Contains(t, out.String(), line)
	}
}
