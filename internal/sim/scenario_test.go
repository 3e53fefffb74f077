package sim

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/cryptotest"

	"github.com/stelelog/stele/raftlog"
	"github.com/stretchr/testify/require"
)

// quiet makes a world in which nothing happens but what the test does.
func quiet(t *testing.T, seed uint64, nodes int) *world {
	return quietWith(t, seed, Options{Nodes: nodes})
}

func quietWith(t *testing.T, seed uint64, opts Options) *world {
	cryptotest.SetGlobalRandom(t, seed)
	opts.Groups, opts.Quiet = 1, true
	return newWorld(seed, opts)
}

// elected waits for a leader.
func (w *world) elected(t *testing.T) *replica {
	g := w.groups[0]
	ok := w.runUntil(10*electionTime, func() bool { return w.leaderOf(g) != nil })
	w.intact(t)
	require.True(t, ok, "no leader")
	return w.leaderOf(g)
}

func (w *world) intact(t *testing.T) {
	if w.violation != nil {
		t.Fatal(w.violation)
	}
}

// Property: R14 (red: CheckQuorum off; a lost proposal reported as Retry)
func TestIsolatedLeaderStopsAccepting(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		w := quiet(t, seed, 3)
		old := w.elected(t)
		w.net.isolate(old.n.index, true, true)
		cut, last := w.now, w.now
		var accepted []raftlog.ProposalID
		for w.now < cut+20*electionTime {
			id := w.propose(old, 16)
			if w.props[id-1].state != proposalRefused {
				accepted, last = append(accepted, id), w.now
			}
			w.run(7 * millisecond)
		}
		w.intact(t)
		require.LessOrEqual(t, last-cut, 2*electionTime+2*tickTime, "seed %d", seed)
		require.NotEmpty(t, accepted)
		w.net.healAll()
		w.run(5 * second)
		w.intact(t)
		for _, id := range accepted {
			p := w.props[id-1]
			require.Equal(t, proposalLost, p.state, "seed %d", seed)
			require.ErrorIs(t, p.err, raftlog.ErrOutcomeUnknown)
			require.False(t, p.committed)
		}
	}
}

// Property: R13 (red: PreVote off)
func TestMinorityNeitherRaisesTermsNorDeposes(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		w := quiet(t, seed, 5)
		leader := w.elected(t)
		w.run(second)
		term := leader.status.Term
		away := 0
		for _, r := range w.groups[0].replicas {
			if r != leader && away < 2 {
				w.net.isolate(r.n.index, true, seed%2 == 0) // with odd seeds it is heard, and hears nothing
				away++
			}
		}
		w.run(20 * electionTime)
		for _, r := range w.groups[0].replicas {
			require.Equal(t, term, r.status.Term, "seed %d: %s", seed, r.name)
		}
		w.net.healAll()
		w.run(10 * electionTime)
		w.intact(t)
		require.Equal(t, leader, w.leaderOf(w.groups[0]), "seed %d", seed)
		require.Equal(t, term, leader.status.Term, "seed %d", seed)
	}
}

// Property: R15 (red: CheckQuorum off: a leader that hears nobody stays)
func TestConnectedMajorityServesUnderOneWayCuts(t *testing.T) {
	for seed := uint64(1); seed <= 150; seed++ {
		rng := rand.New(rand.NewPCG(seed, 15))
		nodes := 3 + 2*int(seed%2)
		w := quiet(t, seed, nodes)
		w.elected(t)
		whole := rng.Perm(nodes)[:nodes/2+1] // these hear each other
		member := make([]bool, nodes)
		for _, i := range whole {
			member[i] = true
		}
		for i := range nodes {
			for j := range nodes {
				w.net.cut[i][j] = i != j && !(member[i] && member[j]) && rng.IntN(2) == 0
			}
		}
		w.groups[0].mustServe(10 * electionTime)
		w.intact(t)
	}
}

