package stele

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/invariant"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
	"github.com/stelelog/stele/transport"
)

// Node is one member of a cluster, in this process. Its methods are safe for
// concurrent use.
type Node struct {
	cfg     Config
	clock   clock.Clock
	log     *zap.Logger
	store   *storage.Store
	net     *network
	genesis *membership.Genesis
	metrics *metrics
	disk    *diskWatch
	events  *eventLoop

	asked      atomic.Uint64 // questions to peers, to be taken in
	leaderless leaderless

	entering    atomic.Pointer[membership.Joiner]      // of a node that was part of no cluster
	asking      atomic.Pointer[membership.Joiner]      // of one that is; nil until then
	heartbeater atomic.Pointer[membership.Heartbeater] // nil until the node is part of one

	life    context.Context // ends when the node is closed
	end     context.CancelFunc
	running sync.WaitGroup // forming the cluster, watching the disk

	closed chan struct{} // closed when nothing runs any more
	result error         // of Close; valid when closed is

	mu struct {
		sync.Mutex
		closed  bool
		failed  error         // why the node can never serve
		changed chan struct{} // closed and replaced when readiness may have changed
	}
}

// parts is what a node consists of once it is part of a cluster.
type parts struct {
	host    *raftlog.Host
	meta    *metastore.Store
	topics  *topic.Manager
	steward *membership.Steward
	orders  *membership.Orders
	drains  drains
	door    door
}

// failure is why the parts stopped, or nil.
func (p *parts) failure() error { return errors.Join(p.host.Failed(), p.meta.Failed()) }

// Open opens a node: its directory is locked and recovered, its address is
// listened on. It does local work only and waits for no other node; see
// WaitReady. ctx bounds opening, not the node's life. The caller must end the
// node with Close or Abort.
//
// Errors: *NilContextError, *ConfigError, ErrLocked, *IdentityError, *ForeignError, *FormatError, *DamageError,
// and what the network says of the address. After an error nothing runs and
// nothing is locked.
func Open(ctx context.Context, cfg Config) (*Node, error) {
	if err := needs(ctx, "Open"); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Logger = cfg.Logger.With(zap.String("node", cfg.Name)) // of every part's lines, once
	if err := ctx.Err(); err != nil {
		return nil, raftlog.Retry(err)
	}
	disk := newDiskWatch()
	store, err := storage.Open(storage.Config{
		FS: cfg.FS, Dir: cfg.Dir, Name: cfg.Name, Cluster: cfg.Cluster,
		JournalFileSize: cfg.JournalBytes, SegmentSize: cmp.Or(cfg.SegmentBytes, defaultSegment), Logger: cfg.Logger.Named("storage"),
		Reserve: max(0, cfg.DiskReserve), OnFull: disk.noRoom,
	})
	if err != nil {
		return nil, refusedUnless(err)
	}
	n := &Node{cfg: cfg, clock: clock.System(), log: cfg.Logger, store: store, disk: disk, net: &network{fence: newFence(cfg.Logger)}, closed: make(chan struct{})}
	if c := invariant.From(ctx).Clock; c != nil {
		n.clock = c
	}
	n.life, n.end = context.WithCancel(context.WithoutCancel(ctx))
	n.mu.changed = make(chan struct{})
	n.events = newEventLoop(n)
	n.net.fence.seen = n.events.peerFenced
	if err := n.start(ctx); err != nil {
		n.end()
		n.running.Wait()
		return nil, refusedUnless(errors.Join(err, store.Close()))
	}
	n.running.Go(func() { n.watchDisk(n.life) })
	n.events.start()
	return n, nil
}

// refusedUnless gives an error of opening its outcome: nothing happened, and
// the same call would meet the same, unless it is about what another process
// may give up any moment: the directory's lock, the address, space on the disk.
func refusedUnless(err error) error {
	var network *net.OpError
	switch {
	case errors.Is(err, ErrRetry) || errors.Is(err, ErrRefused):
		return err
	case errors.Is(err, ErrLocked), errors.As(err, &network), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return raftlog.Retry(err)
	}
	var damage *DamageError
	if errors.As(err, &damage) {
		err = fmt.Errorf("stele: %w; the node cannot tell any more what it promised: move the directory away and start it with an empty one, and it gets everything from the others, as a new node (a cluster of one has nobody to get it from)", err)
	}
	return raftlog.Refused(err)
}

