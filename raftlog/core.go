package raftlog

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/stelelog/stele/storage"
	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// CoreOptions are the bounds and timeouts of one group. Zero fields mean the
// defaults. Ticks are whatever the driver makes them.
type CoreOptions struct {
	ElectionTicks       int // without a leader before an election, plus up to as many at random; 10
	HeartbeatTicks      int // 2
	MaxMessageBytes     int // entries in one append message, unless a single one is larger; 1 MiB
	MaxInflightMessages int // append messages on their way to one follower; 256
	MaxInflightBytes    int // their entries; not below MaxMessageBytes; 16 MiB
	MaxUncommittedBytes int // proposals accepted and not yet applied; 4 MiB
	MaxApplyBytes       int // entries handed out to be applied and not yet applied; 4 MiB
	KeepBytes           int // applied entries kept in memory for followers a bit behind; 256 KiB
}

func (o CoreOptions) withDefaults() CoreOptions {
	o.ElectionTicks = cmp.Or(o.ElectionTicks, 10)
	o.HeartbeatTicks = cmp.Or(o.HeartbeatTicks, 2)
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, 1<<20)
	o.MaxInflightMessages = cmp.Or(o.MaxInflightMessages, 256)
	o.MaxInflightBytes = cmp.Or(o.MaxInflightBytes, 16<<20)
	o.MaxUncommittedBytes = cmp.Or(o.MaxUncommittedBytes, 4<<20)
	o.MaxApplyBytes = cmp.Or(o.MaxApplyBytes, 4<<20)
	o.KeepBytes = cmp.Or(o.KeepBytes, 256<<10)
	return o
}

func (o CoreOptions) validate() error {
	for _, f := range []struct {
		field string
		value int
		min   int
	}{
		{"HeartbeatTicks", o.HeartbeatTicks, 1},
		{"ElectionTicks", o.ElectionTicks, o.HeartbeatTicks + 1},
		{"MaxMessageBytes", o.MaxMessageBytes, 1},
		{"MaxInflightMessages", o.MaxInflightMessages, 1},
		{"MaxInflightBytes", o.MaxInflightBytes, o.MaxMessageBytes},
		{"MaxUncommittedBytes", o.MaxUncommittedBytes, 1},
		{"MaxApplyBytes", o.MaxApplyBytes, 1},
		{"KeepBytes", o.KeepBytes, 0},
	} {
		if f.value < f.min {
			return &ConfigError{Field: f.field, Value: f.value, Want: fmt.Sprintf("at least %d", f.min)}
		}
	}
	return nil
}

// AppliedState is where a state machine that keeps a state of its own stands.
type AppliedState struct {
	Index Index     // last entry that it applied
	Conf  ConfState // as of Index
}

// CoreConfig is what a Core starts from.
type CoreConfig struct {
	// State is the replica as the store recovered it: everything in it is
	// durable. It names group and replica.
	State storage.ReplicaState
	// Machine is the state machine's own state; nil: the log is the state.
	// Entries above the lower of Machine.Index and State.Log.LastIndex are
	// handed out to be applied; the machine skips those that it has, the log
	// those that it holds.
	Machine *AppliedState
	Older   OlderLog
	// ReadNonce is random and new in every process: an answer to a read of an
	// earlier life of this replica must not confirm one of this life.
	ReadNonce uint64
	Options   CoreOptions
}

// StateError says that a recovered state cannot be started from without
// breaking a promise: something durable is gone.
type StateError struct {
	Group   GroupID
	Replica ReplicaID
	Reason  string
	// MachineLost: what is gone is of the state machine's state, whose log goes on
	// from there; else it is of the log.
	MachineLost bool
}

func (e *StateError) Error() string {
	return fmt.Sprintf("raftlog: %v of %v cannot start: %s", e.Replica, e.Group, e.Reason)
}

