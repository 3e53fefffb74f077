package membership

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// # Forced recovery
//
// A cluster that lost the majority of its metadata's voters for good can do
// nothing by itself; nor can a partition that lost the majority of its replicas,
// though the rest of the cluster serves. A person stops the nodes that are left,
// surveys each of their directories, plans with all surveys at once, and applies the
// one plan to each of the directories. From then on they are the cluster, in the
// next recovery epoch.
//
// The plan is decided here, from the surveys alone. For each group that is left
// without a majority one replica goes on alone (raftlog.ChooseSurvivor says which,
// and why it loses nothing that any survivor knows to be committed), and one of
// group 1 always, as the new epoch has to be the first that it agrees on; every
// other replica of it is set aside, its files kept. One whose metadata are known to be
// damaged is never chosen, nor counted: what it alone knows to be committed is lost then,
// and the plan says how much (ForcedReplica.Gone). A group whose majority is left goes
// on as it is: it can elect, and nobody but its own replicas can speak to it. Of
// group 1 all is decided first, as the metadata of its chosen replica say which
// replicas of partitions count: those that they place, or that a move is bringing.
//
// What the plan cannot know: an entry that only lost nodes had, acknowledged or
// not, is gone, and no survivor can tell that it ever was. Of a group that is
// forced, everything that was acknowledged is kept if one of the survivors that
// acknowledged it is surveyed, and, of group 1, is not damaged. So whoever leaves a readable directory out of the
// plan may lose records by that.

// RecoveryPlan is what a forced recovery will do. It is a value that a person
// reads, and carries to each machine, as JSON.
type RecoveryPlan struct {
	Version   int             `json:"plan"` // of this form: 1
	ID        ID              `json:"id"`   // random: one recovery has one plan
	Cluster   string          `json:"cluster"`
	ClusterID ID              `json:"cluster_id"`
	From      uint64          `json:"from_epoch"`
	To        uint64          `json:"to_epoch"`
	Stamp     metastore.Stamp `json:"stamp"` // when it was planned, in milliseconds since 1970

	Nodes      []PlannedNode    `json:"nodes"`       // that are left, by id
	LeftBehind []SurveyedMember `json:"left_behind"` // that are not, and never return
	Forced     []PlannedGroup   `json:"forced"`      // partitions that go on from one replica
	Lost       []PlannedGroup   `json:"lost"`        // partitions of which no replica is left
	Kept       int              `json:"kept"`        // partitions whose majority is left
}

// planVersion is the form that this build writes.
const planVersion = 1

// PlannedNode is what becomes of a node that is left.
type PlannedNode struct {
	Node  raftlog.NodeID `json:"node"`
	Name  string         `json:"name"`
	Nonce ID             `json:"nonce"`
	Addr  string         `json:"addr"`
	// Replica of group 1 from now on. One node goes on with the one it has; the
	// others begin theirs anew, and get the metadata from that node.
	Replica raftlog.ReplicaID `json:"metadata_replica"`
	GoesOn  bool              `json:"goes_on"`
	// SegmentBytes is what the directory began with.
	SegmentBytes int64 `json:"segment_bytes"`

	Forced   []ForcedReplica     `json:"forced"`    // replicas that go on alone; of group 1 too
	SetAside []raftlog.ReplicaID `json:"set_aside"` // replicas that end
}

// ForcedReplica is a replica that goes on alone.
type ForcedReplica struct {
	Group   raftlog.GroupID   `json:"group"`
	Replica raftlog.ReplicaID `json:"replica"`
	// Where its log ends, as surveyed.
	Last     raftlog.Index `json:"last"`
	LastTerm raftlog.Term  `json:"last_term"`
	// Unsure is how many of its last entries no survivor knows to be committed.
	Unsure uint64 `json:"unsure"`
	// Gone is how many entries behind its last one a survivor knows to be committed that
	// cannot go on, as its metadata are damaged. They are lost. 0 but for group 1.
	Gone uint64 `json:"gone,omitempty"`
	// Term in which it goes on.
	Term raftlog.Term `json:"term"`
}

// PlannedGroup is a partition that does not stay as it is.
type PlannedGroup struct {
	Topic     string            `json:"topic"`
	Partition uint32            `json:"partition"`
	Group     raftlog.GroupID   `json:"group"`
	Replica   raftlog.ReplicaID `json:"replica,omitempty"` // that goes on
	Node      raftlog.NodeID    `json:"node,omitempty"`    // that has it
}

// RecoveryRefusal is why a recovery is not planned or applied, for programs.
type RecoveryRefusal string

