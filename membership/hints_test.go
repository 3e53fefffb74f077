package membership

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Property: J7 (red: nine remembered; one twice)
func TestLeadersAreRemembered(t *testing.T) {
	var l Leaders
	for i := range 10 {
		l.Remember(fmt.Sprintf("n%d", i))
	}
	require.Equal(t, []string{"n9", "n8", "n7", "n6", "n5", "n4", "n3", "n2"}, l.All())
	l.Remember("n5")
	require.Equal(t, []string{"n5", "n9", "n8", "n7", "n6", "n4", "n3", "n2"}, l.All())
	l.Remember("n5")
	require.Len(t, l.All(), 8)
	l.Remember("n2")
	l.Remember("x")
	require.Equal(t, []string{"x", "n2", "n5", "n9", "n8", "n7", "n6", "n4"}, l.All())
}

// Property: J6, J7 (red: a hint over 261 bytes followed; a fifth hint followed; a peer asked twice)
func TestWalk(t *testing.T) {
	walk := func(w *Walk) (all []string) {
		for {
			addr, ok := w.Next()
			if !ok {
				return all
			}
			all = append(all, addr)
		}
	}
	var l Leaders
	l.Remember("b")
	l.Remember("x")
	w := NewWalk([]string{"a", "b", "", "self", "c"}, &l, "self", nil)
	require.Equal(t, []string{"x", "b", "a", "c"}, walk(w), "remembered leaders first, each once, not itself")

	w = NewWalk([]string{"a", "b"}, &Leaders{}, "self", func(addr string) bool { return !strings.HasSuffix(addr, ":0") })
	next, _ := w.Next()
	require.Equal(t, "a", next)
	require.False(t, w.Hint(""), "it does not know the leader")
	require.False(t, w.Hint("h:0"), "the transport refuses it")
	require.False(t, w.Hint(strings.Repeat("h", 262)), "too long")
	require.False(t, w.Hint("a"), "asked already")
	require.False(t, w.Hint("self"))
	require.True(t, w.Hint(strings.Repeat("h", 261)))
	next, _ = w.Next()
	require.Len(t, next, 261, "a hint is followed at once")
	for _, h := range []string{"h2", "h3", "h4"} {
		require.True(t, w.Hint(h))
		next, _ = w.Next()
		require.Equal(t, h, next)
	}
	require.False(t, w.Hint("h5"), "four in one attempt")
	require.Equal(t, []string{"b"}, walk(w), "and the walk goes on")
}
