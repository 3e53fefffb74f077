package raftlog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Property: R29 (red: follower -> leader-starting added, leader-active -> follower removed; what replicas do: TestSeeds in internal/sim)
func TestTransitionTable(t *testing.T) {
	legal := map[Role]string{
		RoleUnattached:     ".PCF..ROX",
		RoleProspective:    "U.CF..ROX",
		RoleCandidate:      "UP.FS.ROX",
		RoleFollower:       "UPC...ROX",
		RoleLeaderStarting: "U..F.AROX",
		RoleLeaderActive:   "U..F..ROX",
		RoleResigned:       ".........",
		RoleObserver:       "UPCF..R.X",
		RoleRemoved:        "......R..",
	}
	require.Len(t, legal, numRoles, "a role without a row")
	for from := RoleUnattached; int(from) <= numRoles; from++ {
		for to := RoleUnattached; int(to) <= numRoles; to++ {
			want := from == to || legal[from][to-1] != '.'
			require.Equal(t, want, LegalTransition(from, to), "%v -> %v", from, to)
		}
		require.NotContains(t, from.String(), "(")
	}
	require.False(t, LegalTransition(Role(77), RoleFollower))
}