// Why a recovery is refused.
const (
	RefusedMajority RecoveryRefusal = "majority-left"   // of each group: start the nodes, no recovery is needed
	RefusedMixed    RecoveryRefusal = "not-one-cluster" // surveys of different clusters, epochs or forms, or one twice
	RefusedNothing  RecoveryRefusal = "nothing-left"    // no directory has metadata to go on from
	RefusedStranger RecoveryRefusal = "not-a-member"    // a surveyed node is no member by the metadata that go on
	RefusedMismatch RecoveryRefusal = "other-directory" // the directory is not what was surveyed
	RefusedFenced   RecoveryRefusal = "fenced"          // the cluster went on in a newer epoch; see Survey.Fenced
)

// RecoveryError refuses a forced recovery; nothing was changed. It is Refused.
type RecoveryError struct {
	Code   RecoveryRefusal
	Reason string
}

func (e *RecoveryError) Error() string { return "membership: forced recovery: " + e.Reason }

// Unwrap makes the error match raftlog.ErrRefused.
func (e *RecoveryError) Unwrap() error { return raftlog.ErrRefused }

func refused(code RecoveryRefusal, format string, args ...any) error {
	return &RecoveryError{code, fmt.Sprintf(format, args...)}
}

// PlanRecovery decides what a forced recovery does to the nodes that were
// surveyed. All others are left behind: they can never return. id is random, and
// at the moment, by the clock of whoever plans. *RecoveryError.
func PlanRecovery(surveys []Survey, id ID, at metastore.Stamp) (*RecoveryPlan, error) {
	surveys = slices.Clone(surveys)
	slices.SortFunc(surveys, func(a, b Survey) int { return cmp.Compare(a.Node, b.Node) })
	if err := ofOneCluster(surveys); err != nil {
		return nil, err
	}
	first := &surveys[0]
	p := &planner{surveys: surveys, RecoveryPlan: &RecoveryPlan{
		Version: planVersion, ID: id, Stamp: at, Cluster: first.Cluster, ClusterID: first.ClusterID,
		From: first.Epoch, To: first.Epoch + 1,
		LeftBehind: []SurveyedMember{}, Forced: []PlannedGroup{}, Lost: []PlannedGroup{},
	}}
	if err := p.metadata(); err != nil {
		return nil, err
	}
	for _, t := range p.meta.Topics {
		for i := range t.Partitions {
			p.partition(t.Name, uint32(i), &t.Partitions[i])
		}
	}
	if p.majority && len(p.Forced)+len(p.Lost) == 0 {
		return nil, refused(RefusedMajority, "the nodes that are left are a majority, of every partition too: start them, and take out the lost ones by a decommission")
	}
	slices.SortFunc(p.Forced, byGroup)
	slices.SortFunc(p.Lost, byGroup)
	return p.RecoveryPlan, nil
}

func byGroup(a, b PlannedGroup) int { return cmp.Compare(a.Group, b.Group) }

// ofOneCluster refuses surveys that do not belong together.
func ofOneCluster(surveys []Survey) error {
	if len(surveys) == 0 {
		return refused(RefusedNothing, "no directory was surveyed")
	}
	first, knows := &surveys[0], &surveys[0]
	for i := range surveys {
		s := &surveys[i]
		if knows.Plan == (ID{}) {
			knows = s // which recovery led to its epoch
		}
		switch {
		case s.Version != surveyVersion:
			return refused(RefusedMixed, "the survey of %q has form %d, this build knows %d", s.Name, s.Version, surveyVersion)
		case s.Node == 0 || s.ClusterID == ID{}:
			return refused(RefusedMixed, "%q is part of no cluster: leave it out", s.Name)
		case s.ClusterID != first.ClusterID:
			return refused(RefusedMixed, "%q is of cluster %v, %q of cluster %v", s.Name, s.ClusterID, first.Name, first.ClusterID)
		case s.Fenced != 0 && s.Awaits != ID{}:
			return refused(RefusedFenced, "%q met the cluster in recovery epoch %d, and its plan %v includes this directory: apply that plan to it",
				s.Name, s.Fenced, s.Awaits)
		case s.Fenced != 0:
			return refused(RefusedFenced, "%q met the cluster, which has gone on in recovery epoch %d without it: a recovery of its directory would make another cluster of the same id. Start it with an empty directory (and if all of that cluster is lost for good, too, set \"fenced\" to 0 in the survey)",
				s.Name, s.Fenced)
		case s.Epoch != first.Epoch:
			return refused(RefusedMixed, "%q is in recovery epoch %d, %q in %d: finish that recovery, or leave out who is in the older one",
				s.Name, s.Epoch, first.Name, first.Epoch)
		case s.Plan != knows.Plan && s.Plan != ID{}:
			return refused(RefusedMixed, "%q came to recovery epoch %d by plan %v, %q by plan %v: they are two clusters, of which one has to be given up",
				s.Name, s.Epoch, s.Plan, knows.Name, knows.Plan)
		case i > 0 && s.Node == surveys[i-1].Node:
			return refused(RefusedMixed, "%v is surveyed twice (%q, %q): one of them is a copy", s.Node, surveys[i-1].Name, s.Name)
		}
	}
	return nil
}

