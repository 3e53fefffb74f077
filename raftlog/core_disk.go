package raftlog

import "errors"

// DiskState is what a node's disk is good for at the moment, as the driver of
// its cores sees it.
type DiskState uint8

const (
	// DiskGood is a disk that answers and has room.
	DiskGood DiskState = iota
	// DiskFull is a disk whose reserve is touched: it takes what keeps the group
	// alive, and should not take more. The replica hands leadership to one that
	// has room, if there is any, and is no target of a hand-over; it leads if no
	// other does.
	DiskFull
	// DiskDamaged is a disk that does not have what was written to it of this group's
	// log. What the replica votes and acknowledges rests on other bytes, so it goes on
	// as with a full one: for others have all to show.
	DiskDamaged
	// DiskStalled is a disk that has not answered a write for long. Nothing that
	// this replica says of its log can leave it, so it must not lead: a leader
	// hands over, or falls silent; any other replica does not campaign, and wins
	// no election.
	DiskStalled
)

// ErrDiskStalled refuses proposals of a leader whose disk does not answer, and
// ends those that it accepted before, once another replica leads. It comes as
// Retry or, for what is in the log, as Unknown.
var ErrDiskStalled = errors.New("raftlog: the disk of the leader does not answer")

// SetDisk tells what the disk is good for. It takes effect at once.
func (c *Core) SetDisk(s DiskState) {
	c.disk, c.dirty = s, true
	c.yielding.muted = c.yielding.muted && (s == DiskStalled || c.yielding.resigned)
	c.yield()
}
