package raftlog_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

// replaced is a cluster of one group whose state machines keep states of their
// own, and what one of them missed.
type replaced struct {
	*cluster
	registers []*register
	begin     raftlog.Begin // of a snapshot
	term      raftlog.Term
	state     []string // what it holds
	away      *node
}

// newReplaced has a node that follows miss entries.
func newReplaced(t *testing.T, seed uint64) *replaced {
	r := &replaced{cluster: newCluster(t, seed, 3, 1)}
	groups := r.groups
	r.groups = nil // opened here instead
	r.startAll()
	r.groups = groups
	for _, n := range r.nodes {
		r.registers = append(r.registers, &register{t: t})
		require.NoError(t, r.open(n, &raftlog.AppliedState{}))
	}
	for i := range 10 {
		r.must(1, fmt.Sprint("before ", i))
	}
	r.agree()
	r.away = r.nodes[0]
	if r.leader(1) == r.away {
		r.away = r.nodes[1]
	}
	r.net.isolate(r.away.id, true)
	for i := range 20 {
		r.must(1, fmt.Sprint("missed ", i))
	}
	leader := r.leader(1)
	st, err := leader.groups[1].State(t.Context())
	require.NoError(t, err)
	r.begin = raftlog.Begin{Reset: 7, Index: st.Log.LastIndex, Term: st.Log.LastTerm, NextOffset: st.Log.NextOffset, Conf: st.Conf}
	r.term = st.Hard.Term
	r.state = slices.Clone(r.registers[leader.id-1].upTo(st.Log.LastIndex))
	return r
}

// open opens the replica of a node over what its register holds.
func (r *replaced) open(n *node, at *raftlog.AppliedState) error {
	o := r.options(n, 1, &ledger{})
	m := r.registers[n.id-1]
	m.last = max(at.Index, 1)
	o.Machine, o.Recover, o.State = m, nil, at
	if at.Index == 0 {
		o.State.Conf = o.Create.Conf
	}
	g, err := n.host.OpenGroup(o)
	if err == nil {
		n.setGroup(1, g)
	}
	return err
}

// openReset opens the replica that was away over the snapshot's state.
func (r *replaced) openReset() error {
	m := r.registers[r.away.id-1]
	m.present = append([]string(nil), r.state...)
	return r.open(r.away, &raftlog.AppliedState{Index: r.begin.Index, Conf: r.begin.Conf})
}

// openEmpty opens the replica that was away over a state machine that has nothing.
func (r *replaced) openEmpty() error {
	o := r.options(r.away, 1, &ledger{})
	o.Machine, o.Recover, o.State = &register{t: r.t.(*testing.T)}, nil, &raftlog.AppliedState{}
	_, err := r.away.host.OpenGroup(o)
	return err
}

// agree waits until all registers are equal.
func (r *replaced) agree() {
	r.t.Helper()
	p := r.leader(1).propose(1, "agreed")
	for i := 0; p.Err != nil; i++ { // a replica in a later term unseats the leader
		require.Less(r.t, i, 40, "%v", p.Err)
		time.Sleep(tick)
		p = r.leader(1).propose(1, "agreed")
	}
	last := p.Index
	for _, n := range r.nodes {
		for i := 0; n.groups[1].Status().Applied < last; i++ {
			require.Less(r.t, i, 400, "%v does not get there: %+v", n.id, n.groups[1].Status())
			time.Sleep(tick)
		}
		require.Equal(r.t, r.registers[0].upTo(last), r.registers[n.id-1].upTo(last), "%v", n.id)
	}
}

func (r *replaced) replica() storage.ReplicaState {
	all := r.away.host.Replicas()
	require.Len(r.t, all, 1)
	return all[0]
}

