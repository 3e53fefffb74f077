package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
)

// say writes a greeting. With a secret, what is said and heard is remembered
// for the seals that follow.
func (c *conn) say(kind greetingKind, body []byte) error {
	b := appendGreeting(nil, kind, c.lane, body)
	if c.seals != nil {
		c.seals.said = append(c.seals.said, b...)
	}
	_, err := c.wire.Write(b)
	return err
}

// hear reads a greeting of one of the kinds. That the peer refuses, or speaks
// another version, is a *HandshakeError; what does not belong here is errFormat.
func (c *conn) hear(kinds ...greetingKind) (greeting, []byte, error) {
	g, body, err := readGreeting(c.br)
	switch {
	case err != nil:
		return g, nil, err
	case !g.speaks():
		return g, nil, &HandshakeError{Reason: RefusedVersion}
	case c.dialed && g.kind == greetRefuse && len(body) == 1:
		return g, nil, &HandshakeError{Reason: Refusal(body[0])}
	case !slices.Contains(kinds, g.kind):
		return g, nil, fmt.Errorf("%w: greeting kind %d", errFormat, g.kind)
	}
	if c.seals != nil && !c.seals.note(g, body) {
		return g, nil, fmt.Errorf("%w: a greeting unlike the first", errFormat)
	}
	return g, body, nil
}

func (c *conn) hearSized(kind greetingKind, size int) ([]byte, error) {
	g, body, err := c.hear(kind)
	if err == nil && len(body) != size {
		err = fmt.Errorf("%w: %d bytes in greeting kind %d", errFormat, len(body), g.kind)
	}
	return body, err
}

// prepare readies the seals of a connection whose TLS handshake is done.
func (c *conn) prepare() error {
	if len(c.t.cfg.Secret) == 0 {
		return nil
	}
	c.seals = newSeals(c.t.cfg.Secret, c.t.self.Load().Cluster)
	tc, ok := c.wire.(*tls.Conn)
	if !ok || c.wire == c.under {
		return nil // none, or one of the host's, which the other side may not see
	}
	if err := c.seals.bind(tc); err != nil {
		return fmt.Errorf("bind the join secret to TLS: %w", err)
	}
	return nil
}

// introduced takes the other side's identity out of its hello or welcome.
func (c *conn) introduced(label string, body []byte) error {
	body, err := c.seals.unsealed(label, body)
	if err != nil {
		return &HandshakeError{Reason: RefusedSecret, Err: err}
	}
	peer, err := decodePeer(body)
	if err != nil {
		return err
	}
	return c.accept(peer)
}

// accept judges what the peer says it is, and takes note of it.
func (c *conn) accept(p Peer) error {
	r := c.judge(p)
	if r == RefusedClone {
		c.t.noteClone(p, c.t.self.Load().Process)
	}
	if r != 0 {
		return &HandshakeError{Addr: p.Addr, Reason: r, Err: described(p)}
	}
	c.peer.Store(&p)
	return nil
}

// judge is what a peer's identity means on this connection: Admit's rule, and
// that it is whom its certificate, or the address dialled, says, for good.
func (c *conn) judge(p Peer) Refusal {
	r := Admit(c.t.self.Load().Identity, p.Identity)
	switch known := c.peer.Load(); {
	case r != 0:
		return r
	case c.certified != nil && !slices.Contains(c.certified, p.Name):
		return RefusedName
	case c.expected != "" && p.Name != c.expected:
		return RefusedName
	case known != nil && (p.Name != known.Name || known.Node != 0 && p.Node != known.Node):
		return RefusedName
	}
	return 0
}

// described says in a log who was refused.
func described(p Peer) error {
	if p.Name == "" {
		return nil
	}
	return fmt.Errorf("it says it is %q of cluster %q", p.Name, p.Cluster)
}

