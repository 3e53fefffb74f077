package transport

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
)

// The join secret, shown to be known by both sides without being said. The
// dialler proves first; nobody's identity is said before the other side has
// proven:
//
//	dialler                                    acceptor
//	   | -- knock         32 B at random --------> |
//	   | <- challenge     32 B at random --------- |
//	   | -- proof         seal ------------------> |   else: refused, no reason
//	   | <- counterproof  seal ------------------- |
//	   | -- hello         identity, seal --------> |   judged as without a secret
//	   | <- welcome       identity, seal --------- |
//
// A seal is HMAC-SHA256, under a key derived from the secret and the name of
// the cluster (another cluster's node proves nothing, even with the same
// secret), over
//
//	which of the four seals | binding, 32 B | all greetings before | identity
//
// so none can be taken for another: not one of another connection, since both
// sides put bytes at random into it, nor the other side's (a reflection), nor
// one for another identity. Nor one for another lane or protocol version: a seal
// is about all greetings before its own, and the later ones of a side must have
// the lane and the versions of its first. binding ties it to the TLS connection,
// if the transport made one (RFC 9266); else, also with TLS that the host's own
// dialer and listener make, it is zeros, and a man in the middle who passes the
// greetings on can then change what follows them.

const (
	// MinSecret and MaxSecret bound the length of a join secret, in bytes.
	MinSecret = 16
	MaxSecret = 1024

	nonceSize = 32
	sealSize  = sha256.Size
)

// The labels of seals; their lengths differ from each other's prefixes by the
// final zero.
const (
	labelKey          = "stele join secret 1\x00"
	labelProof        = "dialler's proof\x00"
	labelCounterproof = "acceptor's proof\x00"
	labelHello        = "dialler's identity\x00"
	labelWelcome      = "acceptor's identity\x00"
	labelBinding      = "EXPORTER-Channel-Binding" // RFC 9266
)

// seals makes and checks the seals of one connection; nil without a secret.
type seals struct {
	key     []byte
	binding [32]byte
	said    []byte    // all greetings so far, of both sides, in order
	before  int       // how much of said came before the greeting heard last
	heard   *greeting // the first
}

func newSeals(secret []byte, cluster string) *seals {
	key := hmac.New(sha256.New, secret)
	key.Write([]byte(labelKey + cluster))
	return &seals{key: key.Sum(nil)}
}

// note remembers a greeting that was heard; false if it is not of one piece with
// the first.
func (s *seals) note(g greeting, body []byte) bool {
	if s.heard == nil {
		s.heard = &g
	}
	s.before = len(s.said)
	s.said = append(append(s.said, g.raw[:]...), body...)
	return g.newest == s.heard.newest && g.oldest == s.heard.oldest && g.lane == s.heard.lane
}

// bind ties the seals to a TLS connection after its handshake.
func (s *seals) bind(tc *tls.Conn) error {
	state := tc.ConnectionState()
	b, err := state.ExportKeyingMaterial(labelBinding, nil, len(s.binding))
	copy(s.binding[:], b)
	return err
}

func (s *seals) seal(label string, said, identity []byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(label))
	mac.Write(s.binding[:])
	mac.Write(said)
	mac.Write(identity)
	return mac.Sum(nil)
}

// opens reports whether seal is the one that must be in the greeting heard
// last. It takes the same time whatever differs.
func (s *seals) opens(label string, identity, seal []byte) bool {
	return hmac.Equal(seal, s.seal(label, s.said[:s.before], identity))
}

// sealed appends the seal to an identity.
func (s *seals) sealed(label string, identity []byte) []byte {
	if s == nil {
		return identity
	}
	return append(identity[:len(identity):len(identity)], s.seal(label, s.said, identity)...)
}

// unsealed takes a checked seal off an identity.
func (s *seals) unsealed(label string, body []byte) ([]byte, error) {
	if s == nil {
		return body, nil
	}
	n := len(body) - sealSize
	if n < 0 || !s.opens(label, body[:n], body[n:]) {
		return nil, errSeal
	}
	return body[:n], nil
}

var errSeal = errors.New("it does not prove the join secret of this cluster")

func newNonce() []byte {
	b := make([]byte, nonceSize)
	_, _ = rand.Read(b) // never fails: the runtime ends the process instead
	return b
}

// knock proves the secret to the acceptor and hears its proof.
func (c *conn) knock() error {
	s := c.seals
	if err := c.say(greetKnock, newNonce()); err != nil {
		return err
	}
	if _, err := c.hearSized(greetChallenge, nonceSize); err != nil {
		return err
	}
	if err := c.say(greetProof, s.seal(labelProof, s.said, nil)); err != nil {
		return err
	}
	proof, err := c.hearSized(greetCounterproof, sealSize)
	if err == nil && !s.opens(labelCounterproof, nil, proof) {
		err = &HandshakeError{Reason: RefusedSecret, Err: errSeal}
	}
	return err
}

// challenge hears the dialler's proof, its knock having been heard, and answers
// with this side's.
func (c *conn) challenge() error {
	s := c.seals
	if err := c.say(greetChallenge, newNonce()); err != nil {
		return err
	}
	proof, err := c.hearSized(greetProof, sealSize)
	switch {
	case err != nil:
		return err
	case !s.opens(labelProof, nil, proof):
		return &HandshakeError{Reason: RefusedSecret, Err: errSeal}
	}
	return c.say(greetCounterproof, s.seal(labelCounterproof, s.said, nil))
}
