package topic_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// A directory that lost its marker is adopted only as that of the life of which its
// records are, and only while the node does not run. Then it says whose it is: it is
// restored as a topic, and never is a replica's again. In the place of a topic that
// lives, too: its replica does not go on with what was vouched for by a person.
//
// Property: I9 (red: tellsIncarnation without its look at the incarnation, and with one at what was refused; mark left it in topics/; the log read by the journal's row of its replica, which lives on: six of eight times)
func TestAnUnmarkedDirectoryIsAdoptedAndRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := startSwept(t, 1, 91, nil)
		n := c.node(1)
		settle(t, "caught up", func() bool { return n.meta.Barrier(t.Context()) == nil })
		zero, one := variety("zero", 8), variety("one", 3)
		left := n.leave("orders", strange, leftover{0, 7, zero}, leftover{1, 8, one})
		top := c.create("bills", 1)
		p := producer(t, n, topic.ProducerConfig{})
		var mine []topic.Record
		for i := range 5 {
			mine = append(mine, record(fmt.Sprint("mine ", i)))
			_, err := p.Produce(t.Context(), "bills", clone(&mine[i]))
			require.NoError(t, err)
		}
		cfg := topic.AdoptConfig{FS: c.disks[1], Dir: "data", Entry: left, Topic: "orders", Incarnation: strange}
		_, err := topic.Adopt(t.Context(), cfg)
		require.ErrorIs(t, err, storage.ErrLocked)
		require.ErrorIs(t, err, raftlog.ErrRetry)

		c.crash(1, simfs.Kill)
		disk := c.disks[1]
		cfg.FS = disk
		place := "topics/bills@" + top.Incarnation.String()
		require.NoError(t, disk.Remove("data/"+left+"/INCARNATION"))
		require.NoError(t, disk.Remove("data/"+place+"/INCARNATION"))
		require.NoError(t, disk.Rename("data/"+left, "data/quarantine/found~1"))
		cfg.Entry = "quarantine/found~1"

		for what, wrong := range map[string]func(cfg *topic.AdoptConfig){
			"another life":                 func(cfg *topic.AdoptConfig) { cfg.Incarnation = storage.Incarnation{9} },
			"the life of what was refused": func(cfg *topic.AdoptConfig) { cfg.Incarnation = storage.Incarnation{1} },
			"another directory's life":     func(cfg *topic.AdoptConfig) { cfg.Entry, cfg.Topic = place, "bills" },
		} {
			again := cfg
			wrong(&again)
			_, err := topic.Adopt(t.Context(), again)
			var refused *storage.AdoptError
			require.ErrorAs(t, err, &refused, what)
			oneOutcome(t, err)
			require.ErrorIs(t, err, raftlog.ErrRefused, what)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = topic.Adopt(ended, cfg)
		require.ErrorIs(t, err, context.Canceled)
		oneOutcome(t, err)

		lost, err := topic.Adopt(t.Context(), cfg)
		require.NoError(t, err)
		require.Equal(t, left, lost.Dir)
		cfg.Entry, cfg.Topic, cfg.Incarnation = place, "bills", top.Incarnation
		found, err := topic.Adopt(t.Context(), cfg)
		require.NoError(t, err)
		require.Equal(t, "quarantine/bills@"+top.Incarnation.String()+"~1", found.Dir)

		n = c.start(1)
		<-n.meta.CaughtUp()
		all, err := n.topics.Quarantine(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 2)
		for _, q := range all {
			require.Equal(t, storage.ReasonAdopted, q.Reason.Kind)
			require.NoError(t, q.Foreign)
		}
		require.Equal(t, topic.FateLives, all[0].Fate)
		require.Equal(t, topic.FateUnknown, all[1].Fate)
		for name, want := range map[string]struct {
			dir  string
			part uint32
			all  []topic.Record
		}{"orders-back": {lost.Dir, 1, copies(one)}, "bills-back": {found.Dir, 0, mine}} {
			done, err := n.topics.RestoreQuarantined(t.Context(), topic.RestoreConfig{Dirs: []string{want.dir}, Topic: name})
			require.NoError(t, err, name)
			require.NotEqual(t, top.Incarnation, done.Topic.Incarnation)
			got := n.records(name, want.part)
			require.Len(t, got, len(want.all), name)
			for i := range got {
				require.Equal(t, want.all[i].Value, got[i].Value, name)
			}
		}
		_, err = n.topics.ReclaimQuarantined(t.Context(), found.Dir)
		require.Error(t, err, "its topic lives")
		still, err := n.topics.Quarantine(t.Context())
		require.NoError(t, err)
		require.Len(t, still, 2, "what was adopted stays")
	})
}
