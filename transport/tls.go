package transport

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// TLS is mutual TLS between the nodes of a cluster, version 1.3 or later: each
// side shows a certificate that the authorities of the other one have signed,
// and that has among its DNS names, letter by letter, the name of the node. So
// a node is who its certificate says, whatever it says itself, and whoever
// dials a member's address speaks to that member or to nobody. Host names and
// IP addresses in certificates mean nothing, nor do wildcards. Extended key
// usage, if there is any, must have both server and client authentication.
//
// Cluster names are not in certificates: clusters that must not meet need
// authorities of their own, or a join secret each.
//
// New certificates and authorities are taken without a restart: they are read
// again when connections are made, at most once a second, and used for those.
// What cannot be used (a damaged file, a key that does not belong to its
// certificate, one of another node, one that has expired) is logged as an error
// once a minute, and what was there before stays in use. Connections live on
// with what they were made with: to cut off who is no longer trusted, restart.
type TLS struct {
	// CertFile and KeyFile are the node's certificate, with intermediates if
	// there are any, and its key; CAFile has the certificates of the
	// authorities that may sign those of peers. PEM.
	CertFile, KeyFile, CAFile string
	// Load replaces the files, for a host that has its certificates from
	// elsewhere. It is called by one goroutine at a time, which waits for it;
	// others go on with what it returned last.
	Load func() (tls.Certificate, *x509.CertPool, error)
}

// reloadEvery bounds how often certificates are looked at.
const reloadEvery = time.Second

// protocolName is what both sides ask for by ALPN: who speaks TLS and means
// something else is not even shown a certificate.
const protocolName = "stele/1"

// TLSError is a certificate, a key or an authority that cannot be used.
type TLSError struct {
	// Field is the one of TLS, Value what it holds.
	Field, Value string
	Err          error
}

func (e *TLSError) Error() string {
	return fmt.Sprintf("transport: TLS.%s is %q: %v", e.Field, e.Value, e.Err)
}

// Unwrap returns the cause.
func (e *TLSError) Unwrap() error { return e.Err }

// credentials are one state of the files.
type credentials struct {
	cert  tls.Certificate
	roots *x509.CertPool
	files [3][]byte // what they were made of
}

// keyring holds the node's certificate and the authorities in use.
type keyring struct {
	t       *TCP
	cfg     TLS
	current atomic.Pointer[credentials]

	mu      sync.Mutex
	reading bool
	looked  time.Time
}

// newKeyring reads the certificates for the first time.
func newKeyring(t *TCP, name string) (*keyring, error) {
	k := &keyring{t: t, cfg: *t.cfg.TLS, looked: t.cfg.Clock.Now()}
	c, err := k.load(nil, name)
	if err != nil {
		return nil, err
	}
	k.current.Store(c)
	return k, nil
}

// get returns what to use for a new connection.
func (k *keyring) get() *credentials {
	now := k.t.cfg.Clock.Now()
	k.mu.Lock()
	due := !k.reading && now.Sub(k.looked) >= reloadEvery
	if due {
		k.reading, k.looked = true, now
	}
	k.mu.Unlock()
	if due {
		k.reload()
	}
	return k.current.Load()
}

