package membership

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Property: J5, J10 (red: nobody made it a learner; it did not ask)
func TestANodeJoinsAndVotes(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		began := time.Now()
		w.ready()
		d := w.start("d", &disk{nonce: raftlog.Nonce{4}})
		w.await(3*time.Second, func() bool { return slices.Contains(w.learners(), "d") }, "d is a learner")
		w.await(time.Minute, func() bool { return slices.Contains(w.voters(), "d") }, "d votes")
		require.GreaterOrEqual(t, time.Since(began), 12*time.Second, "the leader has led for as long")
		require.Equal(t, []string{"a", "b", "c", "d"}, w.voters())

		// It is restarted, and is what it was.
		d.stop()
		w.start("d", d.disk)
		time.Sleep(time.Minute)
		require.Equal(t, d.place.Node, w.house("d").place.Node)
		require.Equal(t, []string{"a", "b", "c", "d"}, w.voters())
		require.Len(t, w.Members(), 4)
	})
}

func (w *town) Members() []metastore.Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.members)
}

// Property: J10 (red: led-for not asked; every answer logged; the leader's line at info; no line of an answer that is not new)
func TestPromotionWaitsForALeaderOfTwelveSeconds(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		w.start("d", &disk{nonce: raftlog.Nonce{4}})
		// Leaders change every 11.9 s.
		for i := range 10 {
			w.lead(raftlog.NodeID(1 + i%3))
			time.Sleep(11900 * time.Millisecond)
			require.Equal(t, []string{"d"}, w.learners(), "round %d", i)
		}
		w.await(20*time.Second, func() bool { return slices.Contains(w.voters(), "d") }, "one stays")
		reasons := map[string]int{}
		for _, e := range w.logs.FilterMessage("not a voter yet").All() {
			if e.Level == zapcore.InfoLevel {
				reasons[e.ContextMap()["reason"].(string)]++
			}
		}
		require.Len(t, w.logs.FilterMessage("not a voter yet").FilterLevelExact(zapcore.InfoLevel).All(), len(reasons), "each new reason once: %v", reasons)
		require.Greater(t, w.logs.FilterMessage("not a voter yet").FilterLevelExact(zapcore.DebugLevel).Len(), 20, "and for who wants to know, each answer")
		told := map[string]int{}
		for _, e := range w.logs.FilterMessage("a learner gets no vote").All() {
			require.Equal(t, zapcore.DebugLevel, e.Level, "the leader's line")
			told[e.ContextMap()["why"].(string)]++
		}
		for reason := range reasons {
			require.Positive(t, told[reason], "%v: %v", reason, told)
		}
	})
}

// Property: J9 (red: promoted uncalled and behind)
func TestAnUnreachableJoinerWithOneVoterDown(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		w.house("c").stop()
		w.mu.Lock()
		w.cut["d:1"] = true // its calls go out, nobody's come in
		w.mu.Unlock()
		w.start("d", &disk{nonce: raftlog.Nonce{4}})
		w.await(5*time.Second, func() bool { return slices.Contains(w.learners(), "d") }, "d is staged")
		for range 120 {
			before := w.member("a").Liveness.Stamp
			time.Sleep(6 * time.Second)
			require.Greater(t, w.member("a").Liveness.Stamp, before, "the two go on committing")
			d := w.member("d")
			r := w.ask("a", MethodPromote, MemberRequest{Node: d.Node, Nonce: d.Nonce, Newest: 19}.Encode())
			require.Equal(t, StatusDeferred, r.Status)
			require.Equal(t, []string{"a", "b", "c"}, w.voters())
		}
		// It can be removed: a learner counts to no floor. It cannot be asked what it
		// has not answered, so it must be forced.
		require.NoError(t, w.drain("d", metastore.Drains))
		time.Sleep(time.Minute)
		require.Len(t, w.Members(), 4)
		require.NoError(t, w.drain("d", metastore.DrainsForced))
		w.await(time.Minute, func() bool { return len(w.Members()) == 3 }, "d is removed")
		require.Empty(t, w.learners())
		require.Equal(t, []string{"a", "b", "c"}, w.voters())
	})
}

