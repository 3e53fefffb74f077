package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

func testConfig(fs storage.FS) storage.Config {
	return storage.Config{FS: fs, Dir: "/node", Name: "n", Cluster: "c", JournalFileSize: 32 << 10, SegmentSize: 8 << 10}
}

func begin(index storage.Index, voters ...storage.ReplicaID) *storage.Begin {
	return &storage.Begin{Dir: "topics/t@00000000000000000000000000000001/0.7", Index: index, Term: 1,
		Conf: storage.ConfState{Voters: voters}}
}

func entry(i storage.Index, t storage.Term, data string) storage.Entry {
	return storage.Entry{Index: i, Term: t, Data: []byte(data)}
}

func TestStoreKeepsWhatARoundHolds(t *testing.T) {
	fs := simfs.New(1)
	s, err := storage.Open(testConfig(fs))
	require.NoError(t, err)
	require.Empty(t, s.Replicas())
	require.NoError(t, s.WriteRound([]storage.Frame{
		{Kind: storage.FrameCreated, Group: 2, Replica: 7, Begin: begin(1, 7, 8, 9)},
		{Kind: storage.FrameAppend, Group: 2, Replica: 7, Hard: storage.HardState{Term: 2, Vote: 8, Commit: 1},
			Entries: []storage.Entry{entry(2, 2, "a"), entry(3, 2, "")}},
	}))
	require.NoError(t, s.WriteRound(nil))

	_, err = storage.Open(testConfig(fs))
	require.ErrorIs(t, err, storage.ErrLocked)

	for range 3 {
		fs = fs.Crash(simfs.Strict)
		s, err = storage.Open(testConfig(fs))
		require.NoError(t, err)
		require.Equal(t, []storage.ReplicaState{{
			Group: 2, Replica: 7, Status: storage.ReplicaLive, Dir: begin(1).Dir,
			Hard: storage.HardState{Term: 2, Vote: 8, Commit: 1},
			Conf: storage.ConfState{Voters: []storage.ReplicaID{7, 8, 9}},
			Log:  storage.LogPosition{StartIndex: 1, StartTerm: 1, LastIndex: 1, LastTerm: 1},
			Tail: []storage.Entry{entry(2, 2, "a"), {Index: 3, Term: 2}},
		}}, s.Replicas())
		require.Nil(t, s.Replicas())
	}
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.WriteRound(nil), storage.ErrClosed)
}
