package raftlog

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/storage"
	"go.uber.org/zap"
)

// Sender carries frames to other nodes. It is called by the loop of the host:
// it must not block, it may lose frames, and it owns them. It may deliver
// late, twice and out of order.
type Sender interface {
	// Send sends a frame of a class: ClassControl, ClassAppend or ClassBulk.
	Send(to NodeID, class uint8, frame []byte)
}

// Config configures a Host. The zero value of a field means its default.
type Config struct {
	// Node is this node. Required.
	Node NodeID
	// Store is the node's directory; the host is the only one to write its
	// journal from Open until Close or Abort returned. It does not close it.
	// Required.
	Store *storage.Store
	// Sender carries frames to other nodes. Required.
	Sender Sender
	// Clock is the source of ticks. Default: the machine's.
	Clock clock.Clock
	// Logger gets what a person should know. Default: none.
	Logger *zap.Logger
	// Rand makes numbers that must not repeat across restarts. Default: the
	// system's random source.
	Rand func() uint64
	// StepHook sees the effects of every look at a group's core, and may look
	// at the core itself, beside them. It is called by the loop: it must not
	// block, keep nothing and change nothing. Default: none.
	StepHook func(*Core, *Effects)

	// Removed says of a replica that it was taken out of its group for good, by
	// somebody who knows: ids are never used again, so what is true once stays
	// true, however little the caller knows otherwise. It is asked of replicas that
	// speak up and are in no configuration known here, about once a second of
	// each, and a true answer is passed on to the replica, which then takes no
	// part any more, if it is of the metadata's group or its own node's answer is the same. It is called by the loop: it must not block. Default: no
	// replica was.
	Removed func(GroupID, ReplicaID) bool

	// OnDisk is told when Host.Stalled or what SetDiskFull said changed. It is
	// called by the loop: it must not block, and may not wait for the host.
	// Default: none.
	OnDisk func()

	// StallTimeout is how long a write and sync of the journal may take before
	// the disk counts as stalled: the node's leaderships are then handed over,
	// and it takes no new ones until the disk answers. 100 ms to 1 h; longer
	// than the slowest sync of a disk that is well. Default 2 s.
	StallTimeout time.Duration
	// Tick is the unit of raft's time, 1 ms to 10 s. Default 50 ms.
	Tick time.Duration
	// ElectionTicks is how long a follower waits for its leader; the real
	// time-out is drawn from [ElectionTicks, 2*ElectionTicks). More than
	// HeartbeatTicks. Default 10.
	ElectionTicks int
	// HeartbeatTicks is how often a leader sends heartbeats. Default 2.
	HeartbeatTicks int

	// MaxUncommittedBytes bounds the proposals of one group that are not
	// applied yet; beyond it they are refused with ErrOverloaded. One proposal
	// of any size is accepted when nothing waits. At least 1 KiB. Default 8 MiB.
	MaxUncommittedBytes int64
	// MaxUncommittedBytesPerNode is the same for all groups of the host
	// together. At least MaxUncommittedBytes. Default 32 MiB.
	MaxUncommittedBytesPerNode int64
	// MaxUnwrittenBytes bounds the entries of one group that the journal has
	// not written yet, or that are committed and the state machine has not
	// applied; beyond it appends of other nodes are dropped, and their leader
	// sends them again. One of any size is taken when nothing waits. At least
	// 1 KiB. Default 16 MiB.
	MaxUnwrittenBytes int64
	// MaxUnwrittenBytesPerNode bounds both of all groups of the host, each for
	// itself. A group that has applied everything is not held up by others that
	// have not. At least MaxUnwrittenBytes. Default 128 MiB.
	MaxUnwrittenBytesPerNode int64
	// MaxMessageBytes bounds the entries of one message; a larger entry
	// travels alone. At least 1 KiB. Default 512 KiB.
	MaxMessageBytes int64
	// MaxInflightBytes bounds what a leader sends to one follower of a group
	// ahead of its acknowledgement. At least MaxMessageBytes. Default 8 MiB.
	MaxInflightBytes int64
	// MaxApplyBytes bounds the committed entries of one group that wait to be
	// applied in memory. At least 1 KiB. Default 4 MiB.
	MaxApplyBytes int64
	// KeepBytes is how many bytes of applied entries each group keeps in memory
	// for followers that are a bit behind. At least 1 KiB. Default 64 KiB.
	KeepBytes int64
	// MaxFrameBytes bounds a frame; a larger message travels alone. At least
	// 1 KiB. Default 1 MiB.
	MaxFrameBytes int
}

