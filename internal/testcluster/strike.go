package testcluster

import (
	"sync"
	"time"

	"github.com/stelelog/stele/internal/simfs"
)

// PowerLossAllAt arms a power loss of all members just before the n-th change
// from now of member i's file system, and returns a function that waits for it,
// for the longest of d, and ends the processes. It reports whether the moment
// came; if not, all lose power at the end of d.
func (c *Cluster) PowerLossAllAt(i int, n int64) (await func(d time.Duration) bool) {
	return c.powerLossAt(i, n, func() (all []int) {
		for j, m := range c.members {
			if m.node != nil {
				all = append(all, j)
			}
		}
		return all
	})
}

// PowerLossAt is PowerLossAllAt for member i alone, which may not have been started
// yet: the moment may come while it opens.
func (c *Cluster) PowerLossAt(i int, n int64) (await func(d time.Duration) bool) {
	return c.powerLossAt(i, n, func() []int { return []int{i} })
}

func (c *Cluster) powerLossAt(i int, n int64, whom func() []int) (await func(d time.Duration) bool) {
	var once sync.Once
	struck := make(chan struct{})
	disks := map[int]*simfs.FS{}
	fs := c.members[i].FS
	at := fs.Ops() + n
	strike := func() {
		all := whom()
		for _, j := range all {
			c.takeDown(j)
		}
		for _, j := range all {
			disks[j] = c.members[j].FS.Image(simfs.Random)
		}
	}
	fs.SetHook(func(op simfs.Op) error {
		if op.Seq >= at {
			once.Do(func() { strike(); close(struck) })
		}
		return nil
	})
	return func(d time.Duration) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		came := true
		select {
		case <-struck:
		case <-timer.C:
			once.Do(func() { came = false; strike(); close(struck) })
			<-struck
		}
		fs.SetHook(nil)
		for j, disk := range disks {
			c.end(j, disk)
		}
		return came
	}
}
