package testcluster

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/stelelog/stele/internal/clock"
)

// wall is the clock of one machine: its time of day is off by so much, and may
// jump; what measures how long things take does not.
type wall struct {
	clock.Clock
	off   *atomic.Int64 // nanoseconds
	begun time.Time
}

func (w wall) Now() time.Time {
	now := w.Clock.Now()
	return withMonotonic(now.Add(time.Duration(w.off.Load())), now.Sub(w.begun))
}

// withMonotonic returns the moment t with a monotonic reading, which times in a
// bubble do not have. Package time cannot be asked for one, so this writes what it
// keeps: a flag, seconds since 1885 and nanoseconds in one word, and the reading.
// TestClocksJump would not find its times as it set them, were it to change that.
func withMonotonic(t time.Time, reading time.Duration) time.Time {
	const flag, nanoBits = 1 << 63, 30
	first := time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC)
	raw := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t))
	raw.wall, raw.ext = flag|uint64(t.Unix()-first.Unix())<<nanoBits|uint64(t.Nanosecond()), int64(reading)+1
	return t
}

// Jump sets the time of day of member i, which runs or not, forward or back.
func (c *Cluster) Jump(i int, by time.Duration) { c.members[i].off.Add(int64(by)) }

// Clock is that of member i.
func (c *Cluster) Clock(i int) clock.Clock {
	return wall{clock.System(), &c.members[i].off, c.begun}
}
