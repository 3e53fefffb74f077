package stele

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// ErrDraining: this node is about to leave its cluster and takes in no more
// records. It is Retry: through another node.
var ErrDraining = topic.ErrDraining

// ErrDecommissionCancelled: somebody took the decommission back. It is Refused.
var ErrDecommissionCancelled = raftlog.Refused(errors.New("stele: the decommission was taken back"))

// Departure is how far a member is on its way out of the cluster.
type Departure = metastore.Departure

// How far a member is on its way out.
const (
	Stays        Departure = metastore.Stays        // it is not leaving
	Drains       Departure = metastore.Drains       // its partitions are moved off; that can be taken back
	DrainsForced Departure = metastore.DrainsForced // the same, whatever is left behind
	Leaves       Departure = metastore.Leaves       // it is taken out of the metadata; that cannot be taken back
)

// DecommissionOptions say how a node is taken out of its cluster.
type DecommissionOptions struct {
	// Force goes on where a decommission would wait for a person: when fewer than
	// three voters would be left, and when the node is dead and cannot say whether it
	// has answered all records that it took in. Nothing that was acknowledged is
	// lost by it.
	Force bool
	// WhenPossible begins a decommission that something blocks, too. It then does
	// what can be done, and goes on when the block is gone, such as when another node
	// joins.
	WhenPossible bool
}

// Block is something that keeps a decommission from going on: a code, and a
// sentence that says what helps.
type Block = membership.Block

// BlockCode is why a decommission does not go on, for programs.
type BlockCode = membership.BlockCode

// Why a decommission does not go on.
const (
	BlockVoters    BlockCode = membership.BlockVoters    // fewer than three voters would be left: add a node, or force it
	BlockLastVoter BlockCode = membership.BlockLastVoter // no voter would be left: add a node
	BlockDead      BlockCode = membership.BlockDead      // it is dead, and cannot say what it has answered: bring it back, or force it
	BlockQuorum    BlockCode = membership.BlockQuorum    // too few of the voters that would be left are alive: bring them back
	BlockBusy      BlockCode = membership.BlockBusy      // something else is under way: wait for it
	BlockReplicas  BlockCode = membership.BlockReplicas  // partition replicas have no other node: add one
	BlockMajority  BlockCode = membership.BlockMajority  // partitions have no majority of replicas that live: bring their nodes back, or recover
)

// BlockedError refuses a decommission that would not come to its end as things
// are. Nothing has begun. It is Refused; see DecommissionOptions.WhenPossible.
type BlockedError struct {
	Name    string
	Blocked []Block
}

func (e *BlockedError) Error() string {
	return fmt.Sprintf("stele: %s cannot leave the cluster: %s", e.Name, reasons(e.Blocked))
}

// Unwrap makes the error match ErrRefused.
func (e *BlockedError) Unwrap() error { return ErrRefused }

func reasons(blocked []Block) string {
	var all []string
	for _, b := range blocked {
		all = append(all, b.Reason)
	}
	return strings.Join(all, "; ")
}

// DecommissionStep is a step of a decommission; its String says what is done.
type DecommissionStep = membership.Step

// Steps of a decommission, in their order; a plan never has StepWait.
const (
	StepMove     DecommissionStep = membership.StepMove     // its partitions go elsewhere
	StepBacklog  DecommissionStep = membership.StepBacklog  // it says that it has answered all that it took in
	StepTransfer DecommissionStep = membership.StepTransfer // it hands the metadata's leadership over
	StepMark     DecommissionStep = membership.StepMark     // from here on nothing takes it back
	StepLeave    DecommissionStep = membership.StepLeave    // it leaves the metadata's group
	StepRemove   DecommissionStep = membership.StepRemove   // its record ends
	StepWait     DecommissionStep = membership.StepWait     // something else has to end first: Progress.Reason says what
)

// ReplicaMove is a replica of a partition that goes to another node.
type ReplicaMove struct {
	TopicPartition
	To NodeID
}

func (m ReplicaMove) String() string { return fmt.Sprintf("%v to %v", m.TopicPartition, m.To) }

