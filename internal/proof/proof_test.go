package proof

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	cluster = [16]byte{0xc1}
	dead    = Claim{Kind: DeadIncarnation, Incarnation: [16]byte{7}}
	removed = Claim{Kind: RemovedReplica, Group: 5, Replica: 9}
)

// Property: X1 (red: in without its look at minted; Covers with the replica alone)
func TestAProofProvesWhatItSays(t *testing.T) {
	mint := func(c Claim) Proof {
		p, err := Mint(c, cluster, 3)
		require.NoError(t, err)
		return p
	}
	type where struct {
		cluster        [16]byte
		epoch          uint64
		incarnation    [16]byte
		group, replica uint64
	}
	here := where{cluster, 3, [16]byte{7}, 5, 9}
	but := func(change func(*where)) where {
		w := here
		change(&w)
		return w
	}
	for _, c := range []struct {
		what   string
		p      Proof
		of     where
		covers bool
	}{
		{"dead", mint(dead), here, true},
		{"dead, another replica of it", mint(dead), but(func(w *where) { w.group, w.replica = 6, 10 }), true},
		{"dead, another incarnation", mint(dead), but(func(w *where) { w.incarnation[0] = 8 }), false},
		{"dead, none", mint(dead), but(func(w *where) { w.incarnation = [16]byte{} }), false},
		{"removed", mint(removed), here, true},
		{"removed, whatever the incarnation", mint(removed), but(func(w *where) { w.incarnation = [16]byte{} }), true},
		{"removed, another replica", mint(removed), but(func(w *where) { w.replica = 10 }), false},
		{"removed, another group", mint(removed), but(func(w *where) { w.group = 6 }), false},
		{"another cluster", mint(dead), but(func(w *where) { w.cluster[0] = 2 }), false},
		{"an older epoch", mint(dead), but(func(w *where) { w.epoch = 4 }), false},
		{"a newer epoch", mint(removed), but(func(w *where) { w.epoch = 2 }), false},
		{"the zero value", Proof{}, here, false},
		{"the zero value, of nothing", Proof{}, where{}, false},
	} {
		err := c.p.Covers(c.of.cluster, c.of.epoch, c.of.incarnation, c.of.group, c.of.replica)
		if c.covers {
			require.NoError(t, err, c.what)
		} else {
			var refused *Error
			require.ErrorAs(t, err, &refused, c.what)
			require.ErrorIs(t, err, ErrRefused)
			require.Equal(t, c.p == Proof{}, refused.Reason == "it is the zero value", c.what)
		}
	}
	got, err := mint(dead).DeadIncarnation(cluster, 3)
	require.NoError(t, err)
	require.Equal(t, dead.Incarnation, got)
	for _, p := range []Proof{{}, mint(removed)} {
		_, err = p.DeadIncarnation(cluster, 3)
		require.ErrorIs(t, err, ErrRefused)
	}
	_, err = mint(dead).DeadIncarnation(cluster, 4)
	require.ErrorIs(t, err, ErrRefused)
}

func TestNobodyMintsNothing(t *testing.T) {
	for _, c := range []Claim{{}, {Kind: DeadIncarnation}, {Kind: RemovedReplica, Group: 5}, {Kind: RemovedReplica, Replica: 9},
		{Kind: DeadIncarnation, Incarnation: [16]byte{1}, Group: 5}, {Kind: 3, Group: 5, Replica: 9}} {
		_, err := Mint(c, cluster, 0)
		require.Error(t, err)
	}
	_, err := Mint(dead, [16]byte{}, 0)
	require.Error(t, err)
}
