package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/stelelog/stele"
)

// clusterAnswer is the cluster as it travels.
type clusterAnswer struct {
	ClusterID string       `json:"cluster_id"`
	Version   uint64       `json:"version"`          // what all members agreed to apply
	Leader    string       `json:"leader,omitempty"` // of the metadata; empty: none in view
	Members   []memberInfo `json:"members"`
	Moves     []moveInfo   `json:"moves"`
	Strays    []uint64     `json:"strays,omitempty"` // replicas in the metadata's group that no member is
	// Recoveries are those that were forced, by epoch.
	Recoveries []recoveryInfo `json:"recoveries,omitempty"`
}

// blockInfo is something that keeps a node from leaving.
type blockInfo struct {
	Code   string `json:"code"`
	Reason string `json:"reason"`
}

func blocksOf(blocked []stele.Block) (all []blockInfo) {
	for _, b := range blocked {
		all = append(all, blockInfo{b.Code.String(), b.Reason})
	}
	return all
}

// memberInfo is a member of the cluster.
type memberInfo struct {
	Name      string    `json:"name"`
	ID        uint64    `json:"id"`
	Seat      string    `json:"seat"` // voter, learner or none, in the metadata's raft group
	Observer  bool      `json:"observer,omitempty"`
	State     string    `json:"state"` // see stateOf
	Heard     time.Time `json:"heard"` // last, by the clock of whoever led the metadata then
	Addr      string    `json:"addr"`
	Replicas  int       `json:"replicas"`  // of partitions
	MovesIn   int       `json:"moves_in"`  // replicas that it is getting
	MovesOut  int       `json:"moves_out"` // replicas that are to go when others have them
	Departure string    `json:"departure,omitempty"`
	// Next is what is to be done next for a node that leaves, as far as the node that
	// answers knows, and what it waits for.
	Next string `json:"next,omitempty"`
	// Blocked is what a node that leaves waits for, if that does not come by itself.
	Blocked []blockInfo `json:"blocked,omitempty"`
}

// moveInfo is a replica on its way.
type moveInfo struct {
	Topic     string `json:"topic"`
	Partition uint32 `json:"partition"`
	To        string `json:"to"`
	From      string `json:"from,omitempty"` // empty: none goes in exchange
}

// departureAnswer is where a decommission stands.
type departureAnswer struct {
	Name      string `json:"name"`
	ID        uint64 `json:"id"`
	Departure string `json:"departure"`
	Replicas  uint64 `json:"replicas"` // of partitions, that are still to be moved off
	Done      bool   `json:"done"`     // it is no member any more
	// Next is what is to be done next, as far as the node that answers knows, and what
	// it waits for.
	Next string `json:"next,omitempty"`
	// Blocked is what it waits for and what does not come by itself.
	Blocked []blockInfo `json:"blocked,omitempty"`
}

// planAnswer is what a decommission would do.
type planAnswer struct {
	Name    string      `json:"name"`
	ID      uint64      `json:"id"`
	Steps   []string    `json:"steps"`
	Moves   []moveInfo  `json:"moves"`
	Blocked []blockInfo `json:"blocked"`
}

// seatOf is a seat in one word.
func seatOf(s stele.Seat) string {
	switch s {
	case stele.SeatVoter:
		return "voter"
	case stele.SeatLearner:
		return "learner"
	}
	return "none"
}

// stateOf says how a member is: alive or dead, how far it is on its way out, and
// which new life takes its place, if one does.
func stateOf(l stele.Liveness, successor stele.NodeID) string {
	switch {
	case successor != 0:
		return fmt.Sprintf("%s, replaced by %d", stateOf(l, 0), successor)
	case l.Dead && l.Draining():
		return "dead, " + l.Departure.String()
	case l.Dead:
		return "dead"
	case l.Draining():
		return l.Departure.String()
	}
	return "alive"
}

// describeMembers puts together who is a member and what each holds.
func describeMembers(c stele.Cluster, topics []stele.Topic, leaving []stele.Progress) clusterAnswer {
	a := clusterAnswer{ClusterID: c.ID.String(), Version: c.Version, Members: []memberInfo{}, Moves: []moveInfo{}, Recoveries: recoveriesOf(c.Recoveries)}
	for _, r := range c.Strays {
		a.Strays = append(a.Strays, uint64(r))
	}
	names := namesOfMembers(c.Members)
	at, successor := map[stele.NodeID]int{}, map[stele.NodeID]stele.NodeID{}
	for _, m := range c.Members {
		successor[m.Liveness.Replaces] = m.Node
	}
	for i, m := range c.Members {
		at[m.Node] = i
		info := memberInfo{
			Name: m.Name, ID: uint64(m.Node), Seat: seatOf(m.Seat), Observer: m.Liveness.Observer,
			State: stateOf(m.Liveness, successor[m.Node]), Heard: m.Liveness.Stamp.Time(), Addr: m.Addr,
		}
		if m.Liveness.Draining() {
			info.Departure = m.Liveness.Departure.String()
		}
		a.Members = append(a.Members, info)
	}
	if i, ok := at[c.Leader]; ok {
		a.Leader = c.Members[i].Name
	}
	for _, l := range leaving {
		if i, ok := at[l.Node]; ok {
			a.Members[i].Next, a.Members[i].Blocked = l.Next(), blocksOf(l.Blocked)
		}
	}
	of := func(id stele.NodeID, f func(*memberInfo)) {
		if i, ok := at[id]; ok {
			f(&a.Members[i])
		}
	}
	for _, t := range topics {
		for _, p := range t.Partitions {
			for _, r := range p.Replicas {
				of(r.Node, func(m *memberInfo) { m.Replicas++ })
			}
			if p.Target == nil {
				continue
			}
			move := moveInfo{Topic: t.Name, Partition: p.Index, To: names[p.Target.Add.Node]}
			of(p.Target.Add.Node, func(m *memberInfo) { m.MovesIn++ })
			for _, r := range p.Replicas {
				if r.Replica == p.Target.Remove {
					move.From = names[r.Node]
					of(r.Node, func(m *memberInfo) { m.MovesOut++ })
				}
			}
			a.Moves = append(a.Moves, move)
		}
	}
	return a
}

