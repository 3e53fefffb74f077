package membership_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/transport"
)

// node is all that is needed to be in a cluster: a directory, a network, the
// metadata over a raft group, and membership. It joins them, as package stele does.
type node struct {
	name    string
	net     transport.Transport
	store   *storage.Store
	genesis *membership.Genesis
	host    *raftlog.Host
	meta    atomic.Pointer[metastore.Store] // nil until it is in a cluster
	steward atomic.Pointer[membership.Steward]
	addrs   sync.Map // where the members are, by node id
	running sync.WaitGroup
	end     context.CancelFunc
}

const tick = 10 * time.Millisecond

// open brings up a node; initial are the members that form the cluster, others
// who can be asked to join it.
func open(network *transport.Network, dir, name string, initial []membership.Peer, others []string) (*node, error) {
	n := &node{name: name, net: network.Transport(name)}
	var err error
	if n.store, err = storage.Open(storage.Config{Dir: filepath.Join(dir, name), Name: name, Cluster: "hello"}); err != nil {
		return nil, err
	}
	id := n.store.Identity()
	state, err := membership.DecodeState(id.Genesis)
	if err != nil {
		return nil, err
	}
	n.genesis = membership.NewGenesis(membership.GenesisConfig{
		Cluster: "hello", Name: name, Peers: initial, Nonce: id.Nonce, State: state, Save: n.save,
		Caller: n, Clock: clock.System(), Logger: zap.NewNop(), Random: random, RoundEvery: 50 * time.Millisecond,
	})
	joiner := membership.NewJoiner(membership.JoinerConfig{
		Name: name, Nonce: id.Nonce, Addr: name, Newest: metastore.NewestCommand, Peers: others, Caller: n,
		Leader: n.leader, Reached: n.reached, Clock: clock.System(), Logger: zap.NewNop(), Every: 50 * time.Millisecond,
	})
	if err := n.net.Start(transport.Identity{Cluster: "hello", Name: name}, n); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.end = cancel
	n.running.Go(func() {
		if err := n.live(ctx, joiner); err != nil && ctx.Err() == nil {
			log.Print(name, ": ", err)
		}
	})
	return n, nil
}

// live is a node's life: it becomes part of a cluster, opens what belongs to that,
// and then four loops keep it there.
func (n *node) live(ctx context.Context, joiner *membership.Joiner) error {
	state, err := membership.Enter(ctx, n.genesis, joiner)
	if err != nil {
		return err
	}
	id := n.store.Identity()
	place, _ := state.Place(n.name, id.Nonce)
	n.net.SetIdentity(transport.Identity{Cluster: "hello", Name: n.name, ClusterID: place.ClusterID, Node: uint64(place.Node)})
	genesis := metastore.Genesis{ClusterID: place.ClusterID, Epoch: place.Epoch}
	if state.Adopted != nil { // else it begins empty, and gets everything from the others
		for i, m := range state.Adopted.Members {
			genesis.Members = append(genesis.Members, metastore.Member{
				Node: raftlog.NodeID(i + 1), Replica: raftlog.ReplicaID(i + 1), Name: m.Name, Nonce: m.Nonce, Addr: m.Addr,
			})
			n.addrs.Store(raftlog.NodeID(i+1), m.Addr)
		}
	}
	if n.host, err = raftlog.Open(raftlog.Config{Node: place.Node, Store: n.store, Sender: n, Tick: tick}); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(n.store.Dir(), "meta"), 0o755); err != nil {
		return err
	}
	meta, err := metastore.Open(ctx, metastore.Config{
		Host: n.host, FS: storage.DiskFS(), Dir: filepath.Join(n.store.Dir(), "meta", "db"),
		Node: place.Node, Replica: place.Replica, Genesis: genesis, Caller: n, Streamer: n,
	})
	if err != nil {
		return err
	}
	n.meta.Store(meta)
	steward, err := membership.NewSteward(membership.StewardConfig{
		Place: place, Nonce: id.Nonce, Newest: metastore.NewestCommand, Meta: meta, Group: group{meta}, Caller: n,
		Backlog: func() (bool, uint64) { return true, 0 }, // nothing is produced here
		Clock:   clock.System(), Logger: zap.NewNop(), Random: random, Tick: tick, Every: 50 * time.Millisecond,
		// A second for what takes ten or more by default.
		Rules: membership.Rules{CallTimeout: 500 * time.Millisecond, PromoteAfter: time.Second},
	})
	if err != nil {
		return err
	}
	n.steward.Store(steward)
	says := membership.MemberRequest{Node: place.Node, Nonce: id.Nonce, Addr: n.name, Newest: metastore.NewestCommand}
	to := membership.ToLeader{Self: place.Node, Leader: meta.Leader, Here: steward.HandleCall, Caller: n, Clock: clock.System()}
	heartbeater := membership.NewHeartbeater(membership.HeartbeaterConfig{ToLeader: to, Says: says, Logger: zap.NewNop()})
	promoter := membership.NewPromoter(membership.PromoterConfig{
		ToLeader: to, Says: says, Replica: place.Replica, Logger: zap.NewNop(), Every: 100 * time.Millisecond,
		Conf: func() raftlog.ConfState { return meta.GroupStatus().Conf },
	})
	loops := []func() error{
		func() error { return steward.Run(ctx) },
		func() error { return heartbeater.Run(ctx) },
		func() error { return promoter.Run(ctx) },
		func() error { return joiner.Run(ctx, state.Joined != nil) },
	}
	for _, run := range loops {
		n.running.Go(func() {
			var removed *membership.RemovedError
			if errors.As(run(), &removed) {
				n.end() // this life is no member any more
			}
		})
	}
	return nil
}

