package transport_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
	"github.com/stelelog/stele/transport/transporttest"
)

// pemOf encodes one certificate, or many, one after the other.
func pemOf(ders ...[]byte) []byte {
	var all []byte
	for _, der := range ders {
		all = append(all, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return all
}

// files are what a TLS of files names, in a directory of the test.
func files(dir string) *transport.TLS {
	return &transport.TLS{CertFile: filepath.Join(dir, "node.pem"), KeyFile: filepath.Join(dir, "node.key"), CAFile: filepath.Join(dir, "ca.pem")}
}

// write writes a node's files: its certificate by a, trusting all authorities.
func (a *authority) write(t *testing.T, f *transport.TLS, name string, trusting ...*authority) {
	t.Helper()
	cert := a.issue(t, name)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(t, err)
	var bundle []byte
	for _, ca := range trusting {
		bundle = append(bundle, pemOf(ca.cert.Raw)...)
	}
	require.NoError(t, os.WriteFile(f.CertFile, pemOf(cert.Certificate...), 0o600))
	require.NoError(t, os.WriteFile(f.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	require.NoError(t, os.WriteFile(f.CAFile, bundle, 0o600))
}

// All certificates and the authority are replaced while two nodes run: bundle
// with both authorities, new certificates, bundle with the new one only. What
// is connected stays; what connects later uses what is new; what is broken
// meanwhile changes nothing.
//
// Property: J16 (red: files read at the start only; a broken file that takes the place of the certificate in use)
func TestTLSRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, fresh := newAuthority(t), newAuthority(t)
		p := newPipes()
		p.make = bufferedPipe
		fa, fb := files(t.TempDir()), files(t.TempDir())
		old.write(t, fa, "a", old)
		old.write(t, fb, "b", old)
		logger, logs := errorsOnly()
		a := p.tcp(t, "a:1", func(c *transport.TCPConfig) { c.TLS = fa })
		b := p.tcp(t, "b:1", func(c *transport.TCPConfig) { c.TLS, c.Logger = fb, logger })
		start(t, a, "a", &host{})
		start(t, b, "b", &host{})
		call := func() error {
			_, err := a.Call(t.Context(), "b:1", "m", nil)
			return err
		}
		// with tries who can connect now; its certificate is of no file.
		with := func(ca *authority, trusting *authority) error {
			pass(2 * time.Second)
			probe := p.tcp(t, "probe:1", func(c *transport.TCPConfig) {
				cert := ca.issue(t, "probe")
				c.TLS = &transport.TLS{Load: func() (tls.Certificate, *x509.CertPool, error) { return cert, trusting.pool, nil }}
			})
			require.NoError(t, probe.Start(identity("probe"), &host{}))
			defer probe.Close()
			_, err := probe.Call(t.Context(), "b:1", "m", nil)
			return err
		}
		require.NoError(t, call())
		require.NoError(t, with(old, old))
		require.Error(t, with(fresh, old))

		old.write(t, fa, "a", old, fresh)
		old.write(t, fb, "b", old, fresh)
		require.NoError(t, with(fresh, old), "both are trusted")
		fresh.write(t, fa, "a", old, fresh)
		fresh.write(t, fb, "b", old, fresh)
		require.NoError(t, with(old, fresh), "the new certificate is shown")
		require.Error(t, with(old, old), "and not the old one")

		require.NoError(t, os.WriteFile(fb.CertFile, []byte("half of a fi"), 0o600))
		require.NoError(t, with(old, fresh), "what was there stays in use")
		require.NoError(t, with(old, fresh))
		require.Equal(t, 1, logs.Len(), "once a minute")
		require.ErrorContains(t, logs.All()[0].Context[0].Interface.(error), fb.CertFile)
		fresh.write(t, fb, "another node", fresh)
		require.NoError(t, with(old, fresh), "a certificate of another node is not taken")

		fresh.write(t, fa, "a", fresh)
		fresh.write(t, fb, "b", fresh)
		require.Error(t, with(old, fresh), "the old authority is no longer trusted")
		require.NoError(t, with(fresh, fresh))
		require.NoError(t, call())
		require.Zero(t, a.Stats().Reconnects, "what is connected stays")
		_, err := b.Call(t.Context(), "a:1", "m", nil)
		require.NoError(t, err, "a new connection the other way")
	})
}

func TestTLSAndSecretConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("the suite runs over plain TCP")
	}
	ca := newAuthority(t)
	// The suite's nodes have many names: one certificate for all of them.
	cert := ca.issue(t, "a", func(c *x509.Certificate) {
		c.DNSNames = []string{"a", "b", "c", "d", "one", "two", "none", "other", "secret-1", "secret-2"}
		for i := range 10 {
			c.DNSNames = append(c.DNSNames, fmt.Sprint("node-", i))
		}
	})
	change := func(c *transport.TCPConfig) {
		withSecret(c)
		c.TLS = &transport.TLS{Load: func() (tls.Certificate, *x509.CertPool, error) { return cert, ca.pool, nil }}
	}
	transporttest.Run(t, transporttest.Suite{Make: func(t *testing.T) transporttest.Network {
		return transporttest.Network{
			New:      func() transport.Transport { return loopback(t, "127.0.0.1:0", change) },
			Again:    func(addr string) transport.Transport { return loopback(t, addr, change) },
			Nobody:   closedPort(t),
			MaxFrame: 8 << 20,
		}
	}})
}

func TestTLSStartRefusals(t *testing.T) {
	ca := newAuthority(t)
	expired := func(c *x509.Certificate) { c.NotAfter = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC) }
	returns := func(cert tls.Certificate, pool *x509.CertPool, err error) func(*transport.TLS) {
		return func(c *transport.TLS) {
			*c = transport.TLS{Load: func() (tls.Certificate, *x509.CertPool, error) { return cert, pool, err }}
		}
	}
	for want, change := range map[string]func(*transport.TLS){
		"":                                  func(*transport.TLS) {},
		"TLS.CertFile is \"/nowhere\"":      func(c *transport.TLS) { c.CertFile = "/nowhere" },
		"TLS.KeyFile is \"/nowhere\"":       func(c *transport.TLS) { c.KeyFile = "/nowhere" },
		"TLS.CAFile is \"/nowhere\"":        func(c *transport.TLS) { c.CAFile = "/nowhere" },
		"no certificate in it":              func(c *transport.TLS) { c.CAFile = c.KeyFile },
		"private key":                       func(c *transport.TLS) { c.KeyFile = c.CertFile },
		"want \"a\" among them":             func(c *transport.TLS) { ca.write(t, c, "b", ca) },
		"TLS.Load is \"a function\": oh":    returns(tls.Certificate{}, nil, errors.New("oh")),
		"it returned no certificate":        returns(tls.Certificate{}, ca.pool, nil),
		"it returned no authorities":        returns(ca.issue(t, "a"), nil, nil),
		"the certificate expired at 2020-0": returns(ca.issue(t, "a", expired), ca.pool, nil),
		"handler panicked": func(c *transport.TLS) {
			*c = transport.TLS{Load: func() (tls.Certificate, *x509.CertPool, error) { panic("oh") }}
		},
	} {
		f := files(t.TempDir())
		ca.write(t, f, "a", ca)
		change(f)
		tr := loopback(t, "127.0.0.1:0", func(c *transport.TCPConfig) { c.TLS = f })
		err := tr.Start(identity("a"), &host{})
		if want == "" {
			require.NoError(t, err)
		} else {
			var bad *transport.TLSError
			require.ErrorAs(t, err, &bad)
			require.ErrorContains(t, err, want)
		}
		require.NoError(t, tr.Close())
	}
}