// planner is a plan in the making.
type planner struct {
	*RecoveryPlan
	surveys  []Survey
	meta     *SurveyedMetadata // of the replica of group 1 that goes on
	majority bool              // of group 1 is left
}

// logs returns the live replicas of a group that are left, and by whose survey.
func (p *planner) logs(g raftlog.GroupID) (ends []raftlog.LogEnd, of []int) {
	for i := range p.surveys {
		for _, e := range p.surveys[i].Logs {
			if e.Group == g && !e.SetAside {
				ends, of = append(ends, e), append(of, i)
			}
		}
	}
	return ends, of
}

// metadata decides about group 1 and the members.
func (p *planner) metadata() error {
	ends, of := p.logs(raftlog.MetadataGroup)
	left := map[raftlog.ReplicaID]bool{}
	usable, damaged := slices.Clone(ends), ""
	for i, e := range ends {
		if s := &p.surveys[of[i]]; s.Damaged { // it is never opened with them again
			usable[i].SetAside, damaged = true, s.Name
			continue
		}
		left[e.Replica] = true
	}
	chosen := raftlog.ChooseSurvivor(usable)
	switch {
	case chosen < 0 && damaged != "":
		return refused(RefusedNothing, "the metadata of %q differ from what a majority of the voters had, and no other node that was surveyed has metadata to go on from: survey one that has, too", damaged)
	case chosen < 0 || !p.surveys[of[chosen]].Metadata.Begun:
		return refused(RefusedNothing, "none of the %d nodes has metadata to go on from", len(p.surveys))
	}
	p.majority = ends[chosen].HasMajority(func(r raftlog.ReplicaID) bool { return left[r] })
	p.meta = &p.surveys[of[chosen]].Metadata
	if p.meta.Epoch != p.From {
		return refused(RefusedMixed, "the metadata are of recovery epoch %d, the directory says %d", p.meta.Epoch, p.From)
	}
	var fresh uint64
	for i := range p.surveys {
		s := &p.surveys[i]
		m := slices.IndexFunc(p.meta.Members, func(m SurveyedMember) bool { return m.Node == s.Node && m.Nonce == s.Nonce })
		if m < 0 {
			return refused(RefusedStranger, "%q (%v) is no member by the metadata of %q, which go on: leave it out, and let it join with an empty directory",
				s.Name, s.Node, p.surveys[of[chosen]].Name)
		}
		n := PlannedNode{
			Node: s.Node, Name: s.Name, Nonce: s.Nonce, Addr: p.meta.Members[m].Addr, Replica: s.Replica, GoesOn: i == of[chosen], SegmentBytes: s.SegmentBytes,
			Forced: []ForcedReplica{}, SetAside: []raftlog.ReplicaID{},
		}
		if !n.GoesOn {
			fresh++
			n.Replica = raftlog.ReplicaID(metastore.RecoveryID(p.To, fresh))
		}
		p.Nodes = append(p.Nodes, n)
	}
	for _, m := range p.meta.Members {
		if !slices.ContainsFunc(p.Nodes, func(n PlannedNode) bool { return n.Node == m.Node }) {
			p.LeftBehind = append(p.LeftBehind, m)
		}
	}
	p.force(ends, of, chosen)
	return nil
}

// force has one replica of a group go on alone.
func (p *planner) force(ends []raftlog.LogEnd, of []int, chosen int) {
	var term raftlog.Term
	var known raftlog.Index
	for _, e := range ends {
		term, known = max(term, e.Term, e.LastTerm()), max(known, e.Commit)
	}
	for i, e := range ends {
		n := &p.Nodes[of[i]]
		if i != chosen {
			n.SetAside = append(n.SetAside, e.Replica)
			continue
		}
		n.Forced = append(n.Forced, ForcedReplica{
			Group: e.Group, Replica: e.Replica, Last: e.Last, LastTerm: e.LastTerm(),
			Unsure: uint64(e.Last - min(e.Last, known)), Gone: uint64(known - min(e.Last, known)), Term: raftlog.RecoveryTerm(term),
		})
	}
}

