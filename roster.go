package stele

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// roster knows where the nodes of this node's cluster are reached. Four have a
// say, each knowing something that the others may not:
//
//	Config      a person moved a node, and wrote its new address on all nodes
//	metadata    the cluster agreed on a new address, which the node gave itself
//	a leader    this node's metadata is old or empty, and the leader was asked
//	the node    it moved, and no leader can be elected without its vote, so that
//	            the cluster cannot agree on anything
//
// The configuration counts for a member that founded the cluster, as this node
// did, until the metadata says another address than when this process first saw it:
// that is newer. A life that joined said itself where it is, later than whoever
// wrote the configuration for its name. What a leader told counts
// until the metadata changes. What a node says of itself counts before all that,
// until the metadata say another address than they did then.
type roster struct {
	cluster raftlog.ClusterID
	epoch   uint64
	way     atomic.Uint64         // see wayTo; 0: not known yet
	came    *membership.Recovered // the recovery that brought this node to epoch; nil: none did
	cfg     *Config
	genesis map[raftlog.NodeID]string // addresses of the lives that this node's cluster was founded with, if it was with it

	peers atomic.Pointer[map[raftlog.NodeID]Peer] // not changed once it is here

	mu struct {
		sync.Mutex
		members []metastore.Member
		first   map[raftlog.NodeID]string // the metadata's address when it was first seen
		told    map[raftlog.NodeID]Peer
		heard   map[raftlog.NodeID]heardAddr
		unknown []string // addresses of nodes of this cluster that no member here is, newest first
	}
}

// maxUnknown bounds what is remembered of nodes that are not known.
const maxUnknown = 8

// heardAddr is an address that a node gave on its own connection, and the one that
// the metadata had for it then.
type heardAddr struct{ addr, over string }

func newRoster(cluster raftlog.ClusterID, epoch uint64, cfg *Config, genesis map[raftlog.NodeID]string) *roster {
	r := &roster{cluster: cluster, epoch: epoch, cfg: cfg, genesis: genesis}
	r.mu.first = map[raftlog.NodeID]string{}
	r.mu.told = map[raftlog.NodeID]Peer{}
	r.mu.heard = map[raftlog.NodeID]heardAddr{}
	r.peers.Store(&map[raftlog.NodeID]Peer{})
	return r
}

// peer returns a member, if it is known.
func (r *roster) peer(node raftlog.NodeID) (Peer, bool) {
	p, ok := (*r.peers.Load())[node]
	return p, ok
}

// nameAt is the name of the member at an address, "" if there is none. Of an old
// and a new life of a node both have the same name.
func (r *roster) nameAt(addr string) string {
	for _, p := range *r.peers.Load() {
		if p.Addr == addr {
			return p.Name
		}
	}
	return ""
}

// agreed takes the members that the metadata has now.
func (r *roster) agreed(members []metastore.Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range members {
		if _, seen := r.mu.first[m.Node]; !seen {
			r.mu.first[m.Node] = m.Addr
		}
		delete(r.mu.told, m.Node)
	}
	maps.DeleteFunc(r.mu.heard, func(node raftlog.NodeID, h heardAddr) bool {
		return !slices.ContainsFunc(members, func(m metastore.Member) bool { return m.Node == node && m.Addr == h.over })
	})
	r.mu.members = members
	r.makeLocked()
}

// hear takes what a leader said of members.
func (r *roster) hear(told map[raftlog.NodeID]Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.mu.told, told)
	r.makeLocked()
}

// heardOf takes the address that a member gives on its own connection. Most often
// it is where it is taken to be.
func (r *roster) heardOf(node raftlog.NodeID, addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.mu.members {
		if m.Node != node {
			continue
		}
		now := heardAddr{addr, m.Addr}
		if r.mu.heard[node] == now {
			return
		}
		r.mu.heard[node] = now
		delete(r.mu.told, node)
		r.makeLocked()
		return
	}
}

// unknownAt takes the address of a node that says that it is of this cluster, and
// is no member as far as is known here. What is known here may be so old that all
// who were members then are gone; but whoever leads speaks to this node.
func (r *roster) unknownAt(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.unknown) > 0 && r.mu.unknown[0] == addr {
		return
	}
	now := append([]string{addr}, slices.DeleteFunc(slices.Clone(r.mu.unknown), func(a string) bool { return a == addr })...)
	r.mu.unknown = now[:min(len(now), maxUnknown)]
}

// addrs are where members are, or may be: who is out of touch asks there.
func (r *roster) addrs() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.mu.members {
		all = append(all, r.addrLocked(m))
	}
	return append(all, r.mu.unknown...)
}

func (r *roster) makeLocked() {
	peers := make(map[raftlog.NodeID]Peer, len(r.mu.members)+len(r.mu.told))
	for _, m := range r.mu.members {
		peers[m.Node] = Peer{Name: m.Name, Addr: r.addrLocked(m)}
	}
	maps.Copy(peers, r.mu.told)
	r.peers.Store(&peers)
}

func (r *roster) addrLocked(m metastore.Member) string {
	if h, ok := r.mu.heard[m.Node]; ok && h.over == m.Addr {
		return h.addr
	}
	founded, ok := r.genesis[m.Node]
	configured, listed := r.cfg.addrOf(m.Name)
	moved := m.Addr != r.mu.first[m.Node]
	if !ok || !listed || moved || configured == founded {
		return m.Addr
	}
	return configured
}
