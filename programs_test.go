package stele_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/transport"
)

var (
	programs      = flag.Uint64("programs", 3, "random membership programs to run")
	programsSeed  = flag.Uint64("programs.seed", 1, "of the first of them; the next one has the next seed")
	programsSteps = flag.String("programs.steps", "", "run these steps alone, such as 0-4,7; a step is the same whatever runs before it")
	programsLog   = flag.Bool("programs.log", false, "show what the nodes log")
)

// TestMembershipPrograms has clusters of three to seven nodes live through
// random programs under load: nodes join, lose power, are killed, closed, wiped
// and moved to other addresses, leave, are called back, return with the disk of
// a life that is over; networks break in one direction or both; topics come and
// go. All the while what every node does in every group is held against what all
// did before (testcluster's history), and at the end, when all is healed, the
// members are those that the program says, each votes or stands by, nothing that
// was acknowledged is lost on any node, and the files are equal.
//
//	go test . -run TestMembershipPrograms -programs=200
//	go test . -run TestMembershipPrograms -programs=1 -programs.seed=17 -programs.steps=0-9 -v
//
// A seed fixes the program and the faults, not the order in which goroutines run.
//
// Property: P4, P7 (red: a batch that was sent again was appended again; the journal was not synced)
func TestMembershipPrograms(t *testing.T) {
	n := *programs
	if testing.Short() {
		n = min(n, 2)
	}
	for seed := *programsSeed; seed < *programsSeed+n; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runProgram(t, seed) })
	}
}

// program is one run: what the test did, and what it expects of it.
type program struct {
	c    *testcluster.Cluster
	seed uint64
	rng  *rand.Rand // of the step that runs
	l    *testcluster.Ledger
	load map[int]*testcluster.Load

	ids    map[int]stele.NodeID // of the present life of a member, as far as known
	over   []stele.NodeID       // lives that were removed
	asked  map[int]bool         // its decommission was asked for, and may have begun
	out    map[int]bool         // it was taken out
	cut    map[int]bool         // its network is broken
	topics map[string]string    // beside the one under load: "there", "gone", "unknown"

	began  time.Time
	script []string
}

const (
	partitionsUnderLoad = 4
	callWithin          = 20 * time.Second
	thinkTime           = 400 * time.Millisecond
)

func runProgram(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	opts := testcluster.Options{Seed: seed, Faults: transport.Faults{MinLatency: 200 * time.Microsecond, MaxLatency: 3 * time.Millisecond}}
	if *programsLog {
		opts.Logger = zaptest.NewLogger(t, zaptest.Level(zap.DebugLevel))
	}
	if rng.IntN(3) == 0 {
		opts.Faults.Loss, opts.Faults.Duplicate, opts.Faults.Reorder, opts.Faults.CallLoss = 0.01, 0.02, 0.05, 0.005
	}
	steps := chosenSteps(t, 10+rng.IntN(10))
	testcluster.Run(t, opts, func(c *testcluster.Cluster) {
		p := &program{
			c: c, seed: seed, load: map[int]*testcluster.Load{}, ids: map[int]stele.NodeID{}, asked: map[int]bool{},
			out: map[int]bool{}, cut: map[int]bool{}, topics: map[string]string{}, began: time.Now(),
		}
		defer func() {
			if c.T.Failed() {
				c.T.Logf("the program of seed %d:\n%s", seed, strings.Join(p.script, "\n"))
			}
		}()
		c.StartAll()
		mustCreate(c, 0, "orders", partitionsUnderLoad)
		p.l = c.NewLedger("orders")
		for i := range c.Size() {
			p.load[i] = p.l.StartLoadOn(i, 1, partitionsUnderLoad, thinkTime)
		}
		c.Sleep(5 * time.Second) // the cluster's version is raised
		for _, n := range steps {
			p.rng = rand.New(rand.NewPCG(seed, uint64(n)+1))
			p.step(n)
			require.Empty(c.T, c.Violations(), "seed %d, step %d", seed, n)
		}
		p.finish()
	})
}

// chosenSteps are the numbers of the steps that run.
func chosenSteps(t *testing.T, n int) (steps []int) {
	if *programsSteps == "" {
		for i := range n {
			steps = append(steps, i)
		}
		return steps
	}
	for _, part := range strings.Split(*programsSteps, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		require.NoError(t, err)
		to := from
		if isRange {
			to, err = strconv.Atoi(last)
			require.NoError(t, err)
		}
		for i := from; i <= to; i++ {
			steps = append(steps, i)
		}
	}
	return steps
}

func (p *program) note(format string, args ...any) {
	p.script = append(p.script, fmt.Sprintf("%8.1fs  ", time.Since(p.began).Seconds())+fmt.Sprintf(format, args...))
}