// partition decides about a partition.
func (p *planner) partition(topic string, index uint32, at *SurveyedPartition) {
	ends, of := p.logs(at.Group)
	places := map[raftlog.ReplicaID]raftlog.NodeID{}
	for _, r := range at.Replicas {
		places[r.Replica] = r.Node
	}
	// left is what may take part: replicas that are there, and those that were
	// never opened and will begin as the creation says.
	left := map[raftlog.ReplicaID]bool{}
	var candidates []raftlog.LogEnd
	var from []int // of ends
	for i, e := range ends {
		if node, ok := places[e.Replica]; ok && node == p.surveys[of[i]].Node {
			candidates, from = append(candidates, e), append(from, i)
			left[e.Replica] = true
		}
	}
	for r, node := range places {
		if slices.Contains(at.First, r) && p.unopened(node, r) {
			left[r] = true
		}
	}
	isLeft := func(r raftlog.ReplicaID) bool { return left[r] }
	group := PlannedGroup{Topic: topic, Partition: index, Group: at.Group}
	switch chosen := raftlog.ChooseSurvivor(candidates); {
	case chosen >= 0 && candidates[chosen].HasMajority(isLeft):
		p.Kept++
	case chosen >= 0:
		group.Replica = candidates[chosen].Replica
		group.Node = places[group.Replica]
		p.Forced = append(p.Forced, group)
		p.force(ends, of, from[chosen])
	case len(ends) == 0 && len(left) > len(places)/2 && len(places) > 0:
		p.Kept++ // it never began, and can
	default:
		p.Lost = append(p.Lost, group)
		p.force(ends, of, -1)
	}
}

// unopened reports whether a node that is left has to hold a replica that its
// journal does not know.
func (p *planner) unopened(node raftlog.NodeID, r raftlog.ReplicaID) bool {
	i := slices.IndexFunc(p.surveys, func(s Survey) bool { return s.Node == node })
	return i >= 0 && !slices.ContainsFunc(p.surveys[i].Logs, func(e raftlog.LogEnd) bool { return e.Replica == r })
}

// Of returns what becomes of the directory whose life has this nonce; nil: it is
// not part of the plan.
func (p *RecoveryPlan) Of(nonce raftlog.Nonce) *PlannedNode {
	i := slices.IndexFunc(p.Nodes, func(n PlannedNode) bool { return n.Nonce == ID(nonce) })
	if i < 0 {
		return nil
	}
	return &p.Nodes[i]
}

// Check refuses a plan that this build does not know or that was changed by hand
// into one that contradicts itself. *RecoveryError.
func (p *RecoveryPlan) Check() error {
	if p == nil {
		return refused(RefusedNothing, "there is no plan: PlanRecovery said why")
	}
	goOn := 0
	for _, n := range p.Nodes {
		if n.GoesOn {
			goOn++
		}
	}
	switch {
	case p.Version != planVersion:
		return refused(RefusedMixed, "the plan has form %d, this build knows %d", p.Version, planVersion)
	case p.To != p.From+1 || p.ID == ID{} || p.ClusterID == ID{} || goOn != 1:
		return refused(RefusedMixed, "the plan contradicts itself (from epoch %d to %d, %d nodes go on)", p.From, p.To, goOn)
	}
	_, err := p.Command()
	return err
}

// Command is what the plan says to the metadata: the last entry of the log that
// goes on.
func (p *RecoveryPlan) Command() ([]byte, error) {
	spec := metastore.RecoverySpec{Epoch: p.To, Plan: p.ID, Stamp: p.Stamp}
	for _, n := range p.Nodes {
		spec.Left = append(spec.Left, metastore.RecoveredMember{Node: n.Node, Nonce: raftlog.Nonce(n.Nonce), Replica: n.Replica})
	}
	for _, g := range p.Forced {
		spec.Forced = append(spec.Forced, metastore.ForcedGroup{Group: g.Group, Replica: g.Replica})
	}
	for _, g := range p.Lost {
		spec.Lost = append(spec.Lost, g.Group)
	}
	return metastore.EncodeRecovery(spec)
}

// State is what the life of a node that is left remembers from now on.
func (p *RecoveryPlan) State(before State, n *PlannedNode) State {
	before.Recovered = &Recovered{Plan: p.ID, Joined: Joined{
		ClusterID: raftlog.ClusterID(p.ClusterID), Epoch: p.To, Node: n.Node, Replica: n.Replica, SegmentBytes: n.SegmentBytes,
	}}
	for _, m := range p.Nodes {
		before.Recovered.Members = append(before.Recovered.Members, Reached{Node: m.Node, Replica: m.Replica, Name: m.Name, Addr: m.Addr})
	}
	return before
}

// Partitions is how many partitions the plan is about.
func (p *RecoveryPlan) Partitions() int { return len(p.Forced) + len(p.Lost) + p.Kept }
