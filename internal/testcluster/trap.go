package testcluster

import (
	"sync"
	"time"

	"github.com/stelelog/stele/internal/simfs"
)

// Trap ends a member at a moment that a goroutine of the nodes comes by, such as a
// hook of its file system or Options.Applied.
type Trap struct {
	c    *Cluster
	i    int
	how  simfs.Survival
	once sync.Once
	done chan struct{}
	disk *simfs.FS
}

// Trap sets one for member i, which may not have been started yet. Whoever sets it
// calls Await, and starts the member no other time before that.
func (c *Cluster) Trap(i int, how simfs.Survival) *Trap {
	return &Trap{c: c, i: i, how: how, done: make(chan struct{})}
}

// Strike is the moment whose disk survives: from then on nobody hears of the member.
// The first call counts. It may be called by any goroutine, and returns at once.
func (t *Trap) Strike() {
	t.once.Do(func() {
		t.c.takeDown(t.i)
		t.disk = t.c.members[t.i].FS.Image(t.how)
		close(t.done)
	})
}

// Await waits for Strike, for the longest of d, strikes then, and ends the process. It
// reports whether the moment came by itself.
func (t *Trap) Await(d time.Duration) (came bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
	}
	if came = t.Struck(); !came {
		t.Strike()
	}
	t.c.members[t.i].FS.SetHook(nil)
	t.c.end(t.i, t.disk)
	return came
}

// Struck reports whether the moment has come.
func (t *Trap) Struck() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}
