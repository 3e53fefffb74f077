package raftlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/stelelog/stele/storage"
)

// GroupOptions says which replica to open, and what for.
type GroupOptions struct {
	Group   GroupID
	Replica ReplicaID
	// Peers says on which node each replica lives; see Group.UpdatePeers.
	Peers map[ReplicaID]NodeID
	// Create begins the replica if the store does not know it: a frame that
	// says so is durable before its first vote. It lists the replica if the
	// command that created the group does; all others begin with nothing, index 0
	// and no configuration, and learn theirs from the leader: they never campaign
	// before.
	Create *Begin
	// Machine is what committed entries are applied to. Required.
	Machine StateMachine
	// State is where a state machine with a state of its own stands. It is
	// given what is above State.Index, also when the group's log holds it
	// already, and the log what it misses, also when the state machine has it.
	// State.Index 0 means that nothing was applied since the creation; that is a
	// *StateError if the log begins later than that. Nil: the
	// group's log is the state, and Machine is at its end.
	State *AppliedState
	// Recover, if not nil, is called with the group's log before anything is
	// applied: what is in the log was applied by an earlier process. An error
	// fails OpenGroup.
	Recover func(*storage.Log) error
	// Essential, if not nil, says of a proposal that it is taken in on a full
	// disk too (see Host.SetDiskFull): because it is small and frees space, or
	// keeps the group alive. It is called by whoever calls Propose, from many
	// goroutines at a time.
	Essential func(data []byte) bool
	// OnBehind is told when the group's leader, on that node, says that this
	// replica needs what is not in the leader's log any more: a snapshot is to be
	// fetched and to become the replica's log. It comes again every now and then
	// until that is so. It is called by the loop: it must not block and may not
	// call into the host.
	OnBehind func(leader NodeID)
	// OnStatus is told when role, term, vote, leader, transferee,
	// readability or the configuration changed, beginning with the first look. It is called by the
	// loop: it must not block and may not call into the host, except for
	// Propose.
	OnStatus func(Status)
}

func (o *GroupOptions) validate() error {
	switch {
	case o.Group == 0 || o.Replica == 0:
		return Refused(fmt.Errorf("raftlog: GroupOptions: group %v, replica %v: ids are never 0", o.Group, o.Replica))
	case o.Machine == nil:
		return Refused(fmt.Errorf("raftlog: GroupOptions.Machine of %v is nil", o.Group))
	case o.Create != nil && !beginsEmpty(o.Create) && !listed(o.Create.Conf, o.Replica):
		return Refused(fmt.Errorf("raftlog: GroupOptions.Create of %v does not list %v", o.Group, o.Replica))
	}
	return nil
}

// OpenGroup opens a replica: it takes part from now on. It waits for a sync if
// it creates the replica, and reads only what the log's open does. It fails
// with Refused: ErrUnknownReplica, ErrReplicaOpen, ErrSetAside; with a
// *StateError if something promised is gone; or with the log's own errors.
func (h *Host) OpenGroup(o GroupOptions) (*Group, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	st, err := h.claim(&o)
	if err != nil {
		return nil, err
	}
	g, err := h.prepare(&o, st)
	ctx := context.Background()
	if err != nil {
		_ = h.call(ctx, func() { delete(h.loop.opening, o.Replica) })
		return nil, err
	}
	if e := h.call(ctx, func() { err = h.loop.install(g) }); e != nil {
		err = e
	}
	if err != nil {
		_ = g.log.Close() // nothing was appended
		return nil, err
	}
	return g, nil
}

// RepairLog calls f with the partition log of a replica that is not open, for one that
// OpenGroup refuses with a *storage.DamageError: see storage.Verifier. The log is as of
// the last checkpoint, and f must not append to it. Meanwhile the replica cannot be
// opened. The errors are those of OpenGroup, and that of f.
func (h *Host) RepairLog(group GroupID, replica ReplicaID, f func(*storage.Log) error) error {
	st, err := h.claim(&GroupOptions{Group: group, Replica: replica})
	if err != nil {
		return err
	}
	defer func() { _ = h.call(context.Background(), func() { delete(h.loop.opening, replica) }) }()
	log, err := h.cfg.Store.OpenDamagedLog(st)
	if err != nil {
		return fmt.Errorf("raftlog: log of %v: %w", replica, err)
	}
	err = f(log)
	return errors.Join(err, log.Close())
}

