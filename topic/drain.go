package topic

import (
	"math"
	"slices"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// PlannedDrain says where the replicas of a node go when it is taken out of the
// cluster: those that are on their way, those that still have to move, and those
// for which there is no other node. The node may drain already. What is on its way
// to the node stays where it is: such moves are cancelled. Like Planned it is a pure
// function.
func PlannedDrain(members []metastore.Member, topics []metastore.Topic, node raftlog.NodeID) Plan {
	drained := make([]metastore.Member, len(members))
	copy(drained, members)
	for i := range drained {
		if m := &drained[i]; m.Node == node && !m.Liveness.Draining() {
			m.Liveness.Departure = metastore.Drains
		}
	}
	p := newPlanner(drained, withoutMovesTo(topics, node))
	p.drain(math.MaxInt)
	var of Plan
	for i := range p.parts {
		pp := &p.parts[i]
		if pp.part.Target == nil {
			continue
		}
		if from := nodeOf(*pp.part, pp.part.Target.Remove); from == node {
			of.Moves = append(of.Moves, PlannedMove{
				MoveRequest: metastore.MoveRequest{
					Incarnation: pp.topic.Incarnation, Partition: pp.part.Index, Generation: pp.part.Generation,
					To: pp.part.Target.Add.Node, Remove: pp.part.Target.Remove,
				},
				Topic: pp.topic.Name, From: from, Reason: ForDrain,
			})
		}
	}
	for _, m := range p.plan.Moves {
		if m.From == node {
			of.Moves = append(of.Moves, m)
		}
	}
	for _, b := range p.plan.Blocked {
		if b.Node == node {
			of.Blocked = append(of.Blocked, b)
		}
	}
	return of
}

// withoutMovesTo are the topics as they are when moves to a node were cancelled.
func withoutMovesTo(topics []metastore.Topic, node raftlog.NodeID) []metastore.Topic {
	to := func(p metastore.Partition) bool { return p.Target != nil && p.Target.Add.Node == node }
	topics = slices.Clone(topics)
	for i := range topics {
		t := &topics[i]
		if !slices.ContainsFunc(t.Partitions, to) {
			continue
		}
		t.Partitions = slices.Clone(t.Partitions)
		for k := range t.Partitions {
			if to(t.Partitions[k]) {
				t.Partitions[k].Target = nil
			}
		}
	}
	return topics
}