// Property: J11 (red: an observer stood by; one that never asked took the vote of a dead one)
func TestAnObserverStaysOne(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		w.start("o", &disk{nonce: raftlog.Nonce{9}}, func(h *house) { h.observer = true })
		w.await(5*time.Second, func() bool { return slices.Contains(w.learners(), "o") }, "o learns")
		// Nothing promotes a learner that never asks either.
		w.start("d", &disk{nonce: raftlog.Nonce{4}}, func(h *house) { h.observer = true })
		w.await(5*time.Second, func() bool { return slices.Contains(w.learners(), "d") }, "d learns")
		w.mu.Lock()
		w.memberLocked(w.nodes["d:1"].place.Node).Liveness.Observer = false
		w.mu.Unlock()
		// A voter is dead for longer than its vote waits for it: no observer is a standby.
		w.house("c").stop()
		time.Sleep(11 * time.Minute)
		require.True(t, w.member("c").Liveness.Dead)
		require.Equal(t, []string{"a", "b", "c"}, w.voters())
		require.Len(t, w.Members(), 5, "nothing removes one by itself")
	})
}

// Property: J18 (red: a sixth voter; no standby took a vote)
func TestOfEightFiveVote(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		for i, name := range []string{"d", "e", "f", "g", "h"} {
			w.start(name, &disk{nonce: raftlog.Nonce{byte(10 + i)}})
		}
		w.await(time.Minute, func() bool { return len(w.voters()) == 5 }, "five vote")
		time.Sleep(time.Minute)
		require.Len(t, w.voters(), 5)
		require.Len(t, w.learners(), 3)

		// One dies: not its record, its vote is given away, after ten minutes.
		dead := w.voters()[4]
		w.house(dead).stop()
		waited := w.await(11*time.Minute, func() bool { return !slices.Contains(w.voters(), dead) }, "its vote passes on")
		require.GreaterOrEqual(t, waited, 10*time.Minute-time.Second)
		require.Len(t, w.voters(), 5)
		require.Contains(t, w.learners(), dead, "demoted, not removed")
		w.start(dead, w.house(dead).disk)
		time.Sleep(time.Minute)
		require.Contains(t, w.learners(), dead, "it stands by now")

		// Another one is decommissioned: a standby takes its vote in the same change.
		leaver := w.voters()[3]
		require.NoError(t, w.drain(leaver, metastore.Drains))
		w.await(time.Minute, func() bool { return w.member(leaver).Node == 0 }, "it is removed")
		require.Len(t, w.voters(), 5)
	})
}

// Property: H2, H3, H4 (red: silence of before the leadership counted, at once; the mark without the stamp it judged)
func TestNobodyDiesOfALeaderlessStretch(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		w.start("d", &disk{nonce: raftlog.Nonce{4}})
		time.Sleep(time.Minute)
		for i, jump := range []time.Duration{0, time.Hour, -2 * time.Hour} {
			w.lead(0)
			time.Sleep(5 * time.Minute)
			w.mu.Lock()
			w.clockOff += jump // the wall clock of the next leader
			w.mu.Unlock()
			w.lead(raftlog.NodeID(1 + i%3))
			time.Sleep(5 * time.Minute)
		}
		require.Zero(t, w.happened(EventDead)+w.happened(EventSpared))

		// Who is silent is marked, after 30 s, and lives again when it speaks.
		w.house("d").stop()
		d := w.house("d").disk
		waited := w.await(40*time.Second, func() bool { return w.member("d").Liveness.Dead }, "d is dead")
		require.GreaterOrEqual(t, waited, 25*time.Second)
		w.start("d", d)
		w.await(3*time.Second, func() bool { return !w.member("d").Liveness.Dead }, "d lives")
	})
}