// DecommissionPlan is what a decommission would do.
type DecommissionPlan struct {
	Name string
	Node NodeID
	// Steps are all of them in their order, as if nothing blocked it.
	Steps []DecommissionStep
	// Moves are the partition replicas that go elsewhere; those that are on their
	// way come first.
	Moves []ReplicaMove
	// Blocked is what has to be done before it can come to its end; empty: nothing.
	Blocked []Block
}

// PlanDecommission says what Decommission would do with these options, and what
// blocks it. It changes nothing, and may be called on any node. It is as of now:
// not older than any change that was acknowledged before the call. Of what is only
// the leader's to know, such as whether a learner is caught up, it expects the best.
//
// *NoMemberError (Refused); Retry if the metadata has no leader.
func (n *Node) PlanDecommission(ctx context.Context, name string, opts DecommissionOptions) (DecommissionPlan, error) {
	p, m, err := n.find(ctx, "Node.PlanDecommission", name)
	if err != nil {
		return DecommissionPlan{}, err
	}
	return p.planDecommission(m, opts.Force || m.Liveness.Departure == DrainsForced, true)
}

func (p *parts) planDecommission(m metastore.Member, force, fresh bool) (DecommissionPlan, error) {
	seats, err := p.steward.Plan(m.Node, force)
	if err != nil {
		return DecommissionPlan{}, err
	}
	plan := DecommissionPlan{Name: m.Name, Node: m.Node, Steps: seats.Steps, Blocked: seats.Blocked}
	replicas := p.drain(m.Node, fresh)
	for _, move := range replicas.Moves {
		plan.Moves = append(plan.Moves, ReplicaMove{TopicPartition{Topic: move.Topic, Partition: move.Partition}, move.To})
	}
	if b, ok := stuckOn(replicas); ok {
		plan.Blocked = append([]Block{b}, plan.Blocked...)
	}
	return plan, nil
}

// stuck is stuckOn of a node that leaves.
func (p *parts) stuck(node NodeID) (Block, bool) {
	return stuckOn(p.drain(node, false))
}

// drains keeps what was planned of nodes that leave, as long as members and topics
// are what they were: while a node leaves the leader asks every second, and of 100,000
// partitions a plan takes a good part of that.
type drains struct {
	mu struct {
		sync.Mutex
		plans map[NodeID]drainPlan // at most maxPlans
	}
}

type drainPlan struct {
	topic.Plan
	asleep  []TopicPartition // of the node's, that have no majority of replicas that live
	changes uint64           // of the metadata
	made    time.Time
	took    time.Duration
}

const maxPlans = 8

// planShare bounds how much of the time plans take that need not be fresh.
const planShare = 20

// drain is where the replicas of a node that leaves go; what it points to must not be
// changed. A plan that need not be fresh may be older than the last change, by as much
// as keeps plans below a twentieth of the time.
func (p *parts) drain(node NodeID, fresh bool) drainPlan {
	changes, _ := p.meta.Watch() // before what is planned on: that may be newer
	d := &p.drains.mu
	d.Lock()
	defer d.Unlock()
	now := clock.System().Now()
	last, ok := d.plans[node]
	if ok && (last.changes == changes || !fresh && now.Sub(last.made) < planShare*last.took) {
		return last
	}
	if len(d.plans) >= maxPlans || d.plans == nil {
		d.plans = map[NodeID]drainPlan{}
	}
	members, topics := p.meta.Members(), p.meta.Topics()
	plan := drainPlan{Plan: topic.PlannedDrain(members, topics, node), asleep: asleepOn(members, topics, node), changes: changes}
	plan.made = clock.System().Now()
	plan.took = plan.made.Sub(now)
	d.plans[node] = plan
	return plan
}

// asleepOn are the partitions with a replica on a node that have no majority of
// replicas on nodes that live: nothing moves them.
func asleepOn(members []metastore.Member, topics []metastore.Topic, node NodeID) (asleep []TopicPartition) {
	lives := map[NodeID]bool{}
	for i := range members {
		lives[members[i].Node] = !members[i].Liveness.Dead
	}
	for _, t := range topics {
		for i, part := range t.Partitions {
			here, living := false, 0
			for _, a := range part.Replicas {
				here = here || a.Node == node
				if lives[a.Node] {
					living++
				}
			}
			if here && living <= len(part.Replicas)/2 {
				asleep = append(asleep, TopicPartition{Topic: t.Name, Partition: uint32(i)})
			}
		}
	}
	return asleep
}

