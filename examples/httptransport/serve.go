package main

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"

	"github.com/stelelog/stele/transport"
)

// What is asked for is the last element of the path.
const (
	pathCall = "call"
	pathLink = "link"
)

// Of the statuses, two mean that a handler answered. With headerVersion, every
// other one means that none was called.
const (
	statusAnswer = http.StatusOK
	statusFailed = http.StatusUnprocessableEntity
)

// ServeHTTP is what the host mounts: mux.Handle("/stele/", t).
func (t *Transport) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(headerVersion, version)
	if !t.enter() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	defer t.wg.Done()
	from, refused := t.admit(r.Header)
	if refused != 0 {
		t.count(func(s *transport.Stats) { s.Refused++ })
		w.Header().Set(headerRefused, strconv.Itoa(int(refused)))
		w.WriteHeader(http.StatusForbidden)
		return
	}
	switch path.Base(r.URL.Path) {
	case pathCall:
		t.serveCall(w, r, from)
	case pathLink:
		t.serveLink(w, r)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// rejected reads an answer that says that no handler was called. What speaks
// without headerVersion is somebody else.
func rejected(to string, answer *http.Response) error {
	switch {
	case answer.Header.Get(headerVersion) == "":
		return &transport.HandshakeError{Addr: to, Reason: transport.RefusedProtocol, Err: errors.New(answer.Status)}
	case answer.StatusCode == http.StatusForbidden:
		return &transport.HandshakeError{Addr: to, Reason: refusal(answer.Header)}
	}
	return fmt.Errorf("%w: %s", transport.ErrUnreachable, answer.Status)
}