// reload waits for a disk, or for the host; other handshakes do not.
func (k *keyring) reload() {
	old := k.current.Load()
	c, err := k.load(old, k.t.self.Load().Name)
	switch {
	case err != nil:
		if k.t.notices.due("the node's own certificate") {
			k.t.cfg.Logger.Error("the new certificate cannot be used, the old one stays", zap.Error(err))
		}
	case c != old:
		k.current.Store(c)
		k.t.cfg.Logger.Info("new certificates are in use", zap.Strings("names", c.cert.Leaf.DNSNames), zap.Time("until", c.cert.Leaf.NotAfter))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reading = false
}

// load returns old if nothing changed. Contents are compared, not times of
// modification: those have grains, in which a second change would be missed.
func (k *keyring) load(old *credentials, name string) (*credentials, error) {
	c := &credentials{}
	if k.cfg.Load != nil {
		var err error
		if c.cert, c.roots, err = k.ask(); err != nil {
			return nil, &TLSError{"Load", "a function", err}
		}
		if old != nil && slices.EqualFunc(old.cert.Certificate, c.cert.Certificate, bytes.Equal) && old.roots.Equal(c.roots) {
			return old, nil
		}
		return c, k.check(c, "Load", "a function", name)
	}
	for i, f := range k.cfg.files() {
		var err error
		if c.files[i], err = os.ReadFile(f.path); err != nil {
			return nil, &TLSError{f.field, f.path, err}
		}
	}
	if old != nil && slices.EqualFunc(old.files[:], c.files[:], bytes.Equal) {
		return old, nil
	}
	var err error
	if c.cert, err = tls.X509KeyPair(c.files[0], c.files[1]); err != nil {
		return nil, &TLSError{"CertFile", k.cfg.CertFile, fmt.Errorf("with KeyFile %q: %w", k.cfg.KeyFile, err)}
	}
	c.roots = x509.NewCertPool()
	if !c.roots.AppendCertsFromPEM(c.files[2]) {
		return nil, &TLSError{"CAFile", k.cfg.CAFile, errors.New("no certificate in it")}
	}
	return c, k.check(c, "CertFile", k.cfg.CertFile, name)
}

type tlsFile struct{ field, path string }

func (c *TLS) files() [3]tlsFile {
	return [3]tlsFile{{"CertFile", c.CertFile}, {"KeyFile", c.KeyFile}, {"CAFile", c.CAFile}}
}

// ask calls the host's function, which must not end a handshake's goroutine.
func (k *keyring) ask() (cert tls.Certificate, roots *x509.CertPool, err error) {
	defer guarded{log: k.t.cfg.Logger}.recovered("TLS.Load", &err)
	cert, roots, err = k.cfg.Load()
	switch {
	case err != nil:
	case len(cert.Certificate) == 0 || cert.PrivateKey == nil:
		err = errors.New("it returned no certificate or no key")
	case roots == nil:
		err = errors.New("it returned no authorities")
	}
	return cert, roots, err
}

// check refuses a certificate with which no peer would accept this node.
func (k *keyring) check(c *credentials, field, value, name string) error {
	if c.cert.Leaf == nil { // a host's, or GODEBUG=x509keypairleaf=0
		var err error
		if c.cert.Leaf, err = x509.ParseCertificate(c.cert.Certificate[0]); err != nil {
			return &TLSError{field, value, err}
		}
	}
	switch leaf := c.cert.Leaf; {
	case !slices.Contains(leaf.DNSNames, name):
		return &TLSError{field, value, fmt.Errorf("the certificate is for the DNS names %q, want %q among them, the name of this node", leaf.DNSNames, name)}
	case k.t.cfg.Clock.Now().After(leaf.NotAfter):
		return &TLSError{field, value, fmt.Errorf("the certificate expired at %v", leaf.NotAfter)}
	}
	return nil
}

// server configures TLS for an accepted connection, client for a dialled one.
// No tickets: each connection is judged anew, by what is trusted now.
func (k *keyring) server() *tls.Config {
	return &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !slices.Contains(hello.SupportedProtos, protocolName) {
			return nil, errors.New("the client wants another protocol")
		}
		cfg := k.config("", x509.ExtKeyUsageClientAuth)
		cfg.ClientAuth = tls.RequireAnyClientCert // judged by VerifyConnection, so that no names of authorities are told
		return cfg, nil
	}}
}

func (k *keyring) client(expected string) *tls.Config {
	cfg := k.config(expected, x509.ExtKeyUsageServerAuth)
	// VerifyConnection does it: the names that count are not host names. No
	// server name is sent, since whoever listens could read it.
	cfg.InsecureSkipVerify = true
	return cfg
}

func (k *keyring) config(expected string, usage x509.ExtKeyUsage) *tls.Config {
	c, now := k.get(), k.t.cfg.Clock.Now
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocolName}, Time: now,
		Certificates: []tls.Certificate{c.cert}, SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			opts := x509.VerifyOptions{Roots: c.roots, Intermediates: x509.NewCertPool(), CurrentTime: now(), KeyUsages: []x509.ExtKeyUsage{usage}}
			for _, cert := range state.PeerCertificates[1:] {
				opts.Intermediates.AddCert(cert)
			}
			leaf := state.PeerCertificates[0]
			if _, err := leaf.Verify(opts); err != nil {
				return err
			}
			if expected != "" && !slices.Contains(leaf.DNSNames, expected) {
				return fmt.Errorf("reached a node whose certificate is for %q, not %q", leaf.DNSNames, expected)
			}
			return nil
		},
	}
}

// serverTLS is nil if accepted connections are plain; clientTLS if dialled
// ones are.
func (t *TCP) serverTLS() *tls.Config {
	if k := t.keys; k != nil {
		return k.server()
	}
	return t.cfg.ServerTLS
}

func (t *TCP) clientTLS(addr, expected string) *tls.Config {
	if k := t.keys; k != nil {
		return k.client(expected)
	}
	cfg := t.cfg.ClientTLS
	if cfg == nil || cfg.ServerName != "" {
		return cfg
	}
	// Fills in whom to expect, as tls.Dial does.
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	cfg = cfg.Clone()
	cfg.ServerName = host
	return cfg
}

// certify notes the names for which the peer showed a certificate. What a
// host's own tls.Config verifies is the host's affair.
func (c *conn) certify(tc *tls.Conn) {
	if c.t.keys != nil {
		c.certified = tc.ConnectionState().PeerCertificates[0].DNSNames
	}
}