// stuckOn says that replicas cannot be moved, or have nowhere to go.
func stuckOn(plan drainPlan) (Block, bool) {
	if len(plan.asleep) > 0 {
		return Block{Code: BlockMajority, Reason: fmt.Sprintf(
			"%d partitions cannot be moved, as most of their replicas are on dead nodes (%s): bring those nodes back, or if they are lost for good see PlanRecovery",
			len(plan.asleep), firstOf(plan.asleep))}, true
	}
	var replicas []TopicPartition
	for _, r := range plan.Blocked {
		replicas = append(replicas, r.TopicPartition)
	}
	return Block{Code: BlockReplicas, Reason: fmt.Sprintf(
		"%d partition replicas have nowhere to go, as each other node that lives and stays has one of the same partition (%s): add a node",
		len(replicas), firstOf(replicas))}, len(replicas) > 0
}

// firstOf names the first few of partitions.
func firstOf(partitions []TopicPartition) string {
	const named = 3
	var names []string
	for i, at := range partitions {
		if i == named {
			names = append(names, "...")
			break
		}
		names = append(names, at.String())
	}
	return strings.Join(names, ", ")
}

// Decommission takes a node out of the cluster: its partitions are moved to other
// nodes, what it took in is delivered, it hands its leaderships over, leaves the
// metadata's group, and its record ends with a tombstone: its directory can never
// come back, its name can. It returns when that has begun, durably. From then on
// whoever leads the metadata goes on with it; the Decommission only watches. Calling
// it again, anywhere, watches the same one, and may force it.
//
// What could not come to its end as things are is not begun, unless WhenPossible:
// *BlockedError says why, as PlanDecommission does. If something blocks it later,
// such as the death of the node, it waits, and Progress says for what.
//
// name is that of any node, this one too; of two lives of one name the newer.
//
//	Refused  *NoMemberError, *BlockedError
//	Retry    nothing has begun; *ClusterVersionError, which names who holds it back:
//	         in the first seconds of a cluster, members that have not been heard yet
//	Unknown  ctx ended: it may have begun
func (n *Node) Decommission(ctx context.Context, name string, opts DecommissionOptions) (*Decommission, error) {
	p, m, err := n.find(ctx, "Node.Decommission", name)
	if err != nil {
		return nil, err
	}
	if err := p.meta.Require(versionOfMembers); err != nil {
		return nil, err
	}
	if m.Liveness.Departure == Stays && !opts.WhenPossible {
		plan, err := p.planDecommission(m, opts.Force, true)
		if err != nil {
			return nil, err
		}
		if len(plan.Blocked) > 0 {
			return nil, &BlockedError{name, plan.Blocked}
		}
	}
	to := Drains
	if opts.Force {
		to = DrainsForced
	}
	switch have := m.Liveness.Departure; {
	case have == Leaves, have == to, have == DrainsForced:
	default:
		if err := p.meta.SetDeparture(ctx, m.Node, m.Nonce, to); err != nil && !errors.Is(err, metastore.ErrMemberLeaving) {
			return nil, err
		}
	}
	return &Decommission{node: n, parts: p, member: m}, nil
}

// Decommissions returns where each decommission that is under way stands, as this
// node knows it, by node id.
func (n *Node) Decommissions() []Progress {
	p := n.net.parts.Load()
	if p == nil {
		return nil
	}
	return p.leaving()
}

func (p *parts) leaving() (all []Progress) {
	for _, m := range p.meta.Members() {
		if m.Liveness.Draining() {
			if at, err := p.progress(m); err == nil {
				all = append(all, at)
			}
		}
	}
	return all
}

// progress is where a member on its way out stands.
func (p *parts) progress(m metastore.Member) (at Progress, err error) {
	at = Progress{Name: m.Name, Node: m.Node, Departure: m.Liveness.Departure}
	if at.Replicas, _, err = p.meta.Load(m.Node); err != nil || !m.Liveness.Draining() {
		return at, err
	}
	next := p.steward.Next(m.Node)
	at.Step, at.Reason = next.Step, next.Reason
	plan, err := p.planDecommission(m, m.Liveness.Departure == DrainsForced, false)
	at.Blocked = plan.Blocked
	return at, err
}

