package main

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/stelelog/stele/transport"
)

// The headers of this protocol. Values that may hold any byte are escaped as in
// a query.
const (
	headerVersion = "Stele-Version" // in every request, and in every answer that is ours
	headerPeer    = "Stele-Peer"    // who speaks: url.Values of what encodePeer writes
	headerRefused = "Stele-Refused" // in a 403: a transport.Refusal
	headerMethod  = "Stele-Method"  // of a call
	headerTimeout = "Stele-Timeout" // of a call: a duration, because clocks differ
	headerCode    = "Stele-Code"    // in a 422: the code of the handler's error
	headerSum     = "Stele-Sum"     // of a call's request or answer: CRC-32C of the body

	version = "1"
)

// introduce writes who this node is.
func (t *Transport) introduce(h http.Header) {
	id := t.self.Load()
	h.Set(headerVersion, version)
	h.Set(headerPeer, url.Values{
		"addr":       {t.cfg.Addr},
		"cluster":    {id.Cluster},
		"cluster-id": {hex.EncodeToString(id.ClusterID[:])},
		"name":       {id.Name},
		"node":       {strconv.FormatUint(id.Node, 10)},
		"epoch":      {strconv.FormatUint(id.Epoch, 10)},
		"process":    {strconv.FormatUint(id.Process, 10)},
	}.Encode())
}

// parsePeer reads what introduce wrote.
func parsePeer(h http.Header) (p transport.Peer, err error) {
	v, err := url.ParseQuery(h.Get(headerPeer))
	if err != nil {
		return p, err
	}
	p.Addr, p.Cluster, p.Name = v.Get("addr"), v.Get("cluster"), v.Get("name")
	id, err := hex.DecodeString(v.Get("cluster-id"))
	if err != nil || len(id) != len(p.ClusterID) {
		return p, fmt.Errorf("httptransport: cluster id %q", v.Get("cluster-id"))
	}
	copy(p.ClusterID[:], id)
	for key, n := range map[string]*uint64{"node": &p.Node, "epoch": &p.Epoch, "process": &p.Process} {
		if *n, err = strconv.ParseUint(v.Get(key), 10, 64); err != nil {
			return p, fmt.Errorf("httptransport: %s: %w", key, err)
		}
	}
	return p, p.Validate()
}

// admit judges who sent a request; it returns what a peer is told that is
// refused, 0 for yes.
func (t *Transport) admit(h http.Header) (transport.Peer, transport.Refusal) {
	v := h.Get(headerVersion)
	p, err := parsePeer(h)
	switch {
	case v == "" || v == version && err != nil:
		return p, transport.RefusedSilently // garbage
	case v != version:
		return p, transport.RefusedVersion
	}
	if refused := transport.Admit(*t.self.Load(), p.Identity); refused != 0 {
		return p, refused.Told()
	}
	return p, 0
}

// refusal reads a 403.
func refusal(h http.Header) transport.Refusal {
	n, err := strconv.ParseUint(h.Get(headerRefused), 10, 8)
	if err != nil || n == 0 {
		return transport.RefusedSilently
	}
	return transport.Refusal(n)
}