// Replicas returns what is durable of every replica that this node knows, open,
// dormant or set aside, by replica and without tails. A replica that is being
// created or set aside counts as that once it is durable. It waits for a turn
// of the loop, so not for a disk; OnStatus may not call it. Nil once the host
// is closed.
func (h *Host) Replicas() []storage.ReplicaState {
	answer := make(chan []storage.ReplicaState, 1)
	if err := h.call(context.Background(), func() { answer <- h.loop.replicas() }); err != nil {
		return nil
	}
	return <-answer
}

func (l *loop) replicas() []storage.ReplicaState {
	states := make([]storage.ReplicaState, 0, len(l.groups)+len(l.parked)+len(l.dormant))
	for _, g := range l.groups {
		states = append(states, g.loop.stateWithoutTail())
	}
	for _, g := range l.parked {
		states = append(states, g.loop.stateWithoutTail())
	}
	for _, st := range l.dormant {
		st.Tail = nil
		states = append(states, st)
	}
	slices.SortFunc(states, func(a, b storage.ReplicaState) int { return cmp.Compare(a.Replica, b.Replica) })
	return states
}

// claimed is the answer to a claim.
type claimed struct {
	st  storage.ReplicaState
	err error
}

// claim reserves the replica and returns its recovered state.
func (h *Host) claim(o *GroupOptions) (storage.ReplicaState, error) {
	answer := make(chan claimed, 1)
	ok := h.mailbox.post(func(in *inbox) {
		in.calls = append(in.calls, func() {
			h.loop.claim(o, func(st storage.ReplicaState, err error) { answer <- claimed{st, err} })
		})
	})
	if !ok {
		return storage.ReplicaState{}, Retry(ErrClosed)
	}
	got, err := await(context.Background(), h, answer)
	if err != nil {
		return storage.ReplicaState{}, err
	}
	return got.st, got.err
}

// claim calls settle once, now or when the replica is durable.
func (l *loop) claim(o *GroupOptions, settle func(storage.ReplicaState, error)) {
	refuse := func(err error) { settle(storage.ReplicaState{}, err) }
	st, known := l.dormant[o.Replica]
	switch {
	case l.h.Failed() != nil:
		refuse(Retry(l.h.Failed()))
	case l.busy(o):
		refuse(Refused(fmt.Errorf("%w: %v, or another replica of %v", ErrReplicaOpen, o.Replica, o.Group)))
	case known && st.Group != o.Group:
		refuse(Refused(fmt.Errorf("raftlog: %v is a replica of %v, not of %v", o.Replica, st.Group, o.Group)))
	case known && st.Status != storage.ReplicaLive:
		refuse(Refused(fmt.Errorf("%w: %v", ErrSetAside, o.Replica)))
	case known:
		l.opening[o.Replica] = o.Group
		settle(st, nil)
	case o.Create == nil:
		refuse(Refused(fmt.Errorf("%w: %v of %v", ErrUnknownReplica, o.Replica, o.Group)))
	default:
		l.create(o, settle)
	}
}

// busy reports whether the replica, or another one of its group, is open,
// being opened or not quite closed.
func (l *loop) busy(o *GroupOptions) bool {
	for r, g := range l.opening {
		if r == o.Replica || g == o.Group {
			return true
		}
	}
	if l.parked[o.Replica] != nil || l.leaving[o.Replica] != nil {
		return true
	}
	return slices.ContainsFunc(l.groups, func(g *Group) bool { return g.replica == o.Replica || g.id == o.Group })
}

