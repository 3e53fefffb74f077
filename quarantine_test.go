package stele_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// After a forced recovery a topic is deleted, and one that nobody knows lies there,
// too. Nothing of both goes. A person lists them, looks, has the deleted one's records
// back as another topic, and gives up the rest of it only when the recovery's hold is
// over; the unknown one stays for good.
//
// Property: X1, X2, R33 (red: reclaimQuarantined went on without a proof, which storage refused; examine without held)
func TestAPersonDecidesAboutTheQuarantine(t *testing.T) {
	s := newSweeps()
	var mu sync.Mutex
	var seen []stele.Quarantined
	var restored []stele.Restored
	config := func(cfg *stele.Config) {
		s.config(cfg)
		cfg.SweepInterval = 24 * time.Hour
		cfg.Events.Quarantined = func(q stele.Quarantined) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, q)
		}
		cfg.Events.Restored = func(r stele.Restored) {
			mu.Lock()
			defer mu.Unlock()
			restored = append(restored, r)
		}
	}
	testcluster.Run(t, testcluster.Options{Seed: 151, Config: config}, func(c *testcluster.Cluster) {
		t := c.T
		ctx := t.Context()
		c.StartAll()
		c.Eventually(func() bool { return version(c, 0) == 3 }, "the version")
		made := created(c, "orders")
		produceMany(c, "orders", 40)
		c.Sleep(5 * time.Second)
		c.PowerLossAll()
		recoverFrom(c, 2)
		c.Start(2)
		c.WaitReady()
		n, name := c.Node(2), c.Member(2).Name
		var want [2][]string
		for p := range want {
			want[p] = c.ReadAll(ctx, 2, stele.TopicPartition{Topic: "orders", Partition: uint32(p)})
			require.NotEmpty(t, want[p])
		}
		require.NoError(t, n.DeleteTopic(ctx, "orders"))
		require.NoError(t, c.Member(2).FS.MkdirAll(testcluster.Dir+"/quarantine/lost@"+fmt.Sprintf("%032x", 77)+"~1/0.9", 0o755))

		own := "quarantine/orders@" + made.Incarnation.String() + "~1"
		list := func() map[string]stele.Quarantined {
			all, err := n.Quarantine(ctx)
			require.NoError(t, err)
			by := map[string]stele.Quarantined{}
			for _, q := range all {
				by[q.Dir] = q
			}
			return by
		}
		c.Eventually(func() bool { return list()[own].Kept != nil }, "held")
		q := list()[own]
		require.Equal(t, stele.FateDeleted, q.Fate)
		require.EqualValues(t, "deleted", q.Reason.Kind)
		require.False(t, q.Reason.At.IsZero())
		require.Len(t, q.Logs, 2)
		var held *stele.ConfirmError
		require.ErrorAs(t, q.Kept, &held)
		require.Equal(t, stele.ConfirmHeld, held.Reason)
		unknown := "quarantine/lost@" + fmt.Sprintf("%032x", 77) + "~1"
		require.Equal(t, stele.FateUnknown, list()[unknown].Fate)

		for p := range want {
			r, err := n.ReadQuarantined(ctx, stele.QuarantineSource{Dir: own, Partition: uint32(p)})
			require.NoError(t, err)
			var got []string
			for record, err := range r.Records(ctx) {
				require.NoError(t, err)
				got = append(got, string(record.Value))
			}
			r.Close()
			require.Equal(t, want[p], got)
		}
		var refused *stele.ReclaimError
		_, err := n.ReclaimQuarantined(ctx, own)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, stele.ReclaimUnconfirmed, refused.Reason)
		require.ErrorAs(t, err, &held)
		require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err))

		done, err := n.RestoreQuarantined(ctx, stele.RestoreConfig{Dirs: []string{own}, Topic: "orders"})
		require.NoError(t, err)
		require.Equal(t, made.Incarnation, done.Incarnation)
		require.NotEqual(t, made.Incarnation, done.Topic.Incarnation)
		for p := range want {
			require.Equal(t, want[p], c.ReadAll(ctx, 2, stele.TopicPartition{Topic: "orders", Partition: uint32(p)}))
		}
		require.NoError(t, n.EndHold(ctx, 1))
		c.Eventually(func() bool {
			_, err := n.ReclaimQuarantined(ctx, own)
			return err == nil || stele.OutcomeOf(err) == stele.OutcomeRefused // the sweeper was first
		}, "reclaimed")
		require.NotContains(t, list(), own)
		_, err = n.ReclaimQuarantined(ctx, unknown)
		require.ErrorAs(t, err, &refused)
		require.Equal(t, stele.ReclaimUnknown, refused.Reason)
		require.Contains(t, list(), unknown)
		c.Eventually(func() bool { return s.reclaimed(name) > 0 }, "told")
		require.Positive(t, gathered(t, s.registry, "stele_restored_records_total"))
		c.Eventually(func() bool { mu.Lock(); defer mu.Unlock(); return len(restored) == 1 && len(seen) >= 1 }, "told")
	})
}
