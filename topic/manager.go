package topic

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// Caller reaches the managers of other nodes: what Call sends arrives at their
// HandleCall. Errors carry an outcome; one without counts as unknown. The
// request belongs to the Caller.
type Caller interface {
	Call(ctx context.Context, to raftlog.NodeID, method string, request []byte) ([]byte, error)
}

// Config says what a Manager is made of. The zero value of a field means its
// default; Meta, Host, Store, Node and Caller have none.
type Config struct {
	// Meta says which topics there are. It must outlive the Manager.
	Meta *metastore.Store
	// Host runs the groups of the partitions.
	Host *raftlog.Host
	// Store holds the directories of the topics; the Manager neither opens nor
	// closes it.
	Store *storage.Store
	// Node is this node.
	Node raftlog.NodeID
	// Caller reaches the other nodes.
	Caller Caller
	// Streamer opens streams to the other nodes. Nil: replicas that have to be
	// filled, because a move brings them here, wait.
	Streamer Streamer

	// OnMove is told how the moves of partitions go on that this node leads, one
	// call at a time. It must not block, nor call the Manager. Default: nobody is.
	OnMove func(MoveProgress)
	// OnDamage is told when some of a replica's log on this node is found to be
	// damaged, and when it is whole again, one call at a time. It must not block, nor
	// call the Manager. Default: nobody is.
	OnDamage func(DamageChange)
	// OnReclaimed is told what was given back to the disk, and OnReclaimRefused why
	// something was not, once for each reason; one call at a time. They must not
	// block, nor call the Manager. Default: nobody is.
	OnReclaimed      func(Reclaimed)
	OnReclaimRefused func(ReclaimRefusal)
	// OnQuarantined is told of each directory in quarantine that this Manager sees for
	// the first time, those that earlier processes left too, and OnRestored what a
	// RestoreQuarantined has restored; one call at a time, also beside OnReclaimed. They
	// must not block, nor call the Manager. Default: nobody is.
	OnQuarantined func(Quarantined)
	OnRestored    func(Restored)
	// Trace is told of operations. Default: nobody is, and nothing is spent on it.
	Trace Trace
	// Clock is what timeouts are measured with. Default: the machine's.
	Clock clock.Clock
	// Logger; default: none.
	Logger *zap.Logger

	// CallTimeout bounds a call of another node, and how long records wait for
	// a partition that has no leader: 100 ms to 10 min. Default 10 s.
	CallTimeout time.Duration
	// FetchWait is how long a replica holds a reader's question
	// at the end of the partition before it answers that there is nothing new:
	// 10 ms to 1 min. Default 5 s.
	FetchWait time.Duration
	// MaxPendingBytes bounds the records of a partition that wait for a quorum,
	// in bytes: see PartitionConfig. Default 32 MiB.
	MaxPendingBytes int
	// StartupSweepWait is how long a node that starts waits, before it opens any
	// replica, until its metadata have caught up and it has taken stock of what
	// earlier processes left; then that is left to a later sweep. 1 s to 10 min.
	// Default 1 min.
	StartupSweepWait time.Duration
	// SweepInterval is how often this node looks for what it can give back to the
	// disk, beside when it has set something aside: 1 s to 24 h. Default 10 min.
	SweepInterval time.Duration
	// FillBytesPerSecond bounds what replicas that are being filled get on this
	// node, and once more what is sent from here to fill others, all of them
	// together: 1 MiB to 64 GiB. Default 64 MiB.
	FillBytesPerSecond int64
	// VerifyInterval is how often all bytes of the partition logs on this node are read
	// and checked: 1 min to 10,000 h. Default 24 h.
	VerifyInterval time.Duration
	// VerifyBytesPerSecond bounds what is read for that: 64 KiB to 64 GiB. Default
	// 8 MiB. A round that takes longer than the interval is followed by the next.
	VerifyBytesPerSecond int64
	// DeleteGrace is how long a topic is kept, and can be brought back, that is deleted
	// by a call of this node which does not say (WithGrace): 1 s to 10 years. Default:
	// it is not.
	DeleteGrace time.Duration
	// NoBalance keeps replicas where they are unless their node drains. Else they
	// are spread over a node that joins. It is heeded by the node that leads the
	// metadata.
	NoBalance bool
	// NoHandBack keeps leaderships where they are, unless a move needs another
	// leader. Else this node hands back, a few at a time, those that belong to
	// another node (see Manager).
	NoHandBack bool
	// Rand draws ids. Default: the system's.
	Rand func() uint64
}

