package topic

import (
	"cmp"
	"slices"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// PlanReason says what a planned move is for.
type PlanReason uint8

const (
	// ForDrain empties a node that is to leave.
	ForDrain PlanReason = 1
	// ForBalance gives a node that holds little a part of what another one holds.
	ForBalance PlanReason = 2
	// ForRepair gives a partition a replica that it should have and has not, since
	// a forced recovery left it with fewer.
	ForRepair PlanReason = 3
)

func (r PlanReason) String() string {
	switch r {
	case ForDrain:
		return "drain"
	case ForBalance:
		return "balance"
	case ForRepair:
		return "repair"
	}
	return "invalid"
}

// PlannedMove is a move that should begin.
type PlannedMove struct {
	metastore.MoveRequest
	Topic  string
	From   raftlog.NodeID // that holds MoveRequest.Remove
	Reason PlanReason
}

// BlockedReplica is a replica on a node that is to leave for which there is no
// other node: all that live and stay hold one of the partition.
type BlockedReplica struct {
	TopicPartition
	Node raftlog.NodeID
}

// Plan is what Planned says.
type Plan struct {
	Moves   []PlannedMove
	Blocked []BlockedReplica
}

// Planned decides which replicas should move where. It is a pure function of
// what the metadata say, whatever the order in which they say it, and counts the
// moves that are under way as if they had ended:
//
//   - at most limit moves are under way, those included, and one of a partition;
//   - partitions that have fewer replicas than their topic wants get more first,
//     one at a time, on the nodes that hold least;
//   - then nodes that drain are emptied: each replica goes to the node that
//     replaces theirs, if it has one, or to the one that holds least;
//   - then replicas go from the node that holds most to the one that holds
//     least while they differ by two or more, so that no move is made in vain,
//     and none that would have to be undone. Of what could go the topic that is
//     spread worst goes first, and a replica that is the preferred leader if
//     the source has more of those;
//   - nothing goes to a node that is dead, drains, or holds the partition;
//   - what a dead node holds stays its own: it may return, and its bytes with it.
//
// So what has been planned and begun is not planned again, and when all moves
// have ended nothing more is planned.
func Planned(members []metastore.Member, topics []metastore.Topic, limit int) Plan {
	p := newPlanner(members, topics)
	p.repair(limit)
	p.drain(limit)
	for len(p.plan.Moves)+p.underWay < limit && p.balance() {
	}
	return p.plan
}

// planner is the state as if all that is under way or planned had ended.
type planner struct {
	nodes    []*planNode // by id
	byID     map[raftlog.NodeID]*planNode
	parts    []planPartition // by topic name, incarnation and index
	underWay int
	plan     Plan
}

type planNode struct {
	id         raftlog.NodeID
	drains     bool
	open       bool           // it may be given replicas
	successor  raftlog.NodeID // a new life of its name; 0: none
	holds      int
	leads      int // as the preferred leader
	holdsTopic map[raftlog.Incarnation]int
}

type planPartition struct {
	topic  *metastore.Topic
	part   *metastore.Partition
	places []metastore.Assignment // as if its move had ended
	busy   bool                   // a move is under way or planned
}

func newPlanner(members []metastore.Member, topics []metastore.Topic) *planner {
	p := &planner{byID: map[raftlog.NodeID]*planNode{}}
	for i := range members {
		m := &members[i]
		p.node(m.Node).drains = m.Liveness.Draining()
		p.node(m.Node).open = !m.Liveness.Draining() && !m.Liveness.Dead
	}
	for i := range members {
		if old := members[i].Liveness.Replaces; old != 0 && p.byID[old] != nil {
			p.byID[old].successor = max(p.byID[old].successor, members[i].Node)
		}
	}
	for i := range topics {
		for k := range topics[i].Partitions {
			p.add(&topics[i], &topics[i].Partitions[k])
		}
	}
	slices.SortFunc(p.parts, func(a, b planPartition) int {
		return cmp.Or(cmp.Compare(a.topic.Name, b.topic.Name),
			slices.Compare(a.topic.Incarnation[:], b.topic.Incarnation[:]), cmp.Compare(a.part.Index, b.part.Index))
	})
	for _, n := range p.byID {
		p.nodes = append(p.nodes, n)
	}
	slices.SortFunc(p.nodes, func(a, b *planNode) int { return cmp.Compare(a.id, b.id) })
	return p
}

// node returns the node; one that is no member may be given nothing.
func (p *planner) node(id raftlog.NodeID) *planNode {
	n := p.byID[id]
	if n == nil {
		n = &planNode{id: id, holdsTopic: map[raftlog.Incarnation]int{}}
		p.byID[id] = n
	}
	return n
}

func (p *planner) add(t *metastore.Topic, part *metastore.Partition) {
	pp := planPartition{topic: t, part: part, places: slices.Clone(part.Replicas), busy: !t.State.Kept()}
	if part.Target != nil {
		p.underWay++
		pp.busy = true
		if i := slices.IndexFunc(pp.places, func(a metastore.Assignment) bool { return a.Replica == part.Target.Remove }); i >= 0 {
			pp.places[i] = part.Target.Add
		} else {
			pp.places = append(pp.places, part.Target.Add)
		}
	}
	for i, a := range pp.places {
		p.count(t, a.Node, i, +1)
	}
	p.parts = append(p.parts, pp)
}

func (p *planner) count(t *metastore.Topic, id raftlog.NodeID, place, by int) {
	n := p.node(id)
	n.holds += by
	n.holdsTopic[t.Incarnation] += by
	if place == 0 {
		n.leads += by
	}
}

// on returns at which place of a partition a node is, -1: at none.
func (pp *planPartition) on(n raftlog.NodeID) int {
	return slices.IndexFunc(pp.places, func(a metastore.Assignment) bool { return a.Node == n })
}

// move plans a move of what is at a place of a partition.
func (p *planner) move(pp *planPartition, place int, to raftlog.NodeID, why PlanReason) {
	from := pp.places[place]
	p.plan.Moves = append(p.plan.Moves, PlannedMove{
		MoveRequest: metastore.MoveRequest{
			Incarnation: pp.topic.Incarnation, Partition: pp.part.Index, Generation: pp.part.Generation,
			To: to, Remove: from.Replica,
		},
		Topic: pp.topic.Name, From: from.Node, Reason: why,
	})
	p.count(pp.topic, from.Node, place, -1)
	p.count(pp.topic, to, place, +1)
	pp.places[place] = metastore.Assignment{Node: to}
	pp.busy = true
}

// repair plans replicas for partitions that have too few. One that has none cannot
// get any: there is nothing to copy.
func (p *planner) repair(limit int) {
	for i := range p.parts {
		pp := &p.parts[i]
		if pp.busy || len(pp.places) == 0 || len(pp.places) >= int(pp.topic.Config.Replicas) || len(p.plan.Moves)+p.underWay >= limit {
			continue
		}
		to := p.refuge(pp, nil)
		if to == nil {
			continue
		}
		p.plan.Moves = append(p.plan.Moves, PlannedMove{
			MoveRequest: metastore.MoveRequest{
				Incarnation: pp.topic.Incarnation, Partition: pp.part.Index, Generation: pp.part.Generation, To: to.id,
			},
			Topic: pp.topic.Name, Reason: ForRepair,
		})
		p.count(pp.topic, to.id, len(pp.places), +1)
		pp.places = append(pp.places, metastore.Assignment{Node: to.id})
		pp.busy = true
	}
}

// drain plans moves off the nodes that are to leave, and notes what cannot go.
func (p *planner) drain(limit int) {
	for i := range p.parts {
		pp := &p.parts[i]
		if !pp.topic.State.Kept() {
			continue
		}
		for place := range pp.places {
			from := p.node(pp.places[place].Node)
			if !from.drains {
				continue
			}
			to := p.refuge(pp, from)
			switch {
			case to == nil:
				at := TopicPartition{pp.topic.Name, pp.part.Index}
				p.plan.Blocked = append(p.plan.Blocked, BlockedReplica{at, from.id})
			case !pp.busy && len(p.plan.Moves)+p.underWay < limit:
				p.move(pp, place, to.id, ForDrain)
			}
		}
	}
}

// refuge returns the node that takes over what another one leaves, or nil. from
// nil: nobody leaves it.
func (p *planner) refuge(pp *planPartition, from *planNode) *planNode {
	if from == nil {
		from = &planNode{}
	}
	if to := p.byID[from.successor]; to != nil && to.open && pp.on(to.id) < 0 {
		return to
	}
	var best *planNode
	for _, n := range p.nodes {
		if n.open && pp.on(n.id) < 0 && (best == nil || n.holds < best.holds) {
			best = n
		}
	}
	return best
}

// balance plans one move from a node that holds more, by two at least, than
// another; false: there is none to plan.
func (p *planner) balance() bool {
	var open []*planNode
	for _, n := range p.nodes {
		if n.open {
			open = append(open, n)
		}
	}
	least := slices.Clone(open)
	slices.SortStableFunc(open, func(a, b *planNode) int { return cmp.Compare(b.holds, a.holds) })
	slices.SortStableFunc(least, func(a, b *planNode) int { return cmp.Compare(a.holds, b.holds) })
	for _, from := range open {
		for _, to := range least {
			if from.holds-to.holds < 2 {
				break
			}
			if pp, place := p.candidate(from, to); pp != nil {
				p.move(pp, place, to.id, ForBalance)
				return true
			}
		}
	}
	return false
}

// candidate returns the replica that should go from one node to another, nil if
// none can.
func (p *planner) candidate(from, to *planNode) (best *planPartition, place int) {
	leads := from.leads-to.leads >= 2
	rank := func(pp *planPartition, place int) int {
		inc := pp.topic.Incarnation
		worse := 2 * (from.holdsTopic[inc] - to.holdsTopic[inc])
		if (place == 0) == leads {
			worse++
		}
		return worse
	}
	for i := range p.parts {
		pp := &p.parts[i]
		at := pp.on(from.id)
		if pp.busy || at < 0 || pp.on(to.id) >= 0 {
			continue
		}
		if best == nil || rank(pp, at) > rank(best, place) {
			best, place = pp, at
		}
	}
	return best, place
}
