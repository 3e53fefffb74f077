package metastore

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/raftlog"
)

// Caller reaches the stores of other nodes: what Call sends arrives at their
// HandleCall. Errors carry an outcome; one without counts as unknown.
type Caller interface {
	Call(ctx context.Context, to raftlog.NodeID, method string, request []byte) ([]byte, error)
}

// Config says what a Store is made of. The zero value of a field means its
// default; Host, FS, Dir, Node, Replica, Genesis and Caller have none.
type Config struct {
	// Host runs the raft group. It must outlive neither Close nor a failure:
	// close it first.
	Host *raftlog.Host
	// FS and Dir are where the database lives: a directory of its own, which is
	// made if it is missing. The directory above it exists.
	FS  vfs.FS
	Dir string
	// Node is this node, and Replica its replica of the metadata group.
	Node    raftlog.NodeID
	Replica raftlog.ReplicaID
	// Genesis is what this node adopted, equal on all nodes that it lists. Without
	// Members the node joined later: it begins empty, in a group that is open to be
	// told by its leader what to do, and gets the state through Streamer.
	Genesis Genesis
	// Caller reaches the other nodes.
	Caller Caller
	// Streamer reaches them too, for a state that comes as a whole. Required of a
	// node that joined. Nil: a node that falls behind the start of the leader's log
	// stays there.
	Streamer Streamer

	// Clock is what timeouts are measured with. Default: the machine's.
	Clock clock.Clock
	// Rand is where incarnations come from; it must not fail. Default:
	// crypto/rand.
	Rand io.Reader
	// Logger; default: none.
	Logger *zap.Logger
	// Newest is the newest command that this node applies: a lower one than this
	// build's makes the node one of an older release. Default: NewestCommand.
	Newest CommandType
	// Behind names the members that hold the cluster's version back, as far as it is
	// known, for errors. It must not block. Default: nobody is named.
	Behind func() []string

	// ContactTimeout is how long ago the leader may have been heard when this
	// node counts as caught up: 100 ms to 1 min, default 5 s.
	ContactTimeout time.Duration
	// BarrierTimeout bounds a linearizable read: 100 ms to 1 min, default 5 s.
	BarrierTimeout time.Duration
	// ProposeTimeout bounds a change, all retries together, beside the caller's
	// own context: 100 ms to 10 min, default 10 s.
	ProposeTimeout time.Duration
	// AttemptTimeout is how long another node that leads is waited for before a
	// change that may be made twice is sent again, to whoever leads then: 10 ms to
	// 10 min, default 2 s. A new leader ends the wait, too.
	AttemptTimeout time.Duration
	// SnapshotRate bounds how fast this node gives its state to others, all
	// together: 64 KiB to 16 GiB a second, default 32 MiB.
	SnapshotRate int64
	// TrimLogBytes is how many bytes the log of group 1 may hold of what the
	// database has durably; beyond it whole segments go, as long as a quarter of
	// it stays for followers that are a bit behind; others get the state. Without
	// Streamer nothing goes, nor while the cluster has version 1, whose builds could not
	// take the state. 64 KiB to 1 TiB, default 64 MiB.
	TrimLogBytes int64
	// StateHashInterval is how often the states of all replicas are compared, where
	// the metadata is led: 1 s to 24 h, default 10 min. They also are when a replica
	// asks for a snapshot.
	StateHashInterval time.Duration
	// OnStateSplit is told when states differ and no majority has the same, where the
	// metadata is led; at each comparison. It must not block. Default: nobody is told.
	OnStateSplit func(StateSplit)
}

func (c Config) withDefaults() Config {
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.Newest = cmp.Or(c.Newest, NewestCommand)
	c.ContactTimeout = cmp.Or(c.ContactTimeout, 5*time.Second)
	c.BarrierTimeout = cmp.Or(c.BarrierTimeout, 5*time.Second)
	c.ProposeTimeout = cmp.Or(c.ProposeTimeout, 10*time.Second)
	c.AttemptTimeout = cmp.Or(c.AttemptTimeout, 2*time.Second)
	c.SnapshotRate = cmp.Or(c.SnapshotRate, 32<<20)
	c.TrimLogBytes = cmp.Or(c.TrimLogBytes, 64<<20)
	c.StateHashInterval = cmp.Or(c.StateHashInterval, 10*time.Minute)
	return c
}

func (c Config) validate() error {
	switch {
	case c.FS == nil:
		return invalid("Config.FS", "", "a file system")
	case c.Dir == "":
		return invalid("Config.Dir", c.Dir, "a directory")
	case c.Node == 0:
		return invalid("Config.Node", c.Node, "not 0")
	case c.Replica == 0:
		return invalid("Config.Replica", c.Replica, "not 0")
	case c.Caller == nil:
		return invalid("Config.Caller", "", "not nil")
	case c.Newest < typeCreateLimited || c.Newest > NewestCommand:
		return invalid("Config.Newest", c.Newest, "%d to %d", typeCreateLimited, NewestCommand)
	case c.Streamer == nil && c.Genesis.joined():
		return invalid("Config.Streamer", "", "not nil on a node that joined")
	case c.SnapshotRate < 64<<10 || c.SnapshotRate > 16<<30:
		return invalid("Config.SnapshotRate", c.SnapshotRate, "%d to %d bytes a second", 64<<10, int64(16)<<30)
	case c.TrimLogBytes < 64<<10 || c.TrimLogBytes > 1<<40:
		return invalid("Config.TrimLogBytes", c.TrimLogBytes, "%d to %d", 64<<10, int64(1)<<40)
	}
	for _, t := range []struct {
		field  string
		value  time.Duration
		lo, hi time.Duration
	}{
		{"ContactTimeout", c.ContactTimeout, 100 * time.Millisecond, time.Minute},
		{"BarrierTimeout", c.BarrierTimeout, 100 * time.Millisecond, time.Minute},
		{"ProposeTimeout", c.ProposeTimeout, 100 * time.Millisecond, 10 * time.Minute},
		{"AttemptTimeout", c.AttemptTimeout, 10 * time.Millisecond, 10 * time.Minute},
		{"StateHashInterval", c.StateHashInterval, time.Second, 24 * time.Hour},
	} {
		if t.value < t.lo || t.value > t.hi {
			return invalid("Config."+t.field, t.value.String(), "%v to %v", t.lo, t.hi)
		}
	}
	for _, m := range c.Genesis.Members {
		if (m.Node == c.Node) != (m.Replica == c.Replica) {
			return invalid("Config.Replica", c.Replica, "%v, as the genesis says of %v", m.Replica, m.Node)
		}
	}
	if c.Genesis.joined() {
		return c.Genesis.checkIDs()
	}
	return c.Genesis.check()
}