func (c Config) withDefaults() Config {
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.CallTimeout = cmp.Or(c.CallTimeout, 10*time.Second)
	c.FetchWait = cmp.Or(c.FetchWait, 5*time.Second)
	c.MaxPendingBytes = cmp.Or(c.MaxPendingBytes, 32<<20)
	c.FillBytesPerSecond = cmp.Or(c.FillBytesPerSecond, 64<<20)
	c.VerifyInterval = cmp.Or(c.VerifyInterval, 24*time.Hour)
	c.VerifyBytesPerSecond = cmp.Or(c.VerifyBytesPerSecond, 8<<20)
	c.StartupSweepWait = cmp.Or(c.StartupSweepWait, time.Minute)
	c.SweepInterval = cmp.Or(c.SweepInterval, 10*time.Minute)
	if c.Rand == nil {
		c.Rand = systemRand
	}
	return c
}

func systemRand() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return binary.LittleEndian.Uint64(b[:])
}

func (c Config) validate() error {
	switch {
	case c.Meta == nil:
		return errors.New("topic: Config.Meta is nil: want the node's metadata")
	case c.Host == nil:
		return errors.New("topic: Config.Host is nil: want the node's raft groups")
	case c.Store == nil:
		return errors.New("topic: Config.Store is nil: want the node's directory")
	case c.Node == 0:
		return errors.New("topic: Config.Node is 0: want the id of this node")
	case c.Caller == nil:
		return errors.New("topic: Config.Caller is nil: want a way to other nodes")
	case c.CallTimeout < 100*time.Millisecond || c.CallTimeout > 10*time.Minute:
		return fmt.Errorf("topic: Config.CallTimeout is %v: want 100 ms to 10 min", c.CallTimeout)
	case c.FetchWait < 10*time.Millisecond || c.FetchWait > time.Minute:
		return fmt.Errorf("topic: Config.FetchWait is %v: want 10 ms to 1 min", c.FetchWait)
	case c.MaxPendingBytes < 1 || c.MaxPendingBytes > 1<<30:
		return fmt.Errorf("topic: Config.MaxPendingBytes is %d: want 1 to %d", c.MaxPendingBytes, 1<<30)
	case c.StartupSweepWait < time.Second || c.StartupSweepWait > 10*time.Minute:
		return fmt.Errorf("topic: Config.StartupSweepWait is %v: want 1 s to 10 min", c.StartupSweepWait)
	case c.DeleteGrace != 0 && (c.DeleteGrace < metastore.MinDeleteGrace || c.DeleteGrace > metastore.MaxDeleteGrace):
		return fmt.Errorf("topic: Config.DeleteGrace is %v: want 0, or 1 s to 10 years", c.DeleteGrace)
	case c.SweepInterval < time.Second || c.SweepInterval > 24*time.Hour:
		return fmt.Errorf("topic: Config.SweepInterval is %v: want 1 s to 24 h", c.SweepInterval)
	case c.FillBytesPerSecond < 1<<20 || c.FillBytesPerSecond > 64<<30:
		return fmt.Errorf("topic: Config.FillBytesPerSecond is %d: want %d to %d", c.FillBytesPerSecond, 1<<20, int64(64<<30))
	case c.VerifyInterval < time.Minute || c.VerifyInterval > 10_000*time.Hour:
		return fmt.Errorf("topic: Config.VerifyInterval is %v: want 1 min to 10,000 h", c.VerifyInterval)
	case c.VerifyBytesPerSecond < 64<<10 || c.VerifyBytesPerSecond > 64<<30:
		return fmt.Errorf("topic: Config.VerifyBytesPerSecond is %d: want %d to %d", c.VerifyBytesPerSecond, 64<<10, int64(64<<30))
	}
	return nil
}