// group is the metadata's raft group, through all that a snapshot replaces.
type group struct{ *metastore.Store }

func (g group) Status() raftlog.Status { return g.GroupStatus() }

func (g group) ChangeMembers(ctx context.Context, c raftlog.Change) error {
	return g.Group().ChangeMembers(ctx, c)
}

func (g group) Resign(ctx context.Context, successors ...raftlog.ReplicaID) error {
	return g.Group().Resign(ctx, successors...)
}

func (g group) TransferLeadership(ctx context.Context, to raftlog.ReplicaID) error {
	return g.Group().TransferLeadership(ctx, to)
}

func random(p []byte) { _, _ = rand.Read(p) }

// save makes what this life remembers durable.
func (n *node) save(s membership.State) error {
	id := n.store.Identity()
	id.Genesis = s.Encode()
	if place, ok := s.Place(n.name, id.Nonce); ok {
		id.ClusterID, id.Epoch, id.Node = place.ClusterID, place.Epoch, place.Node
	}
	return n.store.SetIdentity(id)
}

func (n *node) leader() (raftlog.NodeID, <-chan struct{}) {
	if meta := n.meta.Load(); meta != nil {
		return meta.Leader()
	}
	return 0, nil
}

// reached is told the addresses of all members by the leader.
func (n *node) reached(members []membership.Reached) {
	for _, m := range members {
		n.addrs.Store(m.Node, m.Addr)
	}
}

// addr is where a member is, by the metadata or, before there is any here, by what
// the leader said.
func (n *node) addr(id raftlog.NodeID) string {
	if meta := n.meta.Load(); meta != nil {
		for _, m := range meta.Members() {
			if m.Node == id {
				return m.Addr
			}
		}
	}
	addr, _ := n.addrs.Load(id)
	text, _ := addr.(string)
	return text
}

// The node as the raft host's, the metadata's and membership's way to others.

func (n *node) Send(to raftlog.NodeID, class uint8, frame []byte) {
	n.net.Send(n.addr(to), transport.Class(class), frame)
}

func (n *node) Call(ctx context.Context, to raftlog.NodeID, method string, req []byte) ([]byte, error) {
	return n.CallAddr(ctx, n.addr(to), method, req)
}