// Core is one replica of one raft group as a pure step: inputs change it,
// Effects says what is to be done. It has no goroutine, clock or lock and does
// no I/O except reads of OlderLog; calls must not be concurrent.
//
// Invariants:
//
//  1. While a change of term or vote is on its way to the disk, no message
//     leaves. In particular a vote request leaves after the candidate's own
//     vote is durable; otherwise one node could lead one term twice (raft
//     hands MsgVote out to be sent at once).
//  2. A message that speaks of entries leaves after they are durable here.
//  3. tail and durable are what a restart finds, except that a commit index
//     may be lost; then applied entries stand for it.
//  4. Every frame carries term, vote and commit.
//  5. A panic in raft fails this group and nothing else.
type Core struct {
	state  storage.ReplicaState // identity; Hard, Conf, Log are kept current, Tail is in tail
	self   ReplicaID
	opts   CoreOptions
	node   *raft.RawNode
	tail   *tail
	failed error

	// As of the last Ready.
	hard      storage.HardState // promised, perhaps not yet durable
	soft      raft.SoftState
	last      Index // end of raft's log
	termStart Index // leader: first entry of its term

	// On the way to the disk.
	durable storage.HardState
	seq     Seq
	pending []pendingAppend
	out     []*pb.Message // released by the disk, not yet handed out

	// On the way to the state machine.
	logged   Index // where the log stood when this process opened it
	applied  Index
	applying []*pb.Entry // handed out, not yet applied
	backlog  int         // bytes of entries in tail that are committed and not applied
	counted  Index       // the last one in it, or that was
	confs    []pendingConf
	conf     ConfState // as of applied
	nextConf ConfState // as of the last entry handed out
	removed  bool      // as of applied, or it was told so
	retired  bool      // it was told so: it takes no part any more

	// Changes of the configuration.
	confIndex Index      // entry that made conf; 0: applied before this process began
	wishes    []ChangeID // that the last changes applied here carried
	echo      Index      // leader: who has this entry knows that conf is committed
	changes   changeTracker

	proposals proposalTracker
	reads     readRounds
	contacts  contacts
	behind    behind
	disk      DiskState
	yielding  yielding

	// Whether the applied index may be shown, see now.
	taught bool  // a leader of this life vouched for it
	doubt  Index // end of the log at the start, but for what a leader cut off

	ticks       int
	leaderHeard int    // tick at which a leader last spoke; 0: none did
	dirty       bool   // raft was called since the last Ready was taken
	status      Status // as last told
	told        bool
}

// pendingAppend is an append effect that is not durable yet.
type pendingAppend struct {
	seq     Seq
	hard    storage.HardState
	entries []*pb.Entry
	sync    bool // entries, term or vote
	vote    bool // term or vote
	then    []*pb.Message
}

// NewCore starts a replica from its recovered state. It raises commit to what
// was applied, and the term to that of the last entry; it refuses a state in
// which something promised is missing (*StateError).
func NewCore(cfg CoreConfig) (c *Core, err error) {
	opts := cfg.Options.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	st := cfg.State
	fail := func(format string, args ...any) (*Core, error) {
		return nil, &StateError{Group: st.Group, Replica: st.Replica, Reason: fmt.Sprintf(format, args...)}
	}
	log := st.Log
	applied, conf, commit := log.LastIndex, st.Conf, max(st.Hard.Commit, log.LastIndex)
	if m := cfg.Machine; m != nil {
		commit = max(commit, m.Index)
		if m.Index < log.LastIndex {
			applied, conf = m.Index, m.Conf
		}
	}
	for i, e := range st.Tail {
		if e.Index != log.LastIndex+Index(i)+1 {
			return fail("entry %d follows %d in its tail", e.Index, log.LastIndex+Index(i))
		}
	}
	last, lastTerm := log.LastIndex, log.LastTerm
	if n := len(st.Tail); n > 0 {
		last, lastTerm = st.Tail[n-1].Index, st.Tail[n-1].Term
	}
	if commit > last {
		return fail("entry %d was committed, the last one is %d", commit, last)
	}
	if applied < log.StartIndex {
		return nil, &StateError{
			Group: st.Group, Replica: st.Replica, MachineLost: true,
			Reason: fmt.Sprintf("its state machine is at %d, its log starts after %d", applied, log.StartIndex),
		}
	}
	if lastTerm > st.Hard.Term {
		st.Hard.Term, st.Hard.Vote = lastTerm, 0
	}
	st.Hard.Commit = commit
	c = &Core{
		state: st, self: st.Replica, opts: opts,
		tail: &tail{
			start: log.StartIndex, startTerm: log.StartTerm, floor: applied,
			entries: toRaftEntries(st.Tail), prev: log.LastIndex, prevTrm: log.LastTerm, keep: opts.KeepBytes,
			older: cfg.Older, maxRead: opts.MaxMessageBytes, hard: st.Hard, conf: conf,
		},
		hard: st.Hard, durable: st.Hard, last: last, doubt: last,
		logged: log.LastIndex, counted: log.LastIndex, applied: applied, conf: conf, nextConf: conf,
		removed: len(conf.Voters) > 0 && !listed(conf, st.Replica),
		reads:   readRounds{nonce: cfg.ReadNonce},
	}
	c.state.Tail = nil
	if err := c.start(); err != nil {
		return nil, err
	}
	return c, nil
}

