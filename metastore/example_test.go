package metastore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// member is a node. Its network is a function call; a real one is in package
// transport.
type member struct {
	id    raftlog.NodeID
	peers map[raftlog.NodeID]*member
	store *storage.Store
	host  *raftlog.Host
	meta  atomic.Pointer[metastore.Store] // nil until it is open: others may call before
}

// Send makes the member a raftlog.Sender.
func (m *member) Send(to raftlog.NodeID, _ uint8, frame []byte) {
	m.peers[to].host.HandleFrame(m.id, frame)
}

// Call makes the member a metastore.Caller.
func (m *member) Call(ctx context.Context, to raftlog.NodeID, method string, request []byte) ([]byte, error) {
	meta := m.peers[to].meta.Load()
	if meta == nil {
		return nil, raftlog.Retry(errors.New("it is not open yet"))
	}
	return meta.HandleCall(ctx, m.id, method, request)
}

func (m *member) openHost(dir string) (err error) {
	m.store, err = storage.Open(storage.Config{Dir: dir, Name: m.id.String(), Cluster: "hello"})
	if err == nil {
		m.host, err = raftlog.Open(raftlog.Config{Node: m.id, Store: m.store, Sender: m, Tick: 20 * time.Millisecond})
	}
	return err
}

func (m *member) openMeta(ctx context.Context, genesis metastore.Genesis) error {
	if err := os.MkdirAll(filepath.Join(m.store.Dir(), "meta"), 0o755); err != nil {
		return err
	}
	meta, err := metastore.Open(ctx, metastore.Config{
		Host: m.host, FS: storage.DiskFS(), Dir: filepath.Join(m.store.Dir(), "meta", "db"),
		Node: m.id, Replica: raftlog.ReplicaID(m.id), Genesis: genesis, Caller: m,
	})
	m.meta.Store(meta)
	return err
}

func (m *member) close(ctx context.Context) {
	_ = m.host.Close(ctx)
	_ = m.meta.Load().Close()
	_ = m.store.Close()
}

// Three nodes agree on what topics there are and which node holds what. One
// makes a topic, another one reads it.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Panic(err)
		}
	}
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "stele-metastore-")
	check(err)
	defer os.RemoveAll(dir)

	// The genesis is the same on every node; package membership agrees on one.
	genesis := metastore.Genesis{ClusterID: raftlog.ClusterID{1}}
	members := map[raftlog.NodeID]*member{}
	for id := raftlog.NodeID(1); id <= 3; id++ {
		members[id] = &member{id: id, peers: members}
		check(members[id].openHost(filepath.Join(dir, id.String())))
		genesis.Members = append(genesis.Members, metastore.Member{
			Node: id, Replica: raftlog.ReplicaID(id), Name: id.String(), Addr: id.String(),
			Nonce: members[id].store.Identity().Nonce,
		})
	}
	for _, m := range members {
		check(m.openMeta(ctx, genesis))
		defer m.close(ctx)
	}
	for _, m := range members {
		<-m.meta.Load().CaughtUp() // nothing is answered from a state that may be old
	}

	_, err = members[1].meta.Load().CreateTopic(ctx, metastore.TopicSpec{
		Name: "orders", Config: metastore.TopicConfig{Partitions: 2, Replicas: 3},
	})
	check(err)
	topic, err := members[2].meta.Load().FindTopic(ctx, "orders") // linearizable
	check(err)
	fmt.Println(topic.Name, topic.State, "with", len(topic.Partitions), "partitions")
	third := members[3].meta.Load()
	check(third.Barrier(ctx))             // what was acknowledged anywhere is applied here
	mine, err := third.ListAssignments(3) // from memory
	check(err)
	fmt.Println("node 3 has to hold", len(mine), "replicas")
	// Output:
	// orders active with 2 partitions
	// node 3 has to hold 2 replicas
}
