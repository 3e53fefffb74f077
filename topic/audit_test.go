package topic

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// Property: S4 (red: half of the replicas were enough; what is not known was taken for another digest)
func TestAuditRepairsTheMinorityAlone(t *testing.T) {
	sum := func(n byte) storage.SegmentSum { return storage.SegmentSum{First: 2, Last: 9, Sum: [32]byte{n}} }
	short := sum(1)
	short.Last = 8
	for what, c := range map[string]struct {
		mine     storage.SegmentSum
		others   []storage.SegmentSum
		replicas int
		want     audited
		agreed   storage.SegmentSum
	}{
		"all agree":                   {sum(1), []storage.SegmentSum{sum(1), sum(1)}, 3, agrees, sum(1)},
		"one other differs":           {sum(1), []storage.SegmentSum{sum(2), sum(1)}, 3, agrees, sum(1)},
		"this one differs":            {sum(1), []storage.SegmentSum{sum(2), sum(2)}, 3, minority, sum(2)},
		"it ends elsewhere":           {short, []storage.SegmentSum{sum(1), sum(1)}, 3, minority, sum(1)},
		"one is not known":            {sum(1), []storage.SegmentSum{sum(2)}, 3, agrees, sum(1)},
		"none is known":               {sum(1), nil, 3, agrees, sum(1)},
		"all differ":                  {sum(1), []storage.SegmentSum{sum(2), sum(3)}, 3, undecided, storage.SegmentSum{}},
		"two and two":                 {sum(1), []storage.SegmentSum{sum(1), sum(2), sum(2)}, 4, undecided, storage.SegmentSum{}},
		"two of four, one not known":  {sum(1), []storage.SegmentSum{sum(2), sum(2)}, 4, agrees, sum(1)},
		"three of five, one known so": {sum(1), []storage.SegmentSum{sum(2), sum(2), sum(2)}, 5, minority, sum(2)},
	} {
		others := map[raftlog.NodeID]storage.SegmentSum{}
		for i, s := range c.others {
			others[raftlog.NodeID(i+2)] = s
		}
		got, agreed := audit(c.mine, others, c.replicas)
		require.Equal(t, c.want, got, what)
		require.Equal(t, c.agreed, agreed, what)
	}
}

// Property: S11 (red: an order that no log has was taken)
func FuzzSums(f *testing.F) {
	f.Add(encodeSums(nil))
	f.Add(encodeSums([]storage.SegmentSum{{First: 2, Last: 9, Sum: [32]byte{1}}, {First: 10, Last: 10}}))
	f.Add(encodeSums([]storage.SegmentSum{{First: 2, Last: 9}, {First: 9, Last: 10}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := decodeSums(b)
		if err != nil {
			return
		}
		require.Equal(t, b, append([]byte{}, encodeSums(all)...))
		for i := 1; i < len(all); i++ {
			require.Less(t, all[i-1].Last, all[i].First)
		}
	})
}