// start brings up the network and what the directory already belongs to.
func (n *Node) start(ctx context.Context) error {
	id := n.store.Identity()
	state, err := membership.DecodeState(id.Genesis)
	if err != nil {
		return fmt.Errorf("stele: the genesis in %s: %w", n.cfg.Dir, err)
	}
	n.net.cluster, n.net.nonce, n.net.initial = n.cfg.Cluster, id.Nonce, n.cfg.InitialMembers
	if n.net.transport, err = n.cfg.transport(n.net.nameAt); err != nil {
		return err
	}
	n.genesis = membership.NewGenesis(membership.GenesisConfig{
		Cluster: n.cfg.terms(), Name: n.cfg.Name, Peers: n.cfg.peers(), Nonce: id.Nonce, State: state,
		Save: n.saveGenesis, Caller: n.net, Clock: n.clock, Logger: n.log.Named("membership"),
		Random: func(p []byte) { _, _ = rand.Read(p) }, // never fails: the runtime ends the process instead
	})
	n.net.genesis = n.genesis
	n.net.process = newProcess()
	identity := transport.Identity{Cluster: n.cfg.Cluster, Name: n.cfg.Name, Process: n.net.process}
	if state.Belongs() {
		identity = n.identity(wayOf(state))
	}
	if err := n.net.transport.Start(identity, n.net); err != nil {
		return fmt.Errorf("stele: start the network: %w", err)
	}
	if n.metrics, err = newMetrics(n); err != nil {
		return errors.Join(err, n.net.transport.Close())
	}
	n.running.Go(n.keepFence)
	if id.Fenced > id.Epoch {
		n.net.fence.trip(&EpochFencedError{Epoch: id.Epoch, Current: id.Fenced})
		n.fail(n.net.fence.now())
		return nil
	}
	if state.Belongs() {
		if err := n.assemble(ctx, state); err != nil {
			n.metrics.unregister()
			return errors.Join(err, n.net.transport.Close())
		}
		return nil
	}
	n.running.Go(n.form)
	return nil
}

// identity is what a node says of itself that is part of a cluster.
func (n *Node) identity(way uint64) transport.Identity {
	id := n.store.Identity()
	return transport.Identity{
		Cluster: n.cfg.Cluster, Name: n.cfg.Name, ClusterID: id.ClusterID,
		Node: uint64(id.Node), Epoch: wireEpoch(id.Epoch, way), Process: n.net.process,
	}
}

// form makes the node part of a cluster: of the one that its initial members
// found, or of one that takes it in.
func (n *Node) form() {
	joiner := n.joiner(nil)
	n.entering.Store(joiner)
	state, err := membership.Enter(n.life, n.genesis, joiner)
	if n.life.Err() != nil {
		return
	}
	if other := (*membership.SettingsError)(nil); errors.As(err, &other) {
		err = cmp.Or(settings{other.Want}.fit(&n.cfg, "which the cluster has"), err)
	}
	if err == nil {
		n.net.transport.SetIdentity(n.identity(wayOf(state)))
		err = n.assemble(n.life, state)
	}
	n.fail(err)
	n.noteChange()
}

// fail notes why the node can never serve, once.
func (n *Node) fail(err error) {
	if err == nil || n.life.Err() != nil {
		return
	}
	var removed *RemovedError
	if errors.As(err, &removed) { // that is where a decommission ends
		n.log.Info("the node is no member of its cluster any more", zap.String("why", removed.Reason))
	} else {
		n.log.Error("the node cannot take part", zap.Error(err))
	}
	n.mu.Lock()
	if n.mu.failed == nil {
		n.mu.failed = err
	}
	n.mu.Unlock()
	n.noteChange()
}

func (n *Node) noteChange() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.mu.changed)
	n.mu.changed = make(chan struct{})
}

// saveGenesis makes the state of genesis durable in IDENTITY.
func (n *Node) saveGenesis(s membership.State) error {
	id := n.store.Identity()
	id.Genesis = s.Encode()
	if s.Belongs() {
		place, ok := s.Place(n.cfg.Name, id.Nonce)
		if !ok {
			return errors.New("stele: the genesis does not list this life of the node")
		}
		id.Node, id.ClusterID, id.Epoch = place.Node, place.ClusterID, place.Epoch
	}
	return n.store.SetIdentity(id)
}

