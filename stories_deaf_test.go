package stele_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/transport"
)

// deaf are the nodes whose heartbeats nobody hears: their calls are refused where
// they arrive, and everything else passes.
type deaf struct {
	mu      sync.Mutex
	silent  []string // names
	refused int      // calls
}

func (d *deaf) to(names ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent = names
}

func (d *deaf) config(cfg *stele.Config) { cfg.Transport = deafTransport{cfg.Transport, d} }

type deafTransport struct {
	transport.Transport
	deaf *deaf
}

func (t deafTransport) Start(id transport.Identity, h transport.Handler) error {
	return t.Transport.Start(id, deafHandler{h, t.deaf})
}

type deafHandler struct {
	transport.Handler
	deaf *deaf
}

func (h deafHandler) HandleCall(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
	h.deaf.mu.Lock()
	refused := method == membership.MethodHeartbeat && slices.Contains(h.deaf.silent, from.Name)
	if refused {
		h.deaf.refused++
	}
	h.deaf.mu.Unlock()
	if refused {
		return nil, errors.New("not heard")
	}
	return h.Handler.HandleCall(ctx, from, method, req)
}

// A leader leads on, and hears no heartbeats of a majority of the voters: it marks
// none of them, however long, says so once, and a gauge shows how many. A member
// without a vote that falls silent meanwhile is marked. When it hears again that is
// over; and said again when it comes back.
//
// Property: H5 (red: no breaker; voters marked all the same; those without a vote not marked; told in every pass; the gauge not set)
func TestALeaderThatIsDeafMarksNoVoter(t *testing.T) {
	heard := &deaf{}
	told := &chronicle{
		changes: map[string]map[string][]stele.MemberChangeKind{}, notices: map[stele.NoticeKind][]stele.MembershipNotice{},
		told: map[string]int{}, moves: map[stele.MovePhase]int{},
	}
	registry := prometheus.NewRegistry()
	config := func(cfg *stele.Config) {
		heard.config(cfg)
		cfg.Events, cfg.Metrics = told.events(cfg.Name), registry
	}
	testcluster.Run(t, testcluster.Options{Nodes: 5, Seed: 105, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		c.Start(c.Add())
		c.WaitReady()
		c.Eventually(func() bool { return seat(c, 0, 5) == stele.SeatLearner }, "it stands by")
		leader := c.MetadataLeader()
		var voters []string
		for i := range 5 {
			require.Equal(t, stele.SeatVoter, seat(c, leader, i))
			if i != leader {
				voters = append(voters, c.Member(i).Name)
			}
		}
		for streak := range 2 {
			heard.to(voters[:3]...)
			if streak == 0 {
				c.PowerLoss(5)
			}
			c.Eventually(func() bool { return len(told.noticed(stele.NoticeSpared)) > streak }, "it is told")
			c.Sleep(5 * time.Second) // one of them may have been heard a heartbeat later than the others
			require.EqualValues(t, 3, gathered(t, registry, "stele_members_spared"), "and shown")
			if streak == 0 {
				c.Eventually(func() bool { return slices.Equal(deadAt(c, leader), []string{c.Member(5).Name}) }, "who has no vote is marked")
			}
			dead := deadAt(c, leader)
			for range 10 {
				c.Sleep(2 * time.Second)
				require.Equal(t, dead, deadAt(c, leader), "nobody else, ever")
			}
			require.Equal(t, leader, c.MetadataLeader(), "raft goes on")
			require.Len(t, told.noticed(stele.NoticeSpared), streak+1, "once")
			require.Contains(t, told.noticed(stele.NoticeSpared)[streak].Reason, "2 of 5 voters were heard")
			mustCreate(c, leader, []string{"first", "second"}[streak], 1)
			heard.to()
			c.Sleep(10 * time.Second)
			require.Zero(t, gathered(t, registry, "stele_members_spared"), "it hears again")
			if streak == 0 {
				c.Start(5)
				c.Eventually(func() bool { return len(deadAt(c, leader)) == 0 }, "a heartbeat ends it")
			}
		}
		heard.mu.Lock()
		defer heard.mu.Unlock()
		require.Positive(t, heard.refused)
	})
}
