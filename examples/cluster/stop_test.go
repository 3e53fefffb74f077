package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// While a node stops everybody gets an answer: who asks on a connection that is
// open, who comes new, and whose request was taken in before. Each is told to use the
// connection no more, so that nothing is lost when it is closed.
func TestStopAnswersEverybody(t *testing.T) {
	l := startLone(t)
	l.do(t, "POST", "/topics/t", `{"partitions": 1}`)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- l.http.Serve(listener) }()
	type connection struct {
		net.Conn
		*bufio.Reader
	}
	dial := func() connection {
		c, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return connection{c, bufio.NewReader(c)}
	}
	send := func(c connection, body string) {
		_, err := fmt.Fprintf(c.Conn, "POST /topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n%s", body)
		require.NoError(t, err)
	}
	answer := func(c connection) (*http.Response, string) {
		a, err := http.ReadResponse(c.Reader, nil)
		require.NoError(t, err)
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		return a, string(text)
	}
	open, inFlight := dial(), dial()
	send(open, "a\n")
	a, text := answer(open)
	require.Equal(t, "ok 1 0 0\nend 1\n", text)
	require.False(t, a.Close)
	send(inFlight, "b") // and no more
	require.Eventually(t, func() bool {
		l.desk.Lock()
		defer l.desk.Unlock()
		return l.desk.busy == 1
	}, 10*time.Second, time.Millisecond, "it is taken in")

	stopped := make(chan error, 1)
	go func() { stopped <- l.stop(time.Minute, nil, zap.NewNop()) }()
	<-l.life.Done()
	l.desk.close() // as it does
	for _, c := range []connection{open, dial()} {
		send(c, "c\n")
		a, text := answer(c)
		require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
		require.JSONEq(t, `{"error":"the node is stopping","outcome":"retry"}`, text)
		require.True(t, a.Close, "nothing more is to be sent here")
	}
	ready := dial()
	_, err = fmt.Fprint(ready.Conn, "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	_, text = answer(ready)
	require.Contains(t, text, `"reason":"the node is stopping"`)
	_, err = io.Copy(inFlight.Conn, strings.NewReader("\n"))
	require.NoError(t, err)
	a, text = answer(inFlight)
	require.JSONEq(t, `{"error":"the node is stopping","outcome":"retry"}`, text)
	require.True(t, a.Close)
	require.NoError(t, <-stopped)
	require.ErrorIs(t, <-served, http.ErrServerClosed)
	_, err = net.Dial("tcp", listener.Addr().String())
	require.Error(t, err)
}