// A replica's log begins anew at a snapshot, and goes on from there.
//
// Property: R24, R12 (red: the term stayed that of the replica, below that of who gave the snapshot; a reset dropped an entry that the log held)
func TestALogBeginsAnewAtASnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReplaced(t, 1)
		defer r.stopAll()
		ctx := context.Background()
		id := replicaOf(1, r.away.id)
		before := r.replica()
		refused := func(change func(*raftlog.Begin), why string) {
			t.Helper()
			b := r.begin
			change(&b)
			err := r.away.host.ResetGroup(ctx, id, b, r.term)
			require.Equal(t, raftlog.OutcomeRefused, raftlog.OutcomeOf(err), "%s: %v", why, err)
			require.ErrorIs(t, r.openEmpty(), raftlog.ErrReplicaOpen, "%s: it is still open", why)
			require.Equal(t, before.Log, r.replica().Log, why)
		}
		refused(func(b *raftlog.Begin) {
			b.Conf.Voters = slices.DeleteFunc(slices.Clone(b.Conf.Voters), func(r raftlog.ReplicaID) bool { return r == id })
		}, "not listed")
		refused(func(b *raftlog.Begin) { b.Reset = 0 }, "no id")
		refused(func(b *raftlog.Begin) { b.Dir = "groups/other" }, "what the journal would refuse ends no node")
		refused(func(b *raftlog.Begin) { b.Index = 3 }, "committed here")
		refused(func(b *raftlog.Begin) { b.Index, b.Term = before.Log.LastIndex, before.Log.LastTerm }, "held")
		require.ErrorIs(t, r.away.host.ResetGroup(ctx, 999, r.begin, r.term), raftlog.ErrUnknownReplica)

		require.NoError(t, r.away.host.ResetGroup(ctx, id, r.begin, r.term+5))
		st := r.replica()
		require.Equal(t, uint64(7), st.Log.Reset)
		require.Equal(t, r.begin.Index, st.Log.StartIndex)
		require.Equal(t, r.begin.Conf, st.Conf)
		require.Equal(t, storage.HardState{Term: r.term + 5, Commit: r.begin.Index}, st.Hard, "it vouches in no earlier term")
		require.ErrorAs(t, r.openEmpty(), new(*raftlog.StateError), "a state that is gone is not one at its start")
		require.NoError(t, r.openReset())
		r.net.isolate(r.away.id, false)
		r.agree()
		for _, how := range []simfs.Survival{simfs.Strict, simfs.Random} {
			r.crash(r.away, how)
			r.startBare(r.away)
			require.Equal(t, uint64(7), r.replica().Log.Reset)
			require.NoError(t, r.openReset())
			r.agree()
		}
		files, err := r.away.disk.List(fmt.Sprintf("/node/%v/groups/1", r.away.id))
		require.NoError(t, err)
		require.Equal(t, []string{fmt.Sprintf("%020d.reset", 7)}, files, "the old log is gone")
	})
}

// startBare starts a node without its replicas.
func (r *replaced) startBare(n *node) {
	groups := r.groups
	r.groups = nil
	require.NoError(r.t, r.start(n))
	r.groups = groups
}

// Property: R22, R24 (red: the replica stood at the snapshot without a frame)
//
// Whenever power fails during a reset, the replica comes back with the old log or
// the new one.
func TestACrashDuringAReset(t *testing.T) {
	seen := map[bool]bool{}
	for k, done := int64(1), false; !done; k++ {
		bubble(t, func(t *testing.T) {
			r := newReplaced(t, uint64(k))
			defer r.stopAll()
			r.away.disk.SetHook(simfs.CrashAt(r.away.disk.Ops() + k))
			err := r.away.host.ResetGroup(context.Background(), replicaOf(1, r.away.id), r.begin, r.term)
			done = err == nil
			r.crash(r.away, simfs.Random)
			r.startBare(r.away)
			reset := r.replica().Log.Reset == 7
			seen[reset] = true
			require.True(t, reset || !done, "it was durable")
			if reset {
				require.NoError(t, r.openReset())
			} else {
				m := r.registers[r.away.id-1]
				m.present = nil
				require.NoError(t, r.open(r.away, &raftlog.AppliedState{}))
			}
			r.net.isolate(r.away.id, false)
			r.agree()
		})
	}
	require.Len(t, seen, 2)
}

// Whoever comes while a reset is on its way to the disk waits for it.
func TestAResetAndOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newReplaced(t, 3)
		defer r.stopAll()
		ctx := context.Background()
		id := replicaOf(1, r.away.id)
		require.NoError(t, r.away.host.CloseGroup(ctx, id))
		release := stallSyncs(r.away)
		defer release()
		impatient, cancel := withTimeout(time.Second)
		defer cancel()
		err := r.away.host.ResetGroup(impatient, id, r.begin, r.term)
		require.Equal(t, raftlog.OutcomeUnknown, raftlog.OutcomeOf(err))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, r.openReset(), raftlog.ErrReplicaOpen)
		aside := make(chan error, 1)
		go func() { aside <- r.away.host.SetAside(ctx, id) }()
		time.Sleep(tick)
		release()
		require.NoError(t, <-aside)
		require.Equal(t, uint64(7), r.replica().Log.Reset, "first the one, then the other")
		require.ErrorIs(t, r.openReset(), raftlog.ErrSetAside)
		require.ErrorIs(t, r.away.host.ResetGroup(ctx, id, r.begin, r.term), raftlog.ErrRefused)
		require.NoError(t, r.away.host.Failed())
	})
}

// A replica that begins with nothing answers whoever speaks to it.
func TestPlacesAreLearnt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, 1, 3, 1)
		defer c.stopAll()
		c.startAll()
		c.leader(1)
		n := c.nodes[2]
		require.NoError(t, n.host.CloseGroup(context.Background(), replicaOf(1, 3)))
		o := c.options(n, 1, &ledger{})
		l := o.Machine.(*ledger)
		o.Peers = nil
		g, err := n.host.OpenGroup(o)
		require.NoError(t, err)
		n.ledgers[1] = l
		n.setGroup(1, g)
		c.must(1, "x")
		require.Equal(t, []string{"x"}, c.settle(1))
		require.NotEmpty(t, n.host.Stats().MessagesSent)
	})
}
