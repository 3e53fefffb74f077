package stele_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// What a cluster begins with is made once, by one of its members, however often they
// start and whatever they are configured with later: a topic that was deleted does
// not come back, a setting that was changed stays so, and nothing new is made.
//
// Property: J19 (red: the mark that it was made not kept; not looked at)
func TestInitialStateIsMadeOnce(t *testing.T) {
	initial := stele.InitialState{
		Settings: map[string]string{"region": "north", "tier": "gold"},
		Topics:   []stele.TopicSpec{{Name: "orders", Config: stele.TopicConfig{Partitions: 2}}, {Name: "mails"}},
	}
	config := func(cfg *stele.Config) { cfg.InitialState = initial }
	testcluster.Run(t, testcluster.Options{Seed: 51, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		topics := func(i int) (names []string) {
			all, err := c.Node(i).ListTopics(t.Context())
			require.NoError(t, err)
			for _, topic := range all {
				names = append(names, topic.Name)
			}
			return names
		}
		requireSetting := func(i int, key, want string) {
			t.Helper()
			value, ok, err := c.Node(i).Setting(key)
			require.NoError(t, err)
			require.Equal(t, want != "", ok, "%s on member %d", key, i)
			require.Equal(t, want, value, "%s on member %d", key, i)
		}
		c.Eventually(func() bool { return len(topics(0)) == 2 }, "it is made")
		c.Sleep(10 * time.Second)
		for i := range c.Size() {
			require.ElementsMatch(t, []string{"orders", "mails"}, topics(i), "by one of the three")
			requireSetting(i, "region", "north")
			requireSetting(i, "tier", "gold")
		}
		before := incarnations(t, c.Node(1))
		require.NoError(t, c.Node(2).DeleteTopic(t.Context(), "orders"))
		require.NoError(t, c.Node(1).SetSetting(t.Context(), "region", "west"))

		// They start again, and each is configured otherwise.
		initial.Settings = map[string]string{"region": "south", "tier": "lead", "zone": "a"}
		initial.Topics = append(initial.Topics, stele.TopicSpec{Name: "bills"})
		c.PowerLossAll()
		c.StartAll()
		c.Sleep(time.Minute)
		for i := range c.Size() {
			require.Equal(t, []string{"mails"}, topics(i))
			require.Equal(t, before["mails"], incarnations(t, c.Node(i))["mails"])
			requireSetting(i, "region", "west")
			requireSetting(i, "tier", "gold")
			requireSetting(i, "zone", "")
		}
	})
}

func incarnations(t *testing.T, n *stele.Node) map[string]string {
	all, err := n.ListTopics(t.Context())
	require.NoError(t, err)
	lives := map[string]string{}
	for _, topic := range all {
		lives[topic.Name] = topic.Incarnation.String()
	}
	return lives
}
