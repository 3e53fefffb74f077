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
//   - When one is refused, the address of the other one is dialled, to see who
//     is there now.
//
// A restart has a new process too. Its predecessor's connections end with the
// process; if its machine went without a word, or if whoever reads them is busy,
// they seem to live. Then the new process is refused once, found at its address
// a moment later, and let in when it tries again. One that is at another
// address waits until this node dials it there, for which it must have been told
// of it, or until the connections are dropped, for PeerTimeout. One that is
// refused for much longer has a living rival, and that is an error to be shown.
type roster struct {
	t *TCP

	mu     sync.Mutex
	byNode map[nodeName]*presence // nodes that have connections
}

// nodeName is whose processes are compared. A peer that says another node's id
// beside its own name is nobody's clone and keeps nobody out.
type nodeName struct {
	node uint64
	name string
}

// presence is the process of a node that may talk.
type presence struct {
	process uint64
	addr    string // where it says it listens; "" if nowhere
	conns   map[*conn]struct{}

	rival      uint64 // the other process that was here last
	rivalSince time.Time
	visited    time.Time // when addr was last dialled because of a rival
}

// contestedLocked notes that another process is here too, and reports whether
// both have lived for so long that it is no restart.
func (p *presence) contestedLocked(rival uint64, now time.Time, patience time.Duration) bool {
	if p.rival != rival {
		p.rival, p.rivalSince = rival, now
	}
	return now.Sub(p.rivalSince) > patience
}

// visitLocked returns the address to be dialled to see who is there, "" if that
// is not known, or was done a moment ago.
func (p *presence) visitLocked(now time.Time, every time.Duration) string {
	if !p.visited.IsZero() && now.Sub(p.visited) < every {
		return ""
	}
	p.visited = now
	return p.addr
}

// enter admits a connection whose peer said who it is, once; it returns a
// *HandshakeError if another process of that node is here.
func (r *roster) enter(c *conn) error {
	peer := *c.peer.Load()
	if peer.Node == 0 || peer.Process == 0 {
		return nil // not a member yet
	}
	who := nodeName{peer.Node, peer.Name}
	r.mu.Lock()
	p := r.byNode[who]
	if p == nil {
		p = &presence{process: peer.Process, addr: peer.Addr, conns: make(map[*conn]struct{})}
		r.byNode[who] = p
	}
	if p.process == peer.Process {
		p.conns[c] = struct{}{}
		r.mu.Unlock()
		return nil
	}
	other, now := p.process, r.t.cfg.Clock.Now()
	clones := p.contestedLocked(peer.Process, now, 2*r.t.cfg.PeerTimeout)
	var replaced map[*conn]struct{}
	visit := ""
	if c.dialed {
		replaced = p.conns
		p.process, p.rival, p.conns = peer.Process, p.process, map[*conn]struct{}{c: {}}
		p.addr = peer.Addr
	} else {
		visit = p.visitLocked(now, r.t.cfg.KeepAlive)
	}
	r.mu.Unlock()
	if clones {
		r.t.noteClone(peer, other)
	}
	for old := range replaced {
		old.close(errReplaced)
	}
	if visit != "" {
		r.t.spawn(func() { r.t.visit(visit) })
	}
	if !c.dialed {
		return &HandshakeError{Reason: RefusedClone, Err: described(peer)}
	}
	return nil
}

// visit dials an address to see which process is there now: dial tells the
// roster.
func (t *TCP) visit(addr string) {
	nothing := new(sendQueue)
	nothing.init(0)
	if c, err := t.dial(t.ctx, linkTo{addr, lane(Control)}, nothing, nil); err == nil {
		c.close(errVisited)
	}
}

// leave forgets a connection.
func (r *roster) leave(c *conn) {
	peer := c.peer.Load()
	if peer == nil {
		return
	}
	who := nodeName{peer.Node, peer.Name}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.byNode[who]
	if p == nil {
		return
	}
	delete(p.conns, c)
	if len(p.conns) == 0 {
		delete(r.byNode, who)
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
