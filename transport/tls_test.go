package transport_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
	"github.com/stelelog/stele/transport/transporttest"
)

// authority signs certificates for 127.0.0.1.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	a := &authority{key: key, pool: x509.NewCertPool()}
	a.cert = a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, key)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	c.SerialNumber = big.NewInt(1)
	c.NotBefore = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) // before virtual time begins
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, a.key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// issue makes the certificate of a node.
func (a *authority) issue(t *testing.T, name string, change ...func(*x509.Certificate)) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		DNSNames: []string{"host-of-" + name + ".example.org", name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, c := range change {
		c(template)
	}
	return tls.Certificate{Certificate: [][]byte{a.sign(t, template, key).Raw}, PrivateKey: key}
}

// load gives a node the library's own TLS, with a certificate from memory.
func (a *authority) load(t *testing.T, name string) func(*transport.TCPConfig) {
	cert := a.issue(t, name)
	return func(c *transport.TCPConfig) {
		c.TLS = &transport.TLS{Load: func() (tls.Certificate, *x509.CertPool, error) { return cert, a.pool, nil }}
	}
}

// configure makes mutual TLS for one node, as an expert would.
func (a *authority) configure(t *testing.T) func(*transport.TCPConfig) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := a.sign(t, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key)
	mine := []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}
	return func(c *transport.TCPConfig) {
		c.ServerTLS = &tls.Config{Certificates: mine, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert}
		c.ClientTLS = &tls.Config{Certificates: mine, RootCAs: a.pool}
	}
}

// loopback makes a transport over real TCP.
func loopback(t *testing.T, addr string, change ...func(*transport.TCPConfig)) *transport.TCP {
	t.Helper()
	cfg := transport.TCPConfig{Listen: addr, MaxFrame: 8 << 20, Backoff: transport.Backoff{Max: 50 * time.Millisecond}}
	for _, c := range change {
		c(&cfg)
	}
	tr, err := transport.NewTCP(cfg)
	require.NoError(t, err)
	return tr
}

func TestTLSConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("the suite runs over plain TCP")
	}
	ca := newAuthority(t)
	transporttest.Run(t, transporttest.Suite{Make: func(t *testing.T) transporttest.Network {
		return transporttest.Network{
			New:      func() transport.Transport { return loopback(t, "127.0.0.1:0", ca.configure(t)) },
			Again:    func(addr string) transport.Transport { return loopback(t, addr, ca.configure(t)) },
			Nobody:   closedPort(t),
			MaxFrame: 8 << 20,
		}
	}})
}

func TestTLSRefusals(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	node := loopback(t, "127.0.0.1:0", ca.configure(t))
	start(t, node, "a", &host{})
	for name, change := range map[string]func(*transport.TCPConfig){
		"certificate of another authority": other.configure(t),
		"no TLS":                           func(*transport.TCPConfig) {},
		"no certificate": func(c *transport.TCPConfig) {
			c.ClientTLS = &tls.Config{RootCAs: ca.pool}
		},
		"another name": func(c *transport.TCPConfig) {
			ca.configure(t)(c)
			c.ClientTLS.ServerName = "elsewhere"
		},
	} {
		t.Run(name, func(t *testing.T) {
			stranger := loopback(t, "127.0.0.1:0", change)
			start(t, stranger, "b", &host{})
			refused := node.Stats().Refused
			_, err := stranger.Call(context.Background(), node.Addr(), "m", nil)
			require.ErrorIs(t, err, transport.ErrUnreachable)
			if name != "no TLS" { // which the server ends without a word
				var handshake *transport.HandshakeError
				require.ErrorAs(t, err, &handshake)
				require.Equal(t, transport.RefusedTLS, handshake.Reason)
			}
			for node.Stats().Refused == refused {
				// The server may learn it a moment later; the call paces.
				_, _ = stranger.Call(context.Background(), node.Addr(), "m", nil)
			}
			require.Zero(t, node.Stats().CallsServed)
		})
	}
}
