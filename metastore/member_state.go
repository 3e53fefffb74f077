package metastore

import "github.com/stelelog/stele/raftlog"

// member returns a member with its liveness.
func (t *tx) member(n raftlog.NodeID) (Member, bool) {
	m, ok := record(t, keyNode(tableMember, n), (*decoder).memberRecord)
	if ok {
		m.Liveness = t.liveness(n)
	}
	return m, ok
}

// members returns all members by node id, with their liveness.
func (t *tx) members() (all []Member) {
	if t.err != nil {
		return nil
	}
	err := t.scan([]byte{tableMember}, func(key, value []byte) error {
		d := decoder{b: value}
		all = append(all, d.memberRecord())
		if err := d.end(); err != nil {
			return damaged("key %q: %w", key, err)
		}
		return nil
	})
	if err != nil {
		t.fail(err)
	}
	for i := range all {
		all[i].Liveness = t.liveness(all[i].Node)
	}
	return all
}

// life returns the member that has this node id and this nonce, or why there is
// none.
func (t *tx) life(n raftlog.NodeID, nonce raftlog.Nonce) (Member, error) {
	m, ok := t.member(n)
	switch {
	case !ok:
		return Member{}, t.noMember(n)
	case m.Nonce != nonce:
		return Member{}, ErrMemberNotFound
	}
	return m, nil
}

// noMember says why a node id is no member's.
func (t *tx) noMember(n raftlog.NodeID) error {
	if r, ok := t.removed(n); ok {
		return &RemovedError{n, r.Name}
	}
	return ErrMemberNotFound
}

// refusalOf says why a nonce is out, which its record gave.
func (t *tx) refusalOf(out raftlog.NodeID) error {
	if out == 0 {
		return ErrNonceRefused
	}
	return &RemovedError{out, must(t, keyNode(tableRemoved, out), (*decoder).removal).Name}
}

// liveness: a genesis writes none.
func (t *tx) liveness(n raftlog.NodeID) Liveness {
	l, _ := record(t, keyNode(tableLiveness, n), (*decoder).liveness)
	return l
}

func (t *tx) putLiveness(m Member) {
	t.put(keyNode(tableLiveness, m.Node), appendLiveness(nil, m.Liveness))
}

func (t *tx) removed(n raftlog.NodeID) (removal, bool) {
	return record(t, keyNode(tableRemoved, n), (*decoder).removal)
}

// out returns the node of a nonce that may not come in any more; 0: it never
// was a member.
func (t *tx) out(n raftlog.Nonce) (raftlog.NodeID, bool) {
	return record(t, keyNonce(tableOut, n), (*decoder).out)
}
