package stele_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/raftlog"
)

// scrape is what all nodes show, by the metric's name and the values of its labels but
// that of the cluster, in the order of the labels' names.
func scrape(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() != "cluster" {
					key += " " + l.GetValue()
				}
			}
			all[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all
}

// memberMetrics are what a node shows of the members: by seat, dead, leaving, stray.
func memberMetrics(t *testing.T, all map[string]float64, node string) string {
	t.Helper()
	var text []string
	for _, name := range []string{"members NODE voter", "members NODE learner", "members NODE none", "members_dead NODE", "members_leaving NODE", "members_stray NODE"} {
		n, ok := all["stele_"+strings.ReplaceAll(name, "NODE", node)]
		require.True(t, ok, "%s of %s", name, node)
		_, last, is := strings.Cut(name, " NODE ")
		if !is {
			last = strings.TrimSuffix(strings.TrimPrefix(name, "members_"), " NODE")
		}
		text = append(text, fmt.Sprint(n, " ", last))
	}
	return strings.Join(text, " ")
}

// What the leader notices of members and of who wants to be one is told in its kind and
// words, and the metrics of members have the numbers: of the raised version, a joiner
// whose build is too old, a replica that no member is and that is forgotten, a lost
// disk, a name that is taken, a dead member, and one that cannot leave.
//
// Property: D6, J13, J17 (red: each notice was not told or of another kind, one at a time; that a life was refused was told twice; dead, leaving, stray and the seats were not counted)
func TestNoticesOfMembers(t *testing.T) {
	all := newChronicle()
	registry := prometheus.NewRegistry()
	config := func(c *stele.Config) {
		c.Events, c.Metrics = all.events(c.Name), registry
		switch c.Name {
		case "node-4":
			c.MaxVersion = 1
		case "node-5": // by mistake
			c.Name, c.Metrics = "node-2", nil
		}
	}
	testcluster.Run(t, testcluster.Options{Seed: 92, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		told := func(kind stele.NoticeKind, want ...stele.MembershipNotice) {
			t.Helper()
			c.EventuallyLong(func() bool { return len(all.noticed(kind)) >= len(want) }, string(kind))
			for i := range want {
				want[i].Kind = kind
			}
			require.Equal(t, want, all.noticed(kind))
		}
		numbers := func(want string) {
			t.Helper()
			c.Sleep(2 * time.Second) // every node knows of it, and the leader has looked for strays
			all := scrape(t, registry)
			for i := range 3 {
				want := want
				if i != c.MetadataLeader() { // which alone looks for strays
					want = strings.ReplaceAll(want, "1 stray", "0 stray")
				}
				require.Equal(t, want, memberMetrics(t, all, c.Member(i).Name))
			}
		}
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		told(stele.NoticeVersion, stele.MembershipNotice{Reason: "3"})
		numbers("3 voter 0 learner 0 none 0 dead 0 leaving 0 stray")

		older := c.Add()
		c.Start(older)
		const needs = "it applies command types up to 9, the cluster needs 29: start a newer build"
		told(stele.NoticeOlder, stele.MembershipNotice{Name: "node-4", Reason: needs})
		c.Close(older)

		leader := c.MetadataLeader()
		require.NoError(t, c.Node(leader).AddStray(t.Context(), 4242))
		told(stele.NoticeStray, stele.MembershipNotice{Reason: "r4242 votes on the metadata, and no member is it: it can be forgotten"})
		numbers("3 voter 0 learner 0 none 0 dead 0 leaving 1 stray")
		require.NoError(t, c.Node((leader+1)%3).Forget(t.Context(), 4242))
		told(stele.NoticeForgotten, stele.MembershipNotice{Reason: "r4242 is out of the metadata's group"})
		numbers("3 voter 0 learner 0 none 0 dead 0 leaving 0 stray")

		c.Sleep(40 * time.Second) // the leader has led for long enough to replace somebody
		healthy := c.Node(1).Status().Node
		mistyped := c.Add()
		c.Start(mistyped)
		told(stele.NoticeRefused, stele.MembershipNotice{Name: "node-2", Reason: fmt.Sprintf("the name is that of %v, which lives", healthy)})
		c.Close(mistyped)

		wiped := (c.MetadataLeader() + 1) % 3
		c.PowerLoss(wiped)
		c.Wipe(wiped)
		c.Start(wiped)
		c.WaitReadyBut(older, mistyped)
		told(stele.NoticeReplaced, stele.MembershipNotice{Node: c.Node(wiped).Status().Node, Name: c.Member(wiped).Name})
		c.EventuallyLong(func() bool { return len(c.Node(wiped).Members()) == 3 }, "its old life is out")
		numbers("3 voter 0 learner 0 none 0 dead 0 leaving 0 stray")

		observer := c.Add()
		c.StartWith(observer, func(cfg *stele.Config) { cfg.Observer = true })
		c.WaitReadyBut(older, mistyped)
		numbers("3 voter 1 learner 0 none 0 dead 0 leaving 0 stray")
		_, err := c.Node(0).Decommission(t.Context(), c.Member(wiped).Name, stele.DecommissionOptions{WhenPossible: true})
		require.NoError(t, err)
		numbers("3 voter 1 learner 0 none 0 dead 1 leaving 0 stray")
		c.Kill(observer)
		c.EventuallyLong(func() bool {
			return slices.ContainsFunc(all.noticed(stele.NoticeDead), func(n stele.MembershipNotice) bool { return n.Name == c.Member(observer).Name })
		}, "it is dead")
		numbers("3 voter 1 learner 0 none 1 dead 1 leaving 0 stray")
	})
}

// The lags have the numbers of entries: of the metadata, that a node knows to be
// committed and has not applied, and of the replica furthest behind.
func TestLagsHaveNumbers(t *testing.T) {
	require.EqualValues(t, 2, stele.MetadataLag(raftlog.Status{Commit: 7, Applied: 5}))
	require.Zero(t, stele.MetadataLag(raftlog.Status{Commit: 7, Applied: 7}))
	require.Zero(t, stele.MetadataLag(raftlog.Status{Commit: 7, Applied: 8}), "it was applied in between")
	registry := prometheus.NewRegistry()
	testcluster.Run(t, testcluster.Options{Seed: 93, Config: func(c *stele.Config) { c.Metrics = registry }}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 1)
		c.Sleep(5 * time.Second)
		leads, meta := -1, c.MetadataLeader()
		for i := range 3 {
			if c.Node(i).Status().Partitions[0].Role.IsLeader() {
				leads = i
			}
		}
		require.NotEqual(t, -1, leads)
		away := slices.IndexFunc([]int{0, 1, 2}, func(i int) bool { return i != leads && i != meta })
		name := c.Member(leads).Name
		number := func(metric, node string) float64 {
			n, ok := scrape(t, registry)[metric+" "+node]
			require.True(t, ok)
			return n
		}
		lag := func() float64 { return number("stele_replication_lag_entries", name) }
		c.Eventually(func() bool { return lag() == 0 }, "nobody lags")
		for i := range 3 {
			require.Zero(t, number("stele_metadata_lag_entries", c.Member(i).Name))
		}
		c.Kill(away)
		p, err := c.Node(leads).NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		for i := range 50 { // one after the other, so that each is an entry
			_, err := p.ProduceTo(t.Context(), "orders", 0, stele.Record{Value: fmt.Append(nil, i)})
			require.NoError(t, err)
		}
		require.EqualValues(t, 50, lag())
		c.Start(away)
		c.WaitReady()
		c.Eventually(func() bool { return lag() == 0 }, "it has caught up")
		require.NoError(t, p.Close(t.Context()))
	})
}
