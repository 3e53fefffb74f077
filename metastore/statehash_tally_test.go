package metastore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/raftlog"
)

func goldenHashQuestion() hashQuestion { return hashQuestion{[16]byte{7, 8}, 2, 300, 1000} }

func goldenHashAnswers() (all []hashAnswer) {
	for has := hashHere; has <= newestHasHash; has++ {
		a := hashAnswer{hashQuestion: goldenHashQuestion(), Has: has}
		if has == hashHere {
			a.Hash = digest{9, 10}
		}
		all = append(all, a)
	}
	return all
}

func TestGoldenStateHash(t *testing.T) {
	var b strings.Builder
	q := goldenHashQuestion()
	fmt.Fprintf(&b, "%x\n", q.encode())
	got, err := decodeHashQuestion(q.encode())
	require.NoError(t, err)
	require.Equal(t, q, got)
	for _, a := range goldenHashAnswers() {
		fmt.Fprintf(&b, "%x\n", a.encode())
		got, err := decodeHashAnswer(a.encode())
		require.NoError(t, err)
		require.Equal(t, a, got)
	}
	// A change of what is hashed, or how, must be one of digestVersion, and comes with
	// a version of the cluster: else builds of one cluster would call each other damaged.
	d := newDigester()
	fmt.Fprintf(&b, "nothing %x\n", d.sum())
	d = newDigester()
	d.add([]byte("a"), []byte("bc"))
	d.add([]byte("ab"), nil)
	fmt.Fprintf(&b, "two rows %x\n", d.sum())
	golden(t, "statehash.v3", b.String())
	_, err = decodeHashQuestion([]byte{stateHashVersion + 1})
	require.ErrorIs(t, err, errNewerForm)
	_, err = decodeHashAnswer(append(q.encode(), byte(newestHasHash)+1))
	require.Error(t, err)
}

