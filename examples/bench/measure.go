//go:build unix

package main

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/stelelog/stele/storage"
)

// latencies is a histogram with buckets that are at most 1/32 wide.
type latencies struct {
	buckets [60 * 32]uint64
	count   uint64
}

func (l *latencies) add(d time.Duration) {
	l.buckets[bucketOf(uint64(max(d, 0)))]++
	l.count++
}

func bucketOf(v uint64) int {
	if v < 32 {
		return int(v)
	}
	octave := bits.Len64(v) - 6
	return octave*32 + int(v>>octave)
}

func (l *latencies) merge(o *latencies) {
	for i, n := range o.buckets {
		l.buckets[i] += n
	}
	l.count += o.count
}

// quantile returns what a share q of all took at most, in milliseconds.
func (l *latencies) quantile(q float64) float64 {
	want := uint64(q * float64(l.count))
	seen := uint64(0)
	for i, n := range l.buckets {
		if seen += n; n > 0 && seen > want {
			octave := max(0, i/32-1)
			return float64(uint64(i-octave*32)<<octave) / 1e6
		}
	}
	return 0
}

// sample is what was used up to some moment.
type sample struct {
	at              time.Time
	cpu             time.Duration // user and system, of this process
	allocs          uint64        // heap objects
	written         int64         // bytes, to files
	rounds          float64       // of the journals
	batches, inThem float64       // and the records in them
}

func (k *cluster) sample() sample {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	s := sample{at: time.Now(), cpu: cpuTime(), allocs: mem.Mallocs, written: k.files.written.Load()}
	for _, m := range k.members {
		if m.node == nil {
			continue
		}
		families, err := m.registry.Gather()
		if err != nil {
			continue
		}
		for _, f := range families {
			v := f.GetMetric()[0].GetCounter().GetValue()
			switch f.GetName() {
			case "stele_journal_rounds_total":
				s.rounds += v
			case "stele_produced_batches_total":
				s.batches += v
			case "stele_produced_records_total":
				s.inThem += v
			}
		}
	}
	return s
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// countingFS counts what is written to files.
type countingFS struct {
	storage.FS
	written atomic.Int64
}

type countingFile struct {
	vfs.File
	fs *countingFS
}

func (c *countingFS) count(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return countingFile{f, c}, nil
}

func (c *countingFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return c.count(c.FS.Create(name, category))
}

func (c *countingFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return c.count(c.FS.OpenReadWrite(name, category, opts...))
}

func (c *countingFS) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return c.count(c.FS.ReuseForWrite(from, to, category))
}

func (f countingFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.fs.written.Add(int64(n))
	return n, err
}

func (f countingFile) WriteAt(p []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(p, at)
	f.fs.written.Add(int64(n))
	return n, err
}
