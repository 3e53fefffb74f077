package membership

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Step is what is to be done next for a member that leaves.
type Step uint8

const (
	// StepNone: it does not leave.
	StepNone Step = iota
	// StepDrain: it was replaced by a new life: mark it draining.
	StepDrain
	// StepMove: partitions are still to be moved off it.
	StepMove
	// StepBacklog: its backlog is not zero, or not known: ask it.
	StepBacklog
	// StepTransfer: it leads group 1: hand leadership over. The next leader goes on.
	StepTransfer
	// StepMark: mark it leaving; from then on nothing takes it back.
	StepMark
	// StepLeave: take it out of the configuration, by Change.
	StepLeave
	// StepRemove: remove its record, and write the tombstone.
	StepRemove
	// StepWait: nothing can be done now; Reason says why.
	StepWait
)

func (s Step) String() string {
	names := [...]string{"none", "mark it draining", "move its partitions", "deliver its backlog", "hand leadership over",
		"mark it leaving", "take it out of the configuration", "remove its record", "wait"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("step(%d)", uint8(s))
}

// Next is the next step of a member that leaves.
type Next struct {
	Step   Step
	Reason string
	Change raftlog.Change // StepLeave
	// Blocked: waiting alone will not help; a person must do something. 0: it is
	// not so.
	Blocked BlockCode
}

// BlockCode is why a decommission does not go on, for programs.
type BlockCode uint8

const (
	// BlockVoters: fewer than MinVoters voters would be left. Add a node, or force
	// it.
	BlockVoters BlockCode = iota + 1
	// BlockLastVoter: no voter would be left. Add a node.
	BlockLastVoter
	// BlockDead: it is dead, and cannot say whether it has answered all that it
	// took in. Bring it back, or force it.
	BlockDead
	// BlockQuorum: too few of the voters that would be left are alive. Bring them
	// back.
	BlockQuorum
	// BlockBusy: something else is under way, and has to end before.
	BlockBusy
	// BlockReplicas: partition replicas have no other node. Add one. It is the
	// partitions' affair, and not found here.
	BlockReplicas
	// BlockMajority: partitions have no majority of replicas on nodes that live, so
	// that they cannot be moved. Bring those nodes back, or recover. As BlockReplicas.
	BlockMajority
)

// String is the reason in a word, distinct for each.
func (b BlockCode) String() string {
	names := [...]string{"none", "voters", "last-voter", "dead", "quorum", "busy", "replicas", "majority"}
	if int(b) < len(names) {
		return names[b]
	}
	return fmt.Sprintf("block(%d)", uint8(b))
}

// Block is something that keeps a decommission from going on.
type Block struct {
	Code   BlockCode
	Reason string // for a person: what is wrong, and what helps
}

func (b Block) String() string { return b.Reason }

// Backlog is what a node answered when it was asked for its backlog: how much its
// producers accepted and have not answered, in bytes of records.
type Backlog struct {
	Asked bool // it was asked
	Known bool // it answered, knowing that it is draining
	Count uint64
}

// NextStep decides what is to be done next for a member (D1):
//
//	draining -> partitions moved off -> backlog zero -> leadership handed off
//	-> leaving -> out of the configuration -> record removed, tombstone written
//
// It looks at facts alone, so whoever leads goes on where the last leader
// stopped. The mark "leaving" is what a cancel races: it is in group 1's own log
// before the configuration changes, so either the cancel comes first and nothing
// is removed, or it is refused. An un-drained node is never taken out.
//
// A life that was replaced by a new one of its name goes the same way, as long
// as it is silent: nobody is there to be asked for a backlog, and its partitions
// are moved while it leaves. Its vote passes to the new life (Promote).
func NextStep(f *Facts, node raftlog.NodeID, b Backlog) Next {
	k := f.member(node)
	if k == nil || !f.Leads {
		return Next{}
	}
	replaced := f.successor(node) != nil
	switch {
	case !k.Liveness.Draining() && !replaced:
		return Next{}
	case k.Liveness.Departure == metastore.Leaves:
		return f.leaving(k, replaced)
	case replaced && !f.replaceable(k):
		return Next{Step: StepWait, Reason: "a new life took its place, and it is not silent"}
	case replaced && !k.Liveness.Draining():
		return Next{Step: StepDrain}
	case replaced:
		return Next{Step: StepMark}
	}
	return f.draining(k, b)
}

// draining is the part of the way that can be taken back.
func (f *Facts) draining(k *Known, b Backlog) Next {
	forced := k.Liveness.Departure == metastore.DrainsForced
	switch {
	case k.Assigned > 0:
		return Next{Step: StepMove, Reason: fmt.Sprintf("%d partition replicas are to be moved", k.Assigned)}
	case b.Known && b.Count > 0:
		return Next{Step: StepBacklog, Reason: fmt.Sprintf("it accepted %d bytes of records that it has not answered", b.Count)}
	case !b.Known && k.Liveness.Dead && !forced:
		return Next{Step: StepBacklog, Blocked: BlockDead, Reason: "it is dead and cannot say whether it has answered all produces: force it, or bring it back"}
	case !b.Known && !(forced && b.Asked):
		return Next{Step: StepBacklog, Reason: "it has not said yet whether it has answered all produces"}
	}
	if k.Seat == SeatNone {
		return Next{Step: StepMark}
	}
	// Leadership is not handed over before the rest is possible: it would come
	// back, and go again.
	next := f.leave(k, forced)
	switch {
	case next.Step == StepWait:
		return next
	case k.Self:
		return Next{Step: StepTransfer}
	}
	return Next{Step: StepMark}
}

// leaving is the part of the way that only goes forward.
func (f *Facts) leaving(k *Known, replaced bool) Next {
	switch {
	case k.Seat == SeatNone && k.Assigned > 0:
		return Next{Step: StepMove, Reason: fmt.Sprintf("%d partition replicas are to be moved", k.Assigned)}
	case k.Seat == SeatNone && !f.ConfSafe:
		// A majority that does not know yet that it is out may need its vote.
		return Next{Step: StepWait, Reason: "a majority does not yet durably know the configuration without it"}
	case k.Seat == SeatNone:
		return Next{Step: StepRemove}
	case k.Self: // it became the leader after it was marked
		return Next{Step: StepTransfer}
	case replaced && !f.replaceable(k):
		return Next{Step: StepWait, Reason: "a new life took its place, and it is not silent"}
	case k.Seat == SeatVoter && f.heir(k) != nil:
		return Next{Step: StepWait, Reason: "its vote passes to the life that replaces it"}
	}
	// The floor was judged when it was marked; nobody remembers whether it was forced.
	// A vote that the mark counted on may take a while to come, under another leader.
	next := f.leave(k, replaced)
	if next.Blocked == BlockVoters { // nothing is to be waited for
		return f.leave(k, true)
	}
	return next
}

// leave takes a member out of the configuration; a standby gets its vote in the
// same change, if there is one (J18).
func (f *Facts) leave(k *Known, forced bool) Next {
	if ok, why := f.steady(); !ok {
		return Next{Step: StepWait, Reason: why}
	}
	change := raftlog.Change{Remove: []raftlog.ReplicaID{k.Replica}}
	if k.Seat == SeatLearner {
		return Next{Step: StepLeave, Change: change} // learners count to no floor (D2)
	}
	if s := f.standby(); s != nil {
		change.Voters = []raftlog.ReplicaID{s.Replica}
	}
	after := f.after(change)
	left := len(after.Voters) - f.leavers(after.Voters)
	switch {
	case len(after.Voters) == 0:
		return Next{Step: StepWait, Blocked: BlockLastVoter, Reason: "it is the last voter: add a node"}
	case left < f.Rules.MinVoters && !forced && left+f.coming(after) >= f.Rules.MinVoters:
		return Next{Step: StepWait, Reason: fmt.Sprintf("%s would be left, at least %d must be: one that has joined is about to get its vote", voters(left), f.Rules.MinVoters)}
	case left < f.Rules.MinVoters && !forced:
		return Next{Step: StepWait, Blocked: BlockVoters, Reason: fmt.Sprintf("%s would be left, at least %d must be: add a node, or force it", voters(left), f.Rules.MinVoters)}
	case !f.quorum(after, f.alive):
		return Next{Step: StepWait, Blocked: BlockQuorum, Reason: fmt.Sprintf("too few of the %s that would be left are alive: bring them back", voters(len(after.Voters)))}
	}
	return Next{Step: StepLeave, Change: change}
}

// coming counts the learners that get a vote without anybody's doing, since they
// live and there is room: they ask for it, and are caught up soon.
func (f *Facts) coming(after raftlog.ConfState) (n int) {
	for _, r := range after.Learners {
		k := f.byReplica(r)
		if k == nil {
			continue
		}
		if old := f.member(k.Liveness.Replaces); old != nil && old.Seat == SeatVoter {
			continue // it takes that one's vote
		}
		if f.alive(k) && !k.Liveness.Observer && !k.Liveness.Draining() && (k.Unreachable < 0 || k.Unreachable >= f.Rules.FailureMemory) {
			n++
		}
	}
	return min(n, f.Rules.MaxVoters-len(after.Voters))
}

// voters is a number of them.
func voters(n int) string {
	if n == 1 {
		return "1 voter"
	}
	return fmt.Sprintf("%d voters", n)
}

// leavers counts the voters that are marked leaving, and have no heir.
func (f *Facts) leavers(voters []raftlog.ReplicaID) (n int) {
	for _, r := range voters {
		if k := f.byReplica(r); k != nil && k.Liveness.Departure == metastore.Leaves && f.heir(k) == nil {
			n++
		}
	}
	return n
}

// Plan says what a decommission of a member would do, in order, and what blocks
// it. It changes nothing.
type Plan struct {
	Node    raftlog.NodeID
	Steps   []Step // all of them, as if nothing blocked it
	Blocked []Block
}

// PlanDecommission makes the plan of a member, forced or not; what it has is left
// as it is if it is on its way out already. Of a member that stays, those that are
// on their way out count as gone. ErrNoMember (Refused) if there is no such member.
func PlanDecommission(f *Facts, node raftlog.NodeID, force bool) (Plan, error) {
	p := Plan{Node: node}
	if f.member(node) == nil {
		return p, raftlog.Refused(fmt.Errorf("%w: %v", ErrNoMember, node))
	}
	g := *f // the facts as they would be, one step after the other
	g.Members = slices.Clone(f.Members)
	k := g.member(node)
	if k.Liveness.Departure == metastore.Stays {
		g.goBefore(k)
	}
	switch {
	case k.Liveness.Departure == metastore.Leaves:
	case force:
		k.Liveness.Departure = metastore.DrainsForced
	case k.Liveness.Departure == metastore.Stays:
		k.Liveness.Departure = metastore.Drains
	}
	var b Backlog
	for range 12 {
		n := NextStep(&g, node, b)
		if n.Blocked != 0 {
			p.Blocked = append(p.Blocked, Block{n.Blocked, n.Reason})
		}
		switch n.Step {
		case StepMove:
			k.Assigned = 0
		case StepBacklog:
			b.Known, b.Count = true, 0
		case StepMark:
			k.Liveness.Departure = metastore.Leaves
		case StepTransfer:
			k.Self = false
			g.elect(k)
		case StepLeave:
			g.Conf = g.after(n.Change)
			k.Seat = SeatNone
		case StepWait:
			if n.Blocked != BlockVoters {
				if n.Blocked == 0 {
					p.Blocked = append(p.Blocked, Block{BlockBusy, n.Reason})
				}
				return p, nil
			}
			k.Liveness.Departure = metastore.DrainsForced // to see the rest of the way
			continue
		}
		p.Steps = append(p.Steps, n.Step)
		if n.Step == StepRemove {
			return p, nil
		}
	}
	return p, nil
}

// goBefore counts all others that are on their way out as leaving.
func (f *Facts) goBefore(k *Known) {
	for i := range f.Members {
		if o := &f.Members[i]; o != k && o.Liveness.Draining() {
			o.Liveness.Departure = metastore.Leaves
		}
	}
}

// Outline returns the facts that any member can tell from the metadata, for plans:
// whoever is not marked dead is well, and a learner can take a vote. What only the
// leader knows passes, or ends in a mark. load is the number of partition replicas
// of a node.
func Outline(r Rules, members []metastore.Member, conf raftlog.ConfState, leader raftlog.NodeID, load func(raftlog.NodeID) uint64) *Facts {
	r = r.WithDefaults()
	conf.VotersOutgoing = nil // it is left soon
	f := &Facts{Rules: r, Leads: true, LedFor: time.Hour, Conf: conf, ConfSafe: true}
	for _, m := range members {
		k := Known{
			Member: m, Seat: SeatOf(conf, m.Replica), Self: m.Node == leader, Assigned: load(m.Node),
			Announced: m.Liveness.Newest, CaughtUp: true, Unreachable: -1,
		}
		if m.Liveness.Dead {
			k.Silent, k.Idle, k.CaughtUp = time.Hour, time.Hour, false
		}
		f.Members = append(f.Members, k)
	}
	return f
}

// elect makes another live voter the leader, in a plan.
func (f *Facts) elect(but *Known) {
	for i := range f.Members {
		if k := &f.Members[i]; k != but && k.Seat == SeatVoter && f.alive(k) {
			k.Self = true
			but.Silent = 0
			return
		}
	}
}

// ErrNoMember: there is no member of this id. It comes as Refused.
var ErrNoMember = errors.New("membership: no such member")

// ForgetError says why a replica cannot be forgotten. It is Refused.
type ForgetError struct {
	Replica raftlog.ReplicaID
	Reason  string
}

func (e *ForgetError) Error() string {
	return fmt.Sprintf("membership: %v cannot be forgotten: %s", e.Replica, e.Reason)
}

// Unwrap makes the error match raftlog.ErrRefused.
func (e *ForgetError) Unwrap() error { return raftlog.ErrRefused }

// Forget decides whether a replica that is left over in the configuration of
// group 1 may be taken out of it, and returns the change. It refuses, with a
// *ForgetError, whatever has a member record or holds or is to hold a partition
// (D6): such a member is decommissioned. assigned is the number of assignments,
// planned ones too, that may be of the replica's node: those of nodes that are no
// members, since of a replica without a record nobody knows the node.
func Forget(f *Facts, r raftlog.ReplicaID, assigned uint64) (raftlog.Change, error) {
	refused := func(format string, args ...any) (raftlog.Change, error) {
		return raftlog.Change{}, &ForgetError{r, fmt.Sprintf(format, args...)}
	}
	switch k := f.byReplica(r); {
	case k != nil:
		return refused("it is the member %q (%v): decommission it", k.Name, k.Node)
	case assigned > 0:
		return refused("nodes that are no members have %d partition replicas", assigned)
	case SeatOf(f.Conf, r) == SeatNone:
		return refused("it is in no configuration")
	}
	if ok, why := f.steady(); !ok {
		return raftlog.Change{}, raftlog.Retry(errors.New("membership: " + why))
	}
	c := raftlog.Change{Remove: []raftlog.ReplicaID{r}}
	if !f.quorum(f.after(c), f.alive) {
		return raftlog.Change{}, raftlog.Retry(errors.New("membership: too few of the voters that would be left are alive"))
	}
	return c, nil
}
