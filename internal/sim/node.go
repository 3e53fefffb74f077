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
	replicas    []*replica
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

	core    *raftlog.Core // nil: the node is down
	fx      raftlog.Effects
	pumpDue bool
	status  raftlog.Status

	// Durable: what the journal holds, and how far log and machine had come
	// when they were last synced.
	hard      storage.HardState
	entries   []storage.Entry // from index 2
	durable   history
	logSynced raftlog.Index
	ownSynced raftlog.Index // machine with a state of its own

	// Not durable.
	said    history           // all frames handed out, synced or not
	last    storage.HardState // of the last frame
	log     []storage.Entry   // the partition log, from index 2
	states  []uint64          // machine state by index, from index 1
	applied raftlog.Index     // machine
	queue   []batch
	busy    bool

	// The checker's own.
	promised   storage.HardState // as last made durable, whatever the disk makes of it
	handedOver bool              // a MsgTimeoutNow came
	placed     int               // bytes of proposals placed and not applied
	firstCall  int               // earlier proposals have ended
	waiting    []raftlog.ReadID  // confirmed, not yet applied

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
			wr.r.keep(wr.frame)
		}
	}
	n.disk.round, n.disk.waiting, n.disk.writing = nil, nil, false
	for _, r := range n.replicas {
		w.lostCalls(r)
		r.core, r.queue, r.busy, r.pumpDue, r.placed = nil, nil, false, false, 0
	}
}

// recovered is what a store would find.
func (r *replica) recovered() (storage.ReplicaState, *raftlog.AppliedState) {
	r.w.mutateDisk(r)
	st := created(r.g.id, r.id, r.g.conf)
	st.Hard = r.hard
	st.Log = position(r.logSynced, r.durable.term(r.logSynced))
	st.Tail = slices.Clone(r.entries[r.logSynced-1:])
	if !r.g.own {
		return st, nil
	}
	return st, &raftlog.AppliedState{Index: r.ownSynced, Conf: r.g.conf}
}

// position is a point in the partition log, which begins after the creation.
func position(last raftlog.Index, term raftlog.Term) storage.LogPosition {
	return storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: last, LastTerm: term}
}

func (r *replica) open() {
	st, machine := r.recovered()
	r.said = r.durable.clone()
	r.last = r.hard
	r.log = r.log[:min(len(r.log), int(r.logSynced)-1)]
	r.applied = r.logSynced
	if machine != nil {
		r.applied = r.ownSynced
	}
	r.mutateMachine()
	r.states = r.states[:r.applied]
	core, err := raftlog.NewCore(raftlog.CoreConfig{
		State: st, Machine: machine, Older: r, ReadNonce: r.w.rng.Uint64(), Options: r.w.faults.core,
	})
	if err != nil {
		r.w.violate("R22", "%s does not open: %v", r.name, err)
		return
	}
	r.core = core
	r.status = raftlog.Status{}
	r.opened(st)
}

// Entries implements raftlog.OlderLog.
func (r *replica) Entries(lo, hi raftlog.Index, maxBytes int) ([]storage.Entry, error) {
	if err := r.readError(); err != nil {
		return nil, err
	}
	if lo < 2 || int(hi)-2 > len(r.log) {
		return nil, errors.New("sim: not in the log")
	}
	from := r.log[lo-2 : hi-2]
	n := 0
	for n < len(from) && (n == 0 || maxBytes > 0) {
		maxBytes -= len(from[n].Data)
		n++
	}
	return from[:n], nil
}

// Term implements raftlog.OlderLog.
func (r *replica) Term(i raftlog.Index) (raftlog.Term, error) {
	if err := r.readError(); err != nil {
		return 0, err
	}
	if i < 2 || int(i)-2 >= len(r.log) {
		return 0, errors.New("sim: not in the log")
	}
	return r.log[i-2].Term, nil
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
	if w.violation != nil {
		return
	}
	last := b.entries[len(b.entries)-1].Index
	if last > r.durable.last() {
		w.violate("R3", "%s: applied entry %d, %d is durable", r.name, last, r.durable.last())
	}
	w.trace.note(w.now, r.name, "applied", uint64(last), r.states[len(r.states)-1], 0, 0)
	w.result.Steps++
	end := r.log[len(r.log)-1]
	r.core.Applied(last, position(end.Index, end.Term))
	w.answerReads(r)
	w.applyNext(r)
	w.pump(r)
}

func (r *replica) apply(e raftlog.Entry) {
	if at := raftlog.Index(len(r.log) + 1); e.Index > at {
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
