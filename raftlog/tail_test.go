package raftlog

import (
	"errors"
	"testing"

	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
)

func hardAt(term Term, commit Index) storage.HardState {
	return storage.HardState{Term: term, Commit: commit}
}

func newTail(keep int, log *memoryLog) *tail {
	return &tail{start: 1, startTerm: 1, floor: 1, prev: 1, prevTrm: 1, keep: keep, older: log, maxRead: 1 << 20}
}

func TestTailKeepsWhatIsNotApplied(t *testing.T) {
	log := &memoryLog{entries: entries(2, 2, 30)}
	tl := newTail(1, log)
	tl.append(toRaftEntries(entries(2, 2, 30)))
	tl.applied(20)
	require.Equal(t, Index(20), tl.prev, "nothing above applied went, all below")
	got, err := tl.Entries(21, 31, 1<<20)
	require.NoError(t, err)
	require.Len(t, got, 10)
	require.Zero(t, log.reads)

	got, err = tl.Entries(5, 31, 1<<20)
	require.NoError(t, err)
	require.Equal(t, uint64(5), got[0].GetIndex())
	require.Len(t, got, 16, "up to where memory begins")
	require.Equal(t, 1, log.reads)
	for i := uint64(1); i <= 30; i++ {
		term, err := tl.Term(i)
		require.NoError(t, err)
		require.Equal(t, uint64(min(i, 2)), term)
	}

	big := newTail(10*(entryOverhead+8), log)
	big.append(toRaftEntries(entries(2, 2, 30)))
	big.applied(30)
	require.Equal(t, Index(20), big.prev, "ten entries stay")
	require.Equal(t, Index(30), big.last())
}

func TestTailConflictDiscardsWhatFollows(t *testing.T) {
	tl := newTail(1<<20, &memoryLog{})
	tl.append(toRaftEntries(entries(2, 2, 9)))
	seen, err := tl.Entries(2, 10, 1<<20)
	require.NoError(t, err)
	tl.append(toRaftEntries(entries(3, 5, 6)))
	require.Equal(t, Index(6), tl.last())
	term, err := tl.Term(5)
	require.NoError(t, err)
	require.Equal(t, uint64(3), term)
	_, err = tl.Term(7)
	require.ErrorIs(t, err, raft.ErrUnavailable)
	require.Equal(t, uint64(2), seen[5].GetTerm(), "what was read before is not touched")
}

func TestTailLimitsAndBounds(t *testing.T) {
	tl := newTail(1<<20, &memoryLog{})
	tl.append(toRaftEntries(entries(2, 2, 9)))
	one := entryOverhead + len("entry 2")
	for limit, want := range map[int]int{0: 1, one: 1, 2*one - 1: 1, 2 * one: 2, 1 << 20: 8} {
		got, err := tl.Entries(2, 10, uint64(limit))
		require.NoError(t, err)
		require.Len(t, got, want)
	}
	_, err := tl.Entries(1, 3, 100)
	require.ErrorIs(t, err, raft.ErrCompacted)
	_, err = tl.Entries(2, 11, 100)
	require.ErrorIs(t, err, raft.ErrUnavailable)
	_, err = tl.Term(0)
	require.ErrorIs(t, err, raft.ErrCompacted)
	_, err = tl.Snapshot()
	require.ErrorIs(t, err, raft.ErrSnapshotTemporarilyUnavailable)
}

// A log that cannot be read does not stop its leader: the follower that is
// behind waits, and is served once reading works.
func TestUnreadableLogHoldsUpOneFollower(t *testing.T) {
	b := newBench(t, CoreOptions{KeepBytes: 1}, 1, 2, 3)
	leader := b.elect(1)
	b.drop = func(m anyMessage) bool { return m.GetTo() == 3 }
	for id := ProposalID(1); id <= 20; id++ {
		leader.core.Propose(id, []byte("some data"))
		b.settle()
	}
	leader.log.err = errors.New("bad sector")
	b.drop = nil
	var seen error
	b.watch = func(r *bencher) {
		if r.fx.OlderErr != nil {
			seen = r.fx.OlderErr
		}
	}
	for range 6 {
		b.tick(1, 1)
	}
	var read *OlderReadError
	require.ErrorAs(t, seen, &read)
	require.ErrorIs(t, seen, leader.log.err)
	require.NoError(t, leader.core.Failed())
	require.Len(t, b.cores[3].applied, 1)
	leader.core.Propose(30, []byte("still serves"))
	b.settle()
	require.Contains(t, leader.owned, ProposalID(30))

	leader.log.err = nil
	for range 10 {
		b.tick(1, 1)
	}
	require.Equal(t, leader.applied, b.cores[3].applied)
}

// A replica whose own log cannot be read while it is applied again fails.
func TestUnreadableLogAtReapplication(t *testing.T) {
	st, log := recovered(6, 9, hardAt(2, 9), 1, 2, 3)
	log.err = errors.New("bad sector")
	b := emptyBench(t, 1)
	r := b.openWith(st, log, CoreOptions{}, &AppliedState{Index: 3, Conf: st.Conf})
	b.settle()
	require.ErrorIs(t, r.core.Failed(), log.err)
	require.Empty(t, r.applied)
}
