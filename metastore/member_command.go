package metastore

import (
	"fmt"

	"github.com/stelelog/stele/raftlog"
)

// Admission asks for a node to become a member.
type Admission struct {
	Name     string
	Nonce    raftlog.Nonce
	Addr     string
	Newest   CommandType // that it applies
	Observer bool
	// Replaces is the newest life of that name, which the leader judged to be
	// gone; 0: the name is free. Seen is its stamp that the judgement rests on.
	Replaces raftlog.NodeID
	Seen     Stamp
}

// admit makes a node a member. Where it goes on the way to a vote is not of its
// concern.
type admit struct {
	Admission
	Stamp Stamp
}

func (admit) kind() CommandType { return typeAdmit }

func (c admit) appendBody(b []byte) []byte {
	b = append(appendString(b, c.Name), c.Nonce[:]...)
	b = appendUint(appendString(b, c.Addr), uint64(c.Newest))
	b = appendUint(appendFlag(b, c.Observer), uint64(c.Stamp))
	return appendUint(appendUint(b, uint64(c.Replaces)), uint64(c.Seen))
}

func (d *decoder) admit() (c admit) {
	c.Name, c.Nonce, c.Addr = d.string(maxMemberName), d.id16(), d.string(maxAddr)
	c.Newest, c.Observer, c.Stamp = d.commandType(), d.flag(), Stamp(d.uint())
	c.Replaces, c.Seen = raftlog.NodeID(d.uint()), Stamp(d.uint())
	return c
}

func (c admit) check() error {
	return checkMember(Member{Name: c.Name, Nonce: c.Nonce, Addr: c.Addr})
}

// apply: a nonce is one life, and gets one node id however often it is proposed.
// A copy that comes late finds its member, or its tombstone, and changes
// neither.
func (c admit) apply(t *tx) (any, error) {
	if out, ok := t.out(c.Nonce); ok {
		return nil, t.refusalOf(out)
	}
	members := t.members()
	for _, m := range members {
		if m.Nonce == c.Nonce {
			return admitted(c, m)
		}
	}
	if needs := max(t.format().Newest, NewestOf(t.cluster().Version)); c.Newest < needs {
		return nil, &OlderReleaseError{c.Newest, needs}
	}
	if clashes(members, c.Name) {
		return nil, named(ErrNameTaken, c.Name)
	}
	holder := newestOfName(members, c.Name)
	if holder.Node != c.Replaces && holder.Node != 0 {
		return nil, named(ErrNameTaken, c.Name)
	}
	if holder.Node != 0 && holder.Liveness.Stamp != c.Seen {
		t.put(keyNonce(tableOut, c.Nonce), encodeOut(0))
		t.keep = true
		return nil, ErrNonceRefused
	}
	m := Member{
		Node: raftlog.NodeID(t.next(counterNode)), Replica: raftlog.ReplicaID(t.next(counterReplica)),
		Name: c.Name, Nonce: c.Nonce, Addr: c.Addr,
		Liveness: Liveness{Stamp: c.Stamp, Newest: c.Newest, Observer: c.Observer, Replaces: holder.Node},
	}
	t.put(keyNode(tableMember, m.Node), encodeMember(m))
	t.putLiveness(m)
	t.putLoad(m.Node, load{})
	t.changes = append(t.changes, change{members: true})
	return m, nil
}

// admitted answers an admission that was made before. The address is left as it
// is: this may be an old copy, and the member has moved since.
func admitted(c admit, m Member) (any, error) {
	if m.Name != c.Name {
		return nil, invalid("Admission.Name", c.Name, "%q, the name of this life", m.Name)
	}
	return m, nil
}

// clashes reports whether a member's name differs from this one only in the case
// of letters: hosts' files and people mix them up.
func clashes(members []Member, name string) bool {
	for _, m := range members {
		if m.Name != name && foldName(m.Name) == foldName(name) {
			return true
		}
	}
	return false
}

// newestOfName returns the newest life that has the name; node ids rise. The
// zero Member: nobody has it.
func newestOfName(members []Member, name string) (newest Member) {
	for _, m := range members {
		if m.Name == name && m.Node > newest.Node {
			newest = m
		}
	}
	return newest
}

// Heartbeat says that a member lives.
type Heartbeat struct {
	Node   raftlog.NodeID
	Nonce  raftlog.Nonce
	Newest CommandType // that it applies
}

type stampedHeartbeat struct {
	Heartbeat
	Stamp Stamp
}

// heartbeats is what a leader heard since it proposed the last ones. Its value
// is an error for each of them, nil for those of members.
type heartbeats []stampedHeartbeat

func (heartbeats) kind() CommandType { return typeHeartbeats }

func (c heartbeats) appendBody(b []byte) []byte {
	b = appendUint(b, uint64(len(c)))
	for _, h := range c {
		b = append(appendUint(b, uint64(h.Node)), h.Nonce[:]...)
		b = appendUint(appendUint(b, uint64(h.Stamp)), uint64(h.Newest))
	}
	return b
}

func (d *decoder) heartbeats() (c heartbeats) {
	for range d.count(minBeatBytes) {
		node, nonce := raftlog.NodeID(d.uint()), d.id16()
		stamp := Stamp(d.uint())
		c = append(c, stampedHeartbeat{Heartbeat{node, nonce, d.commandType()}, stamp})
	}
	return c
}

func (c heartbeats) check() error { return checkBatch("Heartbeats", len(c)) }