// greetInbound reads who dialled and answers. Whoever does not speak this
// protocol gets no answer.
func (t *TCP) greetInbound(under net.Conn) (*conn, error) {
	c := t.newConn(under, under)
	if cfg := t.serverTLS(); cfg != nil {
		tc := tls.Server(under, cfg)
		if err := tc.HandshakeContext(t.ctx); err != nil {
			c.cancel(err)
			return nil, fmt.Errorf("TLS: %w", err)
		}
		c.wire = tc
		c.certify(tc)
	}
	c.out = new(sendQueue)
	c.out.init(t.cfg.QueueBytes.Answers)
	err := c.admitInbound()
	var refused *HandshakeError
	if errors.As(err, &refused) {
		_ = c.say(greetRefuse, []byte{byte(refused.Reason.Told())}) // refused either way
	}
	return c, err
}

func (c *conn) admitInbound() error {
	if err := c.prepare(); err != nil {
		return err
	}
	g, body, err := c.hear(greetHello, greetKnock)
	if err != nil {
		return err
	}
	c.lane = g.lane
	if knocked := g.kind == greetKnock; knocked != (c.seals != nil) {
		why := errNoProof
		if knocked {
			why = errNoSecret
		}
		return &HandshakeError{Reason: RefusedSecret, Err: why}
	}
	if c.seals != nil {
		if len(body) != nonceSize {
			return fmt.Errorf("%w: nonce of %d bytes", errFormat, len(body))
		}
		if err := c.challenge(); err != nil {
			return err
		}
		if _, body, err = c.hear(greetHello); err != nil {
			return err
		}
	}
	if c.lane == laneStream {
		c.out.budget = c.t.cfg.QueueBytes.Stream
	}
	if err := c.introduced(labelHello, body); err != nil {
		return err
	}
	if err := c.t.roster.enter(c); err != nil {
		return err
	}
	err = c.say(greetWelcome, c.seals.sealed(labelWelcome, c.t.self.Load().encoded))
	c.seals = nil
	return err
}

var (
	errNoProof  = errors.New("it does not prove the join secret; has it one?")
	errNoSecret = errors.New("it wants to prove a join secret; this node has none")
)

// greetOutbound says to the acceptor who this side is, and hears its answer.
func (t *TCP) greetOutbound(ctx context.Context, under net.Conn, addr string, l lane) (*conn, error) {
	c := t.newConn(under, under)
	c.lane, c.dialed = l, true
	if t.cfg.PeerName != nil {
		c.expected = t.cfg.PeerName(addr)
	}
	if err := c.admitOutbound(ctx, addr); err != nil {
		c.cancel(err)
		return nil, handshakeError(addr, err)
	}
	return c, nil
}

func (c *conn) admitOutbound(ctx context.Context, addr string) error {
	if cfg := c.t.clientTLS(addr, c.expected); cfg != nil {
		tc := tls.Client(c.under, cfg)
		if err := tc.HandshakeContext(ctx); err != nil {
			if ctx.Err() != nil || errors.Is(err, io.EOF) {
				return err
			}
			return &HandshakeError{Reason: RefusedTLS, Err: err}
		}
		c.wire = tc
		c.certify(tc)
	}
	if err := c.prepare(); err != nil {
		return err
	}
	if c.seals != nil {
		if err := c.knock(); err != nil {
			return err
		}
	}
	c.said = c.t.self.Load()
	if err := c.say(greetHello, c.seals.sealed(labelHello, c.said.encoded)); err != nil {
		return err
	}
	_, body, err := c.hear(greetWelcome)
	if err != nil {
		return err
	}
	err = c.introduced(labelWelcome, body)
	c.seals = nil
	return err
}

// handshakeError is what the dialler's caller sees of a failed handshake.
func handshakeError(addr string, err error) error {
	var refused *HandshakeError
	switch {
	case errors.As(err, &refused):
		refused.Addr = addr
		return refused
	case errors.Is(err, errFormat):
		return &HandshakeError{Addr: addr, Reason: RefusedProtocol, Err: err}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("peer hung up during the handshake: %w", err)
	case isAlert(err):
		return &HandshakeError{Addr: addr, Reason: RefusedTLS, Err: err}
	}
	return err
}

// isAlert reports an alert of TLS: since version 1.3 a client learns only after
// its own handshake that the server does not accept its certificate.
func isAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}
