package raftlog

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

func entries(term Term, from, to Index) []storage.Entry {
	var out []storage.Entry
	for i := from; i <= to; i++ {
		out = append(out, storage.Entry{Index: i, Term: term, Data: fmt.Appendf(nil, "entry %d", i)})
	}
	return out
}

// recovered is a replica whose log holds entries up to logged, and whose
// journal holds more up to last.
func recovered(logged, last Index, hard storage.HardState, voters ...ReplicaID) (storage.ReplicaState, *memoryLog) {
	st := created(7, voters[0], voters...)
	st.Hard = hard
	st.Log.LastIndex = logged
	if logged > 1 {
		st.Log.LastTerm = 2
	}
	st.Tail = entries(2, logged+1, last)
	return st, &memoryLog{entries: entries(2, 2, logged)}
}

// Property: R22, R8, R9 (red: NewCore without the raised commit; without the raised term)
func TestOpensFromWhatACrashLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		logged, last Index
		hard         storage.HardState
		machine      Index // 0: the log is the state
		commit       Index
		term         Term
	}{
		"created":                          {1, 1, storage.HardState{Term: 1, Commit: 1}, 0, 1, 1},
		"created, no hard state":           {1, 1, storage.HardState{}, 0, 1, 1},
		"applied ahead of commit":          {6, 9, storage.HardState{Term: 2, Commit: 4}, 0, 6, 2},
		"machine ahead of log and commit":  {3, 9, storage.HardState{Term: 2, Commit: 4}, 7, 7, 2},
		"machine behind the log":           {6, 9, storage.HardState{Term: 2, Commit: 7}, 2, 7, 2},
		"commit at the end":                {6, 9, storage.HardState{Term: 3, Vote: 2, Commit: 9}, 0, 9, 3},
		"term behind the last entry's":     {6, 9, storage.HardState{Term: 1, Vote: 3, Commit: 6}, 0, 6, 2},
		"everything applied, nothing else": {9, 9, storage.HardState{Term: 2, Vote: 1, Commit: 9}, 0, 9, 2},
	} {
		t.Run(name, func(t *testing.T) {
			st, log := recovered(c.logged, c.last, c.hard, 1, 2, 3)
			b := emptyBench(t, 1)
			var machine *AppliedState
			if c.machine != 0 {
				machine = &AppliedState{Index: c.machine, Conf: st.Conf}
			}
			r := b.openWith(st, log, CoreOptions{}, machine)
			s := r.core.Status()
			require.Equal(t, c.commit, s.Commit)
			require.Equal(t, c.term, s.Term)
			require.Equal(t, c.last, s.Last)
			require.False(t, s.Readable)
			b.settle()
			require.NoError(t, r.core.Failed())
			first := c.logged + 1
			if c.machine != 0 {
				first = min(first, c.machine+1)
			}
			for i, e := range r.applied {
				require.Equal(t, first+Index(i), e.Index)
				require.Equal(t, fmt.Sprintf("entry %d", e.Index), string(e.Data))
			}
			require.Len(t, r.applied, int(c.commit-first+1))
			require.Equal(t, c.commit, r.core.Status().Applied)
		})
	}
}

func TestRefusesAStateWithSomethingMissing(t *testing.T) {
	for name, spoil := range map[string]func(*CoreConfig){
		"commit beyond the log":    func(c *CoreConfig) { c.State.Hard.Commit = 10 },
		"machine beyond the log":   func(c *CoreConfig) { c.Machine = &AppliedState{Index: 10} },
		"machine before the log":   func(c *CoreConfig) { c.Machine = &AppliedState{Index: 0} },
		"hole behind the log":      func(c *CoreConfig) { c.State.Tail = c.State.Tail[1:] },
		"hole in the tail":         func(c *CoreConfig) { c.State.Tail = append(c.State.Tail[:1:1], c.State.Tail[2:]...) },
		"configuration impossible": func(c *CoreConfig) { c.State.Conf.Learners = c.State.Conf.Voters },
	} {
		t.Run(name, func(t *testing.T) {
			st, log := recovered(6, 9, storage.HardState{Term: 2, Commit: 7}, 1, 2, 3)
			cfg := CoreConfig{State: st, Older: log}
			spoil(&cfg)
			_, err := NewCore(cfg)
			require.Error(t, err)
			var state *StateError
			var failed *GroupFailedError
			require.True(t, errors.As(err, &state) || errors.As(err, &failed), "%v", err)
		})
	}
	_, err := NewCore(CoreConfig{State: created(7, 1, 1), Options: CoreOptions{ElectionTicks: 2, HeartbeatTicks: 2}})
	var config *ConfigError
	require.ErrorAs(t, err, &config)
	require.Equal(t, "ElectionTicks", config.Field)
}

// Property: R32 (red: a replica that nobody listed opened with the group's configuration)
func TestOnlyListedReplicasCampaign(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	b.elect(1)
	joiner := storage.ReplicaState{Group: 7, Replica: 4, Status: storage.ReplicaLive}
	r := b.open(joiner, &memoryLog{}, CoreOptions{})
	b.ids = append(b.ids, 4)
	for range 200 {
		r.core.Tick()
		b.settle()
	}
	require.Equal(t, []Role{RoleObserver}, r.roles)
	require.Zero(t, r.core.Status().Term)
	require.Empty(t, r.frames)
	require.False(t, r.core.Status().Readable)
}

// Property: R23, R31 (red: responses delivered before the durable state moved; State told of the promised instead of the durable; the journal's own part: TestCrashesAtRandom in storage)
func TestStateIsWhatIsDurable(t *testing.T) {
	b := newBench(t, CoreOptions{}, 1, 2, 3)
	leader := b.elect(1)
	leader.core.Propose(1, []byte("written"))
	b.settle()
	before := leader.core.State()
	require.Equal(t, Index(3), before.Log.LastIndex)
	require.Empty(t, before.Tail)
	require.Equal(t, storage.HardState{Term: 2, Vote: 1, Commit: 3}, before.Hard)

	leader.stalled = true
	b.drop = func(m anyMessage) bool { return true }
	leader.core.Propose(2, []byte("not yet"))
	b.settle()
	require.Equal(t, before, leader.core.State())
	require.Equal(t, Index(4), leader.core.Status().Last)
	require.Equal(t, Index(3), leader.core.Status().Durable)
	leader.core.Appended(leader.held)
	after := leader.core.State()
	require.Len(t, after.Tail, 1)
	require.Equal(t, storage.Entry{Index: 4, Term: 2, Data: []byte("not yet")}, after.Tail[0])
	require.Equal(t, before.Hard, after.Hard)
}
