package membership

import "encoding/binary"

// Recovered is where a forced recovery brought a life: the same node, in another
// recovery epoch, with the replica of group 1 that it has there. Members are those
// that came along, so that it finds them before it has any metadata.
type Recovered struct {
	Plan [16]byte // id of the recovery's plan
	Joined
	Members []Reached
}

func appendRecovered(b []byte, r *Recovered) []byte {
	b = appendJoined(append(b, r.Plan[:]...), &r.Joined)
	b = binary.AppendUvarint(b, uint64(len(r.Members)))
	for _, m := range r.Members {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(m.Node)), uint64(m.Replica))
		b = appendString(appendString(b, m.Name), m.Addr)
	}
	return b
}

func (r *reader) recovered() *Recovered {
	var to Recovered
	r.take(to.Plan[:])
	to.Joined = *r.joined()
	for range r.count(maxReached, minReached) {
		to.Members = append(to.Members, r.reached())
	}
	if to.Epoch == 0 {
		r.fail("recovered to epoch 0")
	}
	return &to
}
