package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/metastore"
)

// lone is a cluster of one node in this process, with its HTTP API.
type lone struct {
	*server
	dir string
	url string
}

func startLone(t *testing.T) *lone {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	dir := filepath.Join(t.TempDir(), "data")
	registry := prometheus.NewRegistry()
	flags := &nodeFlags{config: stele.Config{
		Cluster: "example", Name: "a", Dir: dir, Listener: listener, InitialMembers: []stele.Peer{{Name: "a", Addr: addr}},
		Metrics: registry, JournalBytes: 64 << 10, Tick: 10 * time.Millisecond,
	}}
	node, err := stele.Open(t.Context(), flags.config)
	require.NoError(t, err)
	l := &lone{server: newServer(node, flags, registry), dir: dir}
	web := httptest.NewServer(l.http.Handler)
	l.url = web.URL
	t.Cleanup(func() {
		l.stopNode(t)
		http.DefaultClient.CloseIdleConnections()
		web.Close()
	})
	require.NoError(t, node.WaitReady(t.Context()))
	return l
}

// waitVersion waits until the cluster may use all that this build knows.
func (l *lone) waitVersion(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, text := l.do(t, "GET", "/members", "")
		return strings.Contains(text, fmt.Sprintf(`"version":%d`, metastore.NewestVersion))
	}, 10*time.Second, 20*time.Millisecond, "the cluster's version is raised")
}

// stopNode ends the node, as SIGTERM would.
func (l *lone) stopNode(t *testing.T) {
	l.endLife()
	require.NoError(t, l.closeProducer(time.Minute))
	require.NoError(t, l.node.Close(context.Background()))
}

// do makes a request and returns status and body.
func (l *lone) do(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, l.url+path, strings.NewReader(body))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

func TestAPI(t *testing.T) {
	l := startLone(t)
	l.waitVersion(t)
	for _, c := range []struct {
		request, body string
		status        int
		want          string
	}{
		{"GET /ready", "", 200, `{"code":"ready"}`},
		{"GET /metrics", "", 200, `stele_ready{cluster="example",node="a"} 1`},
		{"GET /topics", "", 200, "[]"},
		{"GET /topics/lines", "", 404, `"outcome":"refused"`},
		{"POST /topics/a@b", "", 400, "1 to 179 of A-Z"},
		{"POST /topics/lines", `{"partitions": 20000}`, 400, "10000"},
		{"POST /topics/lines", `{"partitoins": 2}`, 400, `unknown field \"partitoins\"`},
		{"POST /topics/lines", `{`, 400, "the body"},
		{"POST /topics/lines", `{"partitions": 2}`, 201, `"partitions":2,"replicas":1`},
		{"POST /topics/LINES", "", 409, "the topic exists"},
		{"POST /topics/kept", `{"keep_age": "168h", "keep_bytes": 4096}`, 201, `"replicas":1,"keep_age":"168h0m0s","keep_bytes":4096`},
		{"POST /topics/other", `{"keep_age": "1 week"}`, 400, "168h"},
		{"POST /topics/other", `{"keep_age": "1ms"}`, 400, "Retention.Age"},
		{"PUT /topics/kept/retention", `{"keep_bytes": 7}`, 200, `"replicas":1,"keep_bytes":7}`},
		{"PUT /topics/kept/retention", `{"keep_bytes": -1}`, 400, "Retention.Bytes"},
		{"PUT /topics/none/retention", `{}`, 404, "no such topic"},
		{"DELETE /topics/kept?grace=1", "", 400, "want a duration such as 168h"},
		{"DELETE /topics/kept?grace=1ms", "", 400, "DeleteGrace"},
		{"DELETE /topics/kept?grace=1h", "", 204, ""},
		{"GET /topics/kept", "", 200, `"state":"retired","partitions":1,"replicas":1,"until":"2`},
		{"POST /topics/KEPT", "", 409, "until then it can be undeleted"},
		{"POST /topics/kept/undelete", "", 200, `"state":"active"`},
		{"POST /topics/none/undelete", "", 404, "no such topic"},
		{"DELETE /topics/kept", "", 204, ""},
		{"POST /topics/lines/records?partition=1", "a\n\nb", 200, "ok 3 1 0\nend 3\n"},
		{"POST /topics/lines/records?key-separator=:", "k:1\nk:2\n", 200, "ok 2 "},
		{"POST /topics/lines/records", "", 200, "end 0\n"},
		{"POST /topics/lines/records?partition=2", "a\n", 200, "refused 1 topic: produce to lines/2: there is no partition 2: lines has partitions 0 to 1\nend 1\n"},
		{"POST /topics/lines/records?partition=-1", "a\n", 400, "want 0 to"},
		{"POST /topics/lines/records?partiton=1", "a\n", 400, `unknown parameter \"partiton\"`},
		{"POST /topics/lines/records?timeout=1h", "a\n", 400, "up to 5m0s"},
		{"POST /topics/lines/records", strings.Repeat("\n", maxRecords+1), 400, "want at most 100000"},
		{"POST /topics/lines/records", strings.Repeat("x", maxBody+1), 413, `"outcome":"refused"`},
		{"POST /topics/lines/records?partition=0", "a\n" + strings.Repeat("x", maxRecord+1) + "\nb\n", 200, "ok 1 0 "},
		{"POST /topics/nosuch/records", "a\nb\n", 200, "refused 2 "},
		{"GET /topics/lines/records?partition=1&from=1&n=1", "", 200, `,"value":""}` + "\n" + `{"next":2}`},
		{"GET /topics/lines/records?partition=2", "", 400, "there is no partition 2"},
		{"GET /topics/lines/records?partition=1&from=7000", "", 400, "out of range"},
		{"GET /topics/lines/records?from=-1", "", 400, "want start, end or an offset"},
		{"GET /topics/lines/records?follow=perhaps", "", 400, "want true or false"},
		{"GET /topics/nosuch/records", "", 404, "no such topic"},
		{"DELETE /topics/nosuch", "", 404, "no such topic"},
		{"GET /status?topic=lines", "", 200, `"role":"leader-active"`},
		{"DELETE /topics/lines", "", 204, ""},
		{"POST /topics/lines/records?partition=1", "a\n", 200, "refused 1 "},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		status, text := l.do(t, method, path, c.body)
		require.Equal(t, c.status, status, "%s: %.300s", c.request, text)
		require.Contains(t, text, c.want, c.request)
	}
	l.endLife()
	for _, request := range []string{"GET /ready", "POST /topics/lines/records"} {
		method, path, _ := strings.Cut(request, " ")
		status, text := l.do(t, method, path, "a\n")
		require.Equal(t, 503, status)
		require.Contains(t, text, "the node is stopping")
	}
}