// TopicPartition names one partition of a topic.
type TopicPartition struct {
	Topic     string
	Partition uint32
}

func (p TopicPartition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Partition) }

// Position is where a record is.
type Position struct {
	Partition uint32
	Offset    storage.Offset
}

// Manager is a node's part in all topics: it opens the replicas that the
// metadata assigns to this node, serves other nodes, and is where producers
// and readers come from. Its methods are safe for concurrent use.
//
//	goroutine    started by     owns                             ends
//	reconciler   Open           which replicas are open          Close
//	finisher     Open           deletions that others began      Close
//	mover        Open           what leaders here do for moves,  Close
//	                            and which they hand back
//	planner      Open           which moves begin, on the node   Close
//	                            that leads the metadata
//	scrubber     Open           finding and repairing damage     Close
//	sweeper      Open           what is given back to the disk   Close
//	mend         reconciler     the log of a replica that cannot  when it is repaired, or
//	                            be opened for damage             cannot be, Close
//	retainer     Open           what leaders here remove, and    Close
//	                            what files may go
//	fill         reconciler     a log on its way here, its       when it is whole, or of no
//	                            stream and its watchdog          use, Close
//	restore      Restore-       some partitions, up to eight     with the call
//	             Quarantined
//	forward      a producer     one batch on its way elsewhere   with its answer, Close
//	leader watch a producer     giving such an attempt up        with it
//	recovery     a producer     a partition's batches that wait  when they are sent, Close
//	identity     a producer     the question for an identity     when it is answered, Close
//	callbacks    a producer     a partition's, one by one        when there are none, Close
type Manager struct {
	cfg      Config
	builders Builders
	buffers  sync.Pool // of *fetchBuffer
	routes   routes
	opened   beacon        // replicas or failures changed
	broke    beacon        // an open replica takes no part any more, or its log cannot be continued
	aside    beacon        // the reconciler set replicas aside, or moved a directory to quarantine
	stocked  chan struct{} // closed when the reconciler has taken stock
	led      beacon        // a replica began to lead, or its group's configuration changed
	stats    counters
	// suspected has what reads met; the scrubber looks at it.
	suspected suspects
	draining  atomic.Bool // see Drain

	filling chan struct{} // a place for each replica elsewhere that is filled from here
	fillIn  *pacer
	fillOut *pacer
	moves   moveBoard
	kept    keptBoard // what is in quarantine

	life    context.Context // ends when the manager is closed
	stop    context.CancelFunc
	running sync.WaitGroup

	mu struct {
		sync.RWMutex
		replicas  map[address]*replica
		failures  map[address]error // why a replica is not open
		producers map[*Producer]bool
		closed    bool
	}
}