// Property: H5 (red: no breaker; a line in every pass)
func TestTheBreaker(t *testing.T) {
	in(t, 5, func(t *testing.T, w *town) {
		w.ready()
		w.start("o", &disk{nonce: raftlog.Nonce{9}}, func(h *house) { h.observer = true })
		time.Sleep(time.Minute)
		leader := w.house("a")
		// Three voters and the observer live, but a does not hear their heartbeats.
		deaf := []string{"c", "d", "e", "o"}
		for _, n := range deaf {
			w.house(n).end() // their drivers; raft goes on
		}
		time.Sleep(5 * time.Minute)
		require.True(t, w.member("o").Liveness.Dead, "who does not vote is judged as usual")
		for _, n := range deaf[:3] {
			require.False(t, w.member(n).Liveness.Dead)
		}
		require.Equal(t, 3, leader.steward.Gauges().Spared)
		spared := w.logs.FilterMessage("voters are silent and not marked dead")
		require.Equal(t, 1, spared.Len(), "one line per streak")
		// One speaks again: two of five may be marked.
		w.mu.Lock()
		w.nodes["c:1"].downSince = time.Now()
		w.mu.Unlock()
		w.start("c", w.house("c").disk)
		w.await(time.Minute, func() bool { return w.member("d").Liveness.Dead && w.member("e").Liveness.Dead }, "both are marked")
		require.Zero(t, leader.steward.Gauges().Spared)
	})
}

// Property: J17 (red: admitted at once; tombstones not asked)
func TestAWipedDiskIsANewNode(t *testing.T) {
	for _, wiped := range []string{"c", "a"} { // a founded, and leads
		t.Run(wiped, func(t *testing.T) {
			in(t, 3, func(t *testing.T, w *town) {
				w.ready()
				time.Sleep(time.Minute)
				old := w.member(wiped)
				w.house(wiped).stop()
				w.mu.Lock()
				if w.leader == 0 {
					w.electLocked(0)
				}
				w.mu.Unlock()
				w.start(wiped, &disk{nonce: raftlog.Nonce{33}})
				waited := w.await(2*time.Minute, func() bool { return w.member(wiped).Node != old.Node }, "admitted")
				require.GreaterOrEqual(t, waited, 25*time.Second, "the old life was silent for 30 s")
				w.await(2*time.Minute, func() bool { return len(w.Members()) == 3 }, "the old life is gone")
				require.Equal(t, []string{"a", "b", "c"}, w.voters())
				require.Empty(t, w.learners())

				// The old disk is back, at another address: it is told, and a late
				// duplicate of its join changes nothing.
				w.mu.Lock()
				_, dead := w.stones[old.Nonce]
				before := w.ids
				w.mu.Unlock()
				require.True(t, dead)
				for _, h := range []string{"a", "b", "c"} {
					r := w.ask(h, MethodJoin, JoinRequest{Name: wiped, Nonce: old.Nonce, Newest: 19}.Encode())
					require.Equal(t, ReplyRemoved, r.Kind, "of whoever is asked")
				}
				w.mu.Lock()
				require.Equal(t, before, w.ids)
				w.mu.Unlock()
			})
		})
	}
}

// Property: R21 (red: waited for the wiped voter itself)
func TestTwoOfFiveAreWipedAtOnce(t *testing.T) {
	in(t, 5, func(t *testing.T, w *town) {
		w.ready()
		time.Sleep(time.Minute)
		for i, name := range []string{"d", "e"} {
			w.house(name).stop()
			w.start(name, &disk{nonce: raftlog.Nonce{byte(40 + i)}})
		}
		w.await(5*time.Minute, func() bool {
			return len(w.Members()) == 5 && len(w.learners()) == 0 && len(w.voters()) == 5 && len(w.stonesNow()) == 2
		}, "both are back")
	})
}

func (w *town) stonesNow() map[raftlog.Nonce]metastore.Tombstone {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.stones)
}

