package metastore

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
)

func candidates(n int) []candidate {
	nodes := make([]candidate, n)
	for i := range nodes {
		nodes[i].Node = raftlog.NodeID(i + 1)
	}
	return nodes
}

func spread(nodes []candidate, count func(candidate) uint64) uint64 {
	lo, hi := count(nodes[0]), count(nodes[0])
	for _, n := range nodes {
		lo, hi = min(lo, count(n)), max(hi, count(n))
	}
	return hi - lo
}

func leads(c candidate) uint64 { return c.Leads }
func holds(c candidate) uint64 { return c.Replicas }

func TestPlacementIsEvenAndDistinct(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for replicas := 1; replicas <= n; replicas++ {
			nodes := candidates(n)
			for p, on := range place(nodes, 60, replicas) {
				require.Len(t, on, replicas)
				seen := map[raftlog.NodeID]bool{}
				for _, node := range on {
					require.False(t, seen[node], "%d nodes, %d replicas: partition %d has %v twice", n, replicas, p, node)
					seen[node] = true
				}
			}
			require.LessOrEqual(t, spread(nodes, leads), uint64(1), "%d nodes, %d replicas: %v", n, replicas, nodes)
			require.LessOrEqual(t, spread(nodes, holds), uint64(1), "%d nodes, %d replicas: %v", n, replicas, nodes)
		}
	}
}

func TestPlacementFillsNewNodesAndBalancesTopicsOfOnePartition(t *testing.T) {
	nodes := candidates(3)
	for range 30 {
		place(nodes, 1, 2)
	}
	require.LessOrEqual(t, spread(nodes, leads), uint64(1))
	require.LessOrEqual(t, spread(nodes, holds), uint64(1))

	nodes = append(nodes, candidate{Node: 4})
	place(nodes, 60, 2)
	require.LessOrEqual(t, spread(nodes, leads), uint64(1), "%v", nodes)
	require.LessOrEqual(t, spread(nodes, holds), uint64(1), "%v", nodes)
}

func TestPlacementSharesFollowers(t *testing.T) {
	for n := 3; n <= 9; n++ {
		led, pairs := map[raftlog.NodeID]int{}, map[[2]raftlog.NodeID]int{}
		for _, on := range place(candidates(n), 120, 2) {
			led[on[0]]++
			pairs[[2]raftlog.NodeID(on)]++
		}
		for pair, shared := range pairs {
			require.LessOrEqual(t, 3*shared, 2*led[pair[0]], "%d nodes: %v follows most of what %v leads", n, pair[1], pair[0])
		}
	}
}

func TestPlacementDependsOnItsArgumentsAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		a := candidates(1 + r.IntN(7))
		for i := range a {
			a[i].load = load{uint64(r.IntN(9)), uint64(r.IntN(4))}
		}
		b := append([]candidate{}, a...)
		replicas := 1 + r.IntN(len(a))
		require.Equal(t, place(a, 10, replicas), place(b, 10, replicas))
		require.Equal(t, a, b)
	}
}
