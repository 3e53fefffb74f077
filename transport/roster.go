package transport

import (
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

// roster knows which process of each node is connected, so that two that run
// at the same time with one identity (a copied directory) do not both take
// part here. The rule:
//
//   - Who is reached by dialling the node's address is the node: connections of
//     another process are dropped.
//   - A process that dials is refused while a connection of another one lives.
//
// A restart has a new process too. Its predecessor's connections end with the
// process, or, if its machine went without a word, after PeerTimeout: until
// then the new process is refused, and tries again. One that is refused for
// much longer has a living rival, and that is an error to be shown.
type roster struct {
	t *TCP

	mu     sync.Mutex
	byNode map[uint64]*presence // nodes that have connections
}

// presence is the process of a node that may talk.
type presence struct {
	process uint64
	conns   map[*conn]struct{}

	rival      uint64 // the other process that was here last
	rivalSince time.Time
}

// contestedLocked notes that another process is here too, and reports whether
// both have lived for so long that it is no restart.
func (p *presence) contestedLocked(rival uint64, now time.Time, patience time.Duration) bool {
	if p.rival != rival {
		p.rival, p.rivalSince = rival, now
	}
	return now.Sub(p.rivalSince) > patience
}

// enter admits a connection whose peer said who it is, once; it returns a
// *HandshakeError if another process of that node is here.
func (r *roster) enter(c *conn) error {
	peer := *c.peer.Load()
	if peer.Node == 0 || peer.Process == 0 {
		return nil // not a member yet
	}
	r.mu.Lock()
	p := r.byNode[peer.Node]
	if p == nil {
		p = &presence{process: peer.Process, conns: make(map[*conn]struct{})}
		r.byNode[peer.Node] = p
	}
	if p.process == peer.Process {
		p.conns[c] = struct{}{}
		r.mu.Unlock()
		return nil
	}
	other := p.process
	clones := p.contestedLocked(peer.Process, r.t.cfg.Clock.Now(), 2*r.t.cfg.PeerTimeout)
	var replaced map[*conn]struct{}
	if c.dialed {
		replaced = p.conns
		p.process, p.rival, p.conns = peer.Process, p.process, map[*conn]struct{}{c: {}}
	}
	r.mu.Unlock()
	if clones {
		r.t.noteClone(peer, other)
	}
	for old := range replaced {
		old.close(errReplaced)
	}
	if !c.dialed {
		return &HandshakeError{Reason: RefusedClone, Err: described(peer)}
	}
	return nil
}

// leave forgets a connection.
func (r *roster) leave(c *conn) {
	peer := c.peer.Load()
	if peer == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.byNode[peer.Node]
	if p == nil {
		return
	}
	delete(p.conns, c)
	if len(p.conns) == 0 {
		delete(r.byNode, peer.Node)
	}
}

// noteClone logs that an identity is in use twice, once a minute per node.
func (t *TCP) noteClone(peer Peer, other uint64) {
	if t.notices.due(fmt.Sprintf("clone of node %d", peer.Node)) {
		t.cfg.Logger.Error("two processes run with the identity of one node; stop the copy and delete its directory",
			zap.Uint64("node_id", peer.Node), zap.String("name", peer.Name), zap.String("addr", peer.Addr),
			zap.Uint64("process", peer.Process), zap.Uint64("other_process", other))
	}
}