// Open starts a manager. It waits for nothing: topics are usable when the
// metadata has caught up. The caller must end it with Close.
func Open(cfg Config) (*Manager, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, raftlog.Refused(err)
	}
	m := &Manager{
		cfg:     cfg,
		stocked: make(chan struct{}),
		filling: make(chan struct{}, fillsServed),
		fillIn:  &pacer{clock: cfg.Clock, rate: cfg.FillBytesPerSecond},
		fillOut: &pacer{clock: cfg.Clock, rate: cfg.FillBytesPerSecond},
	}
	m.life, m.stop = context.WithCancel(context.Background())
	m.mu.replicas = map[address]*replica{}
	m.mu.failures = map[address]error{}
	m.mu.producers = map[*Producer]bool{}
	rc := &reconciler{
		Manager: m, retries: map[address]*retry{}, lapses: map[address]*retry{}, dirs: map[storage.Incarnation]*topicDir{},
		held: map[storage.ReplicaID]heldReplica{}, fills: map[storage.ReplicaID]*fill{}, mends: map[address]*mending{},
		restores: map[address]*restoring{},
	}
	rc.foreign.all = map[storage.Incarnation]*storage.MarkerError{}
	mv := &mover{Manager: m, works: map[address]*moveWork{}, dead: map[storage.NodeID]time.Time{}, failed: map[address]time.Time{}}
	m.running.Go(rc.run)
	m.running.Go(m.finish)
	m.running.Go(mv.run)
	m.running.Go(m.planMoves)
	m.suspected.all = map[*replica][]storage.Index{}
	sc := &scrubber{Manager: m, ill: map[*replica]*illness{}, pace: &pacer{clock: cfg.Clock, rate: cfg.VerifyBytesPerSecond}}
	m.running.Go(sc.run)
	sw := &sweeper{Manager: m, turns: turns{}}
	m.running.Go(sw.run)
	m.running.Go((&retainer{Manager: m, clocks: map[storage.NodeID]clockWord{}}).run)
	return m, nil
}

// Close ends everything that runs, producers and readers included; their calls
// end with ErrClosed and an outcome. It waits for callbacks of ProduceAsync, and
// so is not for them. It is idempotent. The groups are the
// host's to close, before or after: until it is closed it may still call the
// state machines.
func (m *Manager) Close() error {
	m.stop()
	m.mu.Lock()
	m.mu.closed = true
	producers := make([]*Producer, 0, len(m.mu.producers))
	for p := range m.mu.producers {
		producers = append(producers, p)
	}
	m.mu.Unlock()
	for _, p := range producers {
		p.abort(ErrClosed)
	}
	for _, p := range producers {
		_ = p.awaitCallbacks(context.Background())
	}
	m.running.Wait()
	m.mu.Lock()
	replicas := m.mu.replicas
	m.mu.replicas = map[address]*replica{}
	m.mu.Unlock()
	for _, r := range replicas {
		r.part.Close()
	}
	return nil
}

// replica returns the open replica of a partition on this node, or nil.
func (m *Manager) replica(a address) *replica {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.replicas[a]
}