func (n *node) CallAddr(ctx context.Context, addr, method string, req []byte) ([]byte, error) {
	b, err := n.net.Call(ctx, addr, method, req)
	if errors.Is(err, transport.ErrUnreachable) {
		return nil, raftlog.Retry(err)
	}
	return b, err
}

func (n *node) OpenStream(ctx context.Context, to raftlog.NodeID, method string) (metastore.Stream, error) {
	return n.net.OpenStream(ctx, n.addr(to), method)
}

// The node as the transport's handler.

func (n *node) HandleFrame(from transport.Peer, _ transport.Class, frame []byte) {
	if n.meta.Load() != nil {
		n.host.HandleFrame(raftlog.NodeID(from.Node), frame)
	}
}

func (n *node) HandleCall(ctx context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
	meta, steward := n.meta.Load(), n.steward.Load()
	switch {
	case method == membership.Method:
		return n.genesis.HandleCall(ctx, req)
	case strings.HasPrefix(method, "member.") && steward == nil:
		return membership.Unconfigured(n.store.Identity().Nonce), nil
	case strings.HasPrefix(method, "member."):
		return steward.HandleCall(ctx, method, req)
	case meta == nil:
		return nil, errors.New("not in a cluster yet")
	}
	return meta.HandleCall(ctx, raftlog.NodeID(from.Node), method, req)
}

func (n *node) HandleStream(ctx context.Context, from transport.Peer, method string, s transport.Stream) error {
	if meta := n.meta.Load(); meta != nil {
		return meta.HandleStream(ctx, raftlog.NodeID(from.Node), method, s)
	}
	return errors.New("not in a cluster yet")
}

func (n *node) close(ctx context.Context) {
	n.end()
	n.running.Wait()
	if n.host != nil {
		_ = n.host.Close(ctx)
	}
	_ = n.net.Close()
	if meta := n.meta.Load(); meta != nil {
		_ = meta.Close()
	}
	_ = n.store.Close()
}

// await waits until the metadata of a node, as it knows them, are as wished.
func (n *node) await(ok func(*metastore.Store) bool) {
	for n.meta.Load() == nil || !ok(n.meta.Load()) {
		time.Sleep(20 * time.Millisecond)
	}
}

// Three nodes form a cluster, a fourth one joins it and gets a vote, then the
// first one leaves for good.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Panic(err)
		}
	}
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "stele-membership-")
	check(err)
	defer os.RemoveAll(dir)
	network := transport.NewNetwork(1, nil)
	initial := []membership.Peer{{Name: "a", Addr: "a"}, {Name: "b", Addr: "b"}, {Name: "c", Addr: "c"}}
	addrs := []string{"a", "b", "c"}
	nodes := map[string]*node{}
	for _, p := range initial {
		nodes[p.Name], err = open(network, dir, p.Name, initial, addrs)
		check(err)
		defer nodes[p.Name].close(ctx)
	}
	b := nodes["b"]
	b.await(func(m *metastore.Store) bool { return m.ClusterVersion() >= 2 })
	fmt.Println("founded with", len(b.meta.Load().Members()), "members")

	// An empty directory, and the addresses of some that are in the cluster.
	d, err := open(network, dir, "d", nil, addrs)
	check(err)
	defer d.close(ctx)
	voters := func(m *metastore.Store) int { return len(m.GroupStatus().Conf.Voters) }
	d.await(func(m *metastore.Store) bool { return voters(m) == 4 })
	fmt.Println("d is one of", voters(d.meta.Load()), "voters")

	var a metastore.Member
	for _, m := range d.meta.Load().Members() {
		if m.Name == "a" {
			a = m
		}
	}
	check(d.meta.Load().SetDeparture(ctx, a.Node, a.Nonce, metastore.Drains))
	d.await(func(m *metastore.Store) bool { return len(m.Members()) == 3 && voters(m) == 3 })
	_, is, err := d.meta.Load().Tombstone(a.Nonce)
	check(err)
	fmt.Println("a is gone for good:", is)
	// Output:
	// founded with 3 members
	// d is one of 4 voters
	// a is gone for good: true
}
