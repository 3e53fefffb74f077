package metastore_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// sluice is what lies between a node that was restarted and the others. Nothing passes
// but what the test lets through.
type sluice struct {
	mu      sync.Mutex
	reads   bool // the node's reads reach the leader
	entries bool // so do entries, at any pace
	held    [][]byte
	from    []raftlog.NodeID
}

// arrives decides about a frame to or from node 3.
func (s *sluice) arrives(to *node, from raftlog.NodeID, class uint8, frame []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.entries || to.id != 3 && from != 3:
		return true
	case class == raftlog.ClassControl && to.id == 3:
		return true // heartbeats, and answers to reads
	case class == raftlog.ClassControl:
		return s.reads
	case to.id == 3: // entries
		s.held, s.from = append(s.held, slices.Clone(frame)), append(s.from, from)
		return false
	}
	return true // what node 3 says of entries
}

// release lets the oldest frame through that waits, and reports whether there was one.
func (s *sluice) release(n *node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) == 0 {
		return false
	}
	n.host.HandleFrame(s.from[0], s.held[0])
	s.held, s.from = s.held[1:], s.from[1:]
	return true
}

func (s *sluice) set(change func(s *sluice)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// The steps of the real thing, one by one: after a restart first only heartbeats
// arrive, whose commit is no more than what the leader knows the node to have; then its
// reads are confirmed, so that it knows how far it has to come; then entries arrive, a
// message at a time, each of which is applied, with commit and applied equal, before
// the next. Nothing about assignments is answered until the last one is applied.
//
// Property: C1, C2, C3 (red: a known leader counted as a confirmed round; the commit that this node knows taken for the round's index)
func TestTheGateAtEachStepOfARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 5)
		c.options = func(o *raftlog.Config) { o.MaxMessageBytes, o.MaxInflightBytes = 1<<10, 1<<10 }
		s := &sluice{entries: true}
		c.arrives = s.arrives
		for id := range raftlog.NodeID(3) {
			c.start(id + 1)
		}
		lead := c.node(1)
		_, err := lead.meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: "before", Config: metastore.TopicConfig{Replicas: 3}})
		require.NoError(t, err)
		<-c.node(3).meta.CaughtUp()
		pass(time.Second)
		c.crash(3, simfs.Strict)
		for i := range 30 { // of which a message holds four
			name := fmt.Sprint(strings.Repeat("a", 170), i)
			_, err = lead.meta.CreateTopic(t.Context(), metastore.TopicSpec{Name: name, Config: metastore.TopicConfig{Replicas: 3}})
			require.NoError(t, err)
		}
		pass(time.Second)

		s.set(func(s *sluice) { s.entries = false })
		n := c.start(3)
		applied := func() raftlog.Index {
			at := n.meta.GroupStatus()
			require.Equal(t, at.Commit, at.Applied, "all that it knows to be committed is applied")
			return at.Applied
		}
		shut := func() {
			t.Helper()
			synctest.Wait()
			require.False(t, n.meta.AppliedCaughtUp())
			require.NotEmpty(t, n.meta.CatchingUp())
			_, err := n.meta.ListAssignments(3)
			require.ErrorIs(t, err, metastore.ErrUnavailable)
			_, err = n.meta.GetAssignment("before", 0)
			require.ErrorIs(t, err, metastore.ErrUnavailable)
		}
		for range 8 { // heartbeats, and no more
			pass(time.Second)
			require.NotZero(t, n.meta.GroupStatus().Leader)
			require.NotZero(t, applied())
			shut()
		}
		old := applied()
		s.set(func(s *sluice) { s.reads = true })
		pass(2 * time.Second)
		shut()

		last := lead.meta.GroupStatus().Commit
		require.Greater(t, last, old+3)
		stages := 0
		for at := old; at+6 < last; { // a message at a time
			for !s.release(n) {
				pass(100 * time.Millisecond)
			}
			pass(100 * time.Millisecond)
			if at == applied() {
				continue // the leader looked for the place to begin
			}
			at = applied()
			require.Less(t, at, last)
			shut()
			stages++
		}
		require.Greater(t, stages, 2)

		s.set(func(s *sluice) { s.entries = true })
		for s.release(n) {
		}
		<-n.meta.CaughtUp()
		all, err := n.meta.ListAssignments(3)
		require.NoError(t, err)
		require.Len(t, all, 31)
	})
}