// assemble opens the parts of a node that is in a cluster.
func (n *Node) assemble(ctx context.Context, state membership.State) error {
	if err := n.cfg.fits(state.Adopted); err != nil {
		return err
	}
	id := n.store.Identity()
	place, _ := state.Place(n.cfg.Name, id.Nonce)
	genesis := genesisOf(state, n.cfg.Name, id.Nonce)
	founded := map[raftlog.NodeID]string{}
	if f := state.Adopted; f != nil {
		for i, m := range f.Members {
			founded[raftlog.NodeID(i+1)] = m.Addr
		}
	}
	metaDir := n.cfg.FS.PathJoin(n.store.Dir(), metaName)
	if err := n.store.FS().MkdirAll(metaDir, 0o755); err != nil {
		return fmt.Errorf("stele: make %s: %w", metaDir, err)
	}
	kept, err := keepSettings(n.store.FS(), metaDir, &n.cfg, place.SegmentBytes)
	if err != nil {
		return err
	}
	if err := n.store.SetSegmentSize(kept.segmentBytes); err != nil {
		return fmt.Errorf("stele: settings in %s: %w", metaDir, err)
	}
	place.SegmentBytes = kept.segmentBytes
	roster := newRoster(place.ClusterID, place.Epoch, &n.cfg, founded)
	roster.agreed(genesis.Members)
	if r := state.Recovered; r != nil { // its own metadata may be empty, or old
		roster.agreed(membersOf(r))
	}
	roster.way.Store(wayOf(state))
	roster.came = state.Recovered
	n.net.roster.Store(roster)

	p := &parts{}
	fail := func(err error) error {
		if p.topics != nil {
			err = errors.Join(err, p.topics.Close())
		}
		if p.host != nil {
			p.host.Abort()
		}
		if p.meta != nil {
			err = errors.Join(err, p.meta.Close())
		}
		return err
	}
	groups := n.cfg.raftlog(id.Node, n.store, n.net)
	groups.StepHook = stepHooks(n.events.stepHook(), invariant.From(ctx).Step)
	groups.Clock = n.clock
	groups.Removed = func(g raftlog.GroupID, r raftlog.ReplicaID) bool {
		open := n.net.parts.Load()
		return open != nil && open.meta.ReplicaDead(g, r)
	}
	groups.OnDisk = n.noteChange
	if p.host, err = raftlog.Open(groups); err != nil {
		return err
	}
	if p.meta, err = metastore.Open(ctx, metastore.Config{
		Host: p.host, FS: n.store.FS(), Dir: n.cfg.FS.PathJoin(metaDir, "db"),
		Node: id.Node, Replica: place.Replica, Genesis: genesis, Caller: n.net, Streamer: metaStreams{n.net}, Clock: n.clock,
		ContactTimeout: n.cfg.ContactTimeout, ProposeTimeout: n.cfg.CallTimeout,
		AttemptTimeout: max(2*time.Second, 2*time.Duration(n.cfg.ElectionTicks)*n.cfg.Tick),
		Logger:         n.log.Named("metastore"),
		Newest:         metastore.NewestOf(n.cfg.MaxVersion), Behind: n.behind,
		StateHashInterval: n.cfg.MetadataCheckInterval, OnStateSplit: n.events.onMetadataSplit(),
	}); err != nil {
		return fail(err)
	}
	if p.topics, err = topic.Open(topic.Config{
		Meta: p.meta, Host: p.host, Store: n.store, Node: id.Node, Caller: n.net, Streamer: topicStreams{n.net}, Clock: n.clock,
		CallTimeout: n.cfg.CallTimeout, Logger: n.log.Named("topic"), Trace: n.cfg.Trace,
		NoBalance: n.cfg.NoRebalance, NoHandBack: n.cfg.NoLeaderRebalance, OnMove: n.events.onMove(),
		DeleteGrace: n.cfg.DeleteGrace,
		OnDamage:    n.events.onDamage(), VerifyInterval: n.cfg.VerifyInterval, VerifyBytesPerSecond: n.cfg.VerifyBytesPerSecond,
		OnReclaimed: n.events.onReclaimed(), OnReclaimRefused: n.events.onReclaimRefused(),
		OnQuarantined: n.events.onQuarantined(), OnRestored: n.events.onRestored(),
		StartupSweepWait: n.cfg.StartupSweepWait, SweepInterval: n.cfg.SweepInterval,
	}); err != nil {
		return fail(err)
	}
	if p.steward, err = membership.NewSteward(n.stewardConfig(p, place)); err != nil {
		return fail(err)
	}
	p.orders = &membership.Orders{ToLeader: n.toLeader(p, place), Place: place, Timeout: n.cfg.CallTimeout}
	n.events.know(p.meta.Topics(), n.members(p))
	n.net.parts.Store(p)
	n.live(p, place, state.Joined != nil || state.Recovered != nil)
	n.log.Info("the node is part of its cluster", zap.Stringer("cluster_id", place.ClusterID), zap.Stringer("id", id.Node))
	return nil
}