func checkBatch(field string, n int) error {
	if n < 1 || n > maxBatch {
		return invalid(field, n, "1 to %d", maxBatch)
	}
	return nil
}

// apply: a stamp rises with each heartbeat, also after one of a leader whose
// clock was ahead, so that what judged an earlier one is known to be stale.
func (c heartbeats) apply(t *tx) (any, error) {
	results := make([]error, len(c))
	for i, h := range c {
		m, err := t.life(h.Node, h.Nonce)
		if results[i] = err; err != nil {
			continue
		}
		t.changes = append(t.changes, change{members: true, quiet: !m.Liveness.Dead})
		m.Liveness.Stamp = max(h.Stamp, m.Liveness.Stamp+1)
		m.Liveness.Newest, m.Liveness.Dead = h.Newest, false
		t.putLiveness(m)
	}
	return results, nil
}

// DeadMark says that a member was silent for too long, judged by the heartbeat
// that was its last.
type DeadMark struct {
	Node   raftlog.NodeID
	Judged Stamp
}

// markDead marks members dead. Its value is an error for each of them.
type markDead []DeadMark

func (markDead) kind() CommandType { return typeMarkDead }

func (c markDead) appendBody(b []byte) []byte {
	b = appendUint(b, uint64(len(c)))
	for _, m := range c {
		b = appendUint(appendUint(b, uint64(m.Node)), uint64(m.Judged))
	}
	return b
}

func (d *decoder) markDead() (c markDead) {
	for range d.count(2) {
		c = append(c, DeadMark{raftlog.NodeID(d.uint()), Stamp(d.uint())})
	}
	return c
}

func (c markDead) check() error { return checkBatch("DeadMarks", len(c)) }

func (c markDead) apply(t *tx) (any, error) {
	results := make([]error, len(c))
	for i, mark := range c {
		m, ok := t.member(mark.Node)
		switch {
		case !ok:
			results[i] = t.noMember(mark.Node)
		case m.Liveness.Stamp != mark.Judged:
			results[i] = fmt.Errorf("%w: %v was heard since", ErrStale, mark.Node)
		case !m.Liveness.Dead:
			m.Liveness.Dead = true
			t.putLiveness(m)
			t.changes = append(t.changes, change{members: true})
		}
	}
	return results, nil
}

// setDeparture moves a member on its way out, or back.
type setDeparture struct {
	Node      raftlog.NodeID
	Nonce     raftlog.Nonce
	Departure Departure
}

func (setDeparture) kind() CommandType { return typeSetDeparture }

func (c setDeparture) appendBody(b []byte) []byte {
	return append(append(appendUint(b, uint64(c.Node)), c.Nonce[:]...), byte(c.Departure))
}

func (c setDeparture) check() error {
	if c.Departure > Leaves {
		return invalid("Departure", uint8(c.Departure), "%d to %d", Stays, Leaves)
	}
	return nil
}

func (c setDeparture) apply(t *tx) (any, error) {
	m, err := t.life(c.Node, c.Nonce)
	switch now := m.Liveness.Departure; {
	case err != nil:
		return nil, err
	case now == c.Departure:
		return nil, nil
	case now == Leaves:
		return nil, named(ErrMemberLeaving, m.Name)
	case c.Departure == Leaves && now == Stays:
		return nil, named(ErrNotDraining, m.Name)
	}
	m.Liveness.Departure = c.Departure
	t.putLiveness(m)
	t.changes = append(t.changes, change{members: true, departs: true})
	return nil, nil
}

// removeMember ends a life, for good.
type removeMember struct{ Node raftlog.NodeID }

func (removeMember) kind() CommandType            { return typeRemoveMember }
func (c removeMember) appendBody(b []byte) []byte { return appendUint(b, uint64(c.Node)) }
func (removeMember) check() error                 { return nil }

// apply: the configuration is that of the state, as of the entry before.
func (c removeMember) apply(t *tx) (any, error) {
	m, ok := t.member(c.Node)
	if !ok {
		if _, removed := t.removed(c.Node); removed {
			return nil, nil
		}
		return nil, ErrMemberNotFound
	}
	at, _ := t.applied()
	switch held := t.load(c.Node).Replicas; {
	case m.Liveness.Departure != Leaves:
		return nil, named(ErrNotLeaving, m.Name)
	case held > 0:
		return nil, fmt.Errorf("%w: it has to hold %d replicas", named(ErrMemberInUse, m.Name), held)
	case inConf(at.Conf, m.Replica):
		return nil, fmt.Errorf("%w: it takes part in the metadata", named(ErrMemberInUse, m.Name))
	}
	for _, table := range []byte{tableMember, tableLiveness, tableLoad} {
		t.remove(keyNode(table, c.Node))
	}
	t.put(keyNode(tableRemoved, c.Node), removal{m.Nonce, m.Name}.encode())
	t.put(keyNonce(tableOut, m.Nonce), encodeOut(c.Node))
	t.changes = append(t.changes, change{members: true})
	return nil, nil
}

// inConf reports whether a configuration names the replica in any role.
func inConf(c raftlog.ConfState, r raftlog.ReplicaID) bool {
	for _, ids := range [][]raftlog.ReplicaID{c.Voters, c.Learners, c.VotersOutgoing, c.LearnersNext} {
		for _, id := range ids {
			if id == r {
				return true
			}
		}
	}
	return false
}