// changesMore is what raft takes in beyond the bound on proposals, which is kept
// here: for changes of the configuration.
const changesMore = 64 << 10

// start makes the RawNode, whose constructor panics on what it does not like.
func (c *Core) start() error {
	c.guard("start", func() error {
		node, err := raft.NewRawNode(&raft.Config{
			ID:                        uint64(c.self),
			ElectionTick:              c.opts.ElectionTicks,
			HeartbeatTick:             c.opts.HeartbeatTicks,
			Storage:                   c.tail,
			Applied:                   uint64(c.applied),
			AsyncStorageWrites:        true,
			MaxSizePerMsg:             uint64(c.opts.MaxMessageBytes),
			MaxCommittedSizePerReady:  uint64(c.opts.MaxApplyBytes),
			MaxUncommittedEntriesSize: uint64(c.opts.MaxUncommittedBytes) + changesMore,
			MaxInflightMsgs:           c.opts.MaxInflightMessages,
			MaxInflightBytes:          uint64(c.opts.MaxInflightBytes),
			CheckQuorum:               true,
			PreVote:                   true,
			ReadOnlyOption:            raft.ReadOnlySafe,
			Logger:                    raftLogger{},
			DisableProposalForwarding: true,
			StepDownOnRemoval:         true,
		})
		c.node = node
		return err
	})
	return c.failed
}

// Failed returns why the group takes no part any more (*GroupFailedError), or
// nil. Once failed, inputs change nothing and Effects only ends what waits.
func (c *Core) Failed() error { return c.failed }

// Fail takes the group out of service: its log or its state machine failed.
func (c *Core) Fail(cause error) {
	if c.failed != nil {
		return
	}
	c.failed = &GroupFailedError{Group: c.state.Group, Replica: c.self, Cause: cause}
	c.proposals.fail(c.failed)
	c.changes.lose(Unknown(c.failed))
	c.reads.fail(c.failed)
	c.pending, c.out = nil, nil
}

// guard runs f, which calls raft, and fails the group if raft panics: it found
// something that must not be.
func (c *Core) guard(what string, f func() error) {
	if c.failed != nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			cause := fmt.Errorf("raftlog: panic in %s: %v", what, p)
			if older := c.tail.olderErr; older != nil {
				cause = fmt.Errorf("%w (%w)", cause, older)
			}
			c.Fail(cause)
		}
	}()
	c.dirty = true
	if err := f(); err != nil {
		c.Fail(err)
	}
}

// Tick passes one unit of time. Take the effects between two ticks. For a
// replica that does not lead time stands still while its disk is stalled: it
// would campaign, raise its term in memory alone, and disturb others with that
// once the disk is back.
func (c *Core) Tick() {
	c.ticks++
	if !c.retired && (c.disk != DiskStalled || c.isLeader()) {
		c.guard("tick", func() error {
			c.node.Tick()
			return nil
		})
	}
	c.forgetLeader()
	c.yield()
	c.tend()
	c.reads.tick(c)
}

// Step takes in a message from another replica. Messages that are not for
// this replica, or that no replica may send, are dropped.
func (c *Core) Step(m *pb.Message) {
	if c.failed != nil || c.retired || !c.admits(m) {
		return
	}
	c.guard("step", func() error {
		_ = c.node.Step(m) // refused: an answer from outside the configuration
		return nil
	})
	c.contacts.heard(c, m)
	if c.yielding.resigned && c.isLeader() {
		c.yield() // it may have waited for somebody to hand over to
	}
	c.leaderSpoke(m)
	c.findBehind()
	c.teach(m)
	c.vouch(m)
}

