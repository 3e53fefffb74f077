package metastore

import (
	"time"

	"github.com/stelelog/stele/raftlog"
)

// Member is a node of the cluster.
type Member struct {
	Node    raftlog.NodeID
	Name    string
	Nonce   raftlog.Nonce
	Replica raftlog.ReplicaID // of the metadata group
	Addr    string
	// Liveness is what changes while the member lives. A genesis has none of it.
	Liveness Liveness
}

// Stamp is a moment, in milliseconds since 1970, by the clock of the leader that
// proposed it: the same value on all nodes. 0 is none. Stamps are compared, to
// tell that something came after something else; durations are not taken from
// them, as clocks jump.
type Stamp uint64

// Time returns the moment.
func (s Stamp) Time() time.Time { return time.UnixMilli(int64(s)) }

// Liveness is what the cluster knows of a member's life. The zero value is that
// of a member of the genesis that was not heard yet.
type Liveness struct {
	// Stamp of the last heartbeat, or of the admission. It rises with each.
	Stamp Stamp
	// Newest command that the member applies, as it announced last; 0: it did
	// not yet.
	Newest CommandType
	// Dead: it was silent for too long. It stays a member and keeps what it
	// holds; its next heartbeat ends it.
	Dead bool
	// Observer: it never asks for a vote.
	Observer bool
	// Departure is how far it is on its way out.
	Departure Departure
	// Replaces is the older life of the same name in whose place it was
	// admitted; 0: none. That one stays a member until it is removed.
	Replaces raftlog.NodeID
}

// Draining reports whether the member is on its way out: it gets no replicas.
func (l Liveness) Draining() bool { return l.Departure != Stays }

// Departure is how far a member is on its way out of the cluster.
type Departure uint8

const (
	// Stays: it is not leaving.
	Stays Departure = 0
	// Drains: what it holds is moved off; that can be taken back.
	Drains Departure = 1
	// DrainsForced: as Drains, and a person said that limits do not count.
	DrainsForced Departure = 2
	// Leaves: it is about to be taken out of the configuration of the metadata
	// group. It cannot be taken back: whether a change of the configuration that
	// was proposed comes about nobody knows, and a replica that is out of a
	// group never returns to it under its id.
	Leaves Departure = 3
)

func (d Departure) String() string {
	switch d {
	case Stays:
		return "stays"
	case Drains:
		return "drains"
	case DrainsForced:
		return "drains, forced"
	case Leaves:
		return "leaves"
	}
	return "invalid"
}

// Tombstone is what remains of a life that was removed, or never let in.
type Tombstone struct {
	Node    raftlog.NodeID // 0 if Refused
	Nonce   raftlog.Nonce
	Name    string // "" if Refused
	Refused bool   // it was never a member, and never will be
}

// Limits of what members say of themselves.
const (
	maxMemberName = 255
	maxAddr       = 261
	minBeatBytes  = 1 + 16 + 1 + 1
)

// maxBatch is how many members one command can speak of.
const maxBatch = 1000

const minMemberBytes = 1 + 1 + 16 + 1 + 1

func appendMember(b []byte, m Member) []byte {
	b = appendUint(appendUint(b, uint64(m.Node)), uint64(m.Replica))
	b = append(b, m.Nonce[:]...)
	return appendString(appendString(b, m.Name), m.Addr)
}

func (d *decoder) member() (m Member) {
	m.Node = raftlog.NodeID(d.uint())
	m.Replica = raftlog.ReplicaID(d.uint())
	m.Nonce = d.id16()
	m.Name = d.string(maxMemberName)
	m.Addr = d.string(maxAddr)
	return m
}

func encodeMember(m Member) []byte { return appendMember([]byte{recordVersion}, m) }

func (d *decoder) memberRecord() Member {
	d.version(recordVersion)
	return d.member()
}

// Flags of a liveness record.
const (
	flagDead     = 1
	flagObserver = 2
)

func appendLiveness(b []byte, l Liveness) []byte {
	var flags byte
	if l.Dead {
		flags |= flagDead
	}
	if l.Observer {
		flags |= flagObserver
	}
	b = append(b, recordVersion, flags, byte(l.Departure))
	return appendUint(appendUint(appendUint(b, uint64(l.Stamp)), uint64(l.Newest)), uint64(l.Replaces))
}

func (d *decoder) liveness() Liveness {
	d.version(recordVersion)
	flags := d.byte()
	if flags > flagDead|flagObserver {
		d.fail("liveness with flags %#x", flags)
	}
	return Liveness{
		Dead: flags&flagDead != 0, Observer: flags&flagObserver != 0, Departure: d.departure(),
		Stamp: Stamp(d.uint()), Newest: d.commandType(), Replaces: raftlog.NodeID(d.uint()),
	}
}

func (d *decoder) departure() Departure {
	v := Departure(d.byte())
	if v > Leaves {
		d.fail("departure %d", v)
	}
	return v
}

func (d *decoder) commandType() CommandType { return CommandType(d.uintMax(1<<16 - 1)) }

// removal is the record of a node that was removed.
type removal struct {
	Nonce raftlog.Nonce
	Name  string
}

func (r removal) encode() []byte {
	return appendString(append([]byte{recordVersion}, r.Nonce[:]...), r.Name)
}

func (d *decoder) removal() removal {
	d.version(recordVersion)
	return removal{d.id16(), d.string(maxMemberName)}
}

// encodeOut is the record of a nonce that may not come in any more.
func encodeOut(node raftlog.NodeID) []byte { return appendUint([]byte{recordVersion}, uint64(node)) }

func (d *decoder) out() raftlog.NodeID {
	d.version(recordVersion)
	return raftlog.NodeID(d.uint())
}

func keyNonce(table byte, n raftlog.Nonce) []byte { return append([]byte{table}, n[:]...) }
