package metastore_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

var (
	damageSeeds = flag.Uint64("damage.seeds", 4, "programs with one damaged replica to try")
	damageFrom  = flag.Uint64("damage.from", 1, "first seed")
)

// Programs over three to five voters and two nodes that come later, one of all of
// which is damaged in a random row at a random moment: leaders change, nodes restart
// and are cut off, the log is trimmed. In the end the damaged one has stopped, all
// others have one state, which is what was acknowledged, and nobody else has stopped.
//
// Property: X5 (red: a dissent was none; a leader that cannot count did not hand over)
func TestProgramsWithADamagedReplica(t *testing.T) {
	for seed := *damageFrom; seed < *damageFrom+*damageSeeds; seed++ {
		synctest.Test(t, func(t *testing.T) {
			p := &damageProgram{seed: seed, r: rand.New(rand.NewPCG(seed, 28)), made: map[string]metastore.Topic{}}
			p.run(t)
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

type damageProgram struct {
	*cluster
	seed uint64
	r    *rand.Rand
	bad  raftlog.NodeID // damaged; 0: none yet
	made map[string]metastore.Topic
	n    int
	last raftlog.NodeID
}

func (p *damageProgram) run(t *testing.T) {
	voters := 3 + p.r.IntN(3)
	p.cluster = newCluster(t, voters, p.seed)
	p.change = func(config *metastore.Config) {
		config.StateHashInterval = 5 * time.Second
		config.TrimLogBytes = 64 << 10
	}
	for id := range p.disks {
		p.start(id)
	}
	require.NoError(t, p.leader().meta.SetVersion(t.Context(), 3))
	p.last = raftlog.NodeID(voters)
	steps := 14
	when := p.r.IntN(steps)
	for i := range steps {
		if i == when {
			p.damage()
		}
		p.step()
	}
	p.cut(1, false)
	for id := range p.disks {
		if p.node(id) == nil && id != p.bad {
			p.start(id)
		}
	}
	p.check()
}

// well is a running node that is not damaged.
func (p *damageProgram) well() *node {
	for {
		ids := slices.Sorted(maps.Keys(p.disks))
		if n := p.node(ids[p.r.IntN(len(ids))]); n != nil && n.id != p.bad && n.meta.Failed() == nil && !p.parts(n.id, 99) {
			return n
		}
	}
}

func (p *damageProgram) step() {
	t := p.t
	switch k := p.r.IntN(12); {
	case k < 5:
		for range 1 + p.r.IntN(4) {
			p.n++
			name := fmt.Sprint("topic-", p.n)
			topic, err := p.well().meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: name, Config: metastore.TopicConfig{Partitions: 2, Replicas: 1}})
			if err == nil {
				p.made[name] = topic
			}
		}
	case k < 7: // much of it, so that the log is trimmed
		for range 3 {
			_ = p.well().meta.SetSetting(t.Context(), fmt.Sprint("key-", p.r.IntN(4)), string(make([]byte, 20<<10)))
		}
	case k == 7 && p.last < raftlog.NodeID(len(p.genesis.Members)+2):
		p.last++
		p.admit(p.last)
	case k == 8: // the damaged one, more often than others
		to := p.bad
		if l := p.leader(); p.node(to) != nil && l.id != to {
			_ = l.meta.Group().TransferLeadership(t.Context(), p.replica(to))
		}
	case k == 9 || k == 10:
		p.restart()
	default:
		ids := slices.Sorted(maps.Keys(p.disks))
		p.cut(ids[p.r.IntN(len(ids))], true)
		pass(time.Duration(p.r.IntN(8)) * time.Second)
		p.cut(1, false)
	}
	pass(time.Duration(p.r.IntN(4000)) * time.Millisecond)
}

func (p *damageProgram) restart() {
	ids := slices.Sorted(maps.Keys(p.disks))
	id := ids[p.r.IntN(len(ids))]
	if p.node(id) == nil {
		return
	}
	diverged := errors.Is(p.node(id).meta.Failed(), metastore.ErrStateDiverged)
	p.crash(id, []simfs.Survival{simfs.Strict, simfs.Random, simfs.Kill}[p.r.IntN(3)])
	pass(time.Duration(p.r.IntN(3000)) * time.Millisecond)
	if id != p.bad {
		p.start(id)
		return
	}
	err := p.reopen(id)
	if diverged {
		require.ErrorIs(p.t, err, metastore.ErrStateDiverged, "seed %d", p.seed)
	}
	if unread := (*metastore.StateError)(nil); err != nil && !errors.As(err, &unread) { // what cannot be read is not opened either
		require.ErrorIs(p.t, err, metastore.ErrStateDiverged, "seed %d", p.seed)
	}
}

// damage changes a random row of a random node that has a state.
func (p *damageProgram) damage() {
	n := p.well()
	for n.meta.ClusterVersion() == 0 {
		n = p.well()
	}
	require.NoError(p.t, n.meta.Barrier(p.t.Context()))
	p.bad = n.id
	require.NoError(p.t, metastore.Damage(n.meta, func(state map[string][]byte, set func(string, []byte)) {
		var keys []string
		for key := range state {
			if key[0] != 'a' && key[0] != 'h' && key[0] != 'v' { // what is written anew all the time heals
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		key := keys[p.r.IntN(len(keys))]
		switch value := slices.Clone(state[key]); p.r.IntN(3) {
		case 0:
			set(key, nil)
		case 1:
			if len(value) > 0 {
				value[p.r.IntN(len(value))] ^= 1 << p.r.IntN(8)
				set(key, value)
				break
			}
			fallthrough
		default:
			set(string(metastore.KeyOfTombstone(raftlog.Incarnation{200, byte(p.r.IntN(256))})), metastore.TombstoneOf("never"))
		}
	}))
}

func (p *damageProgram) check() {
	t := p.t
	pass(30 * time.Second)
	p.leader()
	var well []raftlog.NodeID
	for id := range p.disks {
		if id != p.bad {
			well = append(well, id)
			require.NoError(t, p.node(id).meta.Failed(), "seed %d: %v is not damaged", p.seed, id)
		}
	}
	for id := range well {
		p.node(well[id]).awaitCaughtUp()
	}
	p.requireSame(well...)
	if bad := p.node(p.bad); bad != nil {
		for end := time.Now().Add(time.Minute); bad.meta.Failed() == nil && time.Now().Before(end); {
			pass(time.Second)
		}
		if bad.meta.Failed() == nil { // what was damaged was written anew
			p.requireSame(append(well, p.bad)...)
		} else {
			// It stops over what it cannot apply, too.
			t.Logf("seed %d: %v", p.seed, bad.meta.Failed())
		}
	}
	for _, id := range well {
		for name, topic := range p.made {
			got, err := p.node(id).meta.Topic(name)
			require.NoError(t, err, "seed %d: %v has no %s", p.seed, id, name)
			// Where its partitions are a damaged leader may have answered from its own state.
			require.Equal(t, topic.Incarnation, got.Incarnation, "seed %d: %v", p.seed, id)
		}
	}
}