// admits is the gate for what comes from the network.
func (c *Core) admits(m *pb.Message) bool {
	from := ReplicaID(m.GetFrom())
	if ReplicaID(m.GetTo()) != c.self || from == 0 || from == c.self ||
		raft.IsLocalMsgTarget(m.GetFrom()) {
		return false
	}
	switch m.GetType() {
	case pb.MsgApp, pb.MsgHeartbeat, pb.MsgVote, pb.MsgPreVote:
		// From any replica: a leader or candidate may rest on a configuration
		// that this replica has not applied yet.
		return m.GetTerm() != 0
	case pb.MsgAppResp:
		// Without an index it is the answer to a leader of an older term, to
		// make it step down. Between equals (a late message of the same leader's
		// earlier term was answered) raft takes it for an acknowledgement of
		// entry 0 and goes on to send entry 1, which no log holds: that follower
		// would get nothing any more.
		return m.GetReject() || m.GetIndex() != 0 || Term(m.GetTerm()) > c.hard.Term
	case pb.MsgVoteResp, pb.MsgPreVoteResp:
		// A stalled replica does not win. A refusal may carry a higher term.
		return m.GetTerm() != 0 && (c.disk != DiskStalled || m.GetReject())
	case pb.MsgHeartbeatResp, pb.MsgReadIndexResp:
		return m.GetTerm() != 0 // raft drops those from outside its configuration
	case pb.MsgTimeoutNow:
		// It skips pre-vote, so an old one must not disturb: only the leader
		// that this replica follows may send it. One with a bad disk passes.
		return from == c.status.Leader && Term(m.GetTerm()) == c.hard.Term && c.disk == DiskGood
	case pb.MsgReadIndex:
		// Before it committed in its term a leader may be behind what was
		// acknowledged, and with one voter raft would answer all the same.
		return c.leaderActive() && listed(c.conf, from) && len(m.GetEntries()) == 1
	default:
		return false
	}
}

// teach notes that the leader that this replica follows has spoken and knows at
// least what this replica knows to be committed. raft is asked, not the last
// Ready: what raft drops, from a leader of the past, teaches nothing.
func (c *Core) teach(m *pb.Message) {
	if c.taught || c.failed != nil || m.GetType() != pb.MsgApp && m.GetType() != pb.MsgHeartbeat {
		return
	}
	c.guard("status", func() error {
		now := c.node.BasicStatus()
		c.taught = m.GetTerm() == now.GetTerm() && m.GetFrom() == now.Lead &&
			m.GetCommit() != 0 && m.GetCommit() >= now.GetCommit()
		return nil
	})
}

// Transfer hands leadership to a voter; 0 means the one that is best prepared.
// Until it took over, or an election timeout passed, proposals are refused. One
// that a joint configuration takes out of the voters is no target.
// The error is *NotLeaderError or ErrNoTarget, both Retry.
func (c *Core) Transfer(to ReplicaID) error {
	if c.failed != nil {
		return Retry(c.failed)
	}
	if !c.status.Role.IsLeader() {
		return c.notLeader()
	}
	if to == 0 {
		to = c.bestSuccessor()
	}
	if to == 0 || to == c.self || !slices.Contains(c.conf.Voters, to) {
		return Retry(ErrNoTarget)
	}
	c.guard("transfer", func() error {
		c.node.TransferLeader(uint64(to))
		return nil
	})
	c.proposals.noteTransfer(c)
	return nil
}

func (c *Core) notLeader() error {
	return &NotLeaderError{Group: c.state.Group, Leader: c.status.Leader}
}

func (c *Core) isLeader() bool { return c.soft.RaftState == raft.StateLeader && !c.retired }

func (c *Core) leaderActive() bool {
	return c.isLeader() && c.termStart != 0 && c.hard.Commit >= c.termStart
}

// State is what is durable of this replica, the tail above its log included:
// what a rotation of the journal carries over once its last round is synced.
func (c *Core) State() storage.ReplicaState {
	st := c.stateWithoutTail()
	st.Tail = fromRaftEntries(c.tail.above(st.Log.LastIndex))
	return st
}

func (c *Core) stateWithoutTail() storage.ReplicaState {
	st := c.state
	st.Hard = c.durable
	st.Hard.Commit = max(st.Hard.Commit, st.Log.LastIndex)
	return st
}