// Bytes come back as they were sent, whatever they are.
func TestBytes(t *testing.T) {
	l := startLone(t)
	addr := strings.TrimPrefix(l.url, "http://")
	require.Equal(t, "created t: 1 partition on 1 node\n", mustRun(t, "", "create", "-topic", "t", "-partitions", "1", "-http", addr))
	lines := []string{"", "\xff\x00", "<&>\u2028\ufffd", "\\\"\r", strings.Repeat("long ", 1<<18)}
	mustRun(t, strings.Join(lines, "\n"), "produce", "-topic", "t", "-http", addr)
	require.Equal(t, strings.Join(lines, "\n")+"\n", mustRun(t, "", "consume", "-topic", "t", "-http", addr))
	require.Equal(t, strings.Join(lines[1:3], "\n")+"\n", mustRun(t, "", "consume", "-topic", "t", "-from", "1", "-n", "2", "-http", addr))

	code, out, errs := runHere(t.Context(), strings.NewReader("a\nb\n"+strings.Repeat("x", maxRecord+1)), "produce", "-topic", "t", "-http", addr)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "line 3: it is too long: a record holds at most 16777216 bytes; it and what follows was not sent")
	require.Contains(t, out, "2 records acknowledged")

	code, _, errs = runHere(t.Context(), strings.NewReader("a\nb\n"), "produce", "-topic", "nosuch", "-http", addr)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "lines 1 to 2 refused: ")
}

// A reader that follows gets what comes, learns that the node stops, and leaves
// nothing behind when it goes away.
func TestFollow(t *testing.T) {
	l := startLone(t)
	l.do(t, "POST", "/topics/t", `{"partitions": 1}`)
	follow := func(ctx context.Context) *bufio.Reader {
		req, err := http.NewRequestWithContext(ctx, "GET", l.url+"/topics/t/records?from=end&follow=true", nil)
		require.NoError(t, err)
		answer, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { answer.Body.Close() })
		require.Equal(t, "0", answer.Header.Get(offsetHeader))
		return bufio.NewReader(answer.Body)
	}
	ctx, leave := context.WithCancel(t.Context())
	gone := follow(ctx)
	stays := follow(t.Context())
	leave()
	_, err := gone.ReadString('\n')
	require.ErrorIs(t, err, context.Canceled)

	l.do(t, "POST", "/topics/t/records", "one\ntwo\n")
	for i := range 2 {
		text, err := stays.ReadBytes('\n')
		require.NoError(t, err)
		var line recordLine
		require.NoError(t, json.Unmarshal(text, &line))
		require.EqualValues(t, i, line.Offset)
	}
	l.endLife()
	rest, err := io.ReadAll(stays)
	require.NoError(t, err)
	require.Equal(t, `{"next":2,"error":"the node is stopping","outcome":"retry"}`+"\n", string(rest))
}

// A body that stops arriving appends nothing, and one that is not whole neither.
func TestBodyCutOff(t *testing.T) {
	l := startLone(t)
	l.do(t, "POST", "/topics/t", `{"partitions": 1}`)
	conn, err := net.Dial("tcp", strings.TrimPrefix(l.url, "http://"))
	require.NoError(t, err)
	fmt.Fprintf(conn, "POST /topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\na\nb\n")
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 400, answer.StatusCode)
	var text bytes.Buffer
	_, _ = text.ReadFrom(answer.Body)
	require.Contains(t, text.String(), `"outcome":"retry"`)
	require.NoError(t, conn.Close())
	_, records := l.do(t, "GET", "/topics/t/records", "")
	require.Equal(t, "{\"next\":0}\n", records)
	require.EqualValues(t, maxBodies, l.bodies.left)
}