func (c Config) withDefaults() Config {
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Rand == nil {
		c.Rand = systemRand
	}
	setDefault(&c.Tick, 50*time.Millisecond)
	setDefault(&c.StallTimeout, 2*time.Second)
	setDefault(&c.ElectionTicks, 10)
	setDefault(&c.HeartbeatTicks, 2)
	setDefault(&c.MaxUncommittedBytes, 8<<20)
	setDefault(&c.MaxUncommittedBytesPerNode, max(32<<20, c.MaxUncommittedBytes))
	setDefault(&c.MaxUnwrittenBytes, 16<<20)
	setDefault(&c.MaxUnwrittenBytesPerNode, max(128<<20, c.MaxUnwrittenBytes))
	setDefault(&c.MaxMessageBytes, 512<<10)
	setDefault(&c.MaxInflightBytes, max(8<<20, c.MaxMessageBytes))
	setDefault(&c.MaxApplyBytes, 4<<20)
	setDefault(&c.KeepBytes, 64<<10)
	setDefault(&c.MaxFrameBytes, 1<<20)
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) validate() error {
	switch {
	case c.Node == 0:
		return &ConfigError{"Node", c.Node, "the id of this node"}
	case c.Store == nil:
		return &ConfigError{"Store", nil, "an open store"}
	case c.Sender == nil:
		return &ConfigError{"Sender", nil, "a sender"}
	case c.Tick < time.Millisecond || c.Tick > 10*time.Second:
		return &ConfigError{"Tick", c.Tick, "1 ms to 10 s"}
	case c.StallTimeout < 100*time.Millisecond || c.StallTimeout > time.Hour:
		return &ConfigError{"StallTimeout", c.StallTimeout, "100 ms to 1 h"}
	case c.HeartbeatTicks < 1:
		return &ConfigError{"HeartbeatTicks", c.HeartbeatTicks, "at least 1"}
	case c.ElectionTicks <= c.HeartbeatTicks:
		return &ConfigError{"ElectionTicks", c.ElectionTicks, "more than HeartbeatTicks"}
	case c.MaxUncommittedBytesPerNode < c.MaxUncommittedBytes:
		return &ConfigError{"MaxUncommittedBytesPerNode", c.MaxUncommittedBytesPerNode, "at least MaxUncommittedBytes"}
	case c.MaxUnwrittenBytesPerNode < c.MaxUnwrittenBytes:
		return &ConfigError{"MaxUnwrittenBytesPerNode", c.MaxUnwrittenBytesPerNode, "at least MaxUnwrittenBytes"}
	case c.MaxInflightBytes < c.MaxMessageBytes:
		return &ConfigError{"MaxInflightBytes", c.MaxInflightBytes, "at least MaxMessageBytes"}
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"MaxUncommittedBytes", c.MaxUncommittedBytes},
		{"MaxUnwrittenBytes", c.MaxUnwrittenBytes},
		{"MaxMessageBytes", c.MaxMessageBytes},
		{"MaxApplyBytes", c.MaxApplyBytes},
		{"KeepBytes", c.KeepBytes},
		{"MaxFrameBytes", int64(c.MaxFrameBytes)},
	} {
		if f.value < 1<<10 {
			return &ConfigError{f.name, f.value, "at least 1024 bytes"}
		}
	}
	return nil
}

// coreOptions are the bounds that a group's core keeps itself.
func (c *Config) coreOptions() CoreOptions {
	return CoreOptions{
		ElectionTicks: c.ElectionTicks, HeartbeatTicks: c.HeartbeatTicks,
		MaxMessageBytes: int(c.MaxMessageBytes), MaxInflightBytes: int(c.MaxInflightBytes),
		MaxUncommittedBytes: int(c.MaxUncommittedBytes), MaxApplyBytes: int(c.MaxApplyBytes), KeepBytes: int(c.KeepBytes),
	}
}

func systemRand() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return binary.LittleEndian.Uint64(b[:])
}