// failure returns why a replica cannot be opened, or has failed, or nil.
func (m *Manager) failure(a address) error {
	if r := m.replica(a); r != nil {
		return r.failed()
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.failures[a]
}

// PartitionStatus is a replica that this node holds, or has to hold.
type PartitionStatus struct {
	Topic         string
	Partition     uint32
	Incarnation   storage.Incarnation
	Group         storage.GroupID
	Replica       storage.ReplicaID
	Role          raftlog.Role // 0 while the replica is not open
	Term          storage.Term
	Leader        raftlog.NodeID // 0: none is known
	Readable      bool
	Start         storage.Offset // of the first record that this replica has
	HighWatermark storage.Offset // the first offset that may not be read yet, if Readable
	Target        bool           // a move brings this replica here; until it ends it does not count
	// Silent lists, if this replica leads, the nodes whose replicas it has not
	// heard from for two election timeouts: the partition has fewer copies that
	// keep up than it should have.
	Silent []raftlog.NodeID
	// Unsettled lists, if this replica leads, the nodes that do not durably know
	// yet that the partition's replicas changed. Until it is empty none of its nodes
	// should lose its disk.
	Unsettled []raftlog.NodeID
	// Lag is, if this replica leads, how many entries the one furthest behind does
	// not have yet.
	Lag storage.Index
	// Damage is why some of the replica's log cannot be read, while it cannot: it is
	// being repaired from another replica. All else is served.
	Damage error
	// LogBytes is how many bytes of log the replica has.
	LogBytes int64
	// RetentionWaits is, if this replica leads, why it does not remove what may be
	// due by the topic's retention; empty: nothing is, or it does.
	RetentionWaits string
	Err            error // why the replica is not open, or takes no part any more; it is opened again
}

// Status returns the replicas of this node, by topic and partition. It is a
// local snapshot; nil before the metadata has caught up.
func (m *Manager) Status() []PartitionStatus {
	assigned, err := m.cfg.Meta.ListAssignments(m.cfg.Node)
	if err != nil {
		return nil
	}
	all := make([]PartitionStatus, 0, len(assigned))
	for _, a := range assigned {
		s := PartitionStatus{
			Topic: a.Topic.Name, Partition: a.Partition.Index,
			Incarnation: a.Topic.Incarnation, Group: a.Partition.Group, Replica: a.Replica, Target: a.Target,
		}
		at := addressOf(a)
		if r := m.replica(at); r != nil {
			s.Role, s.Term = r.lead.Load().role, r.lead.Load().term
			s.Leader, _ = r.leader()
			s.Start = r.group.Log().StartOffset()
			hw, err := r.part.HighWatermark()
			s.HighWatermark, s.Readable = hw, err == nil
			r.followers(&s)
			r.retention(&s)
			s.Err = r.failed()
			if d := r.damage.Load(); d != nil {
				s.Damage = d.Reason
			}
		} else {
			s.Err = m.failure(at)
		}
		all = append(all, s)
	}
	return all
}

// Stats are counters since Open.
type Stats struct {
	Records, Batches, Bytes   uint64 // of this node's producers, acknowledged; encoded bytes
	Forwarded                 uint64 // batches sent to a leader elsewhere
	Served                    uint64 // batches taken in for other nodes
	Retries                   uint64 // batches sent again
	FetchedLocal, FetchedAway uint64 // answers with records to this node's readers
	Fills                     uint64 // replicas here that were given a copy of the log
	FilledIn, FilledOut       uint64 // bytes that came for fills here, and were sent for others
	Moved, MovesCancelled     uint64 // moves that this node's leaders ended
	ReclaimedDirs             uint64 // directories that were destroyed, against proofs
	ReclaimedBytes            uint64 // of the files in them
	HandedBack                uint64 // leaderships that were given to the preferred leader
	Verified, Repaired        uint64 // bytes of partition logs here that were checked, and that were got from another replica
	Damages                   uint64 // replicas here of whose log some was found to be damaged
	Removed                   uint64 // bytes of replicas here that retention let go
	Restored                  uint64 // records that were appended from quarantine here
}

type counters struct {
	records, batches, bytes, forwarded, served, retries, fetchedLocal, fetchedAway atomic.Uint64
	fills, filledIn, filledOut, moved, movesCancelled, handedBack                  atomic.Uint64
	verified, repaired, damages                                                    atomic.Uint64
	reclaimedDirs, reclaimedBytes, removed, restored                               atomic.Uint64
}

// Stats returns the counters; it is cheap.
func (m *Manager) Stats() Stats {
	c := &m.stats
	return Stats{
		Records: c.records.Load(), Batches: c.batches.Load(), Bytes: c.bytes.Load(),
		Forwarded: c.forwarded.Load(), Served: c.served.Load(), Retries: c.retries.Load(),
		FetchedLocal: c.fetchedLocal.Load(), FetchedAway: c.fetchedAway.Load(),
		Fills: c.fills.Load(), FilledIn: c.filledIn.Load(), FilledOut: c.filledOut.Load(),
		Moved: c.moved.Load(), MovesCancelled: c.movesCancelled.Load(), HandedBack: c.handedBack.Load(),
		Verified: c.verified.Load(), Repaired: c.repaired.Load(), Damages: c.damages.Load(),
		ReclaimedDirs: c.reclaimedDirs.Load(), ReclaimedBytes: c.reclaimedBytes.Load(),
		Removed: c.removed.Load(), Restored: c.restored.Load(),
	}
}
