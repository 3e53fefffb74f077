package membership

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// factsOf are the facts of a leader of an hour: members 1 (itself) to n with
// names a, b, ..., nonces and replica ids 100+i; the first voters vote, the others
// learn. All are well.
func factsOf(n, voters int) *Facts {
	f := &Facts{
		Rules: Rules{}.WithDefaults(), Leads: true, LedFor: time.Hour, ConfSafe: true,
		Version: 2, NewestApplied: 21,
	}
	for i := 1; i <= n; i++ {
		k := Known{
			Member: metastore.Member{
				Node: raftlog.NodeID(i), Replica: replicaOf(i), Name: string(rune('a' + i - 1)),
				Nonce: raftlog.Nonce{byte(i)}, Addr: fmt.Sprintf("%c:1", 'a'+i-1),
				Liveness: metastore.Liveness{Stamp: 1000, Newest: 21},
			},
			Self: i == 1, Silent: time.Second, Announced: 21, CaughtUp: true, Unreachable: -1, Seat: SeatLearner,
		}
		if i <= voters {
			k.Seat = SeatVoter
			f.Conf.Voters = append(f.Conf.Voters, k.Replica)
		} else {
			f.Conf.Learners = append(f.Conf.Learners, k.Replica)
		}
		f.Members = append(f.Members, k)
	}
	return f
}

func replicaOf(i int) raftlog.ReplicaID { return raftlog.ReplicaID(100 + i) }

// with changes the facts and returns them.
func (f *Facts) with(change func(f *Facts)) *Facts {
	change(f)
	return f
}

func dead(k *Known) {
	k.Liveness.Dead, k.Silent, k.Idle = true, 20*time.Minute, 20*time.Minute
}

func TestRules(t *testing.T) {
	require.NoError(t, Rules{}.WithDefaults().Validate())
	require.Equal(t, Rules{
		DeadAfter: 30 * time.Second, ReplaceAfter: 30 * time.Second, PromoteAfter: 12 * time.Second, CallTimeout: 10 * time.Second,
		FailureMemory: 12 * time.Second, CaughtUpWithin: 5 * time.Second, MaxVoters: 5, MinVoters: 3, VotePasses: 10 * time.Minute,
	}, Rules{}.WithDefaults())
	for field, r := range map[string]Rules{
		"Rules.PromoteAfter": {PromoteAfter: 10 * time.Second}, // not above CallTimeout
		"Rules.DeadAfter":    {DeadAfter: time.Millisecond},
		"Rules.MaxVoters":    {MaxVoters: 10},
		"Rules.CallTimeout":  {CallTimeout: time.Hour},
	} {
		var e *ConfigError
		require.ErrorAs(t, r.WithDefaults().Validate(), &e)
		require.Equal(t, field, e.Field)
		require.ErrorIs(t, e, raftlog.ErrRefused)
		require.NotEmpty(t, e.Error())
	}
}

func TestSeats(t *testing.T) {
	joint := raftlog.ConfState{
		Voters: []raftlog.ReplicaID{1, 4}, VotersOutgoing: []raftlog.ReplicaID{1, 2},
		Learners: []raftlog.ReplicaID{3}, LearnersNext: []raftlog.ReplicaID{2},
	}
	for r, seat := range map[raftlog.ReplicaID]Seat{1: SeatVoter, 2: SeatVoter, 3: SeatLearner, 4: SeatVoter, 5: SeatNone} {
		require.Equal(t, seat, SeatOf(joint, r), "%v", r)
	}

	f := factsOf(5, 3)
	require.Nil(t, Seats(f), "all have one")
	f.Conf.Learners = nil
	f.Members[3].Seat, f.Members[4].Seat = SeatNone, SeatNone
	f.Members[4].Liveness.Departure = metastore.Leaves
	require.Equal(t, &raftlog.Change{Learners: []raftlog.ReplicaID{104}}, Seats(f), "who leaves never gets its seat back")
	f.Conf.VotersOutgoing = f.Conf.Voters
	require.Nil(t, Seats(f), "not while joint")

	f = factsOf(3, 3)
	f.Conf.Learners = []raftlog.ReplicaID{177}
	require.Equal(t, &raftlog.Change{Remove: []raftlog.ReplicaID{177}}, Strays(f))
	f.Conf.Learners, f.Conf.Voters = nil, append(f.Conf.Voters, 177)
	require.Nil(t, Strays(f), "a voter is never taken out like this")
}
