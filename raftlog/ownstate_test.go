package raftlog_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stretchr/testify/require"
)

// register is a state machine with a state of its own, which survives on
// something that is not the log.
type register struct {
	t       *testing.T
	mu      sync.Mutex // of present: a group may apply while a test looks
	saved   []string   // durable, with
	index   raftlog.Index
	present []string // by index from 2 on
	last    raftlog.Index
}

func (r *register) Apply(entries []raftlog.Entry, results []raftlog.Result) error {
	for i, e := range entries {
		if e.Index != r.last+1 {
			return fmt.Errorf("entry %d after %d", e.Index, r.last)
		}
		r.last = e.Index
		r.mu.Lock()
		r.present = append(r.present, string(e.Data))
		r.mu.Unlock()
		results[i].Value = len(r.present)
	}
	return nil
}

func (r *register) Applied(raftlog.Index) {}

// upTo returns what was applied up to an index.
func (r *register) upTo(last raftlog.Index) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.present[: last-1 : last-1]
}

// save makes the state up to some index durable.
func (r *register) save(upTo raftlog.Index) {
	if upTo > r.index && upTo <= r.last {
		r.saved, r.index = r.present[:upTo-1:upTo-1], upTo
	}
}

// crash forgets what was not saved.
func (r *register) crash() *raftlog.AppliedState {
	r.present = append([]string(nil), r.saved...)
	r.last = max(r.index, 1)
	return &raftlog.AppliedState{Index: r.index}
}

// A state machine with a state of its own may come back behind the log or
// ahead of it: it gets what it misses once, and the log too.
// Property: R11 (red: entries applied that the state machine has; entries appended that the log has)
func TestStateMachineWithOwnState(t *testing.T) {
	for seed := range uint64(seeds(20, 4)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { restartOwnState(t, seed) })
		})
	}
}

func restartOwnState(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 5))
	c := newCluster(t, seed, 1, 1)
	defer c.stopAll()
	n := c.nodes[0]
	r := &register{t: t}
	groups := c.groups
	var want []string
	for range 5 {
		c.groups = nil // opened here instead
		require.NoError(t, c.start(n))
		c.groups = groups
		o := c.options(n, 1, &ledger{})
		o.Machine, o.Recover = r, nil
		o.State = r.crash()
		o.State.Conf = o.Create.Conf
		group, err := n.host.OpenGroup(o)
		require.NoError(t, err, "seed %d", seed)
		n.setGroup(1, group)
		for i := range 30 + rng.IntN(60) {
			data := fmt.Sprint(i, strings.Repeat("x", rng.IntN(1000)))
			p := c.must(1, data)
			require.Equal(t, len(r.present), p.Result.Value)
			want = append(want, data)
			if rng.IntN(10) == 0 {
				r.save(raftlog.Index(rng.Uint64N(uint64(r.last)) + 1))
			}
		}
		if rng.IntN(2) == 0 {
			r.save(r.last) // ahead of the checkpoint
		}
		var got []string
		for _, data := range r.present {
			if data != "" {
				got = append(got, data)
			}
		}
		require.Equal(t, want, got, "seed %d", seed)
		require.Equal(t, r.last, group.Log().Position().LastIndex)
		entries, err := group.Log().Entries(2, r.last+1, 1<<30)
		require.NoError(t, err)
		for i, e := range entries {
			require.Equal(t, r.present[i], string(e.Data))
		}
		c.crash(n, []simfs.Survival{simfs.Strict, simfs.Kill, simfs.Random}[rng.IntN(3)])
	}
}
