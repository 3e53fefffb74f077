package metastore

import (
	"cmp"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// candidate is a node that can hold replicas, and what it holds already.
type candidate struct {
	Node raftlog.NodeID
	load
}

// place chooses the nodes of each partition: the first is the preferred
// leader, and no node is chosen twice for one partition. It is a pure function
// of its arguments, and counts in nodes what it placed there.
//
// A leader is the node that leads least, then holds least; its followers are
// those that hold least, then lead most (the next partitions will be led by
// others). Ties go round from the leader on, one further with each partition
// that it leads, so that more than one node takes over from one that fails.
func place(nodes []candidate, partitions, replicas int) [][]raftlog.NodeID {
	places := make([][]raftlog.NodeID, partitions)
	order := make([]int, len(nodes))
	for p := range places {
		leader := 0
		for i, n := range nodes {
			best := nodes[leader]
			if cmp.Or(cmp.Compare(n.Leads, best.Leads), cmp.Compare(n.Replicas, best.Replicas)) < 0 {
				leader = i
			}
		}
		order[0] = leader
		followers := order[1:]
		for i := range followers {
			shifted := (uint64(i) + nodes[leader].Leads) % uint64(len(followers))
			followers[i] = (leader + 1 + int(shifted)) % len(nodes)
		}
		slices.SortStableFunc(followers, func(a, b int) int {
			return cmp.Or(
				cmp.Compare(nodes[a].Replicas, nodes[b].Replicas),
				cmp.Compare(nodes[b].Leads, nodes[a].Leads))
		})
		places[p] = make([]raftlog.NodeID, replicas)
		for i, n := range order[:replicas] {
			places[p][i] = nodes[n].Node
			nodes[n].Replicas++
		}
		nodes[leader].Leads++
	}
	return places
}
