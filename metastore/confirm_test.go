package metastore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/internal/proof"
	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
)

// atThree raises the cluster to version 3, deletes a topic and returns its
// incarnation, and that of one that lives.
func (c *fakeCluster) atThree(t *testing.T) (dead, lives raftlog.Incarnation) {
	t.Helper()
	dead, lives = inc(70), inc(71)
	c.append(setVersion{3}, createTopic{dead, "gone", TopicConfig{}}, createTopic{lives, "orders", TopicConfig{}},
		topicDeleting{dead}, topicDeleted{dead})
	c.catchUpAll(t)
	return dead, lives
}

func (c *fakeCluster) catchUpAll(t *testing.T) {
	t.Helper()
	for _, n := range c.nodes {
		require.NoError(t, n.catchUp())
	}
}

// reconfigure commits a configuration of group 1.
func (c *fakeCluster) reconfigure(t *testing.T, conf raftlog.ConfState) {
	t.Helper()
	c.mu.Lock()
	c.entries = append(c.entries, raftlog.Entry{Index: raftlog.Index(len(c.entries)) + 2, Term: c.term, Kind: 2, Conf: &conf})
	c.mu.Unlock()
	c.catchUpAll(t)
}

// damage changes a node's state behind the log's back.
func (n *fakeNode) damage(t *testing.T, f func(*tx)) {
	t.Helper()
	m := n.store.machine
	require.NoError(t, m.db.run(func() error {
		x := newTx(m.db.newest())
		f(x)
		if x.err != nil {
			return x.err
		}
		if err := m.db.write(x); err != nil {
			return err
		}
		_, c, err := loadState(m.db.newest(), NewestCommand)
		if err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.mu.catalog = c
		return nil
	}))
}

// buries damages a state so that a topic that lives is dead in it.
func buries(i raftlog.Incarnation, name string) func(*tx) {
	return func(t *tx) {
		t.remove(keyIncarnation(tableTopic, i))
		t.remove(keyPartition(i, 0))
		t.remove(keyName(name))
		t.put(keyIncarnation(tableTombstone, i), encodeTombstone(name))
	}
}

func requireRefused(t *testing.T, want ConfirmReason, p proof.Proof, err error) *ConfirmError {
	t.Helper()
	var refused *ConfirmError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, want, refused.Reason, "%v", err)
	requireOneOutcome(t, raftlog.OutcomeRetry, err)
	require.Zero(t, p)
	return refused
}

// Every node gets a proof of what is so, with one, two and three voters, and no
// node of what is not.
//
// Property: X1 (red: Confirm did not look at what the own state says)
func TestWhatIsDeadIsConfirmed(t *testing.T) {
	for n := 1; n <= 3; n++ {
		inCluster(t, n, func(t *testing.T, c *fakeCluster) {
			dead, lives := c.atThree(t)
			topic, err := c.nodes[1].store.TopicByIncarnation(lives)
			require.NoError(t, err)
			here, group := topic.Partitions[0].Replicas[0].Replica, topic.Partitions[0].Group
			for _, node := range c.nodes {
				s := node.store
				p, err := s.Confirm(t.Context(), IncarnationDead(dead))
				require.NoError(t, err)
				require.Equal(t, IncarnationDead(dead), p.Claim())
				_, err = p.DeadIncarnation(c.genesis.ClusterID, 0)
				require.NoError(t, err)
				// Replica 1 was never given out in this group, and never will be: it is of
				// another one, which those that destroy compare.
				p, err = s.Confirm(t.Context(), ReplicaRemoved(group, 1))
				require.NoError(t, err)
				require.NoError(t, p.Covers(c.genesis.ClusterID, 0, lives, uint64(group), 1))

				for _, claim := range []Claim{IncarnationDead(lives), IncarnationDead(inc(99)), ReplicaRemoved(group, here), ReplicaRemoved(group, 9999)} {
					p, err = s.Confirm(t.Context(), claim)
					requireRefused(t, ConfirmNotSo, p, err)
				}
				stats := s.ConfirmStats()
				require.EqualValues(t, 2, stats.Confirmed)
				require.EqualValues(t, 4, stats.Refused[ConfirmNotSo])
				require.Len(t, stats.Refused, len(ConfirmReasons()))
			}
		})
	}
}

