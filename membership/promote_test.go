package membership

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Property: R21, J9, J10, J11, J17 (red: led-for not asked; a failed call forgotten; an observer promoted; the old life not silent; the last change not awaited; no live majority after it)
func TestPromote(t *testing.T) {
	edit := func(n, voters int, change func(f *Facts)) *Facts { return factsOf(n, voters).with(change) }
	// d is a new life of c, which votes, leaves and is silent.
	swap := func(change func(f *Facts)) *Facts {
		return factsOf(4, 3).with(func(f *Facts) {
			c := &f.Members[2]
			c.Silent, c.Liveness.Departure = time.Minute, metastore.Leaves
			f.Members[3].Name, f.Members[3].Liveness.Replaces = "c", 3
		}).with(change)
	}
	one := raftlog.Change{Voters: []raftlog.ReplicaID{104}}
	both := raftlog.Change{Voters: []raftlog.ReplicaID{104}, Remove: []raftlog.ReplicaID{103}}
	for _, c := range []struct {
		name   string
		facts  *Facts
		status Status
		change raftlog.Change
		why    string
	}{
		{"a learner that is well", factsOf(4, 3), StatusPromoted, one, ""},
		{"a voter", edit(4, 4, func(f *Facts) {}), StatusVoter, raftlog.Change{}, ""},
		{"no record", edit(4, 3, func(f *Facts) { f.Members = f.Members[:3] }), StatusDeferred, raftlog.Change{}, "no member record"},
		{"another life", edit(4, 3, func(f *Facts) { f.Members[3].Nonce = raftlog.Nonce{77} }), StatusDeferred, raftlog.Change{}, "no member record"},
		{"dead", edit(4, 3, func(f *Facts) { f.Members[3].Liveness.Dead = true }), StatusDeferred, raftlog.Change{}, "dead"},
		{"draining", edit(4, 3, func(f *Facts) { f.Members[3].Liveness.Departure = metastore.Drains }), StatusDeferred, raftlog.Change{}, "draining"},
		{"an observer", edit(4, 3, func(f *Facts) { f.Members[3].Liveness.Observer = true }), StatusDeferred, raftlog.Change{}, "observer"},
		{"not a learner yet", edit(4, 3, func(f *Facts) { f.Members[3].Seat = SeatNone }), StatusDeferred, raftlog.Change{}, "not a learner"},
		{"a leader of 11.9 s", edit(4, 3, func(f *Facts) { f.LedFor = 11900 * time.Millisecond }), StatusDeferred, raftlog.Change{}, "less than 12s"},
		{"a leader of 12 s", edit(4, 3, func(f *Facts) { f.LedFor = 12 * time.Second }), StatusPromoted, one, ""},
		{"a call failed 11.9 s ago", edit(4, 3, func(f *Facts) { f.Members[3].Unreachable = 11900 * time.Millisecond }), StatusDeferred, raftlog.Change{}, "call to it failed"},
		{"a call failed 12 s ago", edit(4, 3, func(f *Facts) { f.Members[3].Unreachable = 12 * time.Second }), StatusPromoted, one, ""},
		{"not caught up", edit(4, 3, func(f *Facts) { f.Members[3].CaughtUp = false }), StatusDeferred, raftlog.Change{}, "caught up"},
		{"not heard by raft", edit(4, 3, func(f *Facts) { f.Members[3].Idle = 6 * time.Second }), StatusDeferred, raftlog.Change{}, "caught up"},
		{"a fifth voter", edit(4, 3, func(f *Facts) { f.Rules.MaxVoters = 4 }), StatusPromoted, one, ""},
		{"a sixth stands by", edit(4, 3, func(f *Facts) { f.Conf.Voters = append(f.Conf.Voters, 105, 106) }), StatusDeferred, raftlog.Change{}, "stands by"},
		{"while joint", edit(4, 3, func(f *Facts) { f.Conf.VotersOutgoing = f.Conf.Voters }), StatusDeferred, raftlog.Change{}, "joint"},
		{"while leadership moves", edit(4, 3, func(f *Facts) { f.Changing = true }), StatusDeferred, raftlog.Change{}, "under way"},
		{"with one of three voters down", edit(4, 3, func(f *Facts) { dead(&f.Members[2]) }), StatusPromoted, one, ""},
		{"with two of three voters down", edit(4, 3, func(f *Facts) { dead(&f.Members[1]); dead(&f.Members[2]) }), StatusDeferred, raftlog.Change{}, "alive"},

		{"a new life takes the vote", swap(func(f *Facts) {}), StatusPromoted, both, ""},
		{"however many vote", swap(func(f *Facts) { f.Rules.MaxVoters = 3 }), StatusPromoted, both, ""},
		{"the old one speaks", swap(func(f *Facts) { f.Members[2].Silent = time.Second }), StatusDeferred, raftlog.Change{}, "silent"},
		{"the old one is not leaving", swap(func(f *Facts) { f.Members[2].Liveness.Departure = metastore.Drains }), StatusDeferred, raftlog.Change{}, "not leaving"},
		{"the last change is not known to a majority", swap(func(f *Facts) { f.ConfSafe = false }), StatusDeferred, raftlog.Change{}, "durably"},
		{"the last change is not known to all", swap(func(f *Facts) { f.Unsettled = []raftlog.ReplicaID{102, 103} }), StatusDeferred, raftlog.Change{}, "durably"},
		{"only the wiped one does not know it", swap(func(f *Facts) { f.Unsettled = []raftlog.ReplicaID{103} }), StatusPromoted, both, ""},
		{"the old one learnt only", swap(func(f *Facts) {
			f.Members[2].Seat = SeatLearner
			f.Conf.Voters, f.Conf.Learners = f.Conf.Voters[:2], []raftlog.ReplicaID{103, 104}
		}), StatusPromoted, one, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Promote(c.facts, 4, raftlog.Nonce{4})
			require.Equal(t, c.status, got.Status, got.Reason)
			require.Equal(t, c.change, got.Change)
			require.Contains(t, got.Reason, c.why)
			require.Equal(t, c.status == StatusDeferred, got.Reason != "")
		})
	}
}

