package metastore

import (
	"context"
	"errors"
	"fmt"

	"github.com/stelelog/stele/internal/proof"
	"github.com/stelelog/stele/raftlog"
)

// MethodConfirm is the call by which a node asks a voter what its state says of a
// claim. It came with version 3 of a cluster; format.go has its bytes.
const MethodConfirm = "meta.confirm"

// confirmVersion is that of the question and of the answer.
const confirmVersion = 1

func (q question) encode() []byte {
	b := append([]byte{confirmVersion}, q.Nonce[:]...)
	b = appendUint(appendUint(appendUint(b, q.Epoch), uint64(q.Replica)), uint64(q.Index))
	b = appendReplicas(appendReplicas(b, q.Voters), q.Outgoing)
	if b = append(b, byte(q.Claim.Kind)); q.Claim.Kind == proof.DeadIncarnation {
		return append(b, q.Claim.Incarnation[:]...)
	}
	return appendUint(appendUint(b, q.Claim.Group), q.Claim.Replica)
}

// errNewerForm: it was written by a newer build.
var errNewerForm = errors.New("metastore: a newer form")

func decodeQuestion(b []byte) (q question, err error) {
	if len(b) > 0 && b[0] > confirmVersion {
		return q, fmt.Errorf("%w: question of version %d, this build knows %d", errNewerForm, b[0], confirmVersion)
	}
	d := decoder{b: b}
	d.version(confirmVersion)
	q.Nonce, q.Epoch, q.Replica, q.Index = d.id16(), d.uintMax(maxEpoch), raftlog.ReplicaID(d.uint()), raftlog.Index(d.uint())
	q.Voters, q.Outgoing = d.replicas(), d.replicas()
	switch q.Claim.Kind = proof.Kind(d.byte()); q.Claim.Kind {
	case proof.DeadIncarnation:
		q.Claim.Incarnation = d.id16()
	case proof.RemovedReplica:
		q.Claim.Group, q.Claim.Replica = d.uint(), d.uint()
	default:
		if d.err == nil {
			return q, fmt.Errorf("%w: a claim of kind %d", errNewerForm, q.Claim.Kind)
		}
	}
	if err := d.end(); err != nil {
		return question{}, err
	}
	return q, checkClaim(q.Claim)
}

func (a testimony) encode() []byte {
	b := append([]byte{confirmVersion}, a.Nonce[:]...)
	b = appendUint(appendUint(appendUint(b, a.Epoch), uint64(a.Replica)), uint64(a.Applied))
	return append(b, byte(a.Says))
}

func decodeTestimony(b []byte) (a testimony, err error) {
	d := decoder{b: b}
	d.version(confirmVersion)
	a = testimony{d.id16(), d.uintMax(maxEpoch), raftlog.ReplicaID(d.uint()), raftlog.Index(d.uint()), says(d.byte())}
	if d.err == nil && (a.Says < saysYes || a.Says > newestSays) {
		d.fail("a replica that says %d", a.Says)
	}
	if err := d.end(); err != nil {
		return testimony{}, err
	}
	return a, nil
}

// serveConfirm answers a question.
func (s *Store) serveConfirm(ctx context.Context, from raftlog.NodeID, request []byte) ([]byte, error) {
	q, err := decodeQuestion(request)
	if errors.Is(err, errNewerForm) {
		return nil, &UnsupportedError{MethodConfirm, err}
	}
	if err != nil {
		return nil, raftlog.Refused(fmt.Errorf("metastore: call of %v: %w", from, err))
	}
	a, err := s.answerQuestion(ctx, q)
	if err != nil {
		return nil, err
	}
	return a.encode(), nil
}
