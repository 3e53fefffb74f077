package topic

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

// Property: I4, X2 (red: due in the order of all; no pauses; news that ended no pause; a pause for what was no fault of its own)
func TestTurns(t *testing.T) {
	of := func(i byte) remains { return remains{incarnation: storage.Incarnation{i}} }
	a, b, c := of(1), of(2), of(3)
	all := []remains{a, b, c}
	now := time.Unix(1000, 0)
	turns := turns{}
	require.Equal(t, all, turns.due(all, now, false))
	_, waits := turns.next(now)
	require.False(t, waits)

	turns.refused(a, now, false) // the whole node could confirm nothing
	now = now.Add(time.Millisecond)
	require.Equal(t, []remains{b, c, a}, turns.due(all, now, false), "others first")
	_, waits = turns.next(now)
	require.False(t, waits)

	turns.refused(b, now, true)
	require.Equal(t, []remains{c, a}, turns.due(all, now, false))
	wait, waits := turns.next(now)
	require.True(t, waits)
	require.Equal(t, firstSweepWait, wait)
	now = now.Add(wait)
	require.Equal(t, []remains{c, a, b}, turns.due(all, now, false), "longest ago first")

	for range 10 {
		turns.refused(b, now, true)
		wait, _ = turns.next(now)
		now = now.Add(wait)
	}
	require.Equal(t, lastSweepWait, wait)
	turns.refused(b, now, true)
	now = now.Add(firstSweepWait)
	require.NotContains(t, turns.due(all, now, false), b)
	require.Contains(t, turns.due(all, now, true), b, "news of the metadata")
	turns.refused(b, now, true)
	require.NotContains(t, turns.due(all, now, true), b, "but not at once")
	wait, _ = turns.next(now)
	require.Equal(t, firstSweepWait, wait)

	turns.keep([]remains{b})
	require.Len(t, turns, 1)
	turns.keep(nil)
	require.Empty(t, turns)
}
