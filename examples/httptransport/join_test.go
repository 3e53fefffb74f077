package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/transport"
)

// Who asks to be taken in gets each kind of answer over the hosts' servers, as what it
// is, from nodes that have reason to give it.
//
// Property: J12 (red: who is in no cluster answered that somebody else leads; a life that is refused was told to wait)
func TestWhoAsksToJoinIsAnswered(t *testing.T) {
	if testing.Short() {
		t.Skip("real time: a node joins")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func(name string, change func(*stele.Config, *host)) *host {
		h, err := listen("127.0.0.1:0")
		require.NoError(t, err)
		cfg := stele.Config{Cluster: "c", Name: name, Dir: filepath.Join(t.TempDir(), name), Transport: h.transport}
		change(&cfg, h)
		h.node, err = stele.Open(ctx, cfg)
		require.NoError(t, err)
		h.serve()
		t.Cleanup(func() { _ = h.abort() })
		return h
	}
	nobody := "http://" + closedPort(t) + "/stele/"
	alone := open("alone", func(cfg *stele.Config, h *host) {
		cfg.InitialMembers = []stele.Peer{{Name: "alone", Addr: h.transport.Addr()}, {Name: "missing", Addr: nobody}}
	})
	leads := open("leads", func(cfg *stele.Config, h *host) {
		cfg.InitialMembers = []stele.Peer{{Name: "leads", Addr: h.transport.Addr()}}
	})
	follows := open("follows", func(cfg *stele.Config, _ *host) { cfg.Join = []string{leads.transport.Addr()} })
	require.NoError(t, follows.node.WaitReady(ctx))

	stranger := made(t, Config{})
	require.NoError(t, stranger.Start(transport.Identity{Cluster: "c", Name: "new"}, &echo{}))
	ask := func(h *host, q membership.JoinRequest) membership.Reply {
		t.Helper()
		b, err := stranger.Call(ctx, h.transport.Addr(), membership.MethodJoin, q.Encode())
		require.NoError(t, err)
		reply, err := membership.DecodeReply(b)
		require.NoError(t, err)
		return reply
	}
	is := func(kind membership.ReplyKind, code int, reply membership.Reply) {
		t.Helper()
		require.Equal(t, kind, reply.Kind, "%+v", reply)
		require.Equal(t, code, reply.Kind.Code())
	}
	newest := metastore.NewestCommand
	q := membership.JoinRequest{Name: "new", Nonce: raftlog.Nonce{1}, Addr: nobody, Newest: newest}
	is(membership.ReplyUnconfigured, 412, ask(alone, q))

	told := ask(follows, q)
	is(membership.ReplyNotLeader, 421, told)
	require.Equal(t, leads.transport.Addr(), told.Addr, "it names the leader")

	q.Newest = 1
	older := ask(leads, q)
	is(membership.ReplyOlderRelease, 409, older)
	require.Greater(t, older.Need, q.Newest)

	// The name of a member that is well: refused for good, as soon as that was heard.
	twin := membership.JoinRequest{Name: "follows", Nonce: raftlog.Nonce{2}, Addr: nobody, Newest: newest}
	waits := ask(leads, twin)
	require.Equal(t, membership.StatusDeferred, waits.Status)
	for _, of := range []*host{leads, follows} { // of one that does not lead, too, once it knows
		require.Eventually(t, func() bool {
			waits = ask(of, twin)
			return waits.Kind == membership.ReplyRemoved
		}, time.Minute, 20*time.Millisecond, "%+v", waits)
		is(membership.ReplyRemoved, 409, waits)
	}
	require.NotEqual(t, older.Kind.String(), waits.Kind.String(), "one code, two answers")
}
