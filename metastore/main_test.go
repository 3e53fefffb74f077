package metastore

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(fatalChild) != "" {
		os.Exit(m.Run()) // a child that leaves an abandoned database behind
	}
	goleak.VerifyTestMain(m)
}

// seeds returns how many seeds a randomised test runs.
func seeds(full int) uint64 {
	if testing.Short() {
		return uint64(max(full/10, 2))
	}
	return uint64(full)
}
