package topic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// TestClosingFailsNoGroup: until its group is closed too, a partition that is
// closed goes on applying; an error would count as the group's failure.
func TestClosingFailsNoGroup(t *testing.T) {
	for range 50 { // of two ways to go on one must never be taken
		r := open(t, topic.PartitionConfig{})
		r.partition.Close()
		var h history
		h.commit(storage.EntryNormal, encode(topic.BatchInfo{Incarnation: someIncarnation}, someTime, record("x")))
		_, err := r.apply(h.after(1))
		require.NoError(t, err)
	}
}
