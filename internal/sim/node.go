package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	pb "go.etcd.io/raft/v3/raftpb"
)

// node is a process with a disk; it comes and goes, the disk stays.
type node struct {
	w           *world
	index       int
	life        uint64 // of the process, from 1
	up          bool
	restarting  bool // a restart is planned, or was overtaken
	pausedUntil int64
	tick        int64
	lazy        bool // takes effects after several inputs, as a busy loop does
	disk        disk
	replicas    []*replica // that are kept here
}

func newNode(w *world, index int) *node {
	n := &node{w: w, index: index, tick: tickTime}
	if w.faults.skew {
		n.tick = w.between(tickTime*9/10, tickTime*11/10)
	}
	n.lazy = w.faults.lazy && w.chance(0.5)
	return n
}

// replica is one core with what its node keeps for it.
type replica struct {
	w    *world
	n    *node
	g    *group
	id   raftlog.ReplicaID
	name string

	core    *raftlog.Core // nil: the node is down, or the replica is closed
	gone    bool          // it was destroyed
	fx      raftlog.Effects
	opening int // of the core, from 1
	pumpDue bool
	status  raftlog.Status

	// Durable: what the journal holds, and how far log and machine had come
	// when they were last synced.
	hard        storage.HardState
	entries     []storage.Entry // behind durable.base
	durable     history
	reset       uint64             // id of the last reset
	baseConf    *raftlog.ConfState // that came with it
	logSynced   raftlog.Index
	ownSynced   raftlog.Index // machine with a state of its own
	startSynced raftlog.Index // of the partition log

	// Not durable.
	said    history           // all frames handed out, synced or not
	last    storage.HardState // of the last frame
	log     []storage.Entry   // the partition log, behind durable.base
	start   raftlog.Index     // what is at or below was let go
	states  []uint64          // machine state by index, from durable.base
	applied raftlog.Index     // machine
	queue   []batch
	busy    bool

	fetching bool // a snapshot is on its way

	// The checker's own.
	promised   storage.HardState // as last made durable, whatever the disk makes of it
	handedOver bool              // a MsgTimeoutNow came
	placed     int               // bytes of proposals placed and not applied
	firstCall  int               // earlier proposals have ended
	firstRead  int               // earlier reads have ended
	waiting    []raftlog.ReadID  // confirmed, not yet applied
	members    memberView

	// For mutants.
	entryHard        storage.HardState // of the last durable frame with entries
	doubled, skipped bool
}

// batch is what one Effects asked to apply.
type batch struct {
	entries []raftlog.Entry
	owners  []raftlog.ProposalID
}

// start opens a node from what its disk holds.
func (w *world) start(n *node) {
	if n.up {
		return
	}
	n.up, n.restarting = true, false
	n.life++
	n.pausedUntil = 0
	n.disk.restart()
	w.trace.note(w.now, n.name(), "starts", n.life, 0, 0, 0)
	for _, r := range n.replicas {
		r.w.mutateDisk(r)
		r.open()
		if w.violation != nil {
			return
		}
	}
	w.after(w.between(0, n.tick), event{kind: evTick, node: n.index, life: n.life})
	w.after(w.exp(w.faults.checkpointEvery), event{kind: evCheckpoint, node: n.index, life: n.life})
	for _, r := range n.replicas {
		w.pump(r)
	}
}

func (n *node) name() string { return fmt.Sprintf("n%d", n.index+1) }

// crash stops a node at once. keep: the unsynced round survives.
func (w *world) crash(n *node, keep bool) {
	if !n.up {
		return
	}
	w.trace.note(w.now, n.name(), "crashes", n.life, uint64(len(n.disk.round)), boolBit(keep), 0)
	w.result.Crashes++
	n.up = false
	if keep {
		for _, wr := range n.disk.round {
			wr.keep()
		}
	}
	n.disk.round, n.disk.waiting, n.disk.writing = nil, nil, false
	for _, r := range n.replicas {
		r.close()
	}
}

// close ends a core.
func (r *replica) close() {
	r.w.lostCalls(r)
	r.core, r.queue, r.busy, r.pumpDue, r.placed, r.fetching = nil, nil, false, false, 0, false
}

// recovered is what a store would find.
func (r *replica) recovered() (storage.ReplicaState, *raftlog.AppliedState) {
	st := storage.ReplicaState{
		Group: r.g.id, Replica: r.id, Status: storage.ReplicaLive, Hard: r.hard, Conf: r.confAt(r.logSynced),
		Log: r.position(r.startSynced, r.logSynced), Tail: slices.Clone(r.entries[r.logSynced-r.durable.base:]),
	}
	if !r.g.own {
		return st, nil
	}
	return st, &raftlog.AppliedState{Index: r.ownSynced, Conf: r.confAt(r.ownSynced)}
}

// confAt is the configuration as of i, as the replica kept it.
func (r *replica) confAt(i raftlog.Index) raftlog.ConfState {
	if i == r.durable.base && r.baseConf != nil {
		return *r.baseConf
	}
	return r.g.confAt(i)
}

