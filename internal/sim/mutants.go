package sim

import (
	"github.com/stelelog/stele/raftlog"
	pb "go.etcd.io/raft/v3/raftpb"
)

// mutateAppend breaks what happens when a frame is handed out.
func (w *world) mutateAppend(r *replica, a *raftlog.Append) {
	switch w.opts.Mutant {
	case MutantAckBeforeSync:
		r.core.Appended(a.Seq)
	case MutantVoteBeforeSync:
		if a.Sync && len(a.Frame.Entries) == 0 && !r.n.disk.holdsEntriesOf(r) {
			r.core.Appended(a.Seq)
		}
	case MutantAskBeforeSync:
		if r.status.Role == raftlog.RoleCandidate && a.Frame.Hard.Vote == r.id && a.Frame.Hard.Term == r.status.Term {
			for _, to := range r.g.replicas {
				if to != r {
					w.askEarly(r, to)
				}
			}
		}
	}
}

// askEarly sends the vote request that raft hands out with the frame, and that
// the Core holds back.
func (w *world) askEarly(r, to *replica) {
	last := r.said.last()
	m := &pb.Message{
		Type: pb.MsgVote.Enum(), From: new(uint64(r.id)), To: new(uint64(to.id)), Term: new(uint64(r.status.Term)),
		Index: new(uint64(last)), LogTerm: new(uint64(r.said.term(last))),
	}
	r.sends(m)
	w.net.send(r, m)
}

// mutateSynced says up to where a core is told that its frames are durable.
func (w *world) mutateSynced(wr write) raftlog.Seq {
	seq := wr.seq
	if w.opts.Mutant == MutantTwoRounds {
		for _, later := range wr.r.n.disk.waiting {
			if later.r == wr.r {
				seq = later.seq
			}
		}
	}
	return seq
}

// mutateDisk breaks what a restart finds.
func (w *world) mutateDisk(r *replica) {
	if r.n.life == 1 {
		return
	}
	switch w.opts.Mutant {
	case MutantVoteLost:
		r.hard.Vote = 0
	case MutantTermLost:
		r.hard.Term, r.hard.Vote = r.entryHard.Term, r.entryHard.Vote
	case MutantCommitLost:
		r.hard.Commit = 0
	case MutantAppliedTwice:
		if r.ownSynced > 1 {
			r.ownSynced--
			r.doubled = true
		}
	case MutantEntrySkipped:
		if r.ownSynced < r.hard.Commit {
			r.ownSynced++
			r.skipped = true
		}
	case MutantTailLost:
		if last := r.durable.last(); last > r.logSynced {
			r.entries = r.entries[:len(r.entries)-1]
			r.durable.cut(last - 1)
			r.hard.Commit = min(r.hard.Commit, last-1)
		}
	case MutantWiped:
		r.entries, r.durable = nil, newHistory()
		r.logSynced, r.ownSynced = 1, 1
		r.hard = hardState{Term: 1, Commit: 1}
	}
}

// mutateMachine breaks the state that a restarted machine begins with.
func (r *replica) mutateMachine() {
	if r.doubled {
		r.doubled = false
		r.states[r.applied-1] = r.states[r.applied]
	}
	if r.skipped {
		r.skipped = false
		r.states = append(r.states[:r.applied-1:r.applied-1], r.states[r.applied-2])
	}
}

// comeBack begins another stint of a replica that was destroyed, under its old
// id and with nothing.
func (w *world) comeBack(r *replica) {
	w.trace.note(w.now, r.name, "comes back", uint64(r.id), 0, 0, 0)
	r.gone = false
	delete(r.g.members.dead, r.id)
	r.g.kept, r.n.replicas = append(r.g.kept, r), append(r.n.replicas, r)
	r.durable, r.states, r.entries, r.log, r.reset = historyAt(0, 0, 0), []uint64{0}, nil, nil, 0
	r.baseConf = nil
	r.logSynced, r.ownSynced, r.startSynced, r.start, r.applied = 0, 0, 0, 0, 0
	r.hard, r.entryHard, r.promised, r.last = hardState{}, hardState{}, hardState{}, hardState{}
	w.reopen(r)
}
