package membership

import (
	"encoding/binary"

	"github.com/stelelog/stele/raftlog"
)

// Encode returns the order as it travels.
func (o Order) Encode() []byte {
	b := append([]byte{formatVersion, byte(o.Kind)}, o.ClusterID[:]...)
	for _, n := range []uint64{o.Epoch, uint64(o.Node), uint64(o.Replica)} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// DecodeOrder reads what Order.Encode wrote.
func DecodeOrder(b []byte) (o Order, err error) {
	r := reader{b: b}
	r.version()
	o.Kind = OrderKind(r.byte())
	r.take(o.ClusterID[:])
	o.Epoch, o.Node, o.Replica = r.uvarint(), raftlog.NodeID(r.uvarint()), raftlog.ReplicaID(r.uvarint())
	switch forgets := o.Kind == OrderForget; {
	case o.Kind < OrderPromote || o.Kind > OrderTransfer:
		r.fail("order of kind %d", o.Kind)
	case forgets != (o.Replica != 0) || forgets != (o.Node == 0):
		r.fail("order of kind %d about %v and %v", o.Kind, o.Node, o.Replica)
	}
	return o, r.end()
}

// Encode returns the answer as it travels; a reason that is too long is cut.
func (a OrderAnswer) Encode() []byte {
	b := appendString([]byte{formatVersion, byte(a.Kind), byte(a.Why)}, a.Reason[:min(len(a.Reason), maxReasonText)])
	return binary.AppendUvarint(b, uint64(a.Leader))
}

// DecodeOrderAnswer reads what OrderAnswer.Encode wrote.
func DecodeOrderAnswer(b []byte) (a OrderAnswer, err error) {
	r := reader{b: b}
	r.version()
	a.Kind, a.Why = OrderAnswerKind(r.byte()), Deferral(r.byte())
	a.Reason = r.string()
	a.Leader = raftlog.NodeID(r.uvarint())
	switch {
	case a.Kind < OrderDone || a.Kind > OrderRefused:
		r.fail("answer of kind %d", a.Kind)
	case (a.Kind == OrderDeferred) != (a.Why != 0):
		r.fail("answer of kind %d with deferral %d", a.Kind, a.Why)
	}
	return a, r.end()
}