// namesOfMembers are the members' names; of several lives of a name each has its
// id behind it.
func namesOfMembers(members []stele.Member) map[stele.NodeID]string {
	lives, names := map[string]int{}, map[stele.NodeID]string{}
	for _, m := range members {
		lives[m.Name]++
	}
	for _, m := range members {
		names[m.Node] = m.Name
		if lives[m.Name] > 1 {
			names[m.Node] = fmt.Sprintf("%s (%d)", m.Name, m.Node)
		}
	}
	return names
}

func (s *server) members(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	topics, err := s.node.ListTopics(ctx)
	if err != nil {
		return err
	}
	c, err := s.node.DescribeCluster(ctx)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, describeMembers(c, topics, s.node.Decommissions()))
	return nil
}

// decommission begins one, or looks at the one that is under way.
func (s *server) decommission(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r, "force", "when-possible")
	opts := stele.DecommissionOptions{Force: p.flag("force"), WhenPossible: p.flag("when-possible")}
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	d, err := s.node.Decommission(ctx, r.PathValue("member"), opts)
	if err != nil {
		return err
	}
	return writeDeparture(w, http.StatusAccepted, d)
}

// planDecommission says what one would do.
func (s *server) planDecommission(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r, "force")
	opts := stele.DecommissionOptions{Force: p.flag("force")}
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	plan, err := s.node.PlanDecommission(ctx, r.PathValue("member"), opts)
	if err != nil {
		return err
	}
	a := planAnswer{Name: plan.Name, ID: uint64(plan.Node), Steps: []string{}, Moves: []moveInfo{}, Blocked: blocksOf(plan.Blocked)}
	for _, step := range plan.Steps {
		a.Steps = append(a.Steps, step.String())
	}
	names := namesOfMembers(s.node.Members())
	for _, m := range plan.Moves {
		a.Moves = append(a.Moves, moveInfo{Topic: m.Topic, Partition: m.Partition, To: names[m.To], From: names[plan.Node]})
	}
	writeJSON(w, http.StatusOK, a)
	return nil
}

// cancelDecommission takes it back. A member that is not leaving stays.
func (s *server) cancelDecommission(w http.ResponseWriter, r *http.Request) error {
	p := newParams(r)
	ctx, cancel := p.within(r)
	defer cancel()
	if p.err != nil {
		return p.err
	}
	name := r.PathValue("member")
	m, err := s.newestLife(ctx, name)
	if err != nil {
		return err
	}
	if !m.Liveness.Draining() {
		writeJSON(w, http.StatusOK, departureAnswer{Name: name, ID: uint64(m.Node), Departure: m.Liveness.Departure.String()})
		return nil
	}
	d, err := s.node.Decommission(ctx, name, stele.DecommissionOptions{}) // the one that is under way
	if err != nil {
		return err
	}
	if err := d.Cancel(ctx); err != nil {
		return err
	}
	return writeDeparture(w, http.StatusOK, d)
}

// newestLife is the member of a name; of several, as after the loss of a disk,
// the newest.
func (s *server) newestLife(ctx context.Context, name string) (stele.Member, error) {
	c, err := s.node.DescribeCluster(ctx)
	if err != nil {
		return stele.Member{}, err
	}
	for i := len(c.Members) - 1; i >= 0; i-- { // they are in the order of their ids
		if c.Members[i].Name == name {
			return c.Members[i], nil
		}
	}
	_, err = s.node.PlanDecommission(ctx, name, stele.DecommissionOptions{}) // it knows whether there was one
	return stele.Member{}, err
}

func writeDeparture(w http.ResponseWriter, status int, d *stele.Decommission) error {
	at, err := d.Progress()
	if err != nil {
		return fmt.Errorf("it has begun; where it stands is not known: %w", err)
	}
	writeJSON(w, status, departureAnswer{at.Name, uint64(at.Node), at.Departure.String(), at.Replicas, at.Done, at.Next(), blocksOf(at.Blocked)})
	return nil
}
