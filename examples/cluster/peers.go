package main

import (
	"fmt"
	"strings"

	"github.com/stelelog/stele"
)

// peer is an initial member, and where its HTTP API is, if that is known.
type peer struct {
	stele.Peer
	http string
}

// Three nodes on this machine: what all commands take if they are told nothing.
const (
	defaultPeers = "a=127.0.0.1:7101@127.0.0.1:8101,b=127.0.0.1:7102@127.0.0.1:8102,c=127.0.0.1:7103@127.0.0.1:8103"
	defaultHTTP  = "127.0.0.1:8101,127.0.0.1:8102,127.0.0.1:8103"
)

// parsePeers reads name=addr[@http],...; the library judges names and addresses.
func parsePeers(s string) ([]peer, error) {
	var peers []peer
	for _, item := range strings.Split(s, ",") {
		name, addr, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok {
			return nil, &usageError{fmt.Sprintf("-peers: %q is not name=host:port or name=host:port@http-host:port", item)}
		}
		addr, http, _ := strings.Cut(addr, "@")
		peers = append(peers, peer{stele.Peer{Name: name, Addr: addr}, http})
	}
	return peers, nil
}

func namesOf(peers []peer) string {
	names := make([]string, len(peers))
	for i, p := range peers {
		names[i] = p.Name
	}
	return strings.Join(names, ", ")
}

// splitAddrs reads addr,addr,...
func splitAddrs(s string) []string {
	var addrs []string
	for _, a := range strings.Split(s, ",") {
		if a = strings.TrimSpace(a); a != "" {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
