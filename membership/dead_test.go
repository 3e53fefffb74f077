package membership

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Property: H2, H4, H5 (red: a new leader judged at once; the mark without the stamp; no breaker)
func TestMarkDead(t *testing.T) {
	silent := func(nodes ...int) func(f *Facts) {
		return func(f *Facts) {
			for _, n := range nodes {
				f.Members[n-1].Silent = 30 * time.Second
				f.Members[n-1].Liveness.Stamp = metastore.Stamp(1000 + n)
			}
		}
	}
	nodes := func(ns ...raftlog.NodeID) []raftlog.NodeID { return ns }
	for _, c := range []struct {
		name   string
		facts  *Facts
		marks  []raftlog.NodeID
		spared []raftlog.NodeID
	}{
		{"all speak", factsOf(3, 3), nil, nil},
		{"one is silent", factsOf(3, 3).with(silent(3)), nodes(3), nil},
		{"for 29.9 s", factsOf(3, 3).with(func(f *Facts) { f.Members[2].Silent = 29900 * time.Millisecond }), nil, nil},
		{"under a leader of 29.9 s", factsOf(3, 3).with(silent(3)).with(func(f *Facts) { f.LedFor = 29900 * time.Millisecond }), nil, nil},
		{"under one that does not lead", factsOf(3, 3).with(silent(3)).with(func(f *Facts) { f.Leads = false }), nil, nil},
		{"one that is marked already", factsOf(3, 3).with(silent(3)).with(func(f *Facts) { f.Members[2].Liveness.Dead = true }), nil, nil},
		{"one whose heartbeat is on its way", factsOf(3, 3).with(silent(3)).with(func(f *Facts) { f.Members[2].Pending = true }), nil, nil},
		{"the leader is never silent", factsOf(3, 3).with(silent(1)), nil, nil},
		{"two of five", factsOf(5, 5).with(silent(4, 5)), nodes(4, 5), nil},
		{"three of five: nobody", factsOf(5, 5).with(silent(3, 4, 5)), nil, nodes(3, 4, 5)},
		{"two of three: nobody", factsOf(3, 3).with(silent(2, 3)), nil, nodes(2, 3)},
		{"a third after two were marked", factsOf(5, 5).with(silent(3)).with(func(f *Facts) { dead(&f.Members[3]); dead(&f.Members[4]) }), nil, nodes(3)},
		{"learners all the same", factsOf(5, 3).with(silent(2, 3, 4, 5)), nodes(4, 5), nodes(2, 3)},
		{"of both halves while joint", factsOf(5, 5).with(silent(4, 5)).with(func(f *Facts) {
			f.Conf.VotersOutgoing = []raftlog.ReplicaID{101, 104, 105}
		}), nil, nodes(4, 5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := MarkDead(c.facts)
			var marks []raftlog.NodeID
			for _, m := range j.Marks {
				marks = append(marks, m.Node)
				require.Equal(t, metastore.Stamp(1000+m.Node), m.Judged, "the heartbeat that was judged")
			}
			require.Equal(t, c.marks, marks)
			require.Equal(t, c.spared, j.Spared)
			if len(j.Spared) > 0 {
				require.Contains(t, j.String(), "no majority")
			}
		})
	}
}