// Property: R25 (red: readRounds.mayAsk without the check of the leader's own term: raft answers at once with one voter)
func TestOneVoterReadsAfterRestart(t *testing.T) {
	for seed := uint64(1); seed <= 30; seed++ {
		w := quiet(t, seed, 1)
		for range 10 {
			r := w.elected(t)
			for range 5 {
				w.propose(r, 16)
			}
			w.run(3 * millisecond)
			w.crash(r.n, w.chance(0.5))
			w.start(r.n)
			ok := w.runUntil(10*electionTime, func() bool {
				w.read(r)
				return r.status.Role == raftlog.RoleLeaderActive
			})
			w.intact(t)
			require.True(t, ok)
		}
		require.NotZero(t, w.result.Acked)
		require.NotZero(t, w.result.Reads)
	}
}

// crashInsideElection restarts the leader and hangs the disk of the first that
// wants to succeed it. When that one is a candidate (or the leader, if it can
// be with nothing written) it reaches only one of the others, crashes, comes
// back, and reaches only the other one.
func crashInsideElection(t *testing.T, seed uint64, opts Options) *world {
	cryptotest.SetGlobalRandom(t, seed)
	opts.Quiet = true
	w := newWorld(seed, opts)
	g := w.groups[0]
	old := w.elected(t)
	w.crash(old.n, true)
	w.start(old.n)
	var asks *replica
	w.runUntil(6*electionTime, func() bool {
		for _, r := range g.replicas {
			if r.status.Role == raftlog.RoleProspective && asks == nil {
				asks = r
				r.n.disk.stalledUntil = w.now + electionTime
			}
		}
		return asks != nil && asks.status.Role == raftlog.RoleCandidate
	})
	if asks == nil || w.violation != nil {
		return w
	}
	w.runUntil(20*millisecond, func() bool { return asks.status.Role.IsLeader() })
	first := w.rng.IntN(2)
	only := func(n int) {
		w.net.healAll()
		for _, r := range g.replicas {
			if r != asks && n == 0 {
				w.net.isolate(r.n.index, true, true)
			}
			if r != asks {
				n--
			}
		}
	}
	only(first)
	for range w.rng.IntN(3) {
		w.propose(asks, 16)
	}
	w.run(w.between(0, 6*millisecond))
	w.crash(asks.n, false)
	asks.n.disk.stalledUntil = 0
	w.start(asks.n)
	only(1 - first)
	for range 40 {
		w.run(electionTime / 10)
		if l := w.leaderOf(g); l != nil {
			w.propose(l, 16)
		}
	}
	w.net.healAll()
	g.mustServe(10 * electionTime)
	return w
}

// Property: R1, R2, R3 (red: vote requests sent with their frame; without R3's check, R1's)
func TestCrashInsideAnElection(t *testing.T) {
	for seed := uint64(1); seed <= 100; seed++ {
		crashInsideElection(t, seed, Options{}).intact(t)
	}
	early := Options{Mutant: MutantAskBeforeSync, Ignore: []string{"R3", "R23"}}
	for seed := uint64(1); seed <= 100; seed++ {
		if v := crashInsideElection(t, seed, early).violation; v != nil {
			t.Logf("the mutant is found by seed %d: %s: %s", seed, v.Property, v.Text)
			require.Equal(t, "R1", v.Property)
			return
		}
	}
	t.Error("the scenario does not find a candidate that asks before its vote is durable")
}

// Property: L5 (red: raft's randomness left as it is: elections differ)
func TestSameSeedSameTrace(t *testing.T) {
	opts := Options{Groups: 2, Seconds: 5}
	first := run(t, 42, opts)
	require.Nil(t, first.Violation)
	procs := runtime.GOMAXPROCS(1)
	second := run(t, 42, opts)
	runtime.GOMAXPROCS(max(procs, 2))
	third := run(t, 42, opts)
	runtime.GOMAXPROCS(procs)
	require.Equal(t, first, second)
	require.Equal(t, first, third)
	require.NotEqual(t, first.TraceHash, run(t, 43, opts).TraceHash)
}
