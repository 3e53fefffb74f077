package topic

import (
	"fmt"
	"slices"
	"time"

	"github.com/stelelog/stele/storage"
)

// Retention removes the front of a partition's log when it is older than the
// topic's Retention.Age or more than its Retention.Bytes.
//
//	what goes      the leader decides, from its own log: whole segments that
//	               nothing is written to any more, oldest first (keptBytes, passed)
//	what is said   an entry of the partition's group, a log start: where the first
//	               segment that stays begins (index, term and offset)
//	who removes    every replica, the leader too, when it applies that entry
//
// # Why all replicas remove the same
//
//  1. Where segments begin is a function of the entries and of the segment size,
//     which is one for a cluster. What begins a segment at the leader does so at
//     every replica that has applied as much, and the log start lies behind it.
//  2. The entry says all: neither a clock nor a size is looked at where it is
//     applied, and a damaged segment goes like any other. A later leader, or a
//     replica that applies the entry again after a crash, does the same again.
//  3. Starts only rise. Of two leaders that decided side by side the lower start
//     changes nothing, on no replica.
//  4. A replica that is filled gets the log of its sender, from that one's start
//     on. If it began with what another sender had, of a lower start, it lets that
//     go before the copy becomes its log.
//
// # Why nothing is missing after a crash
//
//  1. The producers' memory, the next offset and the seal are made again from the
//     newest side file and the entries behind it. A log start has them written
//     aside as of itself, so that nothing below it is ever needed for that, and it
//     names nothing but entries below it.
//  2. Applying a log start changes the log's position, its start and its side file
//     together. No file goes then.
//  3. A checkpoint makes side file and log durable, then one copy of the table that
//     names the position. Only when both copies name a start that is as high does a
//     segment below it go. Whichever copy a crash leaves finds its segments and
//     its side file.
//  4. If the crash left a position before the log start, the entry is in the journal
//     and is applied again, to a log that still has all of its segments.
//  5. Raft needs entries from the start on. The start is below what is applied, so
//     below the commit index. A follower that lacks what the leader has removed is
//     filled anew, as one is that a move brings.
//
// An idle node writes no checkpoints. So where bytes have waited for a minute the
// journal is asked to begin a new generation, twice at most.
//
// # What readers see
//
// A reader that asks for a removed offset gets an *OutOfRangeError with the
// start. One that has a segment open goes on reading what it asked for: a file's
// bytes stay until the last one has closed it. FromStart begins at the start, and
// FromTime there at the earliest. A replica that has not applied a log start yet
// may show what others have removed.
//
// # Age, and clocks
//
// A segment's age is that of its last record, by its append stamp: the clock of the
// leader that appended it, which never steps back along a partition. (What
// producers say, the timestamps of records, is not asked: one record of next year
// would keep everything before it, and a producer whose clock stands at 1970
// would lose what it has just written.) The records of a segment are therefore kept
// for at least Age, and until nothing is written to their segment any more: a
// partition that is written slowly keeps up to one segment of older ones.
//
// Removing by age waits while the leader's clock is more than a minute off the
// median of those of the nodes that hold the partition, its own among them, or
// fewer than a majority of them say what theirs is. They are asked (topic.clock)
// when something is due, once a minute at most. What was stamped by a leader
// whose clock was behind then counts as older than it is.

const (
	// retainEvery is how often leaders look for what is due.
	retainEvery = 10 * time.Second
	// maxClockOffset is how far a leader's clock may be off the others' median.
	maxClockOffset = time.Minute
	// clockGood is how long a node's word about its clock is taken for.
	clockGood = time.Minute
	// freeAfter is how long files that are not needed any more wait for the journal's
	// own pace.
	freeAfter = time.Minute
	// askAtMost is how often the journal is asked for the same bytes. Twice is
	// enough, unless a checkpoint fails.
	askAtMost = 4
)

// keptBytes returns how many of the first segments go so that at least keep bytes
// stay; 0 keeps all. The last one never goes.
func keptBytes(segments []storage.SegmentInfo, keep int64) (n int) {
	if keep == 0 {
		return 0
	}
	var total int64
	for i := range segments {
		total += segments[i].Bytes
	}
	for n+1 < len(segments) && total-segments[n].Bytes >= keep {
		total -= segments[n].Bytes
		n++
	}
	return n
}

// passed returns how many of the first segments hold no record that was appended
// at since or later. stampOf returns the append stamp of a segment's last record,
// false if that is not known; a segment without records is as old as those around
// it. The last one never goes.
func passed(segments []storage.SegmentInfo, since int64, stampOf func(i int) (stamp int64, known bool)) (n int) {
	for i := range max(len(segments)-1, 0) {
		if segments[i].Offset == segments[i+1].Offset {
			continue // if a later one goes, this one does
		}
		stamp, known := stampOf(i)
		if !known || stamp >= since {
			break
		}
		n = i + 1
	}
	return n
}

// clockDoubt returns why a node's clock is not to be relied on; "": it is. offsets
// are how far those of other nodes are ahead, as far as known, of so many nodes
// that hold the partition with this one. Of an even number, both of the middle
// count.
func clockDoubt(offsets []time.Duration, nodes int) string {
	if known := len(offsets) + 1; 2*known <= nodes {
		return fmt.Sprintf("the clocks of %d of %d nodes are known", known, nodes)
	}
	all := slices.Sorted(slices.Values(append(slices.Clone(offsets), 0)))
	for _, middle := range []time.Duration{all[(len(all)-1)/2], all[len(all)/2]} {
		if middle.Abs() > maxClockOffset {
			return fmt.Sprintf("this node's clock is %v off that of the others", middle.Abs().Round(time.Second))
		}
	}
	return ""
}
