package topic

import (
	"cmp"
	"slices"
	"time"

	"github.com/stelelog/stele/storage"
)

// The first replica of a partition is its preferred leader: places are chosen so
// that each node is that of about as many partitions as the others. After a node
// was away others lead in its place, often one of them nearly everything. So
// whoever leads in another's place hands the leadership back, when that one is
// there again for good, a few at a time.
const (
	handBackEvery  = 2 * time.Second
	handBackAtOnce = 4 // by one node: so a node of 1,000 partitions has them back after some minutes

	// ledFor is how long this node has to lead before: whoever just lost or got
	// the leadership may still be finding its place.
	ledFor = 15 * time.Second
	// handBackAgain is how long a partition is left alone after the other one did
	// not take over.
	handBackAgain = time.Minute
	// presentTicks is how recently the other one has to have answered and to have
	// had everything, in ticks.
	presentTicks = 20
)

// ledPartition is a partition that this node leads.
type ledPartition struct {
	address
	led           time.Duration // by this node, without a break
	here          bool          // this node is the preferred leader
	preferred     storage.ReplicaID
	stays         bool // the preferred leader's node is neither dead nor to leave
	voter         bool // it votes
	sinceContact  int  // ticks; negative: never
	sinceCaughtUp int
	busy          bool          // a move, a change of configuration or a transfer is under way, or the topic ends
	failed        time.Duration // since the last attempt that failed; 0: none
}

// handsBack reports whether the leadership belongs to another one that can take
// it.
func (p *ledPartition) handsBack() bool {
	present := func(ticks int) bool { return ticks >= 0 && ticks <= presentTicks }
	return !p.here && p.stays && p.voter && !p.busy && p.led >= ledFor &&
		present(p.sinceContact) && present(p.sinceCaughtUp) && (p.failed == 0 || p.failed >= handBackAgain)
}

// handBacks decides which leaderships this node hands back now: those that it
// has had longest, no more than limit.
func handBacks(led []ledPartition, limit int) []ledPartition {
	led = slices.DeleteFunc(slices.Clone(led), func(p ledPartition) bool { return !p.handsBack() })
	slices.SortFunc(led, func(a, b ledPartition) int {
		return cmp.Or(cmp.Compare(b.led, a.led),
			slices.Compare(a.incarnation[:], b.incarnation[:]), cmp.Compare(a.partition, b.partition))
	})
	return led[:min(len(led), limit)]
}
