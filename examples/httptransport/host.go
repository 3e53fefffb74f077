package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/stelelog/stele"
)

// host is a program as it was before it embedded a log: one address, one
// http.Server, a page of its own.
type host struct {
	addr      string
	listener  net.Listener
	server    *http.Server
	served    chan struct{}
	transport *Transport
	node      *stele.Node // opened before serve, nil if that failed
}

func listen(addr string) (*host, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	h := &host{addr: l.Addr().String(), listener: l, served: make(chan struct{})}
	if h.transport, err = New(Config{Addr: "http://" + h.addr + "/stele/"}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return h, nil
}

// serve runs the host's server. A mux, a server, a client: all are the host's.
func (h *host) serve() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", h.hello)
	mux.Handle("/stele/", h.transport) // this line joins the log's network to it
	h.server = &http.Server{Handler: mux}
	go func() {
		defer close(h.served)
		if err := h.server.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Println("the server ended:", err)
		}
	}()
}

func (h *host) hello(w http.ResponseWriter, _ *http.Request) {
	s := h.node.Status()
	leads := 0
	for _, p := range s.Partitions {
		if p.Leader == s.Node {
			leads++
		}
	}
	fmt.Fprintf(w, "hello from %s: %v, leads %d of its %d partitions\n", s.Name, s.Readiness, leads, len(s.Partitions))
}

// close ends the node, and with it the transport, before the server, which
// would not close connections that were upgraded.
func (h *host) close(ctx context.Context) error {
	if h.node == nil {
		return h.listener.Close()
	}
	return errors.Join(h.node.Close(ctx), h.stop())
}

// abort is as good as a crash.
func (h *host) abort() error {
	h.node.Abort()
	return h.stop()
}

func (h *host) stop() error {
	err := h.server.Close()
	<-h.served
	return err
}