// position is a point in the partition log, which begins behind start.
func (r *replica) position(start, last raftlog.Index) storage.LogPosition {
	return storage.LogPosition{
		Reset: r.reset, StartIndex: start, StartTerm: r.durable.term(start), LastIndex: last, LastTerm: r.durable.term(last),
	}
}

// logEnd is the last entry of the partition log.
func (r *replica) logEnd() raftlog.Index { return r.durable.base + raftlog.Index(len(r.log)) }

func (r *replica) open() {
	st, machine := r.recovered()
	r.said = r.durable.clone()
	r.last = r.hard
	r.log = r.log[:min(len(r.log), int(r.logSynced-r.durable.base))]
	r.start, r.applied = r.startSynced, r.logSynced
	r.members.open(r)
	if machine != nil {
		r.applied = r.ownSynced
	}
	r.mutateMachine()
	r.states = r.states[:r.applied-r.durable.base+1]
	core, err := raftlog.NewCore(raftlog.CoreConfig{
		State: st, Machine: machine, Older: r, ReadNonce: r.w.rng.Uint64(), Options: r.w.faults.core,
	})
	if err != nil {
		r.w.violate("R22", "%s does not open: %v", r.name, err)
		return
	}
	r.core = core
	r.opening++
	r.status = raftlog.Status{}
	r.opened(st)
}

// Entries implements raftlog.OlderLog.
func (r *replica) Entries(lo, hi raftlog.Index, maxBytes int) ([]storage.Entry, error) {
	if err := r.readError(); err != nil {
		return nil, err
	}
	if lo <= r.start || hi > r.logEnd()+1 {
		return nil, errors.New("sim: not in the log")
	}
	from := r.log[lo-r.durable.base-1 : hi-r.durable.base-1]
	n := 0
	for n < len(from) && (n == 0 || maxBytes > 0) {
		maxBytes -= len(from[n].Data)
		n++
	}
	return from[:n], nil
}

// Position implements raftlog.OlderLog.
func (r *replica) Position() storage.LogPosition { return r.position(r.start, r.logEnd()) }

// Term implements raftlog.OlderLog.
func (r *replica) Term(i raftlog.Index) (raftlog.Term, error) {
	if err := r.readError(); err != nil {
		return 0, err
	}
	if i < r.start || i > r.logEnd() {
		return 0, errors.New("sim: not in the log")
	}
	return r.durable.term(i), nil
}

// readError fails some reads, but not those of a machine that catches up with
// its own log: a replica whose log cannot be read at all is to fail.
func (r *replica) readError() error {
	if r.core == nil || r.core.Status().Applied < r.logSynced || !r.w.chance(r.w.faults.olderError) {
		return nil
	}
	return errors.New("sim: read error")
}

// gets notes what a message may lead to.
func (r *replica) gets(m *pb.Message) {
	if m.GetType() == pb.MsgTimeoutNow {
		r.handedOver = true
	}
}

func (w *world) enqueueApply(r *replica, b batch) {
	r.queue = append(r.queue, b)
	w.applyNext(r)
}

func (w *world) applyNext(r *replica) {
	if r.busy || len(r.queue) == 0 {
		return
	}
	r.busy = true
	w.after(w.exp(w.faults.applyTime), event{kind: evApplied, node: r.n.index, life: r.n.life, r: r})
}

// applyDone does what the applier of a group does: machine, log, answers.
func (w *world) applyDone(r *replica) {
	if r.core == nil || !r.busy {
		return // closed meanwhile
	}
	b := r.queue[0]
	r.queue[0] = batch{}
	r.queue = r.queue[1:]
	r.busy = false
	for i, e := range b.entries {
		r.apply(e)
		if b.owners != nil && b.owners[i] != 0 {
			w.acknowledge(r, b.owners[i], e)
		}
	}
	if w.violation != nil || r.core == nil {
		return
	}
	last := b.entries[len(b.entries)-1].Index
	if last > r.durable.last() {
		w.violate("R3", "%s: applied entry %d, %d is durable", r.name, last, r.durable.last())
	}
	w.trace.note(w.now, r.name, "applied", uint64(last), r.states[len(r.states)-1], 0, 0)
	w.result.Steps++
	r.members.applied(last)
	r.core.Applied(last, r.position(r.start, r.logEnd()))
	w.answerReads(r)
	w.applyNext(r)
	w.pump(r)
}

func (r *replica) apply(e raftlog.Entry) {
	if at := r.logEnd(); e.Index > at {
		if e.Index != at+1 {
			r.w.violate("R11", "%s: entry %d applied to a log that ends at %d", r.name, e.Index, at)
			return
		}
		r.log = append(r.log, storage.Entry{Index: e.Index, Term: e.Term, Kind: e.Kind, Data: e.Data})
	}
	if e.Index <= r.applied {
		return // the machine has it
	}
	if e.Index != r.applied+1 {
		r.w.violate("R11", "%s: entry %d applied after %d", r.name, e.Index, r.applied)
		return
	}
	r.applied = e.Index
	r.states = append(r.states, mix(r.states[len(r.states)-1], entryHash(e.Index, e.Term, e.Kind, e.Data)))
	r.g.appliedTo(r, e)
}

func boolBit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