// Property: J11, J18 (red: at once; the dead one removed; one that does not ask)
func TestAStandbyTakesAVote(t *testing.T) {
	// Five voters of which the third is dead, and two standbys.
	facts := func(change func(f *Facts)) *Facts {
		return factsOf(7, 5).with(func(f *Facts) { dead(&f.Members[2]) }).with(change)
	}
	take := &raftlog.Change{Voters: []raftlog.ReplicaID{106}, Learners: []raftlog.ReplicaID{103}}
	for _, c := range []struct {
		name   string
		change func(f *Facts)
		want   *raftlog.Change
	}{
		{"the dead one is demoted", func(f *Facts) {}, take},
		{"after ten minutes of silence in raft", func(f *Facts) { f.Members[2].Idle = 10*time.Minute - 1 }, nil},
		{"at ten minutes", func(f *Facts) { f.Members[2].Idle = 10 * time.Minute }, take},
		{"not if it is not marked dead", func(f *Facts) { f.Members[2].Liveness.Dead = false }, nil},
		{"the second, if the first is behind", func(f *Facts) { f.Members[5].CaughtUp = false }, &raftlog.Change{Voters: []raftlog.ReplicaID{107}, Learners: []raftlog.ReplicaID{103}}},
		{"an observer does not stand by", func(f *Facts) { f.Members[5].Liveness.Observer, f.Members[6].Liveness.Observer = true, true }, nil},
		{"nor who does not ask for a vote", func(f *Facts) { f.Members[5].Abstains, f.Members[6].Abstains = true, true }, nil},
		{"who drains does not", func(f *Facts) {
			f.Members[5].Liveness.Departure, f.Members[6].Liveness.Departure = metastore.Drains, metastore.Leaves
		}, nil},
		{"nor who is silent", func(f *Facts) { f.Members[5].Silent, f.Members[6].Silent = time.Minute, time.Minute }, nil},
		{"nor who cannot be called", func(f *Facts) { f.Members[5].Unreachable, f.Members[6].Unreachable = 0, 0 }, nil},
		{"nor who has the vote of its old life to take", func(f *Facts) {
			f.Members[5].Liveness.Replaces, f.Members[6].Liveness.Replaces = 2, 2
		}, nil},
		{"not from one whose new life takes it", func(f *Facts) { f.Members[6].Liveness.Replaces = 3 }, nil},
		{"not while joint", func(f *Facts) { f.Conf.VotersOutgoing = f.Conf.Voters }, nil},
		{"not by who does not lead", func(f *Facts) { f.Leads = false }, nil},
		{"not by a leader of 11.9 s", func(f *Facts) { f.LedFor = 11900 * time.Millisecond }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := facts(c.change)
			live := func(conf raftlog.ConfState) (n int) {
				for _, r := range conf.Voters {
					if k := f.byReplica(r); f.alive(k) {
						n++
					}
				}
				return n
			}
			got := Standby(f)
			require.Equal(t, c.want, got)
			if got != nil {
				require.Greater(t, live(f.after(*got)), live(f.Conf), "never fewer live voters than before")
				require.Len(t, f.after(*got).Voters, len(f.Conf.Voters))
				require.Contains(t, f.after(*got).Learners, raftlog.ReplicaID(103))
			}
		})
	}
}
