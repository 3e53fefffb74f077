package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/storage"
)

// What status prints when one node of three answers: partitions that it has no replica
// of are there too, with what is wrong with them.
func TestStatusOfWhatIsNotReached(t *testing.T) {
	on := func(group storage.GroupID, index uint32, nodes ...stele.NodeID) metastore.Partition {
		p := metastore.Partition{Index: index, Group: group}
		for _, n := range nodes {
			p.Replicas = append(p.Replicas, metastore.Assignment{Node: n, Replica: storage.ReplicaID(n)})
		}
		return p
	}
	topics := []stele.Topic{{Name: "lines", Partitions: []metastore.Partition{on(2, 0, 1, 2), on(3, 1, 1, 3), on(4, 2, 2, 3), on(5, 3, 9)}}, {Name: "other", Partitions: []metastore.Partition{on(6, 0, 1)}}}
	lost := []stele.TopicPartition{{Topic: "lines", Partition: 3}}
	names := map[stele.NodeID]string{1: "a", 2: "b", 3: "c"}
	a := &nodeView{http: "a:2"}
	a.Name, a.Code = "a", stele.Ready
	a.Members = []memberAnswer{{Name: "a", HTTP: "a:2"}, {Name: "b", HTTP: "b:2"}, {Name: "c"}}
	a.Groups = []groupAnswer{
		{Group: 1, Role: "leader-active", Leader: "a", Term: 4, Readable: true, HighWatermark: 20},
		{Topic: "lines", Partition: 0, Group: 2, Role: "leader-active", Leader: "a", Term: 2, Readable: true, HighWatermark: 7},
		{Topic: "lines", Partition: 1, Group: 3, Role: "candidate", Term: 5, Readable: true, HighWatermark: 7},
	}
	a.Known = knownPartitions(topics, lost, names, "lines")
	a.Leaving = []leavingInfo{{"b", "move its partitions", []blockInfo{{"voters", "add a node"}}}}
	v := view{nodes: map[string]*nodeView{"a:2": a, "b:2": {http: "b:2", err: errors.New("b:2: connection refused")}}}
	var out bytes.Buffer
	require.NoError(t, v.print(&out))
	require.Equal(t, `NODE  LEADS  GROUPS  HTTP  READINESS
a     2      3       a:2   ready
b                          b:2: connection refused
c                          its HTTP address is not known: give it in -http

GROUP     LEADER       TERM  START  END  a          b  c
metadata  a            4     0      20   leader     ?  ?
lines/0   a            2     0      7    leader     ?  -
lines/1   none         5     0      7    candidate  -  ?
lines/2   unreachable  0     0      0    -          ?  ?
lines/3   lost         0     0      0    -          -  -
lines/1 has no leader: it needs a majority of its replicas; start their nodes, or if they are lost for good see recover
lines/2 is unreachable: it is on b, c, and none of them answers
lines/3 is lost: a forced recovery left no replica of it; copy the other partitions of its topic elsewhere, then delete it
b leaves; next: move its partitions
b waits to leave: add a node
`, out.String())
}
