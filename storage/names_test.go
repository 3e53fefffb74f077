package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/storage"
)

// A store remembers nothing of topics that were moved to quarantine.
//
// Property: I10 (red: the directories of replicas were remembered for ever; on whole nodes: TestChurn of the root)
func TestNamesOfWhatIsGoneAreForgotten(t *testing.T) {
	fs := simfs.New(1)
	s := openStore(t, fs)
	defer s.Close()
	turn := func(i byte) int {
		inc := storage.Incarnation{i}
		dir, err := s.CreateTopicDir("orders", inc)
		require.NoError(t, err)
		st := storage.ReplicaState{Group: 3, Replica: storage.ReplicaID(i), Status: storage.ReplicaLive, Dir: storage.ReplicaDir(dir, 0, storage.ReplicaID(i)), Log: emptyPosition()}
		l, err := s.OpenLog(st)
		require.NoError(t, err)
		require.NoError(t, l.Append(history(1, 3, 10)))
		require.NoError(t, l.Sync())
		require.NoError(t, l.Close())
		require.NoError(t, s.QuarantineTopic(storage.TopicDir{Dir: dir, Name: "orders", Incarnation: inc}, storage.Reason{Kind: storage.ReasonDeleted}))
		return s.DurableNames()
	}
	first := turn(1)
	for i := range byte(20) {
		require.Equal(t, first, turn(i+2))
	}
}
