package metastore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/proof"
	"github.com/stelelog/stele/raftlog"
)

// # Proofs
//
// Nothing is destroyed because this node's state says that it may be: it may be
// old, and it may be damaged. Confirm asks more, and gives out what those demand
// that destroy (package proof). It succeeds if
//
//  1. a linearizable read of group 1 was confirmed, and this node has applied it;
//  2. this node's own state, looked at after that, says that the claim is true;
//     let I be its applied index then, and V its voters as of I;
//  3. a majority of V, while joint of both halves, answered this very question, and
//     says the same from its own state as of I or later, with V as its voters;
//  4. nobody of V that answered says otherwise, and nobody says that destruction
//     is held.
//
// # Why that is enough
//
// A claim is about an id that never comes back, and what it says never becomes
// false in the replicated state machine: a tombstone stays, a place that was given
// up stays given up. So if one undamaged replica says it, at whatever index, it is
// true, and stays true. If the damaged ones are a minority of V, a majority has an
// undamaged one. What is left is to make sure that the answers are those of a
// majority, and to which question.
//
//	a leader that was cut off     fails at 1: ReadIndex needs a quorum of now
//	a fresh leader that replays   fails at 1 until it committed in its own term and
//	                              applied that; what it looks at, it looks at then
//	a leader whose state is       its barrier succeeds, since that proves the log and
//	damaged                       not the state. The others say otherwise: 4. If they
//	                              are silent, there is no majority: 3. Its own word
//	                              is one of V
//	a damaged minority that       refuses what is true, by 4. The bytes stay: who
//	denies                        dissents has to be looked at anyway
//	one that lags                 says that it is behind, or nothing: not "no", so
//	                              that to lag is no dissent
//	voters that change meanwhile  an answer whose voters are not V counts for nothing,
//	                              so that none counts which a removed voter gives, and
//	                              V is of no moment before the question
//	an answer that comes late     has another nonce than the question that waits; it
//	                              is drawn for each
//	a question or an answer of    says of which recovery epoch it is, and is void in
//	another recovery epoch        another, and so is a proof. Such a recovery may
//	                              take back what the lost part of the log said
//	an answer of another stint    says which replica of group 1 answers, and whose
//	                              disk was replaced has another one
//	a forced recovery             holds destruction (Recovery.DestructionHeld): to
//	                              claims by which the survivors' states agree, a
//	                              person may yet object
//
// With one voter its own word is the majority, with two both are needed. A learner
// may ask; its own word does not count.
//
// The index of 3 is not that of the read, but where this node's state was when it
// said yes: it may have become true in between, and a voter that is not there yet
// would look like one that dissents. The voters are compared in full rather than
// by the index of the entry that made them, which no replica knows after a restart.

// versionOfProofs is the version of the cluster from which on every member
// answers questions of Confirm.
const versionOfProofs = 3

// Claim is what Confirm is asked. See IncarnationDead and ReplicaRemoved.
type Claim = proof.Claim

// IncarnationDead claims that a topic's life is over: it was deleted.
func IncarnationDead(i raftlog.Incarnation) Claim {
	return Claim{Kind: proof.DeadIncarnation, Incarnation: i}
}

// ReplicaRemoved claims that a replica of a partition's group has no place in the
// metadata any more. That is recorded only after the group has left it out; who
// destroys the replica asks the group itself, too.
func ReplicaRemoved(g raftlog.GroupID, r raftlog.ReplicaID) Claim {
	return Claim{Kind: proof.RemovedReplica, Group: uint64(g), Replica: uint64(r)}
}

// ConfirmReason is why a claim was not confirmed.
type ConfirmReason string

// Why a claim was not confirmed.
const (
	// ConfirmUnread: no linearizable read, for want of a leader or of time.
	ConfirmUnread ConfirmReason = "unread"
	// ConfirmNotSo: this node's own state does not say so.
	ConfirmNotSo ConfirmReason = "not_so"
	// ConfirmHeld: a forced recovery holds destruction until a person ends that
	// (Store.EndHold).
	ConfirmHeld ConfirmReason = "held"
	// ConfirmNoMajority: too few voters said so in time.
	ConfirmNoMajority ConfirmReason = "no_majority"
	// ConfirmDissent: a voter says otherwise, from a state that is not older. The
	// metadata of one of the two is damaged; a person has to look which, and
	// replace that node's disk.
	ConfirmDissent ConfirmReason = "dissent"
)

// ConfirmReasons lists all of them.
var confirmReasons = [...]ConfirmReason{ConfirmUnread, ConfirmNotSo, ConfirmHeld, ConfirmNoMajority, ConfirmDissent}

