package metastore

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/stelelog/stele/raftlog"
)

// candidate is a node that can hold replicas, and what it holds already.
type candidate struct {
	Node raftlog.NodeID
	load
	Dead bool
}

// stayingOf returns the members that are not on their way out.
func stayingOf(members []Member) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.Liveness.Draining() })
}

// countOf is how many nodes the cluster has, when it is asked how many replicas a
// topic has by default: one that drains counts, as it may stay, or is to be replaced.
// Otherwise topics that are made meanwhile would have fewer, for good. One does not
// that nobody expects back, or that another life has replaced.
func countOf(members []Member) (n int) {
	for _, m := range members {
		gone := m.Liveness.Departure == Leaves || m.Liveness.Departure == DrainsForced && m.Liveness.Dead
		if !gone && !slices.ContainsFunc(members, func(o Member) bool { return o.Liveness.Replaces == m.Node }) {
			n++
		}
	}
	return n
}

// candidatesOf returns the members that new partitions of so many replicas are
// placed on: those that live. If they are too few, dead ones that hold least
// make up the number, as long as the living are a majority of each partition: it
// works, is short of replicas, and a node that is away for a while is no reason
// to refuse a topic.
func candidatesOf(t *tx, members []Member, replicas int) ([]candidate, error) {
	if len(members) < replicas {
		return nil, fmt.Errorf("%w: %d members are not on their way out, too few for %d replicas: add a node, or ask for fewer", ErrTooFewNodes, len(members), replicas)
	}
	var nodes, dead []candidate
	for _, m := range members {
		c := candidate{m.Node, t.load(m.Node), m.Liveness.Dead}
		if c.Dead {
			dead = append(dead, c)
		} else {
			nodes = append(nodes, c)
		}
	}
	if len(nodes) < replicas/2+1 {
		return nil, fmt.Errorf("%w: %d of %d members live, too few for %d replicas", ErrTooFewNodes, len(nodes), len(members), replicas)
	}
	if missing := replicas - len(nodes); missing > 0 {
		slices.SortStableFunc(dead, func(a, b candidate) int { return cmp.Compare(a.Replicas, b.Replicas) })
		nodes = append(nodes, dead[:missing]...)
		slices.SortFunc(nodes, func(a, b candidate) int { return cmp.Compare(a.Node, b.Node) })
	}
	return nodes, nil
}

// place chooses the nodes of each partition: the first is the preferred
// leader, and no node is chosen twice for one partition. One of them lives. It is a pure function
// of its arguments, and counts in nodes what it placed there.
//
// A leader is the node that leads least, then holds least, and lives; its followers are
// those that hold least, then lead most (the next partitions will be led by
// others). Ties go round from the leader on, one further with each partition
// that it leads, so that more than one node takes over from one that fails.
func place(nodes []candidate, partitions, replicas int) [][]raftlog.NodeID {
	places := make([][]raftlog.NodeID, partitions)
	order := make([]int, len(nodes))
	for p := range places {
		leader := slices.IndexFunc(nodes, func(n candidate) bool { return !n.Dead })
		for i, n := range nodes {
			best := nodes[leader]
			if !n.Dead && cmp.Or(cmp.Compare(n.Leads, best.Leads), cmp.Compare(n.Replicas, best.Replicas)) < 0 {
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
