package stele_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

// checkLogs: each entry has the field node once, with the name of its node, and
// the name of the part that says it.
func checkLogs(t *testing.T, nodes map[string]*observer.ObservedLogs, parts ...string) {
	t.Helper()
	heard := map[string]bool{}
	for name, logs := range nodes {
		for _, e := range logs.All() {
			heard[e.LoggerName] = true
			var found []string
			for _, f := range e.Context {
				if f.Key == "node" {
					found = append(found, f.String)
				}
			}
			require.Equal(t, []string{name}, found, "%s of %s: %v", e.Message, e.LoggerName, e.ContextMap())
		}
	}
	for _, p := range parts {
		require.True(t, heard[p], "%q said nothing, so that nothing is known of it: %v", p, heard)
	}
}

func TestLogsNameTheirNode(t *testing.T) {
	logs := map[string]*observer.ObservedLogs{}
	cores := map[string]zapcore.Core{}
	shared := func(cfg *stele.Config) {
		if cores[cfg.Name] == nil {
			cores[cfg.Name], logs[cfg.Name] = observer.New(zapcore.DebugLevel)
		}
		cfg.Logger = zap.New(cores[cfg.Name])
	}
	testcluster.Run(t, testcluster.Options{Seed: 3, Config: shared}, func(c *testcluster.Cluster) {
		t := c.T
		c.StartAll()
		mustCreate(c, 0, "orders", 2)
		l := c.NewLedger("orders")
		load := l.StartLoad(1, 2, 10*time.Millisecond)
		victim := c.MetadataLeader()
		c.PowerLoss(victim)
		c.Start(victim)
		c.WaitReady()
		failFiles(c, victim, "/topics/")
		c.Eventually(func() bool {
			return logs[c.Member(victim).Name].Filter(func(e observer.LoggedEntry) bool { return e.LoggerName == "topic" && e.Level == zapcore.ErrorLevel }).Len() > 0
		}, "a replica fails")
		c.Member(victim).FS.SetHook(nil)
		require.NoError(t, c.Node((victim+1)%3).DeleteTopic(t.Context(), "orders"))
		load.Stop()
		failMetadataLog(c, victim, nil)
		mustCreate(c, (victim+1)%3, "more", 1)
		c.Eventually(func() bool { return c.Node(victim).Readiness().Code == stele.Failed }, "the node fails")
	})
	checkLogs(t, logs, "", "storage", "membership", "metastore", "topic", "raftlog")
}

// The transport says who knocks with garbage.
func TestTheTransportNamesItsNode(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	cfg := onThisMachine(t)
	cfg.Logger = zap.New(core)
	node, err := stele.Open(t.Context(), cfg)
	require.NoError(t, err)
	defer node.Abort()
	require.NoError(t, node.WaitReady(t.Context()))
	conn, err := net.Dial("tcp", node.Addr())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n" + strings.Repeat("x", 1000)))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for logs.Filter(func(e observer.LoggedEntry) bool { return e.LoggerName == "transport" }).Len() == 0 {
		require.NoError(t, ctx.Err())
		pause(ctx, 10*time.Millisecond)
	}
	checkLogs(t, map[string]*observer.ObservedLogs{"a": logs}, "", "transport")
}
