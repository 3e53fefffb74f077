package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// An id that was a replica's which was destroyed begins no other: not in the same
// round, not later, not in the process that replays the journal, for another group
// neither. Nothing of the refused round is in the journal.
//
// Property: R12 (red: the gate forgot who was destroyed; the replay did not tell the gate; open: what older processes destroyed)
func TestADestroyedReplicaIsNotCreatedAgain(t *testing.T) {
	destroyed := storage.Frame{Kind: storage.FrameDestroyed, Group: 2, Replica: 7}
	again := storage.Frame{Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: &storage.Begin{Dir: "logs/again"}}
	elsewhere := again
	elsewhere.Group = 3
	another := again
	another.Replica = 8
	for name, rounds := range map[string][][]storage.Frame{
		"in one round":    {{destroyed, again}},
		"in the next":     {{destroyed}, {again}},
		"much later":      {{destroyed}, {another}, nil, {again}},
		"another group's": {{destroyed}, {elsewhere}},
		"after a restart": {{destroyed}, {another}, {{Kind: restart}}, {again}},
	} {
		t.Run(name, func(t *testing.T) {
			fs := simfs.New(1)
			s := openTest(t, fs)
			for _, frames := range rounds[:len(rounds)-1] {
				if len(frames) > 0 && frames[0].Kind == restart {
					require.NoError(t, s.Close())
					var err error
					s, err = storage.Open(testConfig(fs))
					require.NoError(t, err)
					continue
				}
				require.NoError(t, s.WriteRound(frames))
			}
			last := rounds[len(rounds)-1]
			err := s.WriteRound(last)
			var refused *storage.DestroyedError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, storage.DestroyedError{Group: last[len(last)-1].Group, Replica: 7}, *refused)
			require.Equal(t, err, s.WriteRound(nil), "as final as a failed write")
			require.NoError(t, s.Close())
			s, err = storage.Open(testConfig(fs))
			require.NoError(t, err)
			if len(rounds) == 1 {
				require.Equal(t, []storage.ReplicaState{stateOf7()}, s.Replicas(), "nothing of the round was written")
			} else {
				for _, st := range s.Replicas() {
					require.NotEqual(t, storage.ReplicaID(7), st.Replica)
				}
			}
			require.NoError(t, s.Close())
		})
	}
}

// restart stands for the end of a process among rounds.
const restart storage.FrameKind = 200

// What is remembered of destroyed replicas is bounded, the newest of them.
//
// Property: I10 (red: none was ever forgotten; on whole nodes: TestChurn of the root)
func TestFewDestroyedReplicasAreRemembered(t *testing.T) {
	const first, many = 1000, 8193
	s := openTest(t, simfs.New(1))
	defer s.Close()
	var frames []storage.Frame
	for r := storage.ReplicaID(first); r < first+many; r++ {
		frames = append(frames,
			storage.Frame{Kind: storage.FrameCreated, Group: 3, Replica: r, Begin: &storage.Begin{Dir: "logs/it"}},
			storage.Frame{Kind: storage.FrameDestroyed, Group: 3, Replica: r})
	}
	require.NoError(t, s.WriteRound(frames))
	created := func(r storage.ReplicaID) []storage.Frame {
		return []storage.Frame{{Kind: storage.FrameCreated, Group: 3, Replica: r, Begin: &storage.Begin{Dir: "logs/it"}}}
	}
	require.NoError(t, s.WriteRound(created(first)), "that is too long ago to be remembered")
	var refused *storage.DestroyedError
	require.ErrorAs(t, s.WriteRound(created(first+1)), &refused)
}
