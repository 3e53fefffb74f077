package topic_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// Property: S4 (red: it was not made of the log; it was made of the entries that are left
// of a log that begins later; other replicas were not asked; the round did not look at it)
//
// The side file with the producers' state is damaged or gone on a node that is down,
// and on one that runs: it is made again of the log, or, where that has no longer the
// entries, it comes from the other replicas. What it holds is the same everywhere.
func TestASideFileIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDamaged(t, 9, 5)
		d.closeAll() // what is applied is in the tables
		require.Len(t, d.files(2, ".aux"), 1)
		newest := func(id raftlog.NodeID) string {
			files := d.files(id, ".aux")
			return strings.Join(d.read(id, files[max(len(files)-1, 0):]), "")
		}
		flip := func(path string) error { return d.disks[2].Flip(path, 40, 3) }
		remove := func(path string) error { return d.disks[2].Remove(path) }
		again := func(what string, spoil func(path string) error, end func()) {
			pass(time.Minute) // it has its name
			for _, path := range d.files(2, ".aux") {
				require.NoError(t, spoil(path), what)
			}
			end()
			settle(t, what+": it is made again", func() bool { return newest(2) == newest(1) })
			settle(t, what+": the replica takes part", func() bool {
				return d.node(2).topics.OpenGroup(d.top.Incarnation, 0) != nil && d.status(2).Err == nil && d.equal()
			})
			require.Positive(t, d.node(2).topics.Stats().Repaired, what)
		}
		down := func() {
			d.startAll()
			p := producer(t, d.node(1), topic.ProducerConfig{})
			_, err := p.ProduceTo(t.Context(), "orders", 0, record("more"))
			require.NoError(t, err)
			require.NoError(t, p.Close(t.Context()))
		}
		d.onFlow(func(_, _ raftlog.NodeID, _ []byte) error { return errors.New("the stream broke") })
		again("a bit of a node that is down", flip, down)
		d.closeAll()
		again("a file of a node that is down", remove, down)
		again("a bit of a node that runs", flip, func() { pass(6 * time.Minute) })
		d.onFlow(nil)

		d.upgradeTo(3)
		_, err := d.node(1).topics.SetRetention(t.Context(), "orders", metastore.Retention{Bytes: 2 << 20})
		require.NoError(t, err)
		settle(t, "the log begins later", func() bool {
			for id := raftlog.NodeID(1); id <= 3; id++ {
				if d.node(id).topics.OpenGroup(d.top.Incarnation, 0).Log().Start().Offset == 0 {
					return false
				}
			}
			return true
		})
		d.closeAll()
		down() // the tables say it, too
		for _, spoil := range []func(string) error{flip, remove} {
			d.closeAll()
			again("a log without its first entries", spoil, down)
		}
		again("a log that is open", remove, func() { pass(6 * time.Minute) })
	})
}

// closeAll ends all nodes as processes that have time for it.
func (d *damaged) closeAll() {
	for _, n := range d.running() {
		for n.topics.OpenGroup(d.top.Incarnation, 0) == nil {
			pass(100 * time.Millisecond)
		}
		_ = n.host.Close(d.t.Context())
		d.crash(n.id, simfs.Kill)
	}
}
