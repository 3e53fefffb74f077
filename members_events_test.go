package stele_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// chronicle is what the nodes told of members and moves.
type chronicle struct {
	mu      sync.Mutex
	changes map[string]map[string][]stele.MemberChangeKind // by the node that told, and the member
	notices map[stele.NoticeKind][]stele.MembershipNotice
	told    map[string]int // notices, by the node that told
	moves   map[stele.MovePhase]int
}

func (c *chronicle) events(by string) stele.Events {
	return stele.Events{
		MemberChanged: func(m stele.MemberChange) {
			c.mu.Lock()
			defer c.mu.Unlock()
			name := m.To.Name
			if name == "" {
				name = m.From.Name
			}
			if c.changes[by] == nil {
				c.changes[by] = map[string][]stele.MemberChangeKind{}
			}
			c.changes[by][name] = append(c.changes[by][name], m.Kinds()...)
		},
		MembershipNoticed: func(n stele.MembershipNotice) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.notices[n.Kind] = append(c.notices[n.Kind], n)
			c.told[by]++
		},
		MoveChanged: func(m stele.MoveChange) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.moves[m.Phase]++
		},
	}
}

func newChronicle() *chronicle {
	return &chronicle{
		changes: map[string]map[string][]stele.MemberChangeKind{}, notices: map[stele.NoticeKind][]stele.MembershipNotice{},
		told: map[string]int{}, moves: map[stele.MovePhase]int{},
	}
}

// of are the changes of a member that a node told, without what it moved between.
func (c *chronicle) of(by, member string) []stele.MemberChangeKind {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.changes[by][member])
}

func (c *chronicle) noticed(kind stele.NoticeKind) []stele.MembershipNotice {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.notices[kind])
}

// A member's life is told by every node: it joins, gets a vote, dies, comes back,
// drains and goes. What only the leader knows the leader tells, and metrics count.
func TestEventsOfMembers(t *testing.T) {
	all := newChronicle()
	registry := prometheus.NewRegistry()
	config := func(c *stele.Config) { c.Events, c.Metrics = all.events(c.Name), registry }
	testcluster.Run(t, testcluster.Options{Seed: 91, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 4)
		c.Sleep(5 * time.Second)
		leader := c.MetadataLeader()

		blocked, err := c.Node(0).Decommission(t.Context(), c.Member(0).Name, stele.DecommissionOptions{WhenPossible: true})
		require.NoError(t, err)
		c.Eventually(func() bool { return len(all.noticed(stele.NoticeBlocked)) > 0 }, "told")
		require.Contains(t, all.noticed(stele.NoticeBlocked)[0].Reason, "4 partition replicas have nowhere to go")
		require.NotZero(t, gathered(t, registry, "stele_members_blocked"))
		require.NoError(t, blocked.Cancel(t.Context()))

		fourth := c.Add()
		d := c.Member(fourth).Name
		c.Start(fourth)
		c.WaitReady()
		witness := c.Member((leader + 1) % 3).Name
		told := func(want ...stele.MemberChangeKind) {
			c.Eventually(func() bool { return slices.Equal(all.of(witness, d), want) }, "told")
		}
		life := []stele.MemberChangeKind{stele.MemberJoined, stele.MemberStaged, stele.MemberPromoted}
		told(life...)
		require.NotZero(t, gathered(t, registry, "stele_join_attempts_total"))
		c.Eventually(func() bool {
			return gathered(t, registry, "stele_moves_ended_total") > 0 && gathered(t, registry, "stele_moves") == 0
		}, "replicas move to it")

		c.Kill(fourth)
		c.Eventually(func() bool { return gathered(t, registry, "stele_replicas_silent") > 0 }, "its replicas are missed")
		life = append(life, stele.MemberDead)
		told(life...)
		c.Start(fourth)
		c.WaitReady()
		life = append(life, stele.MemberAlive)
		told(life...)
		leave, err := c.Node(leader).Decommission(t.Context(), d, stele.DecommissionOptions{})
		require.NoError(t, err)
		require.NoError(t, leave.Wait(t.Context()))
		told(append(life, stele.MemberDraining, stele.MemberDrained, stele.MemberDemoted, stele.MemberOut, stele.MemberRemoved)...)
		require.Equal(t, []stele.MemberChangeKind{stele.MemberDraining, stele.MemberStays}, all.of(witness, c.Member(0).Name))

		for _, kind := range []stele.NoticeKind{
			stele.NoticeAdmitted, stele.NoticeDeferred, stele.NoticePromoted, stele.NoticeDead, stele.NoticeStep, stele.NoticeRemoved,
		} {
			require.NotEmpty(t, all.noticed(kind), kind)
			require.Equal(t, d, all.noticed(kind)[len(all.noticed(kind))-1].Name, kind)
		}
		all.mu.Lock()
		require.Len(t, all.told, 1, "the leader alone notices: %v", all.told)
		for _, phase := range []stele.MovePhase{stele.MoveStarted, stele.MoveFills, stele.MoveFinished} {
			require.NotZero(t, all.moves[phase], phase)
		}
		all.mu.Unlock()

		c.PowerLoss(leader)
		lost := gathered(t, registry, "stele_leaderless_seconds_total") // of those that are left
		c.Eventually(func() bool { return c.MetadataLeader() >= 0 }, "another one leads")
		require.Greater(t, gathered(t, registry, "stele_leaderless_seconds_total"), lost)
	})
}
