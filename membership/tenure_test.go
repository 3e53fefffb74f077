package membership

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

func sampleOf(f *Facts) sample {
	s := sample{
		rules: f.Rules, self: 1, newest: 19, tick: 50 * time.Millisecond, version: 2, applied: 19,
		status: raftlog.Status{Role: raftlog.RoleLeaderActive, Term: 7, Conf: f.Conf, ConfSafe: true},
		load:   func(raftlog.NodeID) uint64 { return 4 },
	}
	for _, k := range f.Members {
		s.members = append(s.members, k.Member)
		s.status.Progress = append(s.status.Progress, raftlog.Progress{Replica: k.Replica, Learner: k.Seat == SeatLearner})
	}
	return s
}

// Property: J10, H2 (red: silence of before the leadership counted; a success did not end a failure)
func TestWhatALeaderRemembers(t *testing.T) {
	s := sampleOf(factsOf(4, 3))
	tn := newTenure(7)
	require.False(t, tn.facts(s, time.Hour).Leads, "no barrier passed")
	tn.begin(time.Hour)
	at := func(d time.Duration) *Facts { tn.tick = time.Hour + d; return tn.facts(s, time.Hour+d) }

	f := at(29 * time.Second)
	require.True(t, f.Leads)
	require.Equal(t, 29*time.Second, f.LedFor)
	require.Equal(t, 29*time.Second, f.Members[1].Silent, "whatever the stamps say")
	require.Zero(t, f.Members[0].Silent, "itself")
	require.Equal(t, metastore.CommandType(19), f.Members[0].Announced)
	require.Zero(t, f.Members[1].Announced)
	require.Empty(t, MarkDead(f).Marks)

	tn.hear(2, 18, time.Hour+20*time.Second)
	f = at(40 * time.Second)
	require.Equal(t, 20*time.Second, f.Members[1].Silent)
	require.Equal(t, metastore.CommandType(18), f.Members[1].Announced)
	require.True(t, f.Members[1].Pending)
	tn.flushed([]raftlog.NodeID{2}, time.Hour+19*time.Second)
	require.True(t, at(40 * time.Second).Members[1].Pending, "it was heard after that")
	tn.flushed([]raftlog.NodeID{2}, time.Hour+20*time.Second)
	require.False(t, at(40 * time.Second).Members[1].Pending)

	tn.called(4, true, time.Hour+30*time.Second)
	require.Equal(t, 10*time.Second, at(40 * time.Second).Members[3].Unreachable)
	tn.called(4, false, time.Hour+41*time.Second)
	require.Negative(t, at(41 * time.Second).Members[3].Unreachable, "one succeeded since")

	require.True(t, f.Members[3].Abstains)
	tn.wants(4, time.Hour+30*time.Second)
	require.False(t, at(42 * time.Second).Members[3].Abstains)
	require.True(t, at(43 * time.Second).Members[3].Abstains, "it asks no more")

	s.status.Term = 8
	require.False(t, at(50*time.Second).Leads, "another leadership, another memory")
}

func TestFactsOfRaft(t *testing.T) {
	s := sampleOf(factsOf(4, 3))
	s.status.Progress = []raftlog.Progress{{Replica: 101}, {Replica: 102, SinceContact: 20, SinceCaughtUp: 100}, {Replica: 103, SinceContact: -1, SinceCaughtUp: -1}, {Replica: 104, SinceCaughtUp: 101}}
	s.members[3].Liveness.Departure = metastore.Drains
	tn := newTenure(7)
	tn.begin(0)
	f := tn.facts(s, time.Minute)
	require.Equal(t, time.Second, f.Members[1].Idle)
	require.True(t, f.Members[1].CaughtUp, "5 s ago")
	require.Equal(t, time.Minute, f.Members[2].Idle, "never: since it leads")
	require.False(t, f.Members[2].CaughtUp)
	require.False(t, f.Members[3].CaughtUp, "longer ago")
	require.Zero(t, f.Members[2].Assigned)
	require.Equal(t, uint64(4), f.Members[3].Assigned, "of who leaves")
	s.status.Transferee = 102
	require.True(t, tn.facts(s, time.Minute).Changing)
}

// Property: H2, H3 (red: a pause counted as silence)
func TestAPauseIsNobodysSilence(t *testing.T) {
	s := sampleOf(factsOf(3, 3))
	tn := newTenure(7)
	tn.begin(0)
	for now := time.Duration(0); now <= time.Minute; now += time.Second {
		tn.hear(2, 19, now)
		tn.hear(3, 19, now)
		tn.pulse(now)
	}
	require.Equal(t, time.Minute, tn.facts(s, time.Minute).LedFor)
	// The process was stopped for ten minutes.
	now := 11 * time.Minute
	tn.pulse(now)
	f := tn.facts(s, now)
	require.Zero(t, f.LedFor)
	require.Zero(t, f.Members[1].Silent)
	require.Empty(t, MarkDead(f).Marks)
	require.Empty(t, MarkDead(f).Spared)
}

// Property: J17 (red: the last ask counted, not the first; proposed again and again)
func TestAWishIsBurntOnce(t *testing.T) {
	f := factsOf(3, 3)
	c := &f.Members[2]
	wish := JoinRequest{Name: "c", Nonce: raftlog.Nonce{98}, Addr: "x:1", Newest: 19}
	tn := newTenure(7)
	tn.begin(0)
	tn.hear(3, 19, time.Second)
	require.Equal(t, Asked{Seen: 1000}, tn.ask(wish, c, 2*time.Second), "what was heard before does not count")
	require.Empty(t, tn.burnt(f))
	tn.hear(3, 19, 3*time.Second)
	require.Equal(t, Asked{Seen: 1000, Heard: true}, tn.ask(wish, c, 4*time.Second))
	require.Empty(t, tn.burnt(f), "the stamp of that is not applied")
	c.Liveness.Stamp = 1001
	require.Equal(t, Asked{Seen: 1000, Heard: true}, tn.ask(wish, c, 5*time.Second), "the first ask counts")
	want := metastore.Admission{Name: "c", Nonce: raftlog.Nonce{98}, Addr: "x:1", Newest: 19, Replaces: 3, Seen: 1000}
	require.Equal(t, []metastore.Admission{want}, tn.burnt(f))
	require.Empty(t, tn.burnt(f))

	for i := range 2 * maxWishes { // strangers cannot make it remember more and more
		tn.ask(JoinRequest{Nonce: raftlog.Nonce{1, byte(i), byte(i >> 8)}}, c, time.Duration(i)*time.Second)
	}
	require.Len(t, tn.asked, maxWishes)
}
