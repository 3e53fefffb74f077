package simfs_test

import (
	"iter"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seeds yields n seeds, a tenth of them with -short.
func seeds(t *testing.T, n uint64) iter.Seq[uint64] {
	t.Helper()
	if testing.Short() {
		n = max(1, n/10)
	}
	return func(yield func(uint64) bool) {
		for s := range n {
			if !yield(s) {
				return
			}
		}
	}
}
