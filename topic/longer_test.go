package topic_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// A copy that moved away, and knows to be committed what its group does not have, is
// held in quarantine: no sweep takes it, nor does the end of its topic. All else of
// the topic goes.
//
// Property: M5 (red: left without its look at the commit; destroy without its look at what is held; a node that was down at the move did not set its copy aside; the files were not synced; open: entries that only its journal had)
func TestALongerCopyIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, told := startSwept(t, 4, 66, nil)
		made := c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		var want []string
		for i := range 5 {
			want = append(want, fmt.Sprint(i))
			_, err := p.ProduceTo(t.Context(), "orders", 0, record(want[i]))
			require.NoError(t, err)
		}
		require.NoError(t, p.Close(t.Context()))
		before := c.partition("orders", 0)
		from, to := before.Replicas[2].Node, c.off("orders", 0)
		old := before.Replicas[2].Replica
		settle(t, "it has all", func() bool {
			g := c.node(from).topics.OpenGroup(made.Incarnation, 0)
			return g != nil && g.Log().NextOffset() == 5
		})
		c.crash(from, simfs.Kill)
		require.NoError(t, c.running()[0].topics.MoveReplica(t.Context(), at("orders", 0), from, to))
		c.moved("orders", 0)

		// What the others acknowledged, and then lost.
		fs := c.disks[from]
		s, err := storage.Open(storage.Config{FS: fs, Dir: "data", Name: fmt.Sprint("node-", from), Cluster: "test", JournalFileSize: 256 << 10, SegmentSize: 256 << 10})
		require.NoError(t, err)
		for _, st := range s.Replicas() {
			if st.Replica != old {
				continue
			}
			last := st.Log.LastIndex + storage.Index(len(st.Tail))
			f := storage.Frame{Kind: storage.FrameAppend, Group: st.Group, Replica: old, Hard: st.Hard}
			for i := range storage.Index(100) {
				f.Entries = append(f.Entries, storage.Entry{Index: last + 1 + i, Term: st.Hard.Term})
			}
			f.Hard.Commit = last + 100
			require.NoError(t, s.WriteRound([]storage.Frame{f}))
		}
		require.NoError(t, s.Close())
		c.start(from)
		held := func() []storage.QuarantinedDir {
			all, err := c.node(from).store.Quarantined()
			require.NoError(t, err)
			return all
		}
		settle(t, "it is in quarantine", func() bool { return len(held()) == 1 })
		d := held()[0]
		require.Equal(t, storage.ReasonLonger, d.Reason.Kind)
		require.True(t, d.Held())
		id, ok := d.Replica()
		require.True(t, ok)
		require.Equal(t, old, id)
		var longer *topic.LongerCopyError
		_, refused := told.told()
		require.NotEmpty(t, refused)
		require.ErrorAs(t, refused[len(refused)-1].Err, &longer)
		oneOutcome(t, longer)
		require.Equal(t, old, longer.Replica)
		require.Contains(t, d.Reason.Text, longer.Error())
		files := contents(t, fs, "data/"+d.Dir)

		for _, kind := range []simfs.Survival{simfs.Strict, simfs.Kill} { // nor does a start
			pass(11 * time.Minute)
			require.Equal(t, files, contents(t, c.disks[from], "data/"+d.Dir))
			require.Empty(t, c.node(from).replicaDir(old))
			c.crash(from, kind)
			c.start(from)
		}
		require.Equal(t, want, c.node(from).dump("orders", 0), "from the others")
		require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "orders"))
		for _, n := range c.running() {
			settle(t, "reclaimed", func() bool {
				dirs, aside := n.quarantined()
				return aside == 0 && (len(dirs) == 0 || n.id == from && len(dirs) == 1)
			})
		}
		pass(11 * time.Minute)
		require.Equal(t, files, contents(t, c.disks[from], "data/"+d.Dir))
	})
}

// A group says of a copy that left whether it has what the copy has, by its own log.
//
// Property: M5 (red: left without its look at the term)
func TestACopyIsComparedWithItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := startSwept(t, 3, 67, nil)
		made := c.create("orders", 1)
		p := producer(t, c.node(1), topic.ProducerConfig{})
		for range 5 {
			_, err := p.ProduceTo(t.Context(), "orders", 0, record("x"))
			require.NoError(t, err)
		}
		g := made.Partitions[0].Group
		log := c.leader("orders", 0).topics.OpenGroup(made.Incarnation, 0).Log()
		end := log.Position()
		for _, n := range c.running() {
			ask := func(last storage.Index, term storage.Term, commit storage.Index) error {
				return n.topics.HasLeftWith(t.Context(), made.Incarnation, g, last, term, commit)
			}
			require.NoError(t, ask(0, 0, 0), "it never had any")
			require.NoError(t, ask(0, 0, end.LastIndex), "committed, and not applied")
			require.NoError(t, ask(end.LastIndex, end.LastTerm, end.LastIndex))
			require.NoError(t, ask(1, 1, 1), "where it began")
			for what, err := range map[string]error{
				"more than the group has": ask(end.LastIndex+1, end.LastTerm, end.LastIndex+1),
				"more is committed":       ask(end.LastIndex, end.LastTerm, end.LastIndex+1),
				"another entry":           ask(end.LastIndex, end.LastTerm+1, end.LastIndex),
				"another entry before":    ask(end.LastIndex-1, end.LastTerm+1, end.LastIndex),
			} {
				var longer *topic.LongerCopyError
				require.ErrorAs(t, err, &longer, what)
				require.Equal(t, raftlog.OutcomeRetry, raftlog.OutcomeOf(err), what)
				require.False(t, errors.Is(err, raftlog.ErrRefused), what)
			}
		}
	})
}
