package stele

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
)

// DiskStatus is what a node knows of its disk.
type DiskStatus struct {
	Free    int64 // bytes that the file system would give; 0 before it was asked
	Ballast int64 // bytes that the node holds in its reserve and can give back
	Reserve int64 // Config.DiskReserve in bytes; 0: none
	// Full: Free and Ballast together are below Reserve. Producers and new
	// topics are refused here with *DiskFullError; reads and elections go on,
	// and so does replication down to a quarter of the reserve. It ends by
	// itself, an eighth above Reserve.
	Full bool
	// Stalled: for how long the journal's write and sync under way has not
	// returned; 0 if no longer than Config.DiskStallTimeout. The node leads
	// nothing meanwhile, and is not ready. It ends by itself.
	Stalled time.Duration
	// Err is why Free is not known any more; the last that was known stands.
	Err error
}

// left is what the node can still write.
func (d DiskStatus) left() int64 { return d.Free + d.Ballast }

// DiskFullError refuses records and topics, because less than a reserve of the
// disk of the leader is left. It is Retry.
type DiskFullError = raftlog.DiskFullError

// ErrDiskStalled: the disk of the leader does not answer. It is Retry, or
// Unknown for records that were in its log before.
var ErrDiskStalled = raftlog.ErrDiskStalled

const (
	// diskPoll is the time between two looks at the disk, diskPollSoon that
	// while there is little left, or ballast to be made.
	diskPoll     = time.Second
	diskPollSoon = 100 * time.Millisecond
)

// diskWatch looks at a node's disk. Its goroutine is watchDisk.
type diskWatch struct {
	full  chan struct{} // capacity 1: a write found no room
	space atomic.Pointer[storage.Space]
	err   atomic.Pointer[error]
}

func newDiskWatch() *diskWatch { return &diskWatch{full: make(chan struct{}, 1)} }

// noRoom is called when a write found no room in the file system.
func (d *diskWatch) noRoom() {
	select {
	case d.full <- struct{}{}:
	default:
	}
}

// status is what the last look saw, and what the host sees now.
func (n *Node) diskStatus() (s DiskStatus) {
	if sp := n.disk.space.Load(); sp != nil {
		s = DiskStatus{Free: sp.Free, Ballast: sp.Ballast, Reserve: sp.Reserve, Full: sp.Low}
	}
	if err := n.disk.err.Load(); err != nil {
		s.Err = *err
	}
	if p := n.net.parts.Load(); p != nil {
		s.Stalled = p.host.Stalled()
	}
	return s
}

// watchDisk is a goroutine: it keeps the ballast, and tells the host when the
// disk is full and when there is room again.
func (n *Node) watchDisk(ctx context.Context) {
	var told *raftlog.Host // who was told that the disk is full
	var last DiskStatus    // of what was told
	for ctx.Err() == nil {
		space, err := n.store.Space()
		n.noteSpace(space, err)
		s := n.diskStatus()
		if p := n.net.parts.Load(); p != nil && (p.host != told && s.Full || s.Full != last.Full || n.worthTelling(s, last)) {
			told, last = p.host, s
			p.host.SetDiskFull(fullError(s))
		}
		every := diskPoll
		if s.Full || s.left() < 4*s.Reserve || s.Ballast < s.Reserve/2-s.Reserve/8 {
			every = diskPollSoon
		}
		timer := clock.System().NewTimer(every)
		select {
		case <-ctx.Done():
		case <-n.disk.full:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// worthTelling: what is left of a full disk has changed by a bit of the reserve.
func (n *Node) worthTelling(s, last DiskStatus) bool {
	d := s.left() - last.left()
	return s.Full && (d > s.Reserve/32 || -d > s.Reserve/32)
}

func fullError(s DiskStatus) *DiskFullError {
	if !s.Full {
		return nil
	}
	return &DiskFullError{Left: s.left(), Reserve: s.Reserve}
}

// noteSpace keeps what a look at the disk saw, and logs what is new.
func (n *Node) noteSpace(space storage.Space, err error) {
	before, knew := n.disk.space.Load(), n.disk.err.Load()
	if err != nil {
		n.disk.err.Store(&err)
		if knew == nil && n.life.Err() == nil {
			n.log.Warn("cannot tell how full the disk is", zap.Error(err))
		}
		return
	}
	n.disk.err.Store(nil)
	n.disk.space.Store(&space)
	fields := []zap.Field{zap.Int64("free", space.Free), zap.Int64("ballast", space.Ballast), zap.Int64("reserve", space.Reserve)}
	switch wasLow := before != nil && before.Low; {
	case space.Low && !wasLow:
		n.log.Warn("the disk is full: producers are refused until there is room", fields...)
	case wasLow && !space.Low:
		n.log.Info("the disk has room again", fields...)
	default:
		return
	}
	n.noteChange()
}