// Property: J17 (red: who asked before the old life spoke was only let wait)
func TestAMistypedNameEvictsNobody(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		time.Sleep(time.Minute)
		twin := &disk{nonce: raftlog.Nonce{66}}
		x := w.start("x", twin, func(h *house) { h.peer = Peer{"c", "x:1"} })
		w.await(15*time.Second, func() bool { return w.stonesNow()[twin.nonce].Refused }, "refused for good")
		// c reboots for a minute, under another leader that knows nothing of that.
		c := w.house("c")
		node := c.place.Node
		c.stop()
		w.lead(2)
		time.Sleep(time.Minute)
		w.start("c", c.disk)
		time.Sleep(time.Minute)
		require.Equal(t, node, w.member("c").Node)
		require.Len(t, w.Members(), 3)
		var removed *RemovedError
		require.ErrorAs(t, x.removed, &removed)
		require.Contains(t, removed.Reason, "another name")
	})
}

// Property: J13 (red: the leader logged every ask)
func TestAnOldBuildIsNotTakenIn(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		w.start("d", &disk{nonce: raftlog.Nonce{4}}, func(h *house) { h.newest = 9 })
		time.Sleep(10 * time.Minute)
		require.Len(t, w.Members(), 3)
		lines := w.logs.FilterMessage("a node with an older build asks to join").Len()
		require.LessOrEqual(t, lines, 11, "at most once a minute")
		require.GreaterOrEqual(t, lines, 9)
		require.Equal(t, 1, w.logs.FilterMessage("the cluster does not take this node in").Len())
		w.house("d").stop()
		w.start("d", w.house("d").disk)
		w.await(time.Minute, func() bool { return slices.Contains(w.voters(), "d") }, "a newer build")
	})
}

// Property: C9 (red: who said nothing did not count)
func TestTheVersionWaitsForAllMembers(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.house("c").stop()
		w.start("d", &disk{nonce: raftlog.Nonce{4}})
		time.Sleep(9 * time.Minute)
		require.Equal(t, uint64(1), w.house("a").ClusterVersion())
		require.Len(t, w.Members(), 3, "nobody can be recorded yet")
		w.start("c", w.house("c").disk)
		w.await(10*time.Second, func() bool { return w.house("a").ClusterVersion() == 2 }, "all have announced")
		w.await(time.Minute, func() bool { return slices.Contains(w.voters(), "d") }, "d votes")
	})
}

// Property: D1, D4, D5, D7 (red: the leader never handed over; the record was never removed; who was removed told by nobody, neither by who is asked nor when it asks to be admitted)
func TestTheLeaderIsDecommissionedAndLeadersDieAtEachStep(t *testing.T) {
	steps := 0
	for nth := 0; nth <= max(3, steps); nth++ {
		t.Run(fmt.Sprint(nth), func(t *testing.T) {
			in(t, 5, func(t *testing.T, w *town) {
				w.ready()
				time.Sleep(time.Minute)
				w.mu.Lock()
				base := w.changes
				// All that changes from here on is the decommission, and heartbeats.
				w.crash = func(n int) bool { return nth > 0 && n == base+nth }
				w.mu.Unlock()
				a := w.house("a")
				require.NoError(t, w.drain("a", metastore.Drains))
				down := func() bool { w.mu.Lock(); defer w.mu.Unlock(); return !a.downSince.IsZero() }
				w.await(3*time.Minute, func() bool { return w.member("a").Node == 0 || down() }, "a is gone, or crashed")
				if down() {
					w.start("a", a.disk)
					w.await(3*time.Minute, func() bool { return w.member("a").Node == 0 }, "a is gone")
				}
				w.mu.Lock()
				steps = max(steps, min(w.changes-base, 8))
				require.NotContains(t, w.conf.Voters, raftlog.ReplicaID(1))
				w.crash = nil
				w.mu.Unlock()

				// Its old disk is started again: it is told, and changes nothing.
				w.await(time.Minute, func() bool { h := w.house("a"); w.mu.Lock(); defer w.mu.Unlock(); return h.removed != nil }, "it is told")
				w.house("a").stop()
				again := w.start("a", a.disk)
				w.await(time.Minute, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return again.removed != nil }, "and again")
				require.Zero(t, w.member("a").Node)

				// A new life under the name is a new node.
				again.stop()
				w.start("a", &disk{nonce: raftlog.Nonce{77}})
				w.await(2*time.Minute, func() bool { return slices.Contains(w.voters(), "a") }, "a new life")
				require.NotEqual(t, raftlog.NodeID(1), w.member("a").Node)
			})
		})
	}
	require.GreaterOrEqual(t, steps, 3)
}

