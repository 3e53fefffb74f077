package stele

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// roster knows where the nodes of this node's cluster are reached. Three have a
// say, each knowing something that the others may not:
//
//	Config      a person moved a node, and wrote its new address on all nodes
//	metadata    the cluster agreed on a new address, which the node gave itself
//	a leader    this node's metadata is old or empty, and the leader was asked
//
// The configuration counts for a member until the metadata says another address
// than when this process first saw it: that is newer. What a leader told counts
// until the metadata changes.
type roster struct {
	cluster raftlog.ClusterID
	epoch   uint64
	cfg     *Config
	genesis map[string]string // addresses by name, of a node that was founded with its cluster

	peers atomic.Pointer[map[raftlog.NodeID]Peer] // not changed once it is here

	mu struct {
		sync.Mutex
		members []metastore.Member
		first   map[raftlog.NodeID]string // the metadata's address when it was first seen
		told    map[raftlog.NodeID]Peer
	}
}

func newRoster(cluster raftlog.ClusterID, epoch uint64, cfg *Config, genesis map[string]string) *roster {
	r := &roster{cluster: cluster, epoch: epoch, cfg: cfg, genesis: genesis}
	r.mu.first = map[raftlog.NodeID]string{}
	r.mu.told = map[raftlog.NodeID]Peer{}
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

func (r *roster) makeLocked() {
	peers := make(map[raftlog.NodeID]Peer, len(r.mu.members)+len(r.mu.told))
	for _, m := range r.mu.members {
		peers[m.Node] = Peer{Name: m.Name, Addr: r.addrLocked(m)}
	}
	maps.Copy(peers, r.mu.told)
	r.peers.Store(&peers)
}

func (r *roster) addrLocked(m metastore.Member) string {
	configured, ok := r.cfg.addrOf(m.Name)
	moved := m.Addr != r.mu.first[m.Node]
	if !ok || moved || configured == r.genesis[m.Name] {
		return m.Addr
	}
	return configured
}
