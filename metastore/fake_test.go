package metastore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// testGenesis has n members with node ids 1..n and replica ids 11..10+n.
func testGenesis(n int) Genesis {
	g := Genesis{ClusterID: raftlog.ClusterID{0xc1}}
	for i := 1; i <= n; i++ {
		g.Members = append(g.Members, Member{
			Node: raftlog.NodeID(i), Replica: raftlog.ReplicaID(10 + i), Nonce: raftlog.Nonce{byte(i)},
			Name: fmt.Sprintf("node-%d", i), Addr: fmt.Sprintf("node-%d:7942", i),
		})
	}
	return g
}

func inc(n int) (i raftlog.Incarnation) {
	binary.BigEndian.PutUint64(i[8:], uint64(n))
	return i
}

// memView is a state in memory: what decisions run over when no database is
// needed.
type memView map[string][]byte

func (v memView) get(key []byte) ([]byte, error) { return v[string(key)], nil }

func (v memView) scan(prefix []byte, f func(key, value []byte) error) error {
	for _, k := range slices.Sorted(maps.Keys(v)) {
		if strings.HasPrefix(k, string(prefix)) {
			if err := f([]byte(k), v[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v memView) commit(t *tx) {
	for k, b := range t.writes {
		if b == nil {
			delete(v, k)
		} else {
			v[k] = b
		}
	}
}

// decided applies one command to the state and checks every invariant.
func (v memView) decided(t *testing.T, c command) (any, error) {
	t.Helper()
	x := newTx(v)
	value, refusal, err := decide(x, c)
	require.NoError(t, err)
	v.commit(x)
	require.NoError(t, checkInvariants(v))
	return value, refusal
}

func seeded(t *testing.T, g Genesis) memView {
	v := memView{}
	_, err := v.decided(t, g)
	require.NoError(t, err)
	return v
}

// stateHash is equal for equal states, applied index included.
func stateHash(v view) ([32]byte, error) {
	h := sha256.New()
	err := dump(v, func(key, value []byte) error {
		fmt.Fprintf(h, "%d %d ", len(key), len(value))
		h.Write(key)
		h.Write(value)
		return nil
	})
	return [32]byte(h.Sum(nil)), err
}

func (m *machine) hash(t *testing.T) (sum [32]byte) {
	t.Helper()
	require.NoError(t, m.db.run(func() (err error) {
		if err = checkInvariants(m.db.newest()); err == nil {
			sum, err = stateHash(m.db.newest())
		}
		return err
	}))
	return sum
}

// requireCatalog checks that what reads see is what is in the database.
func (m *machine) requireCatalog(t *testing.T) {
	t.Helper()
	var want *catalog
	require.NoError(t, m.db.run(func() (err error) {
		_, want, err = loadState(m.db.newest(), NewestCommand)
		return err
	}))
	m.read(func(c *catalog) { require.Equal(t, want, c) })
}

// reopened opens a machine as a store does whose log began with a reset.
func reopened(t *testing.T, fs storage.FS, g Genesis, reset uint64) (*machine, error) {
	t.Helper()
	db, err := openDatabase(t.Context(), fs, "db", zap.NewNop())
	require.NoError(t, err)
	require.NoError(t, db.settle(reset, NewestCommand))
	require.NoError(t, db.tidy())
	m, err := openMachine(db, NewestCommand, zap.NewNop())
	require.NoError(t, err)
	return m, m.seed(g)
}

// openTestMachine opens a machine on fs, with its genesis.
func openTestMachine(fs storage.FS, g Genesis) (*machine, error) {
	db, err := openDatabase(context.Background(), fs, "db", zap.NewNop())
	if err != nil {
		return nil, err
	}
	m, err := openMachine(db, NewestCommand, zap.NewNop())
	if err == nil {
		err = m.seed(g)
	}
	if err != nil {
		return nil, errors.Join(err, db.close())
	}
	return m, nil
}

func mustOpenMachine(t *testing.T, fs storage.FS, g Genesis) *machine {
	t.Helper()
	m, err := openTestMachine(fs, g)
	require.NoError(t, err)
	return m
}

// atTwo raises the version of a state's cluster to 2.
func (v memView) atTwo(t *testing.T) memView {
	t.Helper()
	_, err := v.decided(t, setVersion{2})
	require.NoError(t, err)
	return v
}

// configured makes the configuration of the metadata group what the state was
// applied with.
func (v memView) configured(t *testing.T, c raftlog.ConfState) {
	t.Helper()
	x := newTx(v)
	at, ok := x.applied()
	require.True(t, ok)
	at.Conf = c
	v["a"] = at.encode()
}

// script makes a log of n entries of all kinds, most of which do something. That
// of an even seed is of a cluster that is brought to version 2 on the way.
func script(seed uint64, members, n int) []raftlog.Entry {
	r := rand.New(rand.NewPCG(seed, 7))
	entries := make([]raftlog.Entry, n)
	term := raftlog.Term(2)
	state := memView{}
	genesis := newTx(state)
	_, _, _ = decide(genesis, testGenesis(members))
	state.commit(genesis)
	for i := range entries {
		e := raftlog.Entry{Index: genesisIndex + 1 + raftlog.Index(i), Term: term}
		switch k := r.IntN(20); {
		case seed%2 == 0 && i == n/4:
			e.Data = encodeCommand(setVersion{2})
		case k == 0:
			term++
			e.Term = term // the empty entry of a new leader
		case k == 1:
			e.Kind = 2
			e.Conf = &raftlog.ConfState{Voters: []raftlog.ReplicaID{11, raftlog.ReplicaID(12 + r.IntN(members))}}
		case seed%2 == 0 && i > n/4 && k < 15:
			e.Data = encodeCommand(randomMemberCommand(r, state))
		default:
			e.Data = encodeCommand(randomCommand(r, members))
		}
		x := newTx(state)
		_, _, _ = applyEntry(x, e, NewestCommand)
		state.commit(x)
		entries[i] = e
	}
	return entries
}

func randomCommand(r *rand.Rand, members int) command {
	i := inc(1 + r.IntN(12))
	switch r.IntN(10) {
	case 0, 1, 2, 3:
		names := []string{"orders", "Orders", "payments", "a.b_c-d", "bad name", "x", "y", "z"}
		return createTopic{i, names[r.IntN(len(names))], TopicConfig{Partitions: uint32(r.IntN(5)), Replicas: uint32(r.IntN(members + 2))}}
	case 4:
		return topicDeleting{i}
	case 5:
		return topicDeleted{i}
	case 6:
		return allocateProducer{[]string{"", "billing", "mail"}[r.IntN(3)], [16]byte{1 + byte(r.IntN(3))}, uint32(r.IntN(4)), r.IntN(2) == 0}
	case 7:
		n := 1 + r.IntN(members+1)
		return setAddress{raftlog.NodeID(n), raftlog.Nonce{byte(n)}, fmt.Sprintf("moved-%d:1", r.IntN(3))}
	case 8:
		return setSetting{"key", []string{"", "value"}[r.IntN(2)]}
	}
	return noop{}
}

// randomMemberCommand is one of version 2 that mostly fits the state.
func randomMemberCommand(r *rand.Rand, state memView) command {
	c, err := loadCatalog(state)
	if err != nil {
		return noop{}
	}
	m := c.members[r.IntN(len(c.members))]
	topics := c.sorted()
	k := r.IntN(12)
	switch {
	case k == 0:
		nonce := raftlog.Nonce{byte(4 + r.IntN(30))}
		return admit{Admission{fmt.Sprint("node-", 1+r.IntN(9)), nonce, "new:1", NewestCommand, r.IntN(2) == 0, m.Node, m.Liveness.Stamp}, Stamp(r.IntN(9))}
	case k == 1:
		return heartbeats{{Heartbeat{m.Node, m.Nonce, NewestCommand}, Stamp(r.IntN(9))}, {Heartbeat{1, raftlog.Nonce{1}, NewestCommand}, 1}}
	case k == 2:
		return markDead{{m.Node, m.Liveness.Stamp}}
	case k == 3:
		return seed{[]setSetting{{"key", "seeded"}}, []createTopic{{inc(13), "seeded", TopicConfig{Partitions: 2}}}}
	case k < 7 && m.Node > 3 && m.Liveness.Departure == Leaves:
		return removeMember{m.Node}
	case k < 7 && m.Node > 3:
		return setDeparture{m.Node, m.Nonce, m.Liveness.Departure + 1 + Departure(r.IntN(2))%(Leaves-m.Liveness.Departure)}
	case k < 9 && len(c.moves) > 0:
		move := c.moves[r.IntN(len(c.moves))].end()
		if r.IntN(3) == 0 {
			return cancelMove{move}
		}
		return finishMove{move}
	case len(topics) > 0 && len(topics[0].Partitions) > 0:
		topic := topics[r.IntN(len(topics))]
		p := topic.Partitions[r.IntN(len(topic.Partitions))]
		if len(p.Replicas) == 0 {
			return noop{}
		}
		return startMove{MoveRequest{topic.Incarnation, p.Index, p.Generation, m.Node, p.Replicas[r.IntN(len(p.Replicas))].Replica}, 5}
	}
	return randomCommand(r, 3)
}

// fakeCluster is a log that all nodes share: a stand-in for raft whose leader,
// and what goes wrong, the test decides.
type fakeCluster struct {
	t       *testing.T
	genesis Genesis

	mu      sync.Mutex
	entries []raftlog.Entry // from index 2 on
	leader  raftlog.NodeID  // 0: none
	term    raftlog.Term
	nodes   map[raftlog.NodeID]*fakeNode
	silent  raftlog.NodeID // gives no answer to calls
	// fault, if set, may end a call between nodes before or after it was
	// handled.
	fault func(to raftlog.NodeID, handled bool) error
	// tamper, if set, changes the answer to a call.
	tamper func(to raftlog.NodeID, response []byte) []byte
}

// fakeNode is one node: its group, its caller and its store.
type fakeNode struct {
	cluster *fakeCluster
	member  Member
	store   *Store
	options raftlog.GroupOptions
	clock   clock.Clock // nil: the machine's
	newest  CommandType // 0: of this build

	applying sync.Mutex

	mu      sync.Mutex
	applied raftlog.Index
	results map[raftlog.Index]raftlog.Result
	hold    bool          // applies nothing
	early   bool          // a read is answered before its index is applied
	late    bool          // a proposal is answered when it is applied, also while nothing is
	role    raftlog.Role  // 0: what the cluster says
	failed  error         // why the group takes no part any more
	lose    int           // proposals to lose: unknown outcome
	drop    int           // proposals to refuse: overloaded
	moved   chan struct{} // closed when applied moves
	reads   int           // rounds asked for
	peers   map[raftlog.ReplicaID]raftlog.NodeID
}

func newFakeCluster(t *testing.T, n int) *fakeCluster {
	c := &fakeCluster{t: t, genesis: testGenesis(n), term: 1, nodes: map[raftlog.NodeID]*fakeNode{}}
	t.Cleanup(c.close)
	return c
}

// start opens a store for node on fs.
func (c *fakeCluster) start(node raftlog.NodeID, fs *simfs.FS) *fakeNode {
	c.t.Helper()
	return c.startWith(node, fs, func(*fakeNode) {})
}

// startHeld opens a store that is given nothing to apply, and whose reads are
// answered before it has.
func (c *fakeCluster) startHeld(node raftlog.NodeID, fs *simfs.FS) *fakeNode {
	c.t.Helper()
	return c.startWith(node, fs, func(n *fakeNode) { n.hold, n.early = true, true })
}

func (c *fakeCluster) startWith(node raftlog.NodeID, fs *simfs.FS, prepare func(*fakeNode)) *fakeNode {
	c.t.Helper()
	n := &fakeNode{cluster: c, member: c.genesis.Members[node-1], moved: make(chan struct{}), results: map[raftlog.Index]raftlog.Result{}}
	prepare(n)
	store, err := open(context.Background(), Config{
		FS: fs, Dir: "db", Node: node, Replica: n.member.Replica, Genesis: c.genesis, Caller: n,
		Clock: n.clock, Newest: n.newest,
	}, func(o raftlog.GroupOptions) (group, error) {
		n.options, n.applied = o, o.State.Index
		return n, nil
	})
	require.NoError(c.t, err)
	n.store = store
	c.mu.Lock()
	c.nodes[node] = n
	c.mu.Unlock()
	return n
}

// startAll opens all nodes and makes the first one the leader.
func (c *fakeCluster) startAll() {
	for _, m := range c.genesis.Members {
		c.start(m.Node, simfs.New(uint64(m.Node)))
	}
	c.elect(1)
}

func (c *fakeCluster) close() {
	for _, n := range c.nodes {
		require.NoError(c.t, n.store.Close())
	}
}

// elect makes a node the leader of the next term; 0: there is none.
func (c *fakeCluster) elect(node raftlog.NodeID) {
	c.mu.Lock()
	c.term++
	c.leader = node
	if node != 0 {
		c.entries = append(c.entries, raftlog.Entry{Index: raftlog.Index(len(c.entries)) + 2, Term: c.term})
	}
	nodes := slices.Collect(maps.Values(c.nodes))
	c.mu.Unlock()
	for _, n := range nodes {
		n.catchUp()
		n.options.OnStatus(n.Status())
	}
}

// silence makes a node give no answers, 0: all do.
func (c *fakeCluster) silence(node raftlog.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = node
}

// append commits entries behind everybody's back.
func (c *fakeCluster) append(commands ...command) {
	c.mu.Lock()
	for _, cmd := range commands {
		c.entries = append(c.entries, raftlog.Entry{Index: raftlog.Index(len(c.entries)) + 2, Term: c.term, Data: encodeCommand(cmd)})
	}
	c.mu.Unlock()
}

func (c *fakeCluster) last() raftlog.Index {
	c.mu.Lock()
	defer c.mu.Unlock()
	return raftlog.Index(len(c.entries)) + 1
}

// catchUp applies what is committed, up to limit if one is given.
func (n *fakeNode) catchUp(limit ...raftlog.Index) error {
	n.applying.Lock()
	defer n.applying.Unlock()
	n.mu.Lock()
	from, hold := n.applied, n.hold
	n.mu.Unlock()
	n.cluster.mu.Lock()
	entries := slices.Clone(n.cluster.entries[from-1:])
	n.cluster.mu.Unlock()
	if len(limit) > 0 {
		entries = entries[:limit[0]-from]
	} else if hold {
		return nil
	}
	if len(entries) == 0 {
		return nil
	}
	results := make([]raftlog.Result, len(entries))
	if err := n.options.Machine.Apply(entries, results); err != nil {
		return err
	}
	n.mu.Lock()
	for i, e := range entries {
		n.results[e.Index] = results[i]
	}
	n.applied += raftlog.Index(len(entries))
	close(n.moved)
	n.moved = make(chan struct{})
	n.mu.Unlock()
	return nil
}

func (n *fakeNode) set(f func(*fakeNode)) {
	n.mu.Lock()
	f(n)
	n.mu.Unlock()
	n.catchUp()
}

// failGroup takes the replica out of its group.
func (n *fakeNode) failGroup(err error) {
	n.set(func(n *fakeNode) { n.failed, n.hold = err, true })
	n.options.OnStatus(n.Status())
}

func (n *fakeNode) Status() raftlog.Status {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	s := raftlog.Status{Term: n.cluster.term, Role: raftlog.RoleUnattached}
	switch n.cluster.leader {
	case 0:
	case n.member.Node:
		s.Leader, s.Role = n.member.Replica, raftlog.RoleLeaderActive
	default:
		s.Leader, s.Role = n.cluster.genesis.Members[n.cluster.leader-1].Replica, raftlog.RoleFollower
	}
	if n.role != 0 {
		s.Role = n.role
	}
	if n.failed != nil {
		s.Failed, s.Role = n.failed, raftlog.RoleResigned
	}
	return s
}

func (n *fakeNode) UpdatePeers(peers map[raftlog.ReplicaID]raftlog.NodeID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peers = peers
}

func (n *fakeNode) ProposeIn(term raftlog.Term, data []byte, done func(raftlog.Proposal)) {
	go func() { done(n.proposed(term, data)) }()
}

func (n *fakeNode) proposed(term raftlog.Term, data []byte) raftlog.Proposal {
	c := n.cluster
	n.mu.Lock()
	lose, drop := n.lose > 0, n.drop > 0
	if lose {
		n.lose--
	} else if drop {
		n.drop--
	}
	n.mu.Unlock()
	c.mu.Lock()
	if c.leader != n.member.Node {
		defer c.mu.Unlock()
		err := &raftlog.NotLeaderError{Group: 1, Node: c.leader}
		if c.leader != 0 {
			err.Leader = c.genesis.Members[c.leader-1].Replica
		}
		return raftlog.Proposal{Err: err}
	}
	if term != 0 && term != c.term {
		defer c.mu.Unlock()
		return raftlog.Proposal{Err: raftlog.Retry(raftlog.ErrLeadershipLost)}
	}
	if drop && !lose {
		defer c.mu.Unlock()
		return raftlog.Proposal{Err: raftlog.Retry(raftlog.ErrOverloaded)}
	}
	e := raftlog.Entry{Index: raftlog.Index(len(c.entries)) + 2, Term: c.term, Data: data}
	c.entries = append(c.entries, e)
	others := slices.Collect(maps.Values(c.nodes))
	c.mu.Unlock()
	if err := n.catchUp(); err != nil {
		return raftlog.Proposal{Err: raftlog.Unknown(err)}
	}
	n.mu.Lock()
	for n.late && n.applied < e.Index {
		moved := n.moved
		n.mu.Unlock()
		<-moved
		n.mu.Lock()
	}
	p := raftlog.Proposal{Index: e.Index, Term: e.Term, Result: n.results[e.Index]}
	n.mu.Unlock()
	for _, o := range others {
		o.catchUp()
	}
	if lose {
		return raftlog.Proposal{Err: raftlog.Unknown(raftlog.ErrLeadershipLost)}
	}
	return p
}

func (n *fakeNode) ReadIndex(ctx context.Context) (raftlog.Index, error) {
	c := n.cluster
	c.mu.Lock()
	index, leader := raftlog.Index(len(c.entries))+1, c.leader
	c.mu.Unlock()
	if leader == 0 {
		return 0, raftlog.Retry(errors.New("no leader"))
	}
	n.mu.Lock()
	n.reads++
	early := n.early
	n.mu.Unlock()
	for !early {
		n.catchUp()
		n.mu.Lock()
		at, moved := n.applied, n.moved
		n.mu.Unlock()
		if at >= index {
			break
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, raftlog.UnknownCause(ctx)
		}
	}
	return index, nil
}

func (n *fakeNode) State(context.Context) (st raftlog.ReplicaState, err error) {
	st.Hard.Term = n.Status().Term
	return st, nil
}

func (n *fakeNode) TrimLog(raftlog.Index, int64, int64) error { return nil }

// Call is the node's Caller: it reaches the other stores directly.
func (n *fakeNode) Call(ctx context.Context, to raftlog.NodeID, method string, request []byte) ([]byte, error) {
	c := n.cluster
	c.mu.Lock()
	target, fault, silent, tamper := c.nodes[to], c.fault, c.silent == to, c.tamper
	c.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, raftlog.Unknown(ctx.Err())
	}
	if fault != nil {
		if err := fault(to, false); err != nil {
			return nil, err
		}
	}
	response, err := target.store.HandleCall(ctx, n.member.Node, method, request)
	if err == nil && fault != nil {
		err = fault(to, true)
	}
	if err == nil && tamper != nil {
		response = tamper(to, response)
	}
	return response, err
}