// Property: C9 (red: recorded announcements counted; a new life that asks counted however lately the old one was heard)
func TestNextVersion(t *testing.T) {
	newest := metastore.NewestOf(metastore.NewestVersion)
	announced := func(f *Facts) {
		for i := range f.Members {
			f.Members[i].Announced = newest
		}
	}
	old := func(change func(f *Facts)) *Facts {
		return factsOf(3, 3).with(func(f *Facts) { f.Version, f.NewestApplied = 1, 9 }).with(announced).with(change)
	}
	away := func(k *Known) { k.Announced, k.Silent, k.Idle = 0, 10*time.Minute, 10*time.Minute }
	lost := func(k *Known) { k.Announced, k.Silent, k.Idle, k.Wanted = 0, 30*time.Second, 30*time.Second, newest }
	for _, c := range []struct {
		name string
		f    *Facts
		want uint64
	}{
		{"all announced", old(func(f *Facts) {}), metastore.NewestVersion},
		{"one applies what came before", old(func(f *Facts) { f.Members[1].Announced = metastore.NewestOf(metastore.NewestVersion - 1) }), metastore.NewestVersion - 1},
		{"one did not", old(func(f *Facts) { f.Members[1].Announced = 0 }), 1},
		{"what is recorded does not count", old(func(f *Facts) { f.Members[1].Announced, f.Members[1].Liveness.Newest = 0, 21 }), 1},
		{"one applies less", old(func(f *Facts) { f.Members[1].Announced = 18 }), 1},
		{"one is not heard for 9 min 59 s", old(func(f *Facts) { f.Members[1].Announced, f.Members[1].Silent = 0, 10*time.Minute-1 }), 1},
		{"for ten minutes", old(func(f *Facts) { away(&f.Members[1]) }), metastore.NewestVersion},
		{"for ten minutes, but raft hears it", old(func(f *Facts) { away(&f.Members[1]); f.Members[1].Idle = time.Second }), 1},
		{"its new life asks, and would get its place", old(func(f *Facts) { lost(&f.Members[1]) }), metastore.NewestVersion},
		{"the old life announced less before it fell silent", old(func(f *Facts) { lost(&f.Members[1]); f.Members[1].Announced = 9 }), metastore.NewestVersion},
		{"and has an old build itself", old(func(f *Facts) { lost(&f.Members[1]); f.Members[1].Wanted = 9 }), 1},
		{"under a leader of 29 s", old(func(f *Facts) { lost(&f.Members[1]); f.LedFor = 29 * time.Second }), 1},
		{"and raft hears the old one", old(func(f *Facts) { lost(&f.Members[1]); f.Members[1].Idle = time.Second }), 1},
		{"but two of three", old(func(f *Facts) {
			for _, i := range []int{1, 2} {
				away(&f.Members[i])
			}
		}), 1},
		{"a learner holds it back, too", factsOf(4, 3).with(announced).with(func(f *Facts) { f.Version, f.Members[3].Announced = 1, 9 }), 1},
		{"by who does not lead", old(func(f *Facts) { f.Leads = false }), 1},
		{"it never falls", factsOf(3, 3).with(announced).with(func(f *Facts) { f.Members[1].Announced = 9 }), 2},
	} {
		require.Equal(t, c.want, NextVersion(c.f), c.name)
		if c.want < metastore.NewestVersion && c.f.Leads && c.name != "but two of three" {
			require.Len(t, Behind(c.f), 1, c.name)
		} else {
			require.Empty(t, Behind(c.f), c.name)
		}
	}
}

// Property: H8, H9 (red: a contact of another term counted; removed asked last)
func TestReady(t *testing.T) {
	const contact = 5 * time.Second
	good := ReadyFacts{Leader: true, SinceContact: time.Second, CaughtUp: true}
	for _, c := range []struct {
		name   string
		change func(f *ReadyFacts)
		want   Unready
	}{
		{"a follower that hears its leader", func(f *ReadyFacts) {}, UnreadyNot},
		{"for the last time 5 s ago", func(f *ReadyFacts) { f.SinceContact = contact }, UnreadyNot},
		{"longer ago", func(f *ReadyFacts) { f.SinceContact = contact + 1 }, UnreadySilent},
		{"not in this term", func(f *ReadyFacts) { f.SinceContact = -1 }, UnreadySilent},
		{"the leader hears nobody above it", func(f *ReadyFacts) { f.Leads, f.SinceContact = true, -1 }, UnreadyNot},
		{"no leader", func(f *ReadyFacts) { f.Leader = false }, UnreadyNoLeader},
		{"no leader, though heard just now", func(f *ReadyFacts) { f.Leader, f.SinceContact = false, 0 }, UnreadyNoLeader},
		{"not caught up", func(f *ReadyFacts) { f.CaughtUp = false }, UnreadyCatchingUp},
		{"a leader that has not caught up", func(f *ReadyFacts) { f.Leads, f.CaughtUp = true, false }, UnreadyCatchingUp},
		{"removed, whatever else", func(f *ReadyFacts) { f.Removed, f.Leads = true, true }, UnreadyRemoved},
	} {
		f := good
		c.change(&f)
		require.Equal(t, c.want, Ready(f, contact), c.name)
		require.NotEmpty(t, c.want.String())
	}
	f := ReadyFacts{CaughtUp: true}
	for f.SinceContact = 0; f.SinceContact < time.Hour; f.SinceContact += time.Second {
		require.NotEqual(t, UnreadyNot, Ready(f, contact), "time alone never makes it ready")
	}
}