// ConfirmReasons returns all reasons for which a claim may not be confirmed.
func ConfirmReasons() []ConfirmReason { return confirmReasons[:] }

// ConfirmError says why a claim was not confirmed. Nothing may be destroyed.
// It matches raftlog.ErrRetry: another time it may be.
type ConfirmError struct {
	Claim  Claim
	Reason ConfirmReason
	Detail string // for a person: which voter said what
	Err    error  // of the read, if that failed; else nil
}

func (e *ConfirmError) Error() string {
	return fmt.Sprintf("metastore: it is not confirmed that %v: %s: %s", e.Claim, e.Reason, e.Detail)
}

// Unwrap gives the outcome, and the error of the read.
func (e *ConfirmError) Unwrap() []error { return []error{raftlog.ErrRetry, e.Err} }

// ConfirmStats counts what became of the calls of Confirm since Open.
type ConfirmStats struct {
	Confirmed uint64
	Refused   map[ConfirmReason]uint64 // each reason has an entry
}

// confirmCounters are those of a store.
type confirmCounters struct {
	confirmed atomic.Uint64
	refused   [len(confirmReasons)]atomic.Uint64
}

func (c *confirmCounters) note(err *ConfirmError) {
	if err == nil {
		c.confirmed.Add(1)
		return
	}
	for i, r := range confirmReasons {
		if r == err.Reason {
			c.refused[i].Add(1)
		}
	}
}

// ConfirmStats returns the counters; it is cheap.
func (s *Store) ConfirmStats() ConfirmStats {
	stats := ConfirmStats{Confirmed: s.confirms.confirmed.Load(), Refused: map[ConfirmReason]uint64{}}
	for i, r := range confirmReasons {
		stats.Refused[r] = s.confirms.refused[i].Load()
	}
	return stats
}

// confirmLinger is how long voters that have not answered are waited for once a
// majority has: one of them may dissent.
const confirmLinger = 200 * time.Millisecond

// Confirm returns a proof that a claim is true: see above. It takes up to
// Config.BarrierTimeout for the read, and then Config.AttemptTimeout for the
// answers of the voters. It changes nothing, and may be called concurrently.
//
// After an error there is no proof, and everything has to stay: *ConfirmError;
// *InvalidError for what is no claim of this kind; *ClusterVersionError in a
// cluster some of whose members cannot be asked; ErrUnavailable once this node's
// metadata failed.
func (s *Store) Confirm(ctx context.Context, c Claim) (proof.Proof, error) {
	if err := checkClaim(c); err != nil {
		return proof.Proof{}, err
	}
	if s.Failed() != nil {
		return proof.Proof{}, s.unavailable()
	}
	read := s.Barrier(ctx)
	if err := s.Require(versionOfProofs); err != nil && read == nil {
		return proof.Proof{}, err
	}
	f, refusal := s.confirm(ctx, c, read)
	s.confirms.note(refusal)
	if refusal != nil {
		refusal.Claim = c
		if refusal.Reason == ConfirmDissent {
			s.config.Logger.Error("voters on the metadata disagree: the state of one of them is damaged, and nothing is destroyed",
				zap.Stringer("claim", c), zap.String("who", refusal.Detail))
		}
		return proof.Proof{}, refusal
	}
	p, err := proof.Mint(c, f.cluster.ID, f.cluster.Epoch)
	if err != nil {
		return proof.Proof{}, raftlog.Refused(err)
	}
	return p, nil
}

func checkClaim(c Claim) error {
	if err := c.Validate(); err != nil {
		return invalid("Claim", c.String(), "an incarnation, or a replica of a group")
	}
	if c.Group == uint64(raftlog.MetadataGroup) {
		return invalid("Claim.Group", c.Group, "the group of a partition")
	}
	return nil
}

// confirm returns what this node's state was when the claim was confirmed. It is
// called behind a barrier, whose error read is: what the state said before it is
// of no account.
func (s *Store) confirm(ctx context.Context, c Claim, read error) (finding, *ConfirmError) {
	if read != nil {
		return finding{}, &ConfirmError{Reason: ConfirmUnread, Detail: read.Error(), Err: read}
	}
	own, err := s.examine(c)
	if err != nil {
		return own, &ConfirmError{Reason: ConfirmUnread, Detail: err.Error(), Err: err}
	}
	q := question{Claim: c, Epoch: own.cluster.Epoch, Index: own.after, Voters: own.conf.Voters, Outgoing: own.conf.VotersOutgoing}
	if _, err := io.ReadFull(s.config.Rand, q.Nonce[:]); err != nil {
		return own, &ConfirmError{Reason: ConfirmUnread, Detail: err.Error(), Err: raftlog.Retry(err)}
	}
	switch {
	case own.held:
		return own, &ConfirmError{Reason: ConfirmHeld, Detail: "as this node knows; see EndHold"}
	case !own.says:
		return own, &ConfirmError{Reason: ConfirmNotSo, Detail: fmt.Sprintf("as of index %d of this node's metadata", own.after)}
	}
	t := newTally(q)
	t.hear(s.config.Replica, testimony{q.Nonce, q.Epoch, s.config.Replica, q.Index, saysYes})
	s.ask(ctx, t)
	if reason := t.refusal(); reason != "" {
		return own, &ConfirmError{Reason: reason, Detail: s.name(t)}
	}
	return own, nil
}