// Property: D1 (red: taken out before it was marked leaving)
func TestACancelNeverLosesAnUndrainedNode(t *testing.T) {
	late := 0
	for nth := range 8 { // the cancel comes right after that change
		in(t, 4, func(t *testing.T, w *town) {
			w.ready()
			time.Sleep(time.Minute)
			var err error
			w.mu.Lock()
			base, d := w.changes, w.members[3]
			w.crash = func(n int) bool {
				if n == base+1+nth {
					err = w.departLocked(d.Node, d.Nonce, metastore.Stays)
				}
				return false
			}
			w.mu.Unlock()
			require.NoError(t, w.drain("d", metastore.Drains))
			time.Sleep(2 * time.Minute)
			w.mu.Lock()
			cancelled := err
			w.mu.Unlock()
			if cancelled == nil {
				require.Contains(t, w.voters(), "d")
				require.Equal(t, metastore.Stays, w.member("d").Liveness.Departure)
			} else {
				late++
				require.Zero(t, w.member("d").Node, "the cancel came too late, and said so")
				require.NotContains(t, w.voters(), "d")
			}
		})
	}
	require.Greater(t, late, 0)
	require.Less(t, late, 8)
}

// Property: D3 (red: an unanswered question taken for zero)
func TestAnUnansweredQuestionWaits(t *testing.T) {
	in(t, 4, func(t *testing.T, w *town) {
		w.ready()
		time.Sleep(time.Minute)
		d := w.house("d")
		knows, count := false, uint64(5)
		d.drains = func() (bool, uint64) { w.mu.Lock(); defer w.mu.Unlock(); return knows, count }
		require.NoError(t, w.drain("d", metastore.Drains))
		stays := func(why string) {
			t.Helper()
			time.Sleep(5 * time.Minute)
			require.Contains(t, w.voters(), "d", why)
			require.Equal(t, metastore.Drains, w.member("d").Liveness.Departure, why)
		}
		stays("it does not know yet that it is draining")
		w.mu.Lock()
		knows = true
		w.mu.Unlock()
		stays("it has produces to answer")
		d.stop()
		stays("it is dead and says nothing")
		require.Equal(t, 1, w.happened(EventBlocked), "it is said, once")
		w.start("d", d.disk) // with no produces of an earlier process
		w.await(2*time.Minute, func() bool { return w.member("d").Node == 0 }, "it went")
	})
}

// A decommission is taken back and begun anew at once: what the node answered in the
// first one says nothing of what it has taken in since.
//
// Property: D1, D3 (red: the answer to a question of the first one counted)
func TestAnAnswerIsOfItsOwnDecommission(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		time.Sleep(time.Minute)
		count := uint64(0)
		w.house("c").drains = func() (bool, uint64) { w.mu.Lock(); defer w.mu.Unlock(); return true, count }
		require.NoError(t, w.drain("c", metastore.Drains))
		time.Sleep(time.Minute) // it answered, and is kept by the floor
		require.NoError(t, w.drain("c", metastore.Stays))
		w.mu.Lock()
		count = 5 // its door was open for a moment
		w.mu.Unlock()
		require.NoError(t, w.drain("c", metastore.DrainsForced))
		time.Sleep(5 * time.Minute)
		require.Equal(t, metastore.DrainsForced, w.member("c").Liveness.Departure)
		require.Contains(t, w.voters(), "c")
	})
}

// Property: D2 (red: no floor)
func TestNeverBelowThreeVoters(t *testing.T) {
	in(t, 5, func(t *testing.T, w *town) {
		w.ready()
		time.Sleep(time.Minute)
		for _, name := range []string{"c", "d", "e"} { // three at once
			require.NoError(t, w.drain(name, metastore.Drains))
		}
		time.Sleep(10 * time.Minute)
		require.Len(t, w.voters(), 3)
		require.Len(t, w.Members(), 3)
		left := w.voters()[2]
		require.NoError(t, w.drain(left, metastore.DrainsForced))
		w.await(2*time.Minute, func() bool { return len(w.Members()) == 2 }, "forced")
	})
}