// create makes the replica durable.
func (l *loop) create(o *GroupOptions, settle func(storage.ReplicaState, error)) {
	begin := *o.Create
	st := storage.ReplicaState{
		Group: o.Group, Replica: o.Replica, Status: storage.ReplicaLive, Dir: begin.Dir, Conf: begin.Conf,
		Hard: storage.HardState{Term: begin.Term, Commit: begin.Index},
		Log: storage.LogPosition{
			StartIndex: begin.Index, StartTerm: begin.Term, LastIndex: begin.Index, LastTerm: begin.Term,
			NextOffset: begin.NextOffset,
		},
	}
	l.opening[o.Replica] = o.Group
	l.journal.filling.frames = append(l.journal.filling.frames, storage.Frame{
		Kind: storage.FrameCreated, Group: o.Group, Replica: o.Replica, Begin: &begin,
	})
	l.afterAll(func(err error) {
		if err != nil {
			delete(l.opening, o.Replica)
			settle(st, Unknown(err))
			return
		}
		l.dormant[o.Replica] = st
		settle(st, nil)
	})
}

// creationIndex is where the log of a replica begins that the creating command
// lists; one that starts empty begins at 0. A log that begins later, or was begun
// anew, does so because the state machine had all that is not in it: a state
// machine that has nothing is not at its start but gone.
const creationIndex Index = 1

// prepare opens the log and starts the core.
func (h *Host) prepare(o *GroupOptions, st storage.ReplicaState) (*Group, error) {
	log, err := h.cfg.Store.OpenLog(st)
	if err != nil {
		return nil, fmt.Errorf("raftlog: log of %v: %w", o.Replica, err)
	}
	g := &Group{
		host: h, id: o.Group, replica: o.Replica, machine: o.Machine, onStatus: o.OnStatus, onBehind: o.OnBehind, essential: o.Essential, log: log,
		loop: groupLoop{proposals: map[ProposalID]*proposal{}, reads: map[ReadID]*read{}, changes: map[ProposalID]*changeCall{}},
	}
	g.UpdatePeers(o.Peers)
	st.Log = log.Position()
	applied := st.Log.LastIndex
	machine := o.State
	if machine != nil {
		if machine.Index == 0 && st.Log.Reset == 0 && st.Log.StartIndex <= creationIndex {
			machine = &AppliedState{Index: st.Log.StartIndex, Conf: machine.Conf}
			if len(machine.Conf.Voters) == 0 {
				machine.Conf = st.Conf // no change can have been applied if none is known
			}
		}
		g.ownState, g.machineAt = true, machine.Index
		applied = min(applied, machine.Index)
	}
	var core *Core
	if o.Recover != nil {
		err = o.Recover(log)
	}
	if err == nil {
		core, err = NewCore(CoreConfig{
			State: st, Machine: machine, Older: log, ReadNonce: h.cfg.Rand(), Options: h.cfg.coreOptions(),
		})
	}
	if err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("raftlog: open %v: %w", o.Replica, err)
	}
	g.loop.core = core
	g.applied.Store(uint64(applied))
	s := core.Status()
	g.status.Store(&s)
	return g, nil
}

// install makes the group take part.
func (l *loop) install(g *Group) error {
	delete(l.opening, g.replica)
	if err := l.h.Failed(); err != nil {
		return Retry(err)
	}
	if l.dormant[g.replica].Status != storage.ReplicaLive {
		return Refused(fmt.Errorf("%w: %v", ErrSetAside, g.replica))
	}
	delete(l.dormant, g.replica)
	g.loop.place = len(l.groups)
	l.groups = append(l.groups, g)
	l.h.stats.groups.Add(1)
	l.h.mu.Lock()
	l.h.mu.groups[g.replica] = g
	l.h.mu.Unlock()
	g.loop.core.SetDisk(l.disk)
	l.touch(g)
	return nil
}

// beginsEmpty reports whether a replica begins with nothing.
func beginsEmpty(b *Begin) bool {
	return b.Index == 0 && b.Term == 0 && b.NextOffset == 0 && len(b.Conf.Voters) == 0 && len(b.Conf.Learners) == 0 &&
		len(b.Conf.VotersOutgoing) == 0
}