// A majority of the voters has to say so from their own states: one that is down
// is not missed of three, two are; of two, one is.
//
// Property: X2 (red: ask that took what does not answer for a yes)
func TestVotersThatAreSilentConfirmNothing(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		dead, _ := c.atThree(t)
		s := c.nodes[1].store
		c.silence(2)
		start := clock.System().Now()
		_, err := s.Confirm(t.Context(), IncarnationDead(dead))
		require.NoError(t, err)
		require.Equal(t, confirmLinger, clock.System().Now().Sub(start), "a majority is enough, and who may dissent is waited for a moment")
		c.mu.Lock()
		c.fault = func(to raftlog.NodeID, _ bool) error {
			if to == 3 {
				return errors.New("the connection broke")
			}
			return nil
		}
		c.mu.Unlock()
		start = clock.System().Now()
		p, err := s.Confirm(t.Context(), IncarnationDead(dead))
		refused := requireRefused(t, ConfirmNoMajority, p, err)
		require.Equal(t, s.config.AttemptTimeout, clock.System().Now().Sub(start))
		require.Contains(t, refused.Detail, "node-3 does not answer (the connection broke)")
		require.Contains(t, refused.Detail, "node-1 says so")

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		start = clock.System().Now()
		p, err = s.Confirm(ctx, IncarnationDead(dead))
		requireRefused(t, ConfirmNoMajority, p, err)
		require.Equal(t, time.Millisecond, clock.System().Now().Sub(start))
	})
	inCluster(t, 2, func(t *testing.T, c *fakeCluster) {
		dead, _ := c.atThree(t)
		c.silence(2)
		p, err := c.nodes[1].store.Confirm(t.Context(), IncarnationDead(dead))
		requireRefused(t, ConfirmNoMajority, p, err)
	})
}

// A voter that lags says nothing, and is no dissent, though by its state the topic
// lives; when it has caught up within the call's time it counts.
//
// Property: X2 (red: answerQuestion did not wait; judge without its look at the index: a dissent)
func TestAVoterThatLagsIsNoDissent(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		c.nodes[3].set(func(n *fakeNode) { n.hold = true })
		dead, _ := c.atThree(t)
		s := c.nodes[1].store
		_, err := s.Confirm(t.Context(), IncarnationDead(dead))
		require.NoError(t, err, "the others are enough")
		c.nodes[2].set(func(n *fakeNode) { n.hold = true })
		// It became true, and was applied here, after what those have.
		c.append(createTopic{inc(72), "short", TopicConfig{}}, topicDeleting{inc(72)}, topicDeleted{inc(72)})
		require.NoError(t, c.nodes[1].catchUp())
		p, err := s.Confirm(t.Context(), IncarnationDead(inc(72)))
		refused := requireRefused(t, ConfirmNoMajority, p, err)
		require.NotContains(t, refused.Detail, "otherwise")

		done := make(chan error)
		go func() { _, err := s.Confirm(t.Context(), IncarnationDead(inc(72))); done <- err }()
		pass(time.Second)
		c.nodes[2].set(func(n *fakeNode) { n.hold = false })
		require.NoError(t, <-done)
	})
}

// A minority whose state is damaged gets nothing destroyed: neither as the leader,
// whose barrier succeeds, nor as a follower, nor by its word to others. Nor when
// who knows better is silent.
//
// Property: X2, X5 (red: a majority outvoted a dissent; no majority was needed; judge did not look at what the state says)
func TestADamagedMinorityConfirmsNothing(t *testing.T) {
	for _, leader := range []raftlog.NodeID{1, 2} {
		inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
			dead, lives := c.atThree(t)
			c.nodes[1].damage(t, buries(lives, "orders"))
			c.elect(leader)
			s := c.nodes[1].store
			p, err := s.Confirm(t.Context(), IncarnationDead(lives))
			refused := requireRefused(t, ConfirmDissent, p, err)
			require.Contains(t, refused.Detail, "node-1 says so, node-2 says otherwise")
			for silent := raftlog.NodeID(2); silent <= 3; silent++ {
				c.silence(silent)
				p, err = s.Confirm(t.Context(), IncarnationDead(lives))
				requireRefused(t, ConfirmDissent, p, err)
			}
			c.silence(0)
			p, err = c.nodes[2].store.Confirm(t.Context(), IncarnationDead(lives))
			requireRefused(t, ConfirmNotSo, p, err)
			require.EqualValues(t, 3, s.ConfirmStats().Refused[ConfirmDissent])

			// The others being cut off, it is alone with its word.
			c.mu.Lock()
			c.fault = func(raftlog.NodeID, bool) error { return errors.New("the connection broke") }
			c.mu.Unlock()
			p, err = s.Confirm(t.Context(), IncarnationDead(lives))
			requireRefused(t, ConfirmNoMajority, p, err)
			c.mu.Lock()
			c.fault = nil
			c.mu.Unlock()

			// One that denies what is so keeps the bytes.
			c.nodes[3].damage(t, func(t *tx) { t.remove(keyIncarnation(tableTombstone, dead)) })
			p, err = c.nodes[2].store.Confirm(t.Context(), IncarnationDead(dead))
			refused = requireRefused(t, ConfirmDissent, p, err)
			require.Contains(t, refused.Detail, "node-3 says otherwise")
		})
	}
}

