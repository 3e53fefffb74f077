package topic_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
)

// More directories than are tried in a pass cannot go, because somebody has damaged
// them: they keep nothing of what comes behind them, and are tried ever less often.
//
// Property: I4, X2 (red: passes in the order of the directories, without pauses of their own: what came behind never went; no pauses: 12,224 tries instead of 350)
func TestWhatCannotGoTakesNoTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := startSwept(t, 3, 68, nil)
		n := c.node(3)
		const bad = 70
		for i := range bad {
			made, err := c.node(1).meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: fmt.Sprintf("bad-%02d", i)})
			require.NoError(t, err)
			require.NoError(t, c.node(1).meta.SetTopicDeleting(t.Context(), made.Incarnation))
			require.NoError(t, c.node(1).meta.SetTopicDeleted(t.Context(), made.Incarnation))
			dir := fmt.Sprintf("data/quarantine/%s@%v~9", made.Name, made.Incarnation) // without its marker
			require.NoError(t, c.disks[3].MkdirAll(dir+"/0.1", 0o755))
		}
		c.create("orders", 1)
		settle(t, "held", func() bool { return len(n.topics.Status()) == 1 })
		require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "orders"))
		there := func(name string) (all int) {
			dirs, _ := n.quarantined()
			for _, dir := range append(dirs, n.dirs()...) {
				if strings.Contains(dir, "/"+name) {
					all++
				}
			}
			return all
		}
		settle(t, "reclaimed", func() bool { return there("orders") == 0 })
		pass(time.Minute)
		require.Equal(t, bad, there("bad"))
		before := n.meta.ConfirmStats().Confirmed
		pass(4 * time.Minute)
		tries := n.meta.ConfirmStats().Confirmed - before
		require.GreaterOrEqual(t, tries, uint64(bad), "they are tried again")
		require.LessOrEqual(t, tries, uint64(6*bad), "and not all the time")
	})
}
