//go:build unix

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tiny(t *testing.T, mode string) cell {
	return cell{
		Mode: mode, Via: "leader", Nodes: 3, Partitions: 3, ValueSize: 64, Inflight: 12,
		duration: 50 * time.Millisecond, load: 64 * 1000, dir: t.TempDir(),
		tick: 15 * time.Millisecond, // elections take a third of their time
	}
}

// TestModes runs each mode with next to no load, one after the other on one
// cluster. That what was acknowledged was read back is checked by the modes
// themselves.
func TestModes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	k, err := startCluster(ctx, tiny(t, "all"))
	require.NoError(t, err)
	defer func() { require.NoError(t, k.remove()) }()
	run := func(mode string) result {
		c := k.cell
		c.Mode = mode
		r, err := modes[mode](ctx, c, k)
		require.NoError(t, err, mode)
		var table, line bytes.Buffer
		require.NoError(t, writeTable(&table, mode, []result{r}))
		for _, c := range columns[mode] {
			require.Contains(t, table.String(), c.name)
		}
		require.NotContains(t, table.String(), "%!")
		require.NoError(t, r.writeJSON(&line))
		require.Contains(t, line.String(), `"mode":"`+mode+`"`)
		return r
	}
	require.Len(t, columns, len(modes))
	r := run("idle")
	require.EqualValues(t, 3, r.ReadBack)
	require.Positive(t, r.Goroutines)
	r = run("consume")
	require.EqualValues(t, 3+1000, r.ReadBack)
	r = run("produce")
	require.GreaterOrEqual(t, r.ReadBack, uint64(1003+r.Records)) // the warm-up is not counted
	require.Greater(t, r.WrittenPerByte, 6.0)                     // three journals and three logs
	require.GreaterOrEqual(t, r.PerBatch, 1.0)
	require.True(t, 0 < r.P50 && r.P50 <= r.P99 && r.P99 <= r.P999)
	before := r.ReadBack
	r = run("failover")
	require.GreaterOrEqual(t, r.ReadBack, before+3)
	require.True(t, 0 < r.Outage && r.Outage <= r.WorstOutage)
	before = r.ReadBack
	r = run("restart")
	require.Equal(t, before+1000+1, r.ReadBack)
	require.True(t, 0 < r.Ready && r.Ready <= r.FirstAck)
}

// TestReadBackTells sends one record at a time, through nodes that do not lead.
// A record that was acknowledged and is not there, or is another one, is an
// error.
func TestReadBackTells(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := tiny(t, "produce")
	c.Via, c.Inflight = "other", 1
	k, err := startCluster(ctx, c)
	require.NoError(t, err)
	defer func() { require.NoError(t, k.remove()) }()
	r, err := produce(ctx, c, k)
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.ReadBack, uint64(r.Records))
	require.Positive(t, r.ReadBack)
	k.sent[1].sum.Add(1)
	require.ErrorContains(t, k.readBack(ctx, &result{}), "partition 1")
	k.sent[1].add(1)
	soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, k.readBack(soon, &result{}), context.DeadlineExceeded)
}

func TestLanes(t *testing.T) {
	require.Equal(t, []lane{{[]int{0, 2, 4}, 1}, {[]int{1, 3}, 1}}, lanes(5, 2))
	require.Equal(t, []lane{{[]int{0}, 3}, {[]int{1}, 3}}, lanes(2, 7))
}

func TestLatencies(t *testing.T) {
	var l, m latencies
	for i := 1; i <= 1000; i++ {
		l.add(time.Duration(i) * time.Microsecond)
	}
	m.merge(&l)
	require.InEpsilon(t, 0.5, m.quantile(.5), 0.04)
	require.InEpsilon(t, 0.99, m.quantile(.99), 0.04)
	require.InEpsilon(t, 1, m.quantile(.9999), 0.04)
	for i, d := range []time.Duration{0, 31, 32, 63, 64, time.Hour, 1<<63 - 1} {
		require.Less(t, bucketOf(uint64(d)), len(l.buckets), i)
	}
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-mode fast":               "-mode fast",
		"-partitions 1,x":          `"1,x"`,
		"-inflight 0":              `"0"`,
		"-value-size 7":            "-value-size 7",
		"-nodes 6":                 "-nodes 6",
		"-nodes 2 -mode failover":  "-nodes 2",
		"-nodes 1 -via other":      "-nodes 1",
		"-via somebody":            "-via somebody",
		"-duration 0s":             "-duration 0s",
		"-mode consume -load -100": "-load -100",
	} {
		_, err := parse(strings.Fields(args))
		require.ErrorContains(t, err, want, args)
	}
}