// While the group has two configurations both have to agree; an answer by another
// one counts for nothing, and a learner may ask and does not count.
//
// Property: X2, R30 (red: the question without the outgoing voters; judge without its look at the voters)
func TestConfirmWhileVotersChange(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		dead, lives := c.atThree(t)
		s := c.nodes[1].store
		only := func(nodes ...raftlog.NodeID) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.fault = func(to raftlog.NodeID, _ bool) error {
				for _, n := range nodes {
					if n == to {
						return nil
					}
				}
				return errors.New("the connection broke")
			}
		}
		c.reconfigure(t, raftlog.ConfState{Voters: []raftlog.ReplicaID{11, 12}, VotersOutgoing: []raftlog.ReplicaID{11, 12, 13}})
		only(3)
		p, err := s.Confirm(t.Context(), IncarnationDead(dead))
		requireRefused(t, ConfirmNoMajority, p, err)
		only(2)
		_, err = s.Confirm(t.Context(), IncarnationDead(dead))
		require.NoError(t, err)

		// A learner asks; its own word, and that of another learner, is not counted.
		c.reconfigure(t, raftlog.ConfState{Voters: []raftlog.ReplicaID{12}, Learners: []raftlog.ReplicaID{11, 13}})
		_, err = s.Confirm(t.Context(), IncarnationDead(dead))
		require.NoError(t, err)
		only(3)
		p, err = s.Confirm(t.Context(), IncarnationDead(dead))
		requireRefused(t, ConfirmNoMajority, p, err)
		c.nodes[1].damage(t, buries(lives, "orders"))
		only(2)
		p, err = s.Confirm(t.Context(), IncarnationDead(lives))
		requireRefused(t, ConfirmDissent, p, err)

		// The voters change between the question and the answer.
		c.reconfigure(t, raftlog.ConfState{Voters: []raftlog.ReplicaID{11, 12}})
		c.mu.Lock()
		c.fault = func(to raftlog.NodeID, handled bool) error {
			if !handled {
				c.mu.Unlock()
				c.reconfigure(t, raftlog.ConfState{Voters: []raftlog.ReplicaID{11, 12, 13}})
				c.mu.Lock()
			}
			return nil
		}
		fault := c.fault
		c.fault = func(to raftlog.NodeID, handled bool) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			return fault(to, handled)
		}
		c.mu.Unlock()
		p, err = s.Confirm(t.Context(), IncarnationDead(dead))
		refused := requireRefused(t, ConfirmNoMajority, p, err)
		require.Contains(t, refused.Detail, "node-2 knows other voters")
	})
}

// What comes in place of an answer, or late, or from another epoch, is none.
//
// Property: X2, R33 (red: hear without its look at the nonce, at the epoch, at the replica, at the index; decodeTestimony that took what is left over)
func TestAnswersThatAreNoneConfirmNothing(t *testing.T) {
	inCluster(t, 2, func(t *testing.T, c *fakeCluster) {
		dead, _ := c.atThree(t)
		s := c.nodes[1].store
		var first []byte
		tampered := func(f func(*testimony, []byte) []byte) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.tamper = func(_ raftlog.NodeID, response []byte) []byte {
				a, err := decodeTestimony(response)
				require.NoError(t, err)
				require.Equal(t, saysYes, a.Says)
				if b := f(&a, response); b != nil {
					return b
				}
				return a.encode()
			}
		}
		tampered(func(_ *testimony, b []byte) []byte { first = b; return nil })
		_, err := s.Confirm(t.Context(), IncarnationDead(dead))
		require.NoError(t, err)
		for what, f := range map[string]func(*testimony, []byte) []byte{
			"that of an earlier question": func(_ *testimony, b []byte) []byte { return first },
			"one of another epoch":        func(a *testimony, _ []byte) []byte { a.Epoch++; return nil },
			"one of another replica":      func(a *testimony, _ []byte) []byte { a.Replica++; return nil },
			"one of an older state":       func(a *testimony, _ []byte) []byte { a.Applied--; a.Applied--; return nil },
			"nothing":                     func(*testimony, []byte) []byte { return []byte{} },
			"too much":                    func(_ *testimony, b []byte) []byte { return append(b, 1) },
			"half":                        func(_ *testimony, b []byte) []byte { return b[:len(b)/2] },
			"garbage":                     func(*testimony, []byte) []byte { return []byte("not an answer at all") },
		} {
			tampered(f)
			p, err := s.Confirm(t.Context(), IncarnationDead(dead))
			require.Error(t, err, what)
			requireRefused(t, ConfirmNoMajority, p, err)
		}
	})
}

