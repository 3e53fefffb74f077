package topic_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// Whatever a node may be asked by another one about a partition, by call or stream: if
// it is of another life of the topic, of one that never was, or of a partition that is
// not there, it is refused, and nothing comes of it. So is what names the right life and
// another group, or another stint than that of the node that asks.
//
// Property: I8, I4 (red: serving found the replica by the partition's number alone; gives without its look at the group, and at whose the replica is; serveLeft's without its look at the group)
func TestRequestsForOthersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := startSwept(t, 3, 92, nil)
		old := c.create("orders", 1)
		require.NoError(t, c.node(1).topics.DeleteTopic(t.Context(), "orders"))
		made := c.create("orders", 1)
		n := c.leader("orders", 0)
		p := producer(t, n, topic.ProducerConfig{})
		_, err := p.Produce(t.Context(), "orders", record("mine"))
		require.NoError(t, err)
		part := made.Partitions[0]
		asker := part.Replicas[slices.IndexFunc(part.Replicas, func(r metastore.Assignment) bool { return r.Node != n.id })]
		before := n.topics.Group(made.Incarnation, 0).Status()
		ask := func(method string, request []byte) error {
			if !strings.HasPrefix(method, "topic.f") && method != "topic.aside" || method == "topic.fetch" {
				resp, err := n.topics.HandleCall(t.Context(), asker.Node, method, request)
				if err != nil {
					return err
				}
				return topic.DecodeResponse(resp)
			}
			s, err := c.node(asker.Node).OpenStream(t.Context(), n.id, method)
			require.NoError(t, err)
			defer s.Close()
			_, err = s.Write(request)
			require.NoError(t, err)
			return topic.RefusedFill(s)
		}
		type named struct {
			life      storage.Incarnation
			partition uint32
			group     raftlog.GroupID
			replica   storage.ReplicaID
			only      []string // methods that name it; none: all
		}
		streams := []string{"topic.fill", "topic.frames", "topic.aside"}
		for what, f := range map[string]named{
			"an older life":            {old.Incarnation, 0, part.Group, asker.Replica, nil},
			"an older life, as it was": {old.Incarnation, 0, old.Partitions[0].Group, old.Partitions[0].Replicas[0].Replica, nil},
			"no life that ever was":    {storage.Incarnation{9}, 0, part.Group, asker.Replica, nil},
			"no partition":             {made.Incarnation, 1, part.Group, asker.Replica, nil},
			"the older group":          {made.Incarnation, 0, old.Partitions[0].Group, asker.Replica, append([]string{"topic.left"}, streams...)},
			"an older stint":           {made.Incarnation, 0, part.Group, old.Partitions[0].Replicas[0].Replica, append([]string{"topic.transfer"}, streams...)},
			"another node's replica":   {made.Incarnation, 0, part.Group, n.topics.Group(made.Incarnation, 0).Replica(), streams},
		} {
			asked := 0
			for _, method := range topic.CallsHandled() {
				if method == "topic.time" || f.only != nil && !slices.Contains(f.only, method) {
					continue // the time is nobody's
				}
				batch := encode(topic.BatchInfo{Incarnation: f.life}, someTime, record("strange"))
				request, err := topic.ForeignRequest(method, f.life, f.partition, f.group, f.replica, batch)
				require.NoError(t, err)
				require.Error(t, ask(method, request), "%s: %s", what, method)
				asked++
			}
			require.GreaterOrEqual(t, asked, 3)
		}
		pass(3 * time.Second)
		after := n.topics.Group(made.Incarnation, 0).Status()
		require.Equal(t, before.Term, after.Term)
		require.Equal(t, before.Last, after.Last, "nothing was appended, nor closed")
		_, err = p.Produce(t.Context(), "orders", record("mine, too"))
		require.NoError(t, err)
		require.Equal(t, []string{"mine", "mine, too"}, n.dump("orders", 0))

		// What names it rightly is answered.
		for _, method := range []string{"topic.fetch", "topic.offsets", "topic.sums", "topic.fill"} {
			request, err := topic.ForeignRequest(method, made.Incarnation, 0, part.Group, asker.Replica, nil)
			require.NoError(t, err)
			require.NoError(t, ask(method, request), method)
		}
	})
}
