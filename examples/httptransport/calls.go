package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/stelelog/stele/transport"
)

// Call implements transport.Transport: a POST, its answer.
func (t *Transport) Call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	if len(req) > t.cfg.MaxFrame {
		err := &transport.TooLargeError{Size: len(req), Max: t.cfg.MaxFrame}
		return nil, t.callError(ctx, transport.ErrUnreachable, to, method, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, transport.DefaultCallTimeout)
		defer cancel()
	}
	if err := t.mayBegin(ctx); err != nil {
		return nil, t.callError(ctx, transport.ErrUnreachable, to, method, err)
	}
	defer t.wg.Done()
	t.count(func(s *transport.Stats) { s.Calls++ })
	answer, kind, err := t.post(ctx, to, method, req)
	var remote *transport.RemoteError
	switch {
	case errors.As(err, &remote):
		return nil, err
	case err != nil:
		return nil, t.callError(ctx, kind, to, method, err)
	}
	return answer, nil
}

// post returns, with an error, ErrUnreachable or ErrInterrupted.
func (t *Transport) post(ctx context.Context, to, method string, req []byte) (answer []byte, kind, err error) {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	// Before there is a connection, nothing can have been executed. net/http
	// tries a POST again only if no byte of it was written.
	var connected atomic.Bool
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(asking, &httptrace.ClientTrace{
		GetConn: func(string) { connected.Store(false) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}), http.MethodPost, to+pathCall, bytes.NewReader(req))
	if err != nil {
		return nil, transport.ErrUnreachable, err
	}
	t.introduce(r.Header)
	r.Header.Set(headerMethod, url.QueryEscape(method))
	if deadline, ok := ctx.Deadline(); ok {
		r.Header.Set(headerTimeout, time.Until(deadline).String())
	}
	r.Header.Set(headerSum, sum(req))
	resp, err := t.cfg.HTTP.RoundTrip(r)
	if err != nil {
		if connected.Load() {
			return nil, transport.ErrInterrupted, err
		}
		return nil, transport.ErrUnreachable, err
	}
	defer resp.Body.Close()
	return t.readAnswer(to, resp)
}

func (t *Transport) readAnswer(to string, resp *http.Response) (answer []byte, kind, err error) {
	ours := resp.Header.Get(headerVersion) != ""
	switch {
	case !ours && resp.StatusCode >= 500:
		// A proxy, or a middleware of the host: who knows how far it came.
		return nil, transport.ErrInterrupted, errors.New(resp.Status)
	case !ours || resp.StatusCode != statusAnswer && resp.StatusCode != statusFailed:
		return nil, transport.ErrUnreachable, rejected(to, resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(t.cfg.MaxFrame)+1))
	switch {
	case err != nil:
		return nil, transport.ErrInterrupted, err
	case len(body) > t.cfg.MaxFrame:
		return nil, transport.ErrInterrupted, &transport.TooLargeError{Size: len(body), Max: t.cfg.MaxFrame}
	case resp.Header.Get(headerSum) != sum(body):
		t.count(func(s *transport.Stats) { s.Corrupt++ })
		return nil, transport.ErrInterrupted, errChecksum
	case resp.StatusCode == statusFailed:
		code, err := url.QueryUnescape(resp.Header.Get(headerCode))
		if err != nil {
			return nil, transport.ErrInterrupted, err
		}
		return nil, nil, &transport.RemoteError{Code: code, Message: string(body)}
	}
	return body, nil, nil
}

// serveCall answers one.
func (t *Transport) serveCall(w http.ResponseWriter, r *http.Request, from transport.Peer) {
	timeout, err := time.ParseDuration(r.Header.Get(headerTimeout))
	method, err2 := url.QueryUnescape(r.Header.Get(headerMethod))
	if r.Method != http.MethodPost || err != nil || err2 != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	// r.Context() ends when the caller hangs up.
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	// The deadlines that the host gave its server are meant for its pages.
	conn := http.NewResponseController(w)
	deadline, _ := ctx.Deadline()
	_ = conn.SetReadDeadline(deadline)
	_ = conn.SetWriteDeadline(deadline.Add(handshakeTime))
	defer context.AfterFunc(t.ctx, func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		_ = conn.SetWriteDeadline(time.Unix(1, 0))
	})()

	req, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(t.cfg.MaxFrame)))
	if err != nil || r.Header.Get(headerSum) != sum(req) {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	t.count(func(s *transport.Stats) { s.CallsServed++ })
	answer, err := t.guarded(ctx, from, method, req)
	if t.ctx.Err() != nil {
		// What the handler says now is about this Close, not about the call.
		// The caller sees the connection end: perhaps executed.
		panic(http.ErrAbortHandler)
	}
	if err == nil && len(answer) > t.cfg.MaxFrame {
		err = fmt.Errorf("httptransport: an answer of %d bytes is over the limit of %d", len(answer), t.cfg.MaxFrame)
	}
	status := statusAnswer
	if err != nil {
		e := transport.RemoteErrorOf(err)
		w.Header().Set(headerCode, url.QueryEscape(e.Code))
		status, answer = statusFailed, []byte(e.Message)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.Header().Set(headerSum, sum(answer))
	w.WriteHeader(status)
	_, _ = w.Write(answer) // an error is the caller's to see
}

// guarded calls the handler: a bug in it is no reason to end the host, nor for
// the caller to wait.
func (t *Transport) guarded(ctx context.Context, from transport.Peer, method string, req []byte) (answer []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &transport.RemoteError{Code: "panic", Message: fmt.Sprint("handler panicked: ", v)}
			t.cfg.Log.Error("handler panicked", "in", method, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	return t.handler.HandleCall(ctx, from, method, req)
}

// callError says what became of a request: kind is ErrUnreachable (certainly
// not executed) or ErrInterrupted (perhaps executed). That Close or the
// caller's context ended it says more than what HTTP saw of that.
func (t *Transport) callError(ctx context.Context, kind error, to, method string, cause error) error {
	switch {
	case t.ctx.Err() != nil:
		cause = transport.ErrClosed
	case ctx.Err() != nil:
		cause = ctx.Err()
	}
	if errors.Is(cause, kind) {
		return fmt.Errorf("%s of %s: %w", method, to, cause)
	}
	return fmt.Errorf("%s of %s: %w: %w", method, to, kind, cause)
}

var (
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
	errChecksum = errors.New("httptransport: damaged on the way")
)

// sum finds what TCP's own checksum misses.
func sum(body []byte) string { return strconv.FormatUint(uint64(crc32.Checksum(body, castagnoli)), 16) }