// stepHooks is what calls both; each may be nil.
func stepHooks(a, b func(*raftlog.Core, *raftlog.Effects)) func(*raftlog.Core, *raftlog.Effects) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(c *raftlog.Core, e *raftlog.Effects) {
		a(c, e)
		b(c, e)
	}
}

// serving is ready for a call that has a context.
func (n *Node) serving(ctx context.Context, call string) (*parts, error) {
	if err := needs(ctx, call); err != nil {
		return nil, err
	}
	return n.ready()
}

// ready returns the parts, or why there are none.
func (n *Node) ready() (*parts, error) {
	n.mu.Lock()
	closed, failed := n.mu.closed, n.mu.failed
	n.mu.Unlock()
	switch p := n.net.parts.Load(); {
	case closed:
		return nil, raftlog.Retry(ErrClosed)
	case failed != nil:
		return nil, refusedUnless(failed)
	case p == nil:
		return nil, raftlog.Retry(fmt.Errorf("%w: %s", ErrNotReady, n.waiting()))
	default:
		return p, nil
	}
}

// Close ends the node in good order: every group that it leads is handed over
// once, what waits is written, everything is closed. Calls that are under way
// end with ErrClosed and an outcome. It keeps to ctx as far as disks allow: a
// sync that hangs is waited for, because the directory must not be unlocked
// below it. So is a function of Events that still runs, until ctx ends. Close is
// idempotent; later calls return the first one's result, and after Abort it does
// nothing.
func (n *Node) Close(ctx context.Context) error {
	if err := needs(ctx, "Node.Close"); err != nil {
		return err
	}
	n.shut(func(p *parts) error { return p.host.Close(ctx) })
	return errors.Join(n.result, n.events.wait(ctx))
}

// Abort ends the node at once, as a crash would: nothing is handed over and
// nothing is flushed. It returns when nothing runs any more. Like Close it is
// idempotent; beside a Close that is under way it cuts that short.
func (n *Node) Abort() {
	abort := func(p *parts) error { p.host.Abort(); return nil }
	if p := n.net.parts.Load(); p != nil && n.isClosed() {
		_ = abort(p) // a Close that is under way need not hand over any more
	}
	n.shut(abort)
	_ = n.events.wait(context.Background())
}

func (n *Node) isClosed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.closed
}

// shut ends the node, once; whoever comes later waits for it.
func (n *Node) shut(endHost func(*parts) error) {
	n.mu.Lock()
	first := !n.mu.closed
	n.mu.closed = true
	n.mu.Unlock()
	if first {
		n.result = n.endAll(endHost)
		close(n.closed)
	}
	<-n.closed
}

func (n *Node) endAll(endHost func(*parts) error) error {
	n.end()
	n.running.Wait()
	n.noteChange()
	n.metrics.unregister()
	var errs []error
	if p := n.net.parts.Load(); p != nil {
		errs = append(errs, endHost(p), p.topics.Close(), n.net.transport.Close(), p.meta.Close())
	} else {
		errs = append(errs, n.net.transport.Close())
	}
	return errors.Join(append(errs, n.store.Close())...)
}

// Name is what the host calls the node.
func (n *Node) Name() string { return n.cfg.Name }

// Addr is the address at which peers reach the node.
func (n *Node) Addr() string { return n.net.transport.Addr() }
