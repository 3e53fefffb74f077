package metastore

import (
	"strconv"

	"github.com/stelelog/stele/raftlog"
)

// ProducerID names a producer for all time. A named producer keeps its id and
// each of its starts gets a higher epoch.
type ProducerID uint64

func (p ProducerID) String() string { return "p" + strconv.FormatUint(uint64(p), 10) }

// counter names one of the sequences that ids come from. The numbers are
// keys on disk.
type counter byte

const (
	counterNode     counter = 'n'
	counterGroup    counter = 'g'
	counterReplica  counter = 'r'
	counterProducer counter = 'p'
)

// Ids carry the recovery epoch in their top bits: a forced recovery may rewind
// a counter, and still no id of the lost suffix comes back.
const (
	counterBits = 48
	maxCounter  = 1<<counterBits - 1
	maxEpoch    = 1<<(64-counterBits) - 1
)

// makeID joins a recovery epoch and a counter's value.
func makeID(epoch, n uint64) uint64 { return epoch<<counterBits | n }

// splitID is makeID's inverse.
func splitID(id uint64) (epoch, n uint64) { return id >> counterBits, id & maxCounter }

// firstGroup is the first group id that a topic's partition can get: the
// groups before it have fixed meanings.
const firstGroup = uint64(raftlog.MetadataGroup) + 1