// Decommission is a decommission that is under way. Its methods are safe for
// concurrent use, and answer from what this node knows.
type Decommission struct {
	node   *Node
	parts  *parts
	member metastore.Member
}

// Progress is where a decommission stands.
type Progress struct {
	Name      string
	Node      NodeID
	Departure Departure
	Replicas  uint64 // of partitions, that are still to be moved off
	Done      bool   // it is no member any more
	// Step is what is to be done next, as far as this node knows; of a member that
	// stays or is out there is none. Reason is what it waits for, such as records that
	// the node took in and has not answered (StepBacklog); empty: nothing, or it is not
	// known here. The node that leads the metadata knows it.
	Step   DecommissionStep
	Reason string
	// Blocked is what it waits for and does not come by itself, as far as this node
	// can tell: see Block. Other partitions may be moved meanwhile.
	Blocked []Block
}

// Progress returns where the decommission stands. The error is why the metadata
// cannot be read.
func (o *Decommission) Progress() (Progress, error) {
	m, ok := o.parts.meta.Member(o.member.Node)
	if !ok || o.gone() {
		return Progress{Name: o.member.Name, Node: o.member.Node, Departure: Leaves, Done: true}, nil
	}
	return o.parts.progress(m)
}

func (p Progress) String() string {
	switch {
	case p.Done:
		return p.Name + " is out of the cluster"
	}
	text := fmt.Sprintf("%s %v, with %d replicas", p.Name, p.Departure, p.Replicas)
	if p.Step != membership.StepNone {
		text += "; next: " + p.Next()
	}
	if len(p.Blocked) > 0 {
		text += "; it waits: " + reasons(p.Blocked)
	}
	return text
}

// Next is Step and Reason in words: empty if there is no step, and without the reason
// if Blocked says the same.
func (p Progress) Next() string {
	switch {
	case p.Step == membership.StepNone:
		return ""
	case p.Reason == "", slices.ContainsFunc(p.Blocked, func(b Block) bool { return b.Reason == p.Reason }):
		return p.Step.String()
	}
	return p.Step.String() + ": " + p.Reason
}

// Wait returns nil when the node is out of the cluster. ErrDecommissionCancelled
// if somebody took it back; if ctx ends first, the error is Unknown, says where
// it stands and what blocks it, matches ctx.Err(), and the decommission goes on.
func (o *Decommission) Wait(ctx context.Context) error {
	if err := needs(ctx, "Decommission.Wait"); err != nil {
		return err
	}
	for {
		_, changed := o.parts.meta.Watch()
		at, on := o.node.readiness()
		m, ok := o.parts.meta.Member(o.member.Node)
		switch {
		case !ok, o.gone():
			return nil
		case m.Liveness.Departure == Stays:
			return ErrDecommissionCancelled
		case at.Code == Closed:
			return raftlog.Unknown(ErrClosed)
		case at.Code == Failed, at.Code == Removed && o.node.failure() != nil:
			return raftlog.Unknown(fmt.Errorf("stele: this node is %v", at))
		}
		select {
		case <-changed:
		case <-on.own:
		case <-ctx.Done():
			at, err := o.Progress()
			return raftlog.Unknown(errors.Join(fmt.Errorf("stele: %v: %w", at, ctx.Err()), err))
		}
	}
}

// gone reports whether the node that was to leave is this one, and was told that it
// is no member any more. It gets no metadata then, and never sees that there.
func (o *Decommission) gone() bool {
	return o.member.Node == o.node.store.Identity().Node && o.node.wasRemoved()
}

// Cancel takes the decommission back: the node stays, with what it still has. It
// is refused once the node leaves the metadata, which nothing stops.
func (o *Decommission) Cancel(ctx context.Context) error {
	if err := needs(ctx, "Decommission.Cancel"); err != nil {
		return err
	}
	return o.parts.meta.SetDeparture(ctx, o.member.Node, o.member.Nonce, Stays)
}