// await waits until cond says "", d at most; else the test fails with what it
// said last.
func (p *program) await(d time.Duration, what string, cond func() string) {
	p.c.T.Helper()
	deadline := time.Now().Add(d)
	why := cond()
	for ; why != "" && time.Now().Before(deadline); why = cond() {
		p.c.Sleep(2 * time.Second)
	}
	if why != "" {
		p.note("not within %v: %s: %s", d, what, why)
		p.dump()
		require.FailNow(p.c.T, fmt.Sprintf("seed %d: not within %v: %s: %s", p.seed, d, what, why))
	}
}

// dump notes what the nodes say of themselves.
func (p *program) dump() {
	for i := range p.c.Size() {
		n := p.c.Node(i)
		if n == nil {
			p.note("  %s is down", p.c.Member(i).Name)
			continue
		}
		s := n.Status()
		p.note("  %s at %s is %v, %v; metadata led by %v; %+v, %+v", s.Name, s.Addr, s.Node, s.Readiness, s.MetadataLeader, s.Metadata.Role, s.Metadata.Conf)
		for _, m := range n.Members() {
			p.note("      knows %s %v at %s: %v, dead %v, %v", m.Name, m.Node, m.Addr, m.Seat, m.Liveness.Dead, m.Liveness.Departure)
		}
	}
	for i := range p.c.Size() {
		if n := p.c.Node(i); n != nil && p.well(i) && n.Readiness().Ready() {
			p.dumpPartitions(n)
			return
		}
	}
}

func (p *program) dumpPartitions(n *stele.Node) {
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	topics, err := n.ListTopics(ctx)
	p.note("  topics %v", err)
	for _, t := range topics {
		for _, part := range t.Partitions {
			p.note("      %s/%d %v: %v, target %+v, configuration %+v", t.Name, part.Index, part.Group, part.Replicas, part.Target, p.c.Conf(part.Group))
		}
	}
	for i := range p.c.Size() {
		if p.runs(i) {
			for _, s := range p.c.Node(i).Status().Partitions {
				p.note("      %s holds %s/%d as %v: %v, term %d, leader %v, silent %v, unsettled %v, error %v", p.name(i), s.Topic, s.Partition, s.Replica, s.Role, s.Term, s.Leader, s.Silent, s.Unsettled, s.Err)
			}
		}
	}
}

// members are those that the program takes for members, running or not.
func (p *program) members(is func(int) bool) (all []int) {
	for i := range p.c.Size() {
		if !p.out[i] && is(i) {
			all = append(all, i)
		}
	}
	return all
}

func (p *program) runs(i int) bool  { return p.c.Node(i) != nil }
func (p *program) down(i int) bool  { return p.c.Node(i) == nil }
func (p *program) well(i int) bool  { return p.runs(i) && !p.cut[i] }
func (p *program) ill(i int) bool   { return !p.well(i) }
func (p *program) any(int) bool     { return true }
func (p *program) stays(i int) bool { return !p.asked[i] }

// spare reports whether one more member may fail: a majority of what may be the
// voters is left.
func (p *program) spare() bool {
	return len(p.members(p.ill)) < (min(len(p.members(p.any)), 5)-1)/2
}

func pick(rng *rand.Rand, of []int) int { return of[rng.IntN(len(of))] }

// name is what a member is called.
func (p *program) name(i int) string { return p.c.Member(i).Name }

func (p *program) start(i int) {
	p.c.Start(i)
	p.load[i] = p.l.StartLoadOn(i, 1, partitionsUnderLoad, thinkTime)
}

// look notes who has which id, and who is out.
func (p *program) look() {
	for _, i := range p.members(p.well) {
		if id := p.c.Node(i).Status().Node; id != 0 {
			p.ids[i] = id
		}
	}
	for _, at := range p.members(p.well) {
		if !p.c.Node(at).Readiness().Ready() {
			continue
		}
		known := map[stele.NodeID]bool{}
		for _, m := range p.c.Node(at).Members() {
			known[m.Node] = true
		}
		for i := range p.asked {
			if id := p.ids[i]; !p.out[i] && id != 0 && !known[id] && p.described(at, id) {
				p.note("%s is out", p.name(i))
				p.out[i] = true
				p.over = append(p.over, id)
			}
		}
		return
	}
}

// described reports whether the cluster says that a life is not a member.
func (p *program) described(at int, id stele.NodeID) bool {
	ctx, cancel := context.WithTimeout(p.c.T.Context(), callWithin)
	defer cancel()
	d, err := p.c.Node(at).DescribeCluster(ctx)
	return err == nil && !slices.ContainsFunc(d.Members, func(m stele.Member) bool { return m.Node == id })
}

// outcome checks an error of a call, and reports whether it may have happened.
func (p *program) outcome(what string, err error) (may bool) {
	if err == nil {
		return true
	}
	p.note("    %s: %v: %v", what, stele.OutcomeOf(err), err)
	if !errors.Is(err, stele.ErrRetry) && !errors.Is(err, stele.ErrRefused) && !errors.Is(err, stele.ErrOutcomeUnknown) {
		p.c.T.Errorf("seed %d: %s: an error without an outcome: %v", p.seed, what, err)
	}
	return stele.OutcomeOf(err) == stele.OutcomeUnknown
}
