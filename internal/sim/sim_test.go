package sim

import (
	"flag"
	"testing"
	"testing/cryptotest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var (
	seeds   = flag.Int("sim.seeds", 30, "how many seeds to run; with -short a few, of less time")
	from    = flag.Uint64("sim.from", 1, "the first seed")
	seconds = flag.Int("sim.seconds", 60, "virtual seconds per seed")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs a seed with the randomness of raft drawn from it too.
func run(t *testing.T, seed uint64, opts Options) Result {
	cryptotest.SetGlobalRandom(t, seed)
	return Run(seed, opts)
}

// shape varies the size of a cluster by its seed.
func shape(seed uint64, seconds int) Options {
	opts := Options{Seconds: seconds, Groups: 1 + int(seed%2)}
	switch {
	case seed%10 == 7:
		opts.Nodes = 5
	case seed%10 == 3:
		opts.Nodes = 1
	}
	return opts
}

// span is how many seeds to run, and how long each.
func span() (n, virtual int) {
	if testing.Short() {
		return min(*seeds, 15), min(*seconds, 20)
	}
	return *seeds, *seconds
}

// Property: R3, R4, R8, R9, R11, R13, R22, R25, R26, R29 (red: responses released before their append is durable; the
// last entry repeated in every frame; commit + 1 in frames; PreVote off; commit not raised at open; a machine behind
// its log not caught up; reads without the check of the leader's term; no bound on proposals; a transition left out)
func TestSeeds(t *testing.T) {
	n, virtual := span()
	var sum Result
	for seed := *from; seed < *from+uint64(n); seed++ {
		res := run(t, seed, shape(seed, virtual))
		if res.Violation != nil {
			t.Fatalf("go test ./internal/sim -run TestSeeds -sim.from=%d -sim.seeds=1 -sim.seconds=%d\n%v", seed, virtual, res.Violation)
		}
		sum.Events += res.Events
		sum.Steps += res.Steps
		sum.Elections += res.Elections
		sum.Committed += res.Committed
		sum.Acked += res.Acked
		sum.Reads += res.Reads
		sum.Crashes += res.Crashes
	}
	t.Logf("%+v", sum)
	require.NotZero(t, sum.Acked)
	require.NotZero(t, sum.Reads)
}

// Property: R22 (red: commit not raised to what was applied at open)
func TestStorms(t *testing.T) {
	n, virtual := span()
	var sum Result
	for seed := *from; seed < *from+uint64(n); seed++ {
		opts := shape(seed, max(virtual/3, 1)) // there is little calm in it
		opts.Storm = true
		res := run(t, seed, opts)
		if res.Violation != nil {
			t.Fatalf("go test ./internal/sim -run TestStorms -sim.from=%d -sim.seeds=1 -sim.seconds=%d\n%v", seed, virtual, res.Violation)
		}
		sum.Steps += res.Steps
		sum.Elections += res.Elections
		sum.Crashes += res.Crashes
		sum.Committed += res.Committed
	}
	t.Logf("%+v", sum)
}
