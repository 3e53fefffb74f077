package topic_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

// BenchmarkProduce is 512 callers on one node in memory: what produce costs
// besides disks and networks.
func BenchmarkProduce(b *testing.B) {
	for _, partitions := range []uint32{1, 16, 128} {
		b.Run(fmt.Sprint("partitions=", partitions), func(b *testing.B) { benchmarkProduce(b, partitions) })
	}
}

type nobody struct{ metastore.Caller }

func (nobody) Send(raftlog.NodeID, uint8, []byte) {}

func benchmarkProduce(b *testing.B, partitions uint32) {
	fs := simfs.New(1)
	store, err := storage.Open(storage.Config{FS: fs, Dir: "data", Name: "n", Cluster: "c"})
	require.NoError(b, err)
	host, err := raftlog.Open(raftlog.Config{Node: 1, Store: store, Sender: nobody{}})
	require.NoError(b, err)
	require.NoError(b, fs.MkdirAll("data/meta", 0o755))
	genesis := metastore.Genesis{ClusterID: raftlog.ClusterID{1}, Members: []metastore.Member{{Node: 1, Replica: 1, Name: "n", Nonce: raftlog.Nonce{1}}}}
	meta, err := metastore.Open(b.Context(), metastore.Config{Host: host, FS: fs, Dir: "data/meta/db", Node: 1, Replica: 1, Genesis: genesis, Caller: nobody{}})
	require.NoError(b, err)
	m, err := topic.Open(topic.Config{Meta: meta, Host: host, Store: store, Node: 1, Caller: nobody{}})
	require.NoError(b, err)
	defer func() {
		host.Abort()
		require.NoError(b, m.Close())
		require.NoError(b, meta.Close())
		require.NoError(b, store.Close())
	}()
	_, err = m.CreateTopic(b.Context(), "orders", metastore.TopicConfig{Partitions: partitions})
	require.NoError(b, err)
	p, err := m.NewProducer(topic.ProducerConfig{})
	require.NoError(b, err)
	value := make([]byte, 128)
	var work sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for i := range 512 {
		work.Go(func() {
			for n := i; n < b.N; n += 512 {
				if _, err := p.ProduceTo(b.Context(), "orders", uint32(n)%partitions, topic.Record{Value: value}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	b.StopTimer()
	s := m.Stats()
	b.ReportMetric(float64(s.Records)/float64(max(s.Batches, 1)), "records/batch")
}