// Property: J8 (red: the address not recorded; a voter demoted)
func TestAnAddressChangesAndNothingElse(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		b := w.house("b")
		b.stop()
		w.mu.Lock()
		delete(w.nodes, "b:1")
		w.mu.Unlock()
		moved := w.start("b", b.disk, func(h *house) { h.peer.Addr = "b:2" })
		w.await(10*time.Second, func() bool { return w.member("b").Addr == "b:2" }, "by its heartbeat")
		for range 3 {
			r := w.ask("a", MethodJoin, JoinRequest{Name: "b", Nonce: moved.disk.nonce, Addr: "b:3", Newest: 19}.Encode())
			require.Equal(t, StatusVoter, r.Status)
			require.Equal(t, raftlog.NodeID(2), r.Node)
			require.Len(t, r.Members, 3)
		}
		require.Equal(t, "b:3", w.member("b").Addr)
		require.Equal(t, []string{"a", "b", "c"}, w.voters())
		require.Len(t, w.Members(), 3)
	})
}

// Property: J12 (red: the leader not named)
func TestCallsThatAreNoneOfItsBusiness(t *testing.T) {
	in(t, 3, func(t *testing.T, w *town) {
		w.ready()
		follower := w.house("b").steward
		for _, method := range []string{MethodJoin, MethodPromote, MethodHeartbeat, MethodBacklog, "member.nothing"} {
			_, err := follower.HandleCall(t.Context(), method, []byte{9})
			require.ErrorIs(t, err, raftlog.ErrRefused, method)
		}
		r := w.ask("b", MethodJoin, JoinRequest{Name: "z", Nonce: raftlog.Nonce{9}}.Encode())
		require.Equal(t, Reply{Kind: ReplyNotLeader, Leader: 1, Addr: "a:1"}, r)
		_, err := w.house("a").steward.HandleCall(t.Context(), MethodHeartbeat, MemberRequest{Node: 2, Nonce: raftlog.Nonce{99}}.Encode())
		require.ErrorIs(t, err, raftlog.ErrRefused, "another life")
		_, err = NewSteward(StewardConfig{Rules: Rules{PromoteAfter: time.Second}, Tick: time.Second})
		require.ErrorIs(t, err, raftlog.ErrRefused)
		_, err = NewSteward(StewardConfig{})
		require.ErrorIs(t, err, raftlog.ErrRefused)
	})
}

// Property: D6 (red: assignments not asked)
func TestPlansAndWhatIsForgotten(t *testing.T) {
	in(t, 4, func(t *testing.T, w *town) {
		w.ready()
		w.mu.Lock()
		w.loads[4] = 3
		w.mu.Unlock()
		leader, follower := w.house("a").steward, w.house("b").steward
		p, err := leader.Plan(4, false)
		require.NoError(t, err)
		require.Equal(t, []Step{StepMove, StepBacklog, StepMark, StepLeave, StepRemove}, p.Steps)
		require.Equal(t, metastore.Stays, w.member("d").Liveness.Departure)
		_, err = leader.Plan(99, false)
		require.ErrorIs(t, err, ErrNoMember)
		var notLeader *raftlog.NotLeaderError
		there, err := follower.Plan(4, false)
		require.NoError(t, err)
		require.Equal(t, p, there, "any node knows")
		require.ErrorAs(t, follower.Forget(t.Context(), 9), &notLeader)

		var refused *ForgetError
		require.ErrorAs(t, leader.Forget(t.Context(), 4), &refused, "a member")
		w.mu.Lock()
		w.conf.Voters = append(slices.Clone(w.conf.Voters), 55)
		w.loads[9] = 1
		w.mu.Unlock()
		require.ErrorAs(t, leader.Forget(t.Context(), 55), &refused, "a node that is no member holds something")
		w.mu.Lock()
		delete(w.loads, 9)
		w.mu.Unlock()
		require.NoError(t, leader.Forget(t.Context(), 55))
		require.Len(t, w.voters(), 4)
	})
}