// Without a linearizable read nothing is asked, whatever the states say.
//
// Property: X2, X3 (red: Confirm without its barrier)
func TestNoProofWithoutALinearizableRead(t *testing.T) {
	inCluster(t, 3, func(t *testing.T, c *fakeCluster) {
		dead, _ := c.atThree(t)
		s := c.nodes[1].store
		c.elect(0)
		p, err := s.Confirm(t.Context(), IncarnationDead(dead))
		requireRefused(t, ConfirmUnread, p, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p, err = s.Confirm(ctx, IncarnationDead(dead))
		requireRefused(t, ConfirmUnread, p, err)
		require.ErrorIs(t, err, context.Canceled)

		// It waits until what it answers from is as new as the read.
		c.elect(2)
		n := c.nodes[1]
		n.set(func(n *fakeNode) { n.hold = true })
		c.append(createTopic{inc(72), "short", TopicConfig{}}, topicDeleting{inc(72)}, topicDeleted{inc(72)})
		done := make(chan error)
		go func() { _, err := s.Confirm(t.Context(), IncarnationDead(inc(72))); done <- err }()
		synctest.Wait()
		c.catchUpAll(t)
		n.set(func(n *fakeNode) { n.hold = false })
		require.NoError(t, <-done)

		n.failGroup(errors.New("the disk"))
		_, err = s.Confirm(t.Context(), IncarnationDead(dead))
		require.ErrorIs(t, err, ErrUnavailable)
		_, err = s.HandleCall(t.Context(), 2, MethodConfirm, testQuestion().to(11).encode())
		require.ErrorIs(t, err, ErrUnavailable, "a replica that stopped is no witness")
	})
}

// After a forced recovery nothing is confirmed until a person says so; what was
// confirmed before counts no more.
//
// Property: X2, R33 (red: examine without held; judge without held; a tally that overheard it; the epoch of the genesis in the proof)
func TestNoProofWhileDestructionIsHeld(t *testing.T) {
	inCluster(t, 2, func(t *testing.T, c *fakeCluster) {
		dead, _ := c.atThree(t)
		s := c.nodes[1].store
		before, err := s.Confirm(t.Context(), IncarnationDead(dead))
		require.NoError(t, err)
		c.append(recovery{Epoch: 1, Plan: [16]byte{1}, Left: []RecoveredMember{{1, raftlog.Nonce{1}, 11}, {2, raftlog.Nonce{2}, 12}}})
		c.catchUpAll(t)
		p, err := s.Confirm(t.Context(), IncarnationDead(dead))
		requireRefused(t, ConfirmHeld, p, err)
		// One whose state lost the hold cannot go past those that know of it.
		c.nodes[1].damage(t, func(t *tx) { t.remove(keyRecovery(1)) })
		p, err = s.Confirm(t.Context(), IncarnationDead(dead))
		requireRefused(t, ConfirmHeld, p, err)

		require.NoError(t, c.nodes[2].store.EndHold(t.Context(), 1))
		after, err := s.Confirm(t.Context(), IncarnationDead(dead))
		require.NoError(t, err)
		require.EqualValues(t, 1, after.Epoch())
		_, err = before.DeadIncarnation(c.genesis.ClusterID, 1)
		require.ErrorIs(t, err, proof.ErrRefused)
	})
}

func TestConfirmNeedsMembersThatCanBeAsked(t *testing.T) {
	inCluster(t, 2, func(t *testing.T, c *fakeCluster) {
		s := c.nodes[1].store
		_, err := s.Confirm(t.Context(), IncarnationDead(inc(1)))
		require.Equal(t, &ClusterVersionError{Needs: 3, Has: 1}, err)
		c.append(setVersion{2})
		c.catchUpAll(t)
		_, err = s.Confirm(t.Context(), IncarnationDead(inc(1)))
		require.Equal(t, &ClusterVersionError{Needs: 3, Has: 2}, err)
		var invalid *InvalidError
		for _, claim := range []Claim{{}, IncarnationDead(raftlog.Incarnation{}), ReplicaRemoved(0, 5), ReplicaRemoved(5, 0), ReplicaRemoved(raftlog.MetadataGroup, 12)} {
			_, err = s.Confirm(t.Context(), claim)
			require.ErrorAs(t, err, &invalid)
		}
	})
	// An older release takes part in version 2.
	synctest.Test(t, func(t *testing.T) {
		c := newFakeCluster(t, 1)
		n := c.startWith(1, simfs.New(1), func(n *fakeNode) { n.newest = NewestOf(2) })
		c.elect(1)
		require.NoError(t, n.store.SetVersion(t.Context(), 2))
		var invalid *InvalidError
		require.ErrorAs(t, n.store.SetVersion(t.Context(), 3), &invalid)
	})
}
