package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
)

// echo answers with what was asked, after a while.
type echo struct {
	after  time.Duration
	frames chan string
}

func (e *echo) HandleFrame(_ transport.Peer, _ transport.Class, frame []byte) {
	e.frames <- string(frame)
}

func (e *echo) HandleCall(ctx context.Context, _ transport.Peer, _ string, req []byte) ([]byte, error) {
	select {
	case <-time.After(e.after):
		return req, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *echo) HandleStream(_ context.Context, _ transport.Peer, _ string, s transport.Stream) error {
	req, err := io.ReadAll(s)
	if err != nil {
		return err
	}
	time.Sleep(e.after)
	_, err = s.Write(req)
	return err
}

func id(name string) transport.Identity { return transport.Identity{Cluster: "c", Name: name} }

// began starts a Transport that only asks.
func began(t *testing.T, cfg Config) *Transport {
	t.Helper()
	tr := made(t, cfg)
	require.NoError(t, tr.Start(id("asks"), &echo{}))
	return tr
}

func made(t *testing.T, cfg Config) *Transport {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	tr, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// worksWith makes a call, a stream and a frame go to the transport of server.
func worksWith(t *testing.T, asks, answers *Transport, e *echo) {
	t.Helper()
	require.NoError(t, answers.Start(id("answers"), e))
	answer, err := asks.Call(t.Context(), answers.Addr(), "m", []byte("called"))
	require.NoError(t, err)
	require.Equal(t, "called", string(answer))

	s, err := asks.OpenStream(t.Context(), answers.Addr(), "m")
	require.NoError(t, err)
	_, err = s.Write([]byte("streamed"))
	require.NoError(t, err)
	require.NoError(t, s.CloseWrite())
	answer, err = io.ReadAll(s)
	require.NoError(t, err)
	require.Equal(t, "streamed", string(answer))
	require.NoError(t, s.Close())

	asks.Send(answers.Addr(), transport.Append, []byte("sent"))
	require.Equal(t, "sent", <-e.frames)
}

// A host whose server gives its pages little time does not break what lasts.
func TestTimeoutsOfTheHost(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	answers := made(t, Config{Addr: "http://" + server.Listener.Addr().String() + "/"})
	server.Config = &http.Server{Handler: answers, ReadTimeout: 50 * time.Millisecond, WriteTimeout: 50 * time.Millisecond}
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(func() { _ = answers.Close() }) // before the server, which waits
	e := &echo{after: 150 * time.Millisecond, frames: make(chan string, 1)}
	worksWith(t, began(t, Config{}), answers, e)
}

// With TLS in the host's server and client, it is all TLS.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.EnableHTTP2 = true // offered, and not chosen: an upgrade needs HTTP/1.1
	answers := made(t, Config{Addr: "https://" + server.Listener.Addr().String() + "/"})
	server.Config = &http.Server{Handler: answers, ErrorLog: log.New(io.Discard, "", 0)}
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(func() { _ = answers.Close() })
	client := NewHTTP()
	client.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	client.TLSClientConfig.NextProtos = nil
	worksWith(t, began(t, Config{HTTP: client}), answers, &echo{frames: make(chan string, 1)})

	_, err := began(t, Config{}).Call(t.Context(), answers.Addr(), "m", nil)
	require.ErrorIs(t, err, transport.ErrUnreachable, "a certificate that nobody vouches for")
}

// Others may answer at an address: only what certainly did not reach a handler
// may be asked again.
func TestForeignAnswers(t *testing.T) {
	for status, want := range map[int]error{
		http.StatusOK:                  transport.ErrUnreachable,
		http.StatusTemporaryRedirect:   transport.ErrUnreachable,
		http.StatusNotFound:            transport.ErrUnreachable,
		http.StatusInternalServerError: transport.ErrInterrupted,
		http.StatusGatewayTimeout:      transport.ErrInterrupted,
	} {
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			w.Header().Set("Location", r.URL.String()) // and again?
			w.WriteHeader(status)
		}))
		asks := began(t, Config{})
		_, err := asks.Call(t.Context(), server.URL+"/", "m", []byte("x"))
		require.ErrorIs(t, err, want, status)
		var handshake *transport.HandshakeError
		if want == transport.ErrUnreachable {
			require.ErrorAs(t, err, &handshake)
			require.Equal(t, transport.RefusedProtocol, handshake.Reason)
		}
		_, err = asks.OpenStream(t.Context(), server.URL+"/", "m")
		require.ErrorIs(t, err, transport.ErrUnreachable)
		require.ErrorAs(t, err, &handshake)
		require.Equal(t, 2, asked)
		require.NoError(t, asks.Close())
		server.Close()
	}
}

// What a stranger sends is refused with a status, and reaches nobody.
func TestStrangers(t *testing.T) {
	answers := began(t, Config{})
	ask := func(path string, set func(h http.Header)) *http.Response {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader([]byte("body")))
		answers.introduce(r.Header)
		set(r.Header)
		w := httptest.NewRecorder()
		answers.ServeHTTP(w, r)
		return w.Result()
	}
	for want, set := range map[string]func(h http.Header){
		"1": func(h http.Header) { h.Del(headerVersion) },
		"2": func(h http.Header) { h.Set(headerVersion, "7") },
	} {
		resp := ask("/stele/call", set)
		require.Equal(t, http.StatusForbidden, resp.StatusCode)
		require.Equal(t, want, resp.Header.Get(headerRefused))
	}
	for _, peer := range []string{"", "%", "cluster=c", "cluster=c&name=a&cluster-id=00", "cluster=c&name=&node=1&epoch=1&process=1"} {
		resp := ask("/stele/call", func(h http.Header) { h.Set(headerPeer, peer) })
		require.Equal(t, http.StatusForbidden, resp.StatusCode, peer)
	}
	for path, want := range map[string]int{
		"/stele/call": http.StatusBadRequest, // no timeout
		"/stele/link": http.StatusUpgradeRequired,
		"/stele/":     http.StatusNotFound,
	} {
		require.Equal(t, want, ask(path, func(http.Header) {}).StatusCode, path)
	}
	resp := ask("/stele/call", func(h http.Header) {
		h.Set(headerTimeout, "1s")
		h.Set(headerSum, "0")
	})
	require.Equal(t, http.StatusBadRequest, resp.StatusCode, "a damaged request")
	require.Zero(t, answers.Stats().CallsServed)
	require.EqualValues(t, 7, answers.Stats().Refused)
}
