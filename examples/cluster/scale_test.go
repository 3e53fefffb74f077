package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

var manyPartitions = flag.Int("partitions", 0, "how many partitions TestManyPartitions has, 1 to 10000; 0: it is skipped")

// Many partitions need few descriptors: they are created, each is written and
// read, and each process has fewer than 2,000 files open.
func TestManyPartitions(t *testing.T) {
	if *manyPartitions == 0 {
		t.Skip("say -partitions=1000")
	}
	nodes := startProcesses(t)
	mustRun(t, "", "create", "-topic", "many", "-partitions", fmt.Sprint(*manyPartitions), "-http", nodes[0].http)
	records := 20 * *manyPartitions
	var lines strings.Builder
	for i := range records {
		fmt.Fprintf(&lines, "key-%d=%d\n", i, i)
	}
	mustRun(t, lines.String(), "produce", "-topic", "many", "-key-separator", "=", "-http", nodes[1].http)
	out := mustRun(t, "", "consume", "-topic", "many", "-http", nodes[2].http)
	require.Equal(t, records, strings.Count(out, "\n"))
	for _, n := range nodes {
		if runtime.GOOS == "linux" {
			open, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(n.cmd.Process.Pid), "fd"))
			require.NoError(t, err)
			t.Logf("node %s has %d descriptors", n.name, len(open))
			require.Less(t, len(open), 2000)
		}
	}
	for _, n := range nodes {
		require.Zero(t, n.end(syscall.SIGTERM))
	}
}
