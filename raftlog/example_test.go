package raftlog_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/transport"
)

// dictionary is a state machine: "key=value" entries.
type dictionary struct {
	mu     sync.Mutex
	values map[string]string
}

func (d *dictionary) Apply(entries []raftlog.Entry, results []raftlog.Result) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, e := range entries {
		if key, value, ok := strings.Cut(string(e.Data), "="); ok { // leaders begin with empty entries
			d.values[key] = value
			results[i].Value = len(d.values) // for the proposer
		}
	}
	return nil
}

func (d *dictionary) Applied(raftlog.Index) {}

func (d *dictionary) get(key string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.values[key]
}

// peer is a node: a directory, a network, and here one replica of one group.
type peer struct {
	id    raftlog.NodeID
	dict  dictionary
	net   transport.Transport
	store *storage.Store
	host  *raftlog.Host
	group *raftlog.Group
}

// Send makes the transport the host's raftlog.Sender.
func (p *peer) Send(to raftlog.NodeID, class uint8, frame []byte) {
	p.net.Send(to.String(), transport.Class(class), frame)
}

// HandleFrame and the two below make the peer the transport's Handler.
func (p *peer) HandleFrame(from transport.Peer, _ transport.Class, frame []byte) {
	p.host.HandleFrame(raftlog.NodeID(from.Node), frame)
}

func (p *peer) HandleCall(context.Context, transport.Peer, string, []byte) ([]byte, error) {
	return nil, errors.New("nobody calls")
}

func (p *peer) HandleStream(context.Context, transport.Peer, string, transport.Stream) error {
	return errors.New("nobody streams")
}

// open starts a node of three. changed is told when another replica may lead.
func (p *peer) open(dir string, changed chan<- struct{}) (err error) {
	p.dict.values = map[string]string{}
	if p.store, err = storage.Open(storage.Config{Dir: dir, Name: p.id.String(), Cluster: "hello"}); err != nil {
		return err
	}
	if p.host, err = raftlog.Open(raftlog.Config{Node: p.id, Store: p.store, Sender: p, Tick: 20 * time.Millisecond}); err != nil {
		return err
	}
	if err = p.net.Start(transport.Identity{Cluster: "hello", Name: p.id.String(), Node: uint64(p.id)}, p); err != nil {
		return err
	}
	p.group, err = p.host.OpenGroup(raftlog.GroupOptions{
		Group:   2, // 1 is the metadata's, if there is one
		Replica: raftlog.ReplicaID(p.id),
		Peers:   map[raftlog.ReplicaID]raftlog.NodeID{1: 1, 2: 2, 3: 3},
		// For the first time: equal on all that it lists.
		Create:  &raftlog.Begin{Dir: "dictionary", Index: 1, Term: 1, Conf: raftlog.ConfState{Voters: []raftlog.ReplicaID{1, 2, 3}}},
		Machine: &p.dict,
		State:   &raftlog.AppliedState{}, // the dictionary begins empty, and gets all entries again
		OnStatus: func(raftlog.Status) {
			select {
			case changed <- struct{}{}:
			default: // it must not block, and somebody will look anyway
			}
		},
	})
	return err
}

func (p *peer) close(ctx context.Context) {
	_ = p.host.Close(ctx) // hands leadership over
	_ = p.net.Close()
	_ = p.store.Close()
}

// put proposes to whoever leads until the entry is known to be applied. Putting
// twice does no harm here; where it would, do not repeat what is Unknown.
func put(peers []*peer, changed <-chan struct{}, entry string) (result any, err error) {
	for {
		for _, p := range peers {
			if !p.group.Status().Role.IsLeader() {
				continue
			}
			done := make(chan raftlog.Proposal, 1)
			p.group.Propose([]byte(entry), func(p raftlog.Proposal) { done <- p })
			r := <-done
			if r.Err == nil || raftlog.OutcomeOf(r.Err) == raftlog.OutcomeRefused {
				return r.Result.Value, r.Err
			}
		}
		<-changed
	}
}

// Three nodes agree on a state machine of their own, in memory and over a
// network in memory; with transport.NewTCP and addresses it is a real one.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Panic(err)
		}
	}
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "stele-raftlog-")
	check(err)
	defer os.RemoveAll(dir)

	network, changed := transport.NewNetwork(1, nil), make(chan struct{}, 1)
	var peers []*peer
	for id := raftlog.NodeID(1); id <= 3; id++ {
		p := &peer{id: id, net: network.Transport(id.String())}
		check(p.open(filepath.Join(dir, id.String()), changed))
		defer p.close(ctx)
		peers = append(peers, p)
	}

	for _, entry := range []string{"colour=red", "colour=blue"} {
		size, err := put(peers, changed, entry) // durable on two nodes of three
		check(err)
		fmt.Println("put", entry, "size", size)
	}
	for _, p := range peers {
		_, err := p.group.ReadIndex(ctx) // waits until all that was acknowledged is applied here
		check(err)
		fmt.Println(p.id, "says", p.dict.get("colour"))
	}
	// Output:
	// put colour=red size 1
	// put colour=blue size 1
	// n1 says blue
	// n2 says blue
	// n3 says blue
}