// ask brings the answers of the voters, of all or until no more of them are
// waited for.
func (s *Store) ask(ctx context.Context, t *tally) {
	ctx, cancel := withTimeout(ctx, s.config.Clock, s.config.AttemptTimeout)
	defer cancel()
	type heard struct {
		from raftlog.ReplicaID
		a    testimony
		err  error
	}
	silent := t.silent()
	answers := make(chan heard, len(silent))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for _, r := range silent {
		asking.Go(func() {
			a, err := s.askVoter(ctx, t.question.to(r))
			answers <- heard{r, a, err}
		})
	}
	var enough <-chan time.Time
	for range silent {
		if enough == nil && t.majority() {
			timer := s.config.Clock.NewTimer(confirmLinger)
			defer timer.Stop()
			enough = timer.C()
		}
		select {
		case h := <-answers:
			if h.err != nil {
				t.miss(h.from, h.err.Error())
			} else {
				t.hear(h.from, h.a)
			}
		case <-enough:
			return
		case <-s.life.Done():
			return
		}
	}
}

func (s *Store) askVoter(ctx context.Context, q question) (testimony, error) {
	var node raftlog.NodeID
	s.machine.read(func(c *catalog) { node = c.nodeOf(q.Replica) })
	if node == 0 {
		return testimony{}, errors.New("no member has this replica")
	}
	response, err := s.config.Caller.Call(ctx, node, MethodConfirm, q.encode())
	if err != nil {
		return testimony{}, err
	}
	return decodeTestimony(response)
}

// name says who said what, by the names of members.
func (s *Store) name(t *tally) string {
	members := s.Members()
	var said []string
	for _, v := range t.voters() {
		name := v.replica.String()
		for _, m := range members {
			if m.Replica == v.replica {
				name = m.Name
			}
		}
		said = append(said, name+" "+v.said)
	}
	return strings.Join(said, ", ")
}

// finding is what this replica's own state says of a claim.
type finding struct {
	says    bool
	held    bool // destruction is
	cluster cluster
	conf    raftlog.ConfState
	// The state that was looked at is not older than before, nor newer than after.
	before, after raftlog.Index
}

// examine looks at this replica's own state. The error is Retry.
func (s *Store) examine(c Claim) (f finding, err error) {
	f.before, _ = s.machine.progress()
	var stone, lives bool
	if c.Kind == proof.DeadIncarnation {
		err = s.readState(func(t *tx) {
			_, stone = t.tombstone(c.Incarnation)
			_, lives = t.topic(c.Incarnation)
		})
	}
	m := s.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.mu.catalog
	switch c.Kind {
	case proof.DeadIncarnation:
		f.says = stone && !lives && known.topics[c.Incarnation] == nil
	case proof.RemovedReplica:
		f.says = known.replicaDead(raftlog.GroupID(c.Group), raftlog.ReplicaID(c.Replica))
	}
	for _, r := range known.recoveries {
		f.held = f.held || r.DestructionHeld
	}
	f.cluster, f.conf, f.after = known.cluster, m.mu.at.Conf, m.mu.at.Index
	return f, err
}

// answerQuestion is what this replica answers to a question of another node. It
// waits for a while until this node has applied what the question is about. The
// error is Retry.
func (s *Store) answerQuestion(ctx context.Context, q question) (testimony, error) {
	a := testimony{Nonce: q.Nonce, Replica: s.config.Replica}
	ctx, cancel := withTimeout(ctx, s.config.Clock, s.config.AttemptTimeout)
	defer cancel()
	waited := s.waitApplied(ctx, q.Index)
	if s.Failed() != nil {
		return a, s.unavailable()
	}
	f, err := s.examine(q.Claim)
	if err != nil {
		return a, err
	}
	a.Epoch, a.Applied = f.cluster.Epoch, f.before
	a.Says = q.judge(f, s.config.Replica)
	if waited != nil && f.before < q.Index {
		a.Says = saysBehind
	}
	return a, nil
}
