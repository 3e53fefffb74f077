package membership

import (
	"encoding/binary"
	"math"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Limits of the decoders of calls.
const (
	maxReached    = 4096
	minReached    = 4 // bytes of one, at least
	maxReasonText = 1 << 10
)

func flagOf(on bool) byte {
	if on {
		return 1
	}
	return 0
}

// Encode returns the request as it travels.
func (j JoinRequest) Encode() []byte {
	b := appendString([]byte{formatVersion, flagOf(j.Observer)}, j.Name)
	b = appendString(append(b, j.Nonce[:]...), j.Addr)
	b = binary.AppendUvarint(b, uint64(j.Newest))
	return binary.AppendUvarint(b, uint64(j.SegmentBytes))
}

// DecodeJoinRequest reads what JoinRequest.Encode wrote.
func DecodeJoinRequest(b []byte) (j JoinRequest, err error) {
	r := reader{b: b}
	r.version()
	j.Observer = r.flag()
	j.Name = r.string()
	r.take(j.Nonce[:])
	j.Addr = r.string()
	j.Newest = r.commandType()
	j.SegmentBytes = r.size()
	if len(j.Name) == 0 || j.Nonce.IsZero() {
		r.fail("a join without a name or a nonce")
	}
	return j, r.end()
}

// Encode returns the request as it travels.
func (m MemberRequest) Encode() []byte {
	b := binary.AppendUvarint([]byte{formatVersion}, uint64(m.Node))
	b = appendString(append(b, m.Nonce[:]...), m.Addr)
	return binary.AppendUvarint(b, uint64(m.Newest))
}

// DecodeMemberRequest reads what MemberRequest.Encode wrote.
func DecodeMemberRequest(b []byte) (m MemberRequest, err error) {
	r := reader{b: b}
	r.version()
	m.Node = raftlog.NodeID(r.uvarint())
	r.take(m.Nonce[:])
	m.Addr = r.string()
	m.Newest = r.commandType()
	return m, r.end()
}

// Encode returns the request as it travels.
func (q BacklogRequest) Encode() []byte {
	b := binary.AppendUvarint([]byte{formatVersion, flagOf(q.Draining)}, uint64(q.Node))
	return append(b, q.Nonce[:]...)
}

// DecodeBacklogRequest reads what BacklogRequest.Encode wrote.
func DecodeBacklogRequest(b []byte) (q BacklogRequest, err error) {
	r := reader{b: b}
	r.version()
	q.Draining = r.flag()
	q.Node = raftlog.NodeID(r.uvarint())
	r.take(q.Nonce[:])
	return q, r.end()
}

// Encode returns the answer as it travels.
func (a BacklogAnswer) Encode() []byte {
	b := binary.AppendUvarint([]byte{formatVersion, flagOf(a.Draining)}, uint64(a.Node))
	return binary.AppendUvarint(append(b, a.Nonce[:]...), a.Count)
}

// DecodeBacklogAnswer reads what BacklogAnswer.Encode wrote.
func DecodeBacklogAnswer(b []byte) (a BacklogAnswer, err error) {
	r := reader{b: b}
	r.version()
	a.Draining = r.flag()
	a.Node = raftlog.NodeID(r.uvarint())
	r.take(a.Nonce[:])
	a.Count = r.uvarint()
	return a, r.end()
}

// Encode returns the answer as it travels; a reason that is too long is cut.
func (p Reply) Encode() []byte {
	b := appendString([]byte{formatVersion, byte(p.Kind), byte(p.Status)}, p.Reason[:min(len(p.Reason), maxReasonText)])
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.Node)), uint64(p.Replica))
	b = binary.AppendUvarint(append(b, p.ClusterID[:]...), p.Epoch)
	b = binary.AppendUvarint(b, uint64(len(p.Members)))
	for _, m := range p.Members {
		b = binary.AppendUvarint(b, uint64(m.Node))
		b = binary.AppendUvarint(b, uint64(m.Replica))
		b = appendString(appendString(b, m.Name), m.Addr)
	}
	b = appendString(binary.AppendUvarint(b, uint64(p.Leader)), p.Addr)
	b = binary.AppendUvarint(append(b, p.Nonce[:]...), uint64(p.Need))
	b = binary.AppendUvarint(b, uint64(p.SegmentBytes))
	b = binary.AppendUvarint(b, uint64(len(p.Behind)))
	for _, name := range p.Behind {
		b = appendString(b, name)
	}
	return b
}

// DecodeReply reads what Reply.Encode wrote.
func DecodeReply(b []byte) (p Reply, err error) {
	r := reader{b: b}
	r.version()
	p.Kind, p.Status = ReplyKind(r.byte()), Status(r.byte())
	if p.Kind < ReplyAccepted || p.Kind > ReplyOtherSettings {
		r.fail("reply of kind %d", p.Kind)
	}
	if accepted := p.Kind == ReplyAccepted; accepted != (p.Status != 0) || p.Status > StatusVoter {
		r.fail("reply of kind %v with status %d", p.Kind, p.Status)
	}
	p.Reason = r.string()
	p.Node, p.Replica = raftlog.NodeID(r.uvarint()), raftlog.ReplicaID(r.uvarint())
	r.take(p.ClusterID[:])
	p.Epoch = r.uvarint()
	for range r.count(maxReached, minReached) {
		p.Members = append(p.Members, r.reached())
	}
	p.Leader, p.Addr = raftlog.NodeID(r.uvarint()), r.string()
	r.take(p.Nonce[:])
	p.Need = r.commandType()
	p.SegmentBytes = r.size()
	for range r.count(maxReached, 1) {
		p.Behind = append(p.Behind, r.string())
	}
	if (p.Node == 0) != (p.Replica == 0) || (p.Node == 0) != p.ClusterID.IsZero() {
		r.fail("reply with half a place")
	}
	return p, r.end()
}

func (r *reader) reached() Reached {
	return Reached{Node: raftlog.NodeID(r.uvarint()), Replica: raftlog.ReplicaID(r.uvarint()), Name: r.string(), Addr: r.string()}
}

func appendJoined(b []byte, j *Joined) []byte {
	b = append(b, j.ClusterID[:]...)
	for _, n := range []uint64{j.Epoch, uint64(j.Node), uint64(j.Replica), uint64(j.SegmentBytes)} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func (r *reader) joined() *Joined {
	var j Joined
	r.take(j.ClusterID[:])
	j.Epoch, j.Node, j.Replica = r.uvarint(), raftlog.NodeID(r.uvarint()), raftlog.ReplicaID(r.uvarint())
	j.SegmentBytes = r.size()
	if j.ClusterID.IsZero() || j.Node == 0 || j.Replica == 0 {
		r.fail("joined without a place")
	}
	return &j
}

// size reads a number of bytes.
func (r *reader) size() int64 {
	n := r.uvarint()
	if n > math.MaxInt64 {
		r.fail("a size of %d bytes", n)
		return 0
	}
	return int64(n)
}

func (r *reader) flag() bool {
	b := r.byte()
	if b > 1 {
		r.fail("flags %#x", b)
	}
	return b == 1
}

func (r *reader) commandType() metastore.CommandType {
	n := r.uvarint()
	if n > 1<<16-1 {
		r.fail("command type %d", n)
	}
	return metastore.CommandType(n)
}
