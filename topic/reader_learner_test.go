package topic_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// session is a reader that goes on, and what it must not see.
type session struct {
	r     *topic.Reader
	bytes int
	next  int64
	seen  int64 // the highest watermark
	wrong []string
}

// look checks the watermark that the session shows now.
func (s *session) look() {
	hw := int64(s.r.HighWatermark())
	if hw < s.seen {
		s.wrong = append(s.wrong, fmt.Sprintf("the watermark fell from %d to %d", s.seen, hw))
	}
	s.seen = max(s.seen, hw)
}

// fetch reads what is there.
func (s *session) fetch(t *testing.T) {
	v, err := s.r.Fetch(t.Context(), s.bytes)
	if err != nil {
		s.wrong = append(s.wrong, err.Error())
		return
	}
	for v.Next() {
		if at := int64(v.Offset()); at != s.next {
			s.wrong = append(s.wrong, fmt.Sprintf("offset %d after %d", at, s.next-1))
		}
		s.next = int64(v.Offset()) + 1
	}
	s.look()
	if s.next > s.seen {
		s.wrong = append(s.wrong, fmt.Sprintf("offset %d was read above the watermark %d", s.next-1, s.seen))
	}
}

// Property: P3, P6 (red: what the session had seen was not sent along)
//
// A replica is filled, slowly, votes, and leads, while sessions go on that began
// before: one through the leader's node, two through the node of the new replica. No
// watermark falls, and each record comes once, in its order.
func TestSessionsWhileALearnerTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newMoves(t, 4, 1, func(cfg *topic.Config) {
			cfg.FillBytesPerSecond = 1 << 20
			cfg.CallTimeout, cfg.FetchWait = time.Second, 200*time.Millisecond
		})
		top, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
		require.NoError(t, err)
		leader, to := c.leader("orders", 0), c.off("orders", 0)
		load := c.node(2).produceEvery(t, 10*time.Millisecond, "orders", 0, 4000)
		pass(10 * time.Second)
		var sessions []*session
		for _, through := range []struct {
			id    raftlog.NodeID
			start topic.Start
			bytes int // the last one reads what is old, and lags
		}{{leader.id, topic.FromEnd(), 64 << 10}, {to, topic.FromEnd(), 64 << 10}, {to, topic.FromStart(), 1}} {
			r, err := c.node(through.id).topics.NewReader(t.Context(), at("orders", 0), through.start)
			require.NoError(t, err)
			defer r.Close()
			s := &session{r: r, bytes: through.bytes, next: int64(r.Offset())}
			s.look()
			require.Greater(t, s.seen, int64(500))
			sessions = append(sessions, s)
		}
		roles := map[raftlog.Role]int64{} // of the new replica: how far the session there read meanwhile
		read := func() {
			t.Helper()
			before := sessions[1].next
			for _, s := range sessions {
				s.fetch(t)
				require.Empty(t, s.wrong)
			}
			role := raftlog.Role(0)
			if g := c.node(to).topics.OpenGroup(top.Incarnation, 0); g != nil {
				role = g.Status().Role
			}
			roles[role] += sessions[1].next - before
		}
		require.NoError(t, c.node(3).topics.MoveReplica(t.Context(), at("orders", 0), leader.id, to))
		for begun := time.Now(); c.partition("orders", 0).Target != nil; read() {
			require.Less(t, time.Since(begun), 3*time.Minute)
		}
		require.NotContains(t, c.on("orders", 0), leader.id, "it leads no more")
		require.Positive(t, roles[raftlog.RoleObserver], "%v", roles)
		require.Positive(t, roles[raftlog.RoleFollower]+roles[raftlog.RoleLeaderActive], "%v", roles)
		c.hands(top, to)
		for range 20 {
			read()
		}
		require.Positive(t, roles[raftlog.RoleLeaderActive], "%v", roles)
		want := load.end(t)
		for _, s := range sessions {
			for int(s.next) < len(want) {
				s.fetch(t)
				require.Empty(t, s.wrong)
			}
		}
		require.True(t, slices.Contains(c.on("orders", 0), to))
	})
}