// Property: S11 (red: what follows a question was let in; open: decoders of other packages)
func FuzzStateHash(f *testing.F) {
	f.Add(goldenHashQuestion().encode())
	for _, a := range goldenHashAnswers() {
		f.Add(a.encode())
	}
	f.Add(encodeDiverged(&StateDivergedError{Index: 3, Own: digest{1}, Agreed: digest{2}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := decodeHashQuestion(b); err == nil {
			require.Equal(t, b, q.encode())
		}
		if a, err := decodeHashAnswer(b); err == nil {
			require.Equal(t, b, a.encode())
		}
		if e, err := decodeDiverged(b); err == nil {
			require.Equal(t, b, encodeDiverged(e))
		}
	})
}

// A state's hash does not depend on how it was cut, nor on what of it is where, and
// every change of it shows.
func TestWhatIsHashed(t *testing.T) {
	m := mustOpenMachine(t, simfs.New(1), testGenesis(3))
	defer func() { require.NoError(t, m.db.close()) }()
	hash := func() (sum digest, slices int) {
		src, err := m.source()
		require.NoError(t, err)
		defer func() { require.NoError(t, src.close()) }()
		sum, err = digestOf(m.db, src.held, src.of, func(int) error { slices++; return nil })
		require.NoError(t, err)
		return sum, slices
	}
	seen := map[digest]string{}
	note := func(what string) {
		sum, _ := hash()
		again, _ := hash()
		require.Equal(t, sum, again)
		require.Empty(t, seen[sum], what)
		seen[sum] = what
	}
	note("genesis")
	entries := []raftlog.Entry{
		{Index: 2, Term: 3, Data: encodeCommand(createTopic{inc(1), "orders", TopicConfig{Partitions: 4}})},
		{Index: 3, Term: 3},
		{Index: 4, Term: 3, Data: encodeCommand(createTopic{inc(1), "orders", TopicConfig{Partitions: 4}})}, // again
		{Index: 5, Term: 3, Kind: 2, Conf: &raftlog.ConfState{Voters: []raftlog.ReplicaID{11}}},
	}
	for _, e := range entries {
		require.NoError(t, m.Apply([]raftlog.Entry{e}, make([]raftlog.Result, 1)))
		note(fmt.Sprint("entry ", e.Index))
	}
	for i := range 40 {
		e := raftlog.Entry{Index: raftlog.Index(6 + i), Term: 3, Data: encodeCommand(setSetting{fmt.Sprint("key", i), strings.Repeat("v", 60<<10)})}
		require.NoError(t, m.Apply([]raftlog.Entry{e}, make([]raftlog.Result, 1)))
	}
	note("settings")
	sum, cuts := hash()
	require.Greater(t, cuts, 5)
	require.NoError(t, m.db.run(func() error {
		d := newDigester() // in one piece
		require.NoError(t, dump(m.db.newest(), func(key, value []byte) error { d.add(key, value); return nil }))
		require.Equal(t, sum, d.sum())
		return nil
	}))
	// Of what is of this node alone nothing counts.
	require.NoError(t, m.db.run(func() error { return m.db.setMark(mark{9, 9}) }))
	again, _ := hash()
	require.Equal(t, sum, again)
	// A key and a value are not one string.
	a, b := newDigester(), newDigester()
	a.add([]byte("ab"), []byte("c"))
	b.add([]byte("a"), []byte("bc"))
	require.NotEqual(t, a.sum(), b.sum())
	// One that is not wanted any more ends.
	src, err := m.source()
	require.NoError(t, err)
	_, err = digestOf(m.db, src.held, src.of, func(int) error { return errGone })
	require.ErrorIs(t, err, errGone)
	require.NoError(t, src.close())
}

// All answers that three to five voters can give, joint or not: what is agreed a
// majority has, and what a majority has is agreed.
//
// Property: X5 (red: one voter was a majority; one half was enough while joint)
func TestWhatVotersAgreeOn(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	outcomes := map[StateHashOutcome]int{}
	for range 20_000 {
		conf := raftlog.ConfState{}
		for v := range 1 + r.IntN(5) {
			conf.Voters = append(conf.Voters, raftlog.ReplicaID(1+v))
		}
		if r.IntN(2) == 0 {
			for v := range 1 + r.IntN(5) {
				conf.VotersOutgoing = append(conf.VotersOutgoing, raftlog.ReplicaID(3+v))
			}
		}
		q := hashQuestion{[16]byte{1}, 2, 0, 9}
		tally := newHashTally(q, conf)
		has := map[raftlog.ReplicaID]byte{}
		for _, v := range append(tally.voters(), 77) {
			a := hashAnswer{q.to(v), hashHere, digest{byte(1 + r.IntN(3)/2)}}
			counts := true
			switch r.IntN(12) {
			case 0:
				a.Nonce, counts = [16]byte{2}, false
			case 1:
				a.Epoch, counts = 1, false
			case 2:
				a.Replica, counts = 88, false
			case 3:
				a.Index, counts = 8, false
			case 4:
				a.Has, counts = hashNone+hasHash(r.IntN(4)), false
			case 5:
				tally.miss(v, "away")
				continue
			}
			last := tally.hear(v, a)
			require.Equal(t, a.Has != hashPending, last)
			if counts {
				has[v] = a.Hash[0]
				other := a
				other.Hash = digest{7}
				tally.hear(v, other) // the first word counts
			}
		}
		majority := func(of []raftlog.ReplicaID, sum byte) bool {
			n := 0
			for _, v := range of {
				if has[v] == sum {
					n++
				}
			}
			return 2*n > len(of)
		}
		var want digest
		for _, sum := range []byte{1, 2} {
			if majority(conf.Voters, sum) && (len(conf.VotersOutgoing) == 0 || majority(conf.VotersOutgoing, sum)) {
				want = digest{sum}
			}
		}
		sum, who, ok := tally.agreed()
		require.Equal(t, want != digest{}, ok)
		require.Equal(t, want, sum)
		for _, v := range who {
			require.Equal(t, sum[0], has[v])
		}
		if ok {
			require.True(t, slices.IsSorted(who))
			require.NoError(t, stateAgreed{9, q.Nonce, sum, who}.check())
			require.True(t, majorityOf(who, conf))
			require.False(t, majorityOf(who[:len(who)/2], raftlog.ConfState{Voters: who}))
		}
		outcomes[tally.outcome()]++
	}
	for _, o := range []StateHashOutcome{StateHashAgreed, StateHashSplit, StateHashNoMajority} {
		require.Greater(t, outcomes[o], 500, "%v", o)
	}
}

// hashing returns a fake cluster at version 3 whose nodes apply what a test says.
func hashingFakes(t *testing.T, n int) *fakeCluster {
	c := newFakeCluster(t, n)
	c.startAll()
	c.append(setVersion{3})
	c.catchUpAll(t)
	return c
}

// awaitSum waits for a store's hash.
func (n *fakeNode) awaitSum(t *testing.T, index raftlog.Index, nonce [16]byte) digest {
	t.Helper()
	c, has := n.store.awaitHash(t.Context(), hashQuestion{Nonce: nonce, Index: index})
	require.Equal(t, hashHere, has)
	return c.sum
}

// What is hashed is the state of exactly the command's index, wherever it is in a
// batch, also if the state refuses the command, and later ones do not change it.
//
// Property: X5 (red: the batch went on behind the command; a dissent was none)
func TestTheStateOfExactlyOneIndexIsHashed(t *testing.T) {
	c := hashingFakes(t, 3)
	for n := range 3 {
		nonce := [16]byte{byte(1 + n)}
		c.append(setSetting{"before", fmt.Sprint(n)}, hashState{nonce}, setSetting{"behind", fmt.Sprint(n)}, noop{})
		index := c.last() - 2
		var sums []digest
		for id := raftlog.NodeID(1); id <= 3; id++ {
			node := c.nodes[id]
			if int(id) == 1+n { // one entry at a time
				for at := node.applied + 1; at <= c.last(); at++ {
					require.NoError(t, node.catchUp(at))
				}
			}
			require.NoError(t, node.catchUp())
			sums = append(sums, node.awaitSum(t, index, nonce))
			require.Equal(t, index, func() raftlog.Index { c, _ := node.store.hashes.find(index, nonce); return c.at.Index }())
		}
		require.Equal(t, sums[0], sums[1])
		require.Equal(t, sums[0], sums[2])
		c.append(stateAgreed{index, nonce, sums[0], []raftlog.ReplicaID{11, 13}})
		c.catchUpAll(t)
		for _, node := range c.nodes {
			require.NoError(t, node.store.Failed())
			require.Equal(t, index, node.store.StateHashStats().AgreedIndex)
		}
	}
	// A state that thinks that it is of an older cluster refuses, and hashes.
	c.nodes[2].damage(t, func(x *tx) {
		k := x.cluster()
		k.Version = 2
		x.put([]byte{tableCluster}, k.encode())
	})
	nonce := [16]byte{9}
	c.append(hashState{nonce})
	c.catchUpAll(t)
	index := c.last()
	sum := c.nodes[1].awaitSum(t, index, nonce)
	require.NotEqual(t, sum, c.nodes[2].awaitSum(t, index, nonce))
	c.append(stateAgreed{index, nonce, sum, []raftlog.ReplicaID{11, 13}})
	require.NoError(t, c.nodes[1].catchUp())
	err := c.nodes[2].catchUp()
	require.ErrorIs(t, err, ErrStateDiverged)
	requireOneOutcome(t, raftlog.OutcomeRefused, err)
	require.NoError(t, c.nodes[3].catchUp())
	require.ErrorIs(t, c.nodes[2].store.Failed(), ErrStateDiverged)
}

// An agreement that is none, or of something else, stops nobody.
//
// Property: X5 (red: who agreed was not looked at; one half was enough while joint; the nonce was not compared)
func TestWhichAgreementsCount(t *testing.T) {
	c := hashingFakes(t, 3)
	nonce := [16]byte{1}
	bad := digest{66}
	for what, a := range map[string]stateAgreed{
		"too few":            {0, nonce, bad, []raftlog.ReplicaID{11}},
		"who is no voter":    {0, nonce, bad, []raftlog.ReplicaID{11, 14, 15}},
		"of another command": {0, [16]byte{2}, bad, []raftlog.ReplicaID{11, 12}},
		"of another index":   {2, nonce, bad, []raftlog.ReplicaID{11, 12}},
	} {
		c.append(hashState{nonce})
		c.catchUpAll(t)
		if a.Index == 0 {
			a.Index = c.last()
		}
		for _, n := range c.nodes {
			n.awaitSum(t, c.last(), nonce)
		}
		c.append(a)
		for _, n := range c.nodes {
			require.NoError(t, n.catchUp(), what)
			require.Zero(t, n.store.StateHashStats().AgreedIndex)
			require.NoError(t, n.store.Failed())
		}
	}
	// While joint both halves have to agree.
	c.reconfigure(t, raftlog.ConfState{Voters: []raftlog.ReplicaID{11, 12, 13}, VotersOutgoing: []raftlog.ReplicaID{13, 14, 15}})
	c.append(hashState{nonce})
	c.catchUpAll(t)
	index := c.last()
	sum := c.nodes[1].awaitSum(t, index, nonce)
	c.append(stateAgreed{index, nonce, sum, []raftlog.ReplicaID{11, 12, 13}})
	c.catchUpAll(t)
	require.Zero(t, c.nodes[1].store.StateHashStats().AgreedIndex)
	c.append(hashState{nonce})
	c.catchUpAll(t)
	index = c.last()
	sum = c.nodes[1].awaitSum(t, index, nonce)
	c.append(stateAgreed{index, nonce, sum, []raftlog.ReplicaID{11, 12, 13, 15}})
	c.catchUpAll(t)
	require.Equal(t, index, c.nodes[1].store.StateHashStats().AgreedIndex)
	for _, wrong := range []stateAgreed{{}, {9, nonce, sum, nil}, {9, nonce, sum, []raftlog.ReplicaID{2, 1}}, {9, nonce, sum, []raftlog.ReplicaID{1, 1}}, {9, [16]byte{}, sum, []raftlog.ReplicaID{1}}, {1, nonce, sum, []raftlog.ReplicaID{1}}} {
		require.Error(t, wrong.check())
	}
	require.Error(t, hashState{}.check())
}

// A node that lost its hashes with its process says nothing, and what is agreed then
// stops it only when it is asked anew. What is held is bounded, and all of it is let go.
//
// Property: X5 (red: a dissent was none; the nonce was not compared; a restart did not know; all that was asked for was held)
func TestHashesThatWereLost(t *testing.T) {
	c := newFakeCluster(t, 3)
	fs := simfs.New(3)
	c.start(1, simfs.New(1))
	c.start(2, simfs.New(2))
	c.start(3, fs)
	c.elect(1)
	c.append(setVersion{3}, hashState{[16]byte{1}})
	c.catchUpAll(t)
	index := c.last()
	sum := c.nodes[1].awaitSum(t, index, [16]byte{1})
	ask := func(q hashQuestion) hashAnswer {
		b, err := c.nodes[3].store.HandleCall(t.Context(), 1, MethodStateHash, q.encode())
		require.NoError(t, err)
		a, err := decodeHashAnswer(b)
		require.NoError(t, err)
		return a
	}
	q := hashQuestion{[16]byte{1}, 0, 13, index}
	require.Equal(t, hashAnswer{q, hashHere, sum}, ask(q))
	require.Equal(t, hashOther, ask(q.to(12)).Has)
	require.Equal(t, hashEpoch, ask(hashQuestion{q.Nonce, 1, 13, index}).Has)
	require.Equal(t, hashNone, ask(hashQuestion{[16]byte{5}, 0, 13, index}).Has)

	require.NoError(t, c.nodes[3].store.Close())
	n := c.start(3, fs)
	require.Equal(t, hashNone, ask(q).Has)
	n.damage(t, func(x *tx) { x.put([]byte{tableCounter, byte(counterGroup)}, appendUint(nil, 70)) })
	c.append(stateAgreed{index, q.Nonce, sum, []raftlog.ReplicaID{11, 12}})
	c.catchUpAll(t)
	require.NoError(t, n.store.Failed(), "it has nothing to compare")
	require.Zero(t, n.store.StateHashStats().AgreedIndex)
	for i := range 9 {
		c.append(hashState{[16]byte{byte(2 + i)}})
		c.catchUpAll(t)
		for _, n := range c.nodes {
			require.LessOrEqual(t, n.held(), 2+maxCandidates, "the agreed one, and one that was dropped while it is hashed")
		}
	}
	index = c.last()
	for _, n := range c.nodes {
		n.awaitSum(t, index, [16]byte{10})
	}
	sum = c.nodes[1].awaitSum(t, index, [16]byte{10})
	<-n.store.CaughtUp() // its gate applies, too
	c.append(stateAgreed{index, [16]byte{10}, sum, []raftlog.ReplicaID{11, 12}})
	for id, n := range c.nodes {
		err := n.catchUp()
		require.Equal(t, id == 3, errors.Is(err, ErrStateDiverged), "%v: %v", id, err)
	}
	require.NoError(t, c.nodes[3].store.Close())
	delete(c.nodes, 3)
	db, err := openDatabase(t.Context(), fs, "db", zap.NewNop())
	require.NoError(t, err)
	var e *StateDivergedError
	require.ErrorAs(t, db.mayBeUsed(), &e)
	require.Equal(t, index, e.Index)
	require.EqualValues(t, sum, e.Agreed)
	require.NoError(t, db.close())
	_, err = decodeDiverged([]byte{1})
	require.Error(t, err)
}

// Who has got a snapshot holds it until the log says what was agreed on it: it then
// can give it, too, or stops, if that is not what it got.
//
// Property: X5 (red: what was received was not held; a dissent was none)
func TestASnapshotIsHeldAgainstTheLog(t *testing.T) {
	for _, spoiled := range []bool{false, true} {
		c := hashingFakes(t, 3)
		nonce := [16]byte{1}
		c.append(hashState{nonce})
		c.catchUpAll(t)
		index, got := c.last(), c.nodes[3]
		sum := c.nodes[1].awaitSum(t, index, nonce)
		if spoiled {
			got.damage(t, func(x *tx) { x.put(keyString(tableSetting, "key"), []byte("value")) })
		}
		src, err := got.store.machine.source()
		require.NoError(t, err)
		has, err := digestOf(src.db, src.held, src.of, func(int) error { return nil })
		require.NoError(t, err)
		require.NoError(t, src.close())
		got.store.hashes.restarts(got.store.machine.applied(), &has) // as install does
		require.Zero(t, got.store.StateHashStats().AgreedIndex, "that is only what its sender said")
		_, err = got.store.hashes.give(t.Context(), snapshotRequest{replica: 11})
		require.ErrorContains(t, err, "no majority")
		c.append(stateAgreed{index, nonce, sum, []raftlog.ReplicaID{11, 12}})
		err = got.catchUp()
		if spoiled {
			require.ErrorIs(t, err, ErrStateDiverged)
			_, err = got.store.hashes.give(t.Context(), snapshotRequest{replica: 11})
			require.ErrorContains(t, err, "its metadata failed")
			continue
		}
		require.NoError(t, err)
		h, err := got.store.hashes.give(t.Context(), snapshotRequest{replica: 11})
		require.NoError(t, err)
		require.Equal(t, index, h.at.Index)
		require.Equal(t, sum, *h.hash)
		got.store.sources.release(h)
	}
}

// A state is taken if it has the hash that was agreed on, and one without a hash only
// if neither it nor the own one is of a cluster that agrees on states.
//
// Property: X5 (red: the hash was not compared; no hash was needed)
func TestWhichSnapshotsAreTaken(t *testing.T) {
	for _, version := range []uint64{1, 2, 3} {
		from := mustOpenMachine(t, simfs.New(1), testGenesis(3))
		to := mustOpenMachine(t, simfs.New(2), testGenesis(3))
		e := raftlog.Entry{Index: 2, Term: 3, Data: encodeCommand(setVersion{version})}
		require.NoError(t, from.Apply([]raftlog.Entry{e}, make([]raftlog.Result, 1)))
		src, err := from.source()
		require.NoError(t, err)
		sum, err := digestOf(src.db, src.held, src.of, func(int) error { return nil })
		require.NoError(t, err)
		var b bytes.Buffer
		require.NoError(t, src.write(&chunkWriter{w: &b}, nil, func(int) error { return nil }))
		require.NoError(t, src.close())
		st, err := to.stage()
		require.NoError(t, err)
		require.NoError(t, st.receive(&chunkReader{r: &b}))
		c, err := st.check()
		require.NoError(t, err)
		st.hash = &sum
		require.NoError(t, st.agreed(c, true))
		st.hash = &digest{1}
		require.ErrorIs(t, st.agreed(c, true), errOtherHash)
		st.hash = nil
		require.Equal(t, version == 3, errors.Is(st.agreed(c, false), errUnagreed), version)
		require.ErrorIs(t, st.agreed(c, true), errUnagreed)
		require.ErrorIs(t, errUnagreed, raftlog.ErrRetry)
		require.NoError(t, from.db.close())
		require.NoError(t, to.db.close())
	}
	same, other := digest{1}, digest{2}
	for _, c := range []struct {
		answer, begun *digest
		want          bool
	}{{nil, nil, true}, {&same, &digest{1}, true}, {&same, &other, false}, {&same, nil, false}, {nil, &same, false}} {
		require.Equal(t, c.want, snapshotAnswer{hash: c.answer}.goesOn(c.begun))
	}
}

func (n *fakeNode) held() int { return Held(n.store) }

// The commands by which states are compared are the leader's own, and are nothing
// before version 3.
func TestWhoComparesStates(t *testing.T) {
	c := newFakeCluster(t, 1)
	c.startAll()
	s := c.nodes[1].store
	for _, cmd := range []command{hashState{[16]byte{1}}, stateAgreed{3, [16]byte{1}, digest{}, []raftlog.ReplicaID{11}}} {
		require.Equal(t, &ClusterVersionError{Needs: 3, Has: 1}, s.allowed(cmd))
	}
	require.False(t, s.agreesOnStates())
	require.NoError(t, s.SetVersion(t.Context(), 3))
	require.True(t, s.agreesOnStates())
	for _, cmd := range []command{hashState{[16]byte{1}}, stateAgreed{3, [16]byte{1}, digest{}, []raftlog.ReplicaID{11}}} {
		last := c.last()
		b, err := s.HandleCall(t.Context(), 2, MethodPropose, encodeCommand(cmd))
		require.NoError(t, err)
		require.ErrorContains(t, decodeAnswer(b).err, "by itself")
		require.ErrorIs(t, decodeAnswer(b).err, raftlog.ErrRefused)
		require.Equal(t, last, c.last())
	}
	require.Equal(t, uint64(3), Calls()[MethodStateHash])
	var unsupported *UnsupportedError
	_, err := s.HandleCall(t.Context(), 2, MethodStateHash, []byte{stateHashVersion + 1})
	require.ErrorAs(t, err, &unsupported)
	_, err = s.HandleCall(t.Context(), 2, MethodStateHash, bytes.Repeat([]byte{1}, 3))
	require.ErrorIs(t, err, raftlog.ErrRefused)
}
