package membership

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/stelelog/stele/raftlog"
)

// Peer is an initial member as the host lists it.
type Peer struct {
	Name string
	Addr string
}

// ListHash is equal for equal lists, whatever their order.
func ListHash(cluster string, peers []Peer) [32]byte {
	h := sha256.New()
	write := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	write(cluster)
	for _, p := range sorted(peers) {
		write(p.Name)
		write(p.Addr)
	}
	return [32]byte(h.Sum(nil))
}

func sorted(peers []Peer) []Peer {
	peers = slices.Clone(peers)
	slices.SortFunc(peers, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	return peers
}

// Founding is what a founder makes: the cluster's id and its first members.
type Founding struct {
	ClusterID raftlog.ClusterID
	Founder   raftlog.Nonce
	Members   []FoundingMember // by name; Members[i] has node id and metadata replica id i+1
}

// FoundingMember is one life that a genesis lists.
type FoundingMember struct {
	Name  string
	Nonce raftlog.Nonce
	Addr  string
}

// lists returns the position of a life in the genesis.
func (f *Founding) lists(name string, nonce raftlog.Nonce) (int, bool) {
	for i, m := range f.Members {
		if m.Name == name && m.Nonce == nonce {
			return i, true
		}
	}
	return 0, false
}

// Node returns the node id of a life that the genesis lists.
func (f *Founding) Node(name string, nonce raftlog.Nonce) (raftlog.NodeID, bool) {
	i, ok := f.lists(name, nonce)
	return raftlog.NodeID(i + 1), ok
}

// State is what a life remembers of genesis. It is durable before any answer
// that rests on it.
type State struct {
	Bound     raftlog.Nonce   // the founder that it answered last
	Left      []raftlog.Nonce // founders that it answered before; never again
	Renounced bool            // it saw a cluster that does not list it
	// At most one of these is set, once, for good.
	Adopted *Founding
	Joined  *Joined
	// Recovered is where a forced recovery, the last one, brought a life that had
	// adopted a genesis or joined.
	Recovered *Recovered
}

// Place returns what a life is in its cluster; ok is false if it is in none yet.
func (s State) Place(name string, nonce raftlog.Nonce) (j Joined, ok bool) {
	if s.Recovered != nil {
		return s.Recovered.Joined, true
	}
	if s.Joined != nil {
		return *s.Joined, true
	}
	if s.Adopted == nil {
		return Joined{}, false
	}
	node, ok := s.Adopted.Node(name, nonce)
	return Joined{ClusterID: s.Adopted.ClusterID, Node: node, Replica: raftlog.ReplicaID(node)}, ok
}

// Belongs reports whether the life is part of a cluster.
func (s State) Belongs() bool { return s.Adopted != nil || s.Joined != nil }

// Member is one initial member's part in genesis. It is pure: every method
// returns what to say and whether State changed; a changed State must be
// durable before anything is said.
type Member struct {
	cluster string
	self    Peer
	nonce   raftlog.Nonce
	peers   []Peer // by name
	hash    [32]byte
	State   State
}

// NewMember returns the member name of peers, in the life nonce. Without peers
// it is no initial member: it never founds, and only answers.
func NewMember(cluster, name string, nonce raftlog.Nonce, peers []Peer, state State) *Member {
	m := &Member{cluster: cluster, self: Peer{Name: name}, nonce: nonce, peers: sorted(peers), hash: ListHash(cluster, peers), State: state}
	for _, p := range m.peers {
		if p.Name == name {
			m.self = p
		}
	}
	return m
}

// Founds reports whether this member is the one that may found.
func (m *Member) Founds() bool {
	return len(m.peers) > 0 && m.peers[0].Name == m.self.Name && !m.State.Renounced && !m.State.Belongs()
}

// Ask is the request that this member sends to its peers in a round. A probe
// asks to be remembered as the founder.
func (m *Member) Ask(process, round uint64) Ask {
	kind := AskGenesis
	if m.Founds() {
		kind = AskProbe
	}
	return Ask{Kind: kind, Name: m.self.Name, Nonce: m.nonce, Hash: m.hash, Process: process, Round: round}
}

// Answer answers a peer.
func (m *Member) Answer(ask Ask) (answer Answer, changed bool) {
	answer = Answer{Name: m.self.Name, Nonce: m.nonce, Hash: m.hash, Process: ask.Process, Round: ask.Round}
	if m.State.Recovered != nil {
		// Whoever has not adopted the genesis yet is too late for it: it was left
		// behind by the recovery.
		answer.Kind = AnswerMember
		return answer, false
	}
	if g := m.State.Adopted; g != nil {
		answer.Kind = AnswerGenesis
		answer.Founding = g
		return answer, false
	}
	if m.State.Joined != nil {
		answer.Kind = AnswerMember
		return answer, false
	}
	switch ask.Kind {
	case AskGenesis:
		answer.Kind = AnswerUnconfigured
	case AskProbe:
		return m.answerProbe(ask, answer)
	case AskShow:
		return m.answerShow(ask, answer)
	default:
		answer.Kind = AnswerNo
	}
	return answer, false
}

// Strange reports whether a probe comes from a founder that this member has not
// answered last. Before it is answered, the founder's listed address must be
// asked, and answer with that nonce: a late duplicate of a probe, from a life
// that is gone, would bind this member to a founder that nobody can ask.
func (m *Member) Strange(ask Ask) bool {
	return ask.Kind == AskProbe && len(m.peers) > 0 && !m.State.Belongs() && ask.Name != m.self.Name && ask.Nonce != m.State.Bound
}

// answerProbe remembers the founder. A founder that was left never gets an
// answer again: it may have counted an earlier one.
func (m *Member) answerProbe(ask Ask, answer Answer) (Answer, bool) {
	answer.Kind = AnswerUnconfigured
	if ask.Hash != m.hash || ask.Name == m.self.Name {
		// Nothing can be founded on this answer: the lists differ, or it is
		// this very life asking its own address, or somebody with its name.
		return answer, false
	}
	if len(m.peers) == 0 || ask.Name != m.peers[0].Name || m.State.Renounced || slices.Contains(m.State.Left, ask.Nonce) {
		answer.Kind = AnswerNo
		return answer, false
	}
	if m.State.Bound == ask.Nonce {
		return answer, false
	}
	if !m.State.Bound.IsZero() {
		m.State.Left = append(slices.Clone(m.State.Left), m.State.Bound)
	}
	m.State.Bound = ask.Nonce
	return answer, true
}

// answerShow is asked of a founder that has founded nothing yet: there is a
// cluster already. Not being in it, this life renounces.
func (m *Member) answerShow(ask Ask, answer Answer) (Answer, bool) {
	if ask.Founding == nil {
		answer.Kind = AnswerNo
		return answer, false
	}
	if _, ok := ask.Founding.lists(m.self.Name, m.nonce); ok {
		answer.Kind = AnswerNo // it will ask and adopt by itself
		return answer, false
	}
	answer.Kind = AnswerRenounced
	return answer, m.renounce()
}

func (m *Member) renounce() (changed bool) {
	changed = !m.State.Renounced
	m.State.Renounced = true
	return changed
}

// Learned is what a genesis that was received means for this member.
type Learned uint8

const (
	// LearnedAdopted: this member is in a cluster now.
	LearnedAdopted Learned = iota + 1
	// LearnedNotListed: there is a cluster, and this life is not in it.
	LearnedNotListed
	// LearnedShow: it must be shown to the founder that was answered last.
	LearnedShow
)

// Learn takes a genesis from an offer or an answer. renounced is the life that
// said, shown this genesis, that it will never found.
func (m *Member) Learn(f *Founding, renounced raftlog.Nonce) (l Learned, changed bool) {
	if m.State.Belongs() {
		return LearnedAdopted, false
	}
	if len(m.peers) == 0 {
		return LearnedNotListed, false // no initial member, whatever it says
	}
	if _, ok := f.lists(m.self.Name, m.nonce); !ok {
		return LearnedNotListed, m.renounce()
	}
	bound := m.State.Bound
	if f.Founder != m.nonce && f.Founder != bound && (bound.IsZero() || bound != renounced) {
		return LearnedShow, false
	}
	m.State.Adopted = f
	return LearnedAdopted, true
}

// Round collects the answers of one round of one process.
type Round struct {
	m              *Member
	process, round uint64
	answers        map[string]Answer // by the name that was asked
}

// NewRound begins a round.
func (m *Member) NewRound(process, round uint64) *Round {
	return &Round{m: m, process: process, round: round, answers: map[string]Answer{}}
}

// Add counts the answer of the peer at which a call of this round was aimed;
// answers to another process or round do not count.
func (r *Round) Add(peer Peer, a Answer) {
	if a.Process == r.process && a.Round == r.round {
		r.answers[peer.Name] = a
	}
}

// Reached reports whether this life answers at its own listed address. A
// founder probes nobody before it knows that: a copy of its configuration on
// another machine would bind the others to a life that they cannot reach.
func (r *Round) Reached() bool {
	a, ok := r.answers[r.m.self.Name]
	return ok && a.Nonce == r.m.nonce
}

// Waiting says, for each initial member that keeps the cluster from being
// founded, why. It is empty if the round may found.
func (r *Round) Waiting() []Obstacle {
	var obstacles []Obstacle
	seen := map[raftlog.Nonce]string{}
	for _, p := range r.m.peers {
		a, ok := r.answers[p.Name]
		add := func(why string) { obstacles = append(obstacles, Obstacle{Peer: p, Why: why}) }
		switch {
		case !ok:
			add("no answer")
		case a.Kind != AnswerUnconfigured:
			add("does not answer this founder")
		case a.Name != p.Name:
			add("answers with the name " + a.Name)
		case a.Hash != r.m.hash:
			add("lists other initial members, or has other settings")
		case a.Nonce.IsZero():
			add("answers without a nonce")
		case p.Name == r.m.self.Name && a.Nonce != r.m.nonce:
			add("is answered by another process than this one")
		case seen[a.Nonce] != "":
			add("has the data directory of " + seen[a.Nonce])
		default:
			seen[a.Nonce] = p.Name
		}
	}
	return obstacles
}

// Obstacle is why an initial member keeps the cluster from being founded.
type Obstacle struct {
	Peer Peer
	Why  string
}

// Found makes the genesis that this round's answers allow, and adopts it. It
// returns nil if they do not.
func (r *Round) Found(id raftlog.ClusterID) *Founding {
	if !r.m.Founds() || len(r.Waiting()) > 0 {
		return nil
	}
	f := &Founding{ClusterID: id, Founder: r.m.nonce}
	for _, p := range r.m.peers {
		f.Members = append(f.Members, FoundingMember{Name: p.Name, Nonce: r.answers[p.Name].Nonce, Addr: p.Addr})
	}
	r.m.State.Adopted = f
	return f
}

// Genesis returns a genesis that a peer handed out in this round, if any.
func (r *Round) Genesis() *Founding {
	for _, p := range r.m.peers {
		if a, ok := r.answers[p.Name]; ok && a.Kind == AnswerGenesis {
			return a.Founding
		}
	}
	return nil
}

// Exists reports whether a peer that answered in this round is in a cluster that
// it joined: it has no genesis to hand out, but there is a cluster.
func (r *Round) Exists() bool {
	for _, a := range r.answers {
		if a.Kind == AnswerMember {
			return true
		}
	}
	return false
}

// Join makes this life part of a cluster that took it in. It reports whether it
// is: a genesis that lists it may have come first.
func (m *Member) Join(j Joined) (joined, changed bool) {
	if m.State.Belongs() {
		return m.State.Joined != nil && *m.State.Joined == j, false
	}
	m.State.Joined = &j
	return true, true
}

// Equal reports whether two foundings are the same one.
func (f *Founding) Equal(g *Founding) bool {
	return f == g || f != nil && g != nil && bytes.Equal(appendFounding(nil, f), appendFounding(nil, g))
}
