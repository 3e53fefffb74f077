package topic_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// TestLimitsOfTopics: each refusal names the field, its value and what is
// allowed, at whatever node it is asked.
func TestLimitsOfTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("orders", 0)
		for _, n := range c.running() {
			made, err := n.topics.DescribeTopic(t.Context(), "orders")
			require.NoError(t, err)
			require.Len(t, made.Partitions, 1, "0 is the default")
			for _, refused := range []struct {
				name   string
				config metastore.TopicConfig
				want   metastore.InvalidError
			}{
				{"", metastore.TopicConfig{}, metastore.InvalidError{Field: "Topic.Name", Value: `""`}},
				{strings.Repeat("x", 300), metastore.TopicConfig{}, metastore.InvalidError{Field: "Topic.Name", Value: `"xxx`}},
				{"../x", metastore.TopicConfig{}, metastore.InvalidError{Field: "Topic.Name", Value: `"../x"`}},
				{"a@b", metastore.TopicConfig{}, metastore.InvalidError{Field: "Topic.Name", Value: `"a@b"`}},
				{"large", metastore.TopicConfig{Partitions: 10_001}, metastore.InvalidError{Field: "TopicConfig.Partitions", Value: "10001", Allowed: "1 to 10000"}},
				{"large", metastore.TopicConfig{Partitions: 1_000_000}, metastore.InvalidError{Field: "TopicConfig.Partitions", Value: "1000000", Allowed: "1 to 10000"}},
				{"large", metastore.TopicConfig{Replicas: 4}, metastore.InvalidError{Field: "TopicConfig.Replicas", Value: "4", Allowed: "1 to 3"}},
				{"large", metastore.TopicConfig{MaxRecordBytes: 17 << 20}, metastore.InvalidError{Field: "TopicConfig.MaxRecordBytes", Value: "17825792", Allowed: "1 to 16777216"}},
			} {
				_, err := n.topics.CreateTopic(t.Context(), refused.name, refused.config)
				var invalid *metastore.InvalidError
				require.ErrorAs(t, err, &invalid)
				require.Equal(t, refused.want.Field, invalid.Field)
				require.True(t, strings.HasPrefix(invalid.Value, refused.want.Value), invalid.Value)
				require.Contains(t, invalid.Allowed, refused.want.Allowed)
				require.ErrorIs(t, err, raftlog.ErrRefused)
				oneOutcome(t, err)
			}
			_, err = n.topics.CreateTopic(t.Context(), "Orders", metastore.TopicConfig{})
			require.ErrorIs(t, err, metastore.ErrTopicExists)
			saysWhere(t, err, `create "Orders"`, `"orders"`, "differ only in case")
		}
	})
}

// TestRecordsThatAreTooLarge: for any topic, or for one.
func TestRecordsThatAreTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startCluster(t, 3, 1)
		c.create("any", 1)
		made, err := c.node(1).topics.CreateTopic(t.Context(), "small", metastore.TopicConfig{MaxRecordBytes: 100})
		require.NoError(t, err)
		require.EqualValues(t, 100, made.Config.MaxRecordBytes)
		for _, n := range c.running() {
			p := producer(t, n, topic.ProducerConfig{})
			for name, sizes := range map[string][2]int{"any": {16 << 20, 17 << 20}, "small": {100, 101}} {
				fits := topic.Record{Key: []byte("k"), Value: make([]byte, sizes[0]-4-12), Headers: []topic.Header{{Key: "h", Value: []byte("vv")}}}
				_, err := p.Produce(t.Context(), name, fits)
				require.NoError(t, err)
				large := topic.Record{Value: make([]byte, sizes[1])}
				async := make(chan error, 1)
				p.ProduceAsync(t.Context(), name, large, func(_ topic.Position, err error) { async <- err })
				_, one := p.Produce(t.Context(), name, record("fits"), large)
				_, to := p.ProduceTo(t.Context(), name, 0, record("fits"), large)
				for i, err := range []error{<-async, one, to} {
					var tooLarge *topic.TooLargeError
					require.ErrorAs(t, err, &tooLarge)
					require.Equal(t, topic.TooLargeError{Record: min(i, 1), Size: sizes[1], Max: sizes[0]}, *tooLarge)
					require.ErrorIs(t, err, raftlog.ErrRefused)
					oneOutcome(t, err)
					saysWhere(t, err, name, fmt.Sprint(sizes[1]), fmt.Sprint(sizes[0]))
				}
			}
			require.NoError(t, p.Close(t.Context()))
		}
		require.Len(t, c.node(2).dump("small", 0), 3, "nothing of a refused call was appended")
	})
}

// TestANilContextIsRefused by every call that takes one.
func TestANilContextIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, n, calls := startCalls(t)
		var none context.Context
		p := producer(t, n, topic.ProducerConfig{})
		calls["close"] = p.Close
		calls["call of a node"] = func(ctx context.Context) error {
			_, err := n.topics.HandleCall(ctx, 1, "topic.fetch", make([]byte, 100))
			return err
		}
		for name, call := range calls {
			err := call(none)
			require.ErrorIs(t, err, raftlog.ErrRefused, name)
			oneOutcome(t, err)
			if name != "call of a node" { // that is malformed, too
				require.ErrorIs(t, err, topic.ErrNoContext, name)
			}
		}
		_, err := p.Produce(t.Context(), "orders", record("x"))
		require.NoError(t, err, "it was not closed")
	})
}

// TestCloseDuringEverything: by several at once, while every call is made by
// others. All calls end, with one outcome, and so they do afterwards.
//
// Property: P9, L4 (red: what ended with the manager had no outcome)
func TestCloseDuringEverything(t *testing.T) {
	for seed := range runs(5) {
		synctest.Test(t, func(t *testing.T) {
			c := startCluster(t, 3, seed)
			c.create("orders", 2)
			n := c.node(2)
			var work sync.WaitGroup
			var mu sync.Mutex
			var errs []error
			note := func(err error) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
			for worker := range 4 {
				p := producer(t, n, topic.ProducerConfig{MaxBufferedBytes: 1 << 10})
				r, err := n.topics.NewReader(t.Context(), at("orders", 0), topic.FromStart())
				require.NoError(t, err)
				all := calls(n, p, r)
				delete(all, "records") // a reader is for one goroutine
				delete(all, "delete")
				all["another topic"] = func(ctx context.Context) error {
					name := fmt.Sprint("more-", worker)
					if _, err := n.topics.CreateTopic(ctx, name, metastore.TopicConfig{}); err != nil {
						return err
					}
					return n.topics.DeleteTopic(ctx, name)
				}
				for name, call := range all {
					work.Go(func() {
						for {
							ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
							err := call(ctx)
							cancel()
							if err != nil {
								if err := outcomes(err); err != nil {
									note(fmt.Errorf("%s: %w", name, err))
								}
								if errors.Is(err, topic.ErrClosed) {
									return
								}
							}
							pass(time.Millisecond)
						}
					})
				}
				work.Go(func() {
					pass(time.Duration(seed*7+10) * time.Millisecond)
					for range 2 {
						r.Close()
						if err := p.Close(t.Context()); err != nil && !errors.Is(err, topic.ErrClosed) {
							note(err)
						}
					}
				})
			}
			pass(time.Duration(20+seed*10) * time.Millisecond)
			for range 3 {
				work.Go(func() { note(n.topics.Close()) })
			}
			work.Wait()
			require.NoError(t, n.topics.Close())
			for _, err := range errs {
				require.NoError(t, err)
			}
		})
	}
}
