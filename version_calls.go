package stele

import (
	"context"
	"errors"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/transport"
)

// Nodes of two releases speak with each other while a cluster is upgraded. Each
// part encodes a request in the newest form that it knows, and can give the form
// of a lower cluster version, if it had another one (membership.OlderForm). Which
// one travels is decided here, for every call:
//
//	the member at that address announced a version    that version's form
//	else                                               the newest; a node that does not
//	                                                   know it is asked again, in the same
//	                                                   attempt, in the older form
//
// A node says that with the code "unsupported". Builds of version 1 did not have
// it: they refuse, as what cannot be read, so that a refusal of a call which has an
// older form counts as well. Whatever was refused did not happen.
//
// What has no older form ends with *metastore.UnsupportedError.
const codeUnsupported = "unsupported"

// codeOf is what travels with an error: its outcome, and more only where a caller
// acts on it.
func codeOf(err error) string {
	if e := (*metastore.UnsupportedError)(nil); errors.As(err, &e) {
		return codeUnsupported
	}
	return raftlog.OutcomeOf(err).String()
}

func unsupported(err error) bool {
	var remote *transport.RemoteError
	return errors.As(err, &remote) && remote.Code == codeUnsupported
}

// firstVersion is that of a cluster of the first release; no later one has brought
// another form of a call.
const firstVersion = 1

// forms are a request as it is to be sent to a node that announced a version (0:
// none), and, if that may not know it, as it is to be sent then. Of a produce or
// fetch that costs a look at the method.
func forms(announced func() uint64, method string, req []byte) (first, then []byte) {
	older, has := membership.OlderForm(firstVersion, method, req)
	switch {
	case !has:
		return req, nil
	case announced() == firstVersion:
		return older, nil
	}
	return req, older
}

// callInForm makes a call in a form that the node at the address knows, if there
// is one.
func (n *network) callInForm(ctx context.Context, addr, method string, req []byte) ([]byte, error) {
	first, then := forms(func() uint64 { return n.announced(addr) }, method, req) // before the transport owns req
	answer, err := n.transport.Call(ctx, addr, method, first)
	var remote *transport.RemoteError
	if then != nil && errors.As(err, &remote) && (remote.Code == codeUnsupported || remote.Code == raftlog.OutcomeRefused.String()) {
		return n.transport.Call(ctx, addr, method, then)
	}
	return answer, err
}

// announced is the version that the member at an address said it can be part of;
// 0: it said nothing, or is not known.
func (n *network) announced(addr string) uint64 {
	p := n.parts.Load()
	if p == nil {
		return 0
	}
	for _, m := range p.meta.Members() {
		if at, ok := n.addr(m.Node); ok && at == addr && m.Liveness.Newest > 0 {
			return metastore.VersionOf(m.Liveness.Newest)
		}
	}
	return 0
}
