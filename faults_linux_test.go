package stele_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/transport"
)

// smallMount mounts a file system of so many bytes in memory. It skips the test
// where that is not allowed.
func smallMount(t *testing.T, size int64) string {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("mounting a small file system needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// hog fills a file system to the last byte.
func hog(t *testing.T, dir string) (free func()) {
	path := filepath.Join(dir, "hog")
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = io.Copy(f, zeros{})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, f.Close())
	return func() { require.NoError(t, os.Remove(path)) }
}

var realDisk = flag.Bool("real.disk", false, "fill small file systems, for which root mounts them")

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// Three nodes on file systems of 96 MiB, which somebody else fills to the last
// byte, again and again, while records are produced. Run it alone, as root, with
//
//	go test -run TestARealDiskFillsUp -real.disk -v .
//
// Property: S6, P7 (red: writes that find no room not written again; producers not refused)
func TestARealDiskFillsUp(t *testing.T) {
	if !*realDisk {
		t.Skip("say -real.disk")
	}
	network := transport.NewNetwork(1, clock.System())
	var peers []stele.Peer
	for i := range 3 {
		peers = append(peers, stele.Peer{Name: fmt.Sprintf("n%d", i+1), Addr: fmt.Sprintf("n%d:1", i+1)})
	}
	var dirs []string
	var nodes []*stele.Node
	for i, p := range peers {
		dirs = append(dirs, smallMount(t, 96<<20))
		n, err := stele.Open(t.Context(), stele.Config{
			Cluster: "c", Name: p.Name, Dir: filepath.Join(dirs[i], "data"), InitialMembers: peers,
			Transport: network.Transport(p.Addr), JournalBytes: 4 << 20, SegmentBytes: 4 << 20, DiskReserve: 24 << 20,
			CallTimeout: time.Second, // which refused topics are tried for
		})
		require.NoError(t, err)
		defer n.Abort()
		nodes = append(nodes, n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, n := range nodes {
		require.NoError(t, n.WaitReady(ctx))
	}
	_, err := nodes[0].CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: 1})
	require.NoError(t, err)
	eventually := func(cond func(stele.DiskStatus) bool, what string) {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, n := range nodes {
				if !cond(n.Status().Disk) {
					return false
				}
			}
			return true
		}, 30*time.Second, 10*time.Millisecond, what)
	}
	eventually(func(d stele.DiskStatus) bool { return d.Ballast == 12<<20 }, "the ballast is made")

	p, err := nodes[0].NewProducer(stele.ProducerConfig{})
	require.NoError(t, err)
	var acked atomic.Int64
	stop, ended := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { // a record of 4 KiB after the other
		value := make([]byte, 4<<10)
		for stop.Err() == nil {
			at, err := p.ProduceTo(stop, "orders", 0, stele.Record{Value: fmt.Appendf(value[:0:4<<10], "%d", acked.Load())})
			switch {
			case err == nil && int64(at[0].Offset) != acked.Load():
				done <- fmt.Errorf("record %d is at %d", acked.Load(), at[0].Offset)
				return
			case err == nil:
				acked.Add(1)
			case stop.Err() == nil && stele.OutcomeOf(err) == stele.OutcomeRefused:
				done <- err
				return
			case stop.Err() == nil && stele.OutcomeOf(err) == stele.OutcomeUnknown:
				done <- fmt.Errorf("not told what became of a record: %w", err)
				return
			}
		}
		done <- nil
	}()
	goesOn := func(what string) {
		t.Helper()
		before := acked.Load()
		require.Eventually(t, func() bool { return acked.Load() > before+50 }, 30*time.Second, 10*time.Millisecond, what)
	}
	for range 2 {
		goesOn("records are taken")
		var free []func()
		for _, dir := range dirs {
			free = append(free, hog(t, dir))
		}
		eventually(func(d stele.DiskStatus) bool { return d.Full }, "all are full")
		_, err := nodes[1].CreateTopic(ctx, "more", stele.TopicConfig{Partitions: 1})
		require.Error(t, err)
		require.Equal(t, stele.OutcomeRetry, stele.OutcomeOf(err), "%v", err)
		for _, n := range nodes {
			require.True(t, n.Readiness().Ready(), "%v", n.Readiness())
			soon, cancel := context.WithTimeout(ctx, 10*time.Second)
			r, err := n.NewReader(soon, stele.TopicPartition{Topic: "orders"}, stele.FromEnd())
			cancel()
			require.NoError(t, err, "it serves linearizable reads")
			r.Close()
		}
		t.Logf("full with %d records; %s: %+v", acked.Load(), nodes[0].Name(), nodes[0].Status().Disk)
		for _, f := range free {
			f()
		}
		eventually(func(d stele.DiskStatus) bool { return !d.Full && d.Ballast == 12<<20 }, "there is room")
	}
	goesOn("records are taken")
	ended()
	err = <-done
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	require.NoError(t, err)
	for _, n := range nodes {
		r, err := n.NewReader(ctx, stele.TopicPartition{Topic: "orders"}, stele.FromStart())
		require.NoError(t, err)
		for next := int64(0); next < acked.Load(); {
			view, err := r.Fetch(ctx, 1<<20)
			require.NoError(t, err)
			for view.Next() {
				require.EqualValues(t, next, view.Offset())
				next++
			}
			require.NoError(t, view.Err())
		}
		r.Close()
		require.NoError(t, n.Close(ctx))
	}
	t.Logf("all %d records are read on every node", acked.Load())
}
