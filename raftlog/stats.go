package raftlog

import (
	"sync/atomic"
	"time"
)

// syncBounds are the upper bounds of the buckets of Stats.SyncLatency; the
// last bucket has none.
var syncBounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second,
}

// Histogram counts durations: Counts[i] were at most Bounds[i] and more than
// the bound before; the last count has no bound.
type Histogram struct {
	Bounds []time.Duration
	Counts []uint64
	Sum    time.Duration
}

// Stats is what a host did since Open. All but the gauges only grow.
type Stats struct {
	Rounds      uint64 // writes and syncs of the journal
	RoundBytes  uint64 // of entries in them
	RoundFrames uint64
	Rotations   uint64
	Checkpoints uint64
	SyncLatency Histogram // of rounds: write and sync
	Stalls      uint64    // rounds that took longer than Config.StallTimeout

	Proposals       uint64 // that were accepted by a leader's log
	ProposalsFailed uint64 // refused, or ended unknown
	Overloads       uint64 // refused with ErrOverloaded; part of ProposalsFailed
	Reads           uint64 // linearizable reads that were confirmed and applied
	EntriesApplied  uint64
	ApplyBatches    uint64

	ElectionsWon   uint64 // times that a group of this host became the leader
	LeadershipLost uint64 // times that one ceased to be

	FramesSent       uint64
	BytesSent        uint64
	MessagesSent     uint64
	MessagesUnsent   uint64 // of unknown peers, or not encodable
	FramesReceived   uint64
	FramesMalformed  uint64
	MessagesReceived uint64
	MessagesStray    uint64 // for no open replica, or from the wrong node
	MessagesDropped  uint64 // appends over the budget of unwritten and unapplied bytes

	Groups           int   // gauge: open and not failed
	GroupsFailed     int   // gauge
	UncommittedBytes int64 // gauge: of proposals that wait
	UnwrittenBytes   int64 // gauge: of entries that wait for the journal
	UnappliedBytes   int64 // gauge: of committed entries that wait for a state machine
}

// counters are the live numbers behind Stats.
type counters struct {
	rounds, roundBytes, roundFrames, rotations, checkpoints atomic.Uint64
	stalls                                                  atomic.Uint64
	proposals, proposalsFailed, overloads                   atomic.Uint64
	reads, entriesApplied, applyBatches                     atomic.Uint64
	electionsWon, leadershipLost                            atomic.Uint64
	framesSent, bytesSent, messagesSent, messagesUnsent     atomic.Uint64
	framesReceived, framesMalformed                         atomic.Uint64
	messagesReceived, messagesStray, messagesDropped        atomic.Uint64
	syncSum                                                 atomic.Int64
	syncCounts                                              [len(syncBounds) + 1]atomic.Uint64
	groups, groupsFailed                                    atomic.Int64
	uncommitted, unwritten, unapplied                       atomic.Int64
}

func (c *counters) observeSync(d time.Duration) {
	c.syncSum.Add(int64(d))
	i := 0
	for i < len(syncBounds) && d > syncBounds[i] {
		i++
	}
	c.syncCounts[i].Add(1)
}

func (c *counters) snapshot() Stats {
	s := Stats{
		Rounds: c.rounds.Load(), RoundBytes: c.roundBytes.Load(), RoundFrames: c.roundFrames.Load(),
		Rotations: c.rotations.Load(), Checkpoints: c.checkpoints.Load(), Stalls: c.stalls.Load(),
		Proposals: c.proposals.Load(), ProposalsFailed: c.proposalsFailed.Load(), Overloads: c.overloads.Load(),
		Reads: c.reads.Load(), EntriesApplied: c.entriesApplied.Load(), ApplyBatches: c.applyBatches.Load(),
		ElectionsWon: c.electionsWon.Load(), LeadershipLost: c.leadershipLost.Load(),
		FramesSent: c.framesSent.Load(), BytesSent: c.bytesSent.Load(),
		MessagesSent: c.messagesSent.Load(), MessagesUnsent: c.messagesUnsent.Load(),
		FramesReceived: c.framesReceived.Load(), FramesMalformed: c.framesMalformed.Load(),
		MessagesReceived: c.messagesReceived.Load(), MessagesStray: c.messagesStray.Load(),
		MessagesDropped: c.messagesDropped.Load(),
		Groups:          int(c.groups.Load()), GroupsFailed: int(c.groupsFailed.Load()),
		UncommittedBytes: c.uncommitted.Load(), UnwrittenBytes: c.unwritten.Load(), UnappliedBytes: c.unapplied.Load(),
	}
	s.SyncLatency = Histogram{Bounds: append([]time.Duration(nil), syncBounds[:]...), Sum: time.Duration(c.syncSum.Load())}
	for i := range c.syncCounts {
		s.SyncLatency.Counts = append(s.SyncLatency.Counts, c.syncCounts[i].Load())
	}
	return s
}
