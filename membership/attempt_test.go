package membership

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

// Property: J6, J7 (red: the addresses that did not answer left out)
//
// Who is not taken in says whom it asked, and what each of them answered.
func TestAnAttemptSaysWhatItMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		j := s.joiner("a", "b", "c", "d", "e")
		s.says("a", Reply{Kind: ReplyUnconfigured, Nonce: raftlog.Nonce{1}})
		s.says("b", Reply{Kind: ReplyNotLeader, Leader: 7, Addr: "x"})
		s.says("x", Reply{Kind: ReplyNotLeader})
		s.answers["c"] = func() ([]byte, error) { return []byte("garbage"), nil }
		s.says("d", Reply{Kind: ReplyOtherSettings, SegmentBytes: 4096})
		_, err := j.Once(t.Context())
		require.ErrorIs(t, err, ErrNoLeader)
		require.ErrorIs(t, err, raftlog.ErrRetry)
		var met *LeaderlessError
		require.ErrorAs(t, err, &met)
		var asked []string
		for _, tried := range met.Tried {
			asked = append(asked, tried.Addr)
		}
		require.Equal(t, []string{"a", "b", "x", "c", "d", "e"}, asked)
		for _, says := range []string{
			"a is in no cluster itself", "b does not lead, and names x", "x does not lead, and knows nobody who does",
			"c: ", "d answered other_settings", "e: ",
		} {
			require.ErrorContains(t, err, says)
		}
	})
}

// Property: J7 (red: the address of the metadata named, though a newer one was known)
//
// A member that does not lead names the leader where it is reached now.
func TestTheLeaderIsNamedWhereItIsReached(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		b := w.house("b").steward
		ask := JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Addr: "z:1", Newest: 21}.Encode()
		require.Equal(t, Reply{Kind: ReplyNotLeader, Leader: 1, Addr: "a:1"}, w.ask("b", MethodJoin, ask))
		b.cfg.Addr = func(node raftlog.NodeID) string {
			if node == 1 {
				return "moved:1"
			}
			return ""
		}
		require.Equal(t, Reply{Kind: ReplyNotLeader, Leader: 1, Addr: "moved:1"}, w.ask("b", MethodJoin, ask))
		w.lead(3)
		require.Equal(t, Reply{Kind: ReplyNotLeader, Leader: 3, Addr: "c:1"}, w.ask("b", MethodJoin, ask))
	})
}

// Property: J7 (red: one that is out names nobody)
//
// A node that is no member any more names those that were beside it, in turn: it
// may be the only one that a new node was told of. A member that sees no leader
// names nobody.
func TestWhoIsOutNamesThoseItKnew(t *testing.T) {
	in(t, 4, func(t *testing.T, w *town) {
		w.ready()
		ask := JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Addr: "z:1", Newest: 21}.Encode()
		w.mu.Lock()
		w.members[3].Liveness.Departure = 3 // leaves: d is of no use soon
		w.leadLocked(0)
		w.mu.Unlock()
		require.Equal(t, Reply{Kind: ReplyNotLeader}, w.ask("b", MethodJoin, ask), "a member")
		b := w.house("b").steward
		b.cfg.Out = func() bool { return true }
		named := map[string]int{}
		for range 6 {
			r := w.ask("b", MethodJoin, ask)
			require.Equal(t, ReplyNotLeader, r.Kind)
			require.Zero(t, r.Leader)
			named[r.Addr]++
		}
		require.Equal(t, map[string]int{"a:1": 3, "c:1": 3}, named)
		w.lead(3)
		require.Equal(t, "c:1", w.ask("b", MethodJoin, ask).Addr, "it sees one all the same")
	})
}

// A node that joined gives an address at which nobody reaches it: it learns from
// the leader what is wrong, until a leader is seen.
func TestWhoIsNotReachedIsToldSo(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		w.mu.Lock()
		w.cut["d:1"] = true // its calls go out, nobody's come in
		w.mu.Unlock()
		w.start("d", &disk{nonce: raftlog.Nonce{4}})
		w.await(5*time.Second, func() bool { return w.member("d").Node != 0 }, "d is a member")
		again := JoinRequest{Name: "d", Nonce: raftlog.Nonce{4}, Addr: "d:1", Newest: 21}.Encode()
		require.Empty(t, w.ask("a", MethodJoin, again).Reason, "no call has failed yet")
		w.await(time.Minute, func() bool { return w.ask("a", MethodJoin, again).Reason != "" }, "the leader says what is wrong")
		reply := w.ask("a", MethodJoin, again)
		require.Equal(t, "a call to it at d:1 failed not long ago", reply.Reason)
		require.Equal(t, StatusStaged, reply.Status)
	})
}
