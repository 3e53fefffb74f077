package stele_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
	"github.com/stelelog/stele/transport"
)

// authority signs the certificates of a cluster, in a directory of its own.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(t, err)
	a := &authority{dir: t.TempDir(), key: key}
	a.cert = &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.cert = a.sign(t, "ca", a.cert, key)
	return a
}

// sign writes a certificate and its key to name.pem and name.key.
func (a *authority) sign(t *testing.T, name string, c *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	c.SerialNumber = big.NewInt(1)
	c.NotAfter = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	der, err := x509.CreateCertificate(crand.Reader, c, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: private}} {
		require.NoError(t, os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(block), 0o600))
	}
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert
}

// tls is what a node of a name gets.
func (a *authority) tls(t *testing.T, name string) *stele.TLS {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(t, err)
	a.sign(t, name, &x509.Certificate{DNSNames: []string{name}}, key)
	file := func(name string) string { return filepath.Join(a.dir, name) }
	return &stele.TLS{CertFile: file(name + ".pem"), KeyFile: file(name + ".key"), CAFile: file("ca.pem")}
}

// overTCP opens three nodes on this machine's network.
func overTCP(t *testing.T, change func(*stele.Config)) []*stele.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var listeners []net.Listener
	var members []stele.Peer
	for i := range 3 {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		listeners = append(listeners, ln)
		members = append(members, stele.Peer{Name: fmt.Sprint("node-", i+1), Addr: ln.Addr().String()})
	}
	var nodes []*stele.Node
	for i, ln := range listeners {
		cfg := stele.Config{
			Cluster: "orders", Name: members[i].Name, Dir: t.TempDir(), InitialMembers: members,
			Listener: ln, JournalBytes: 1 << 20, Tick: 20 * time.Millisecond,
		}
		change(&cfg)
		n, err := stele.Open(ctx, cfg)
		require.NoError(t, err)
		t.Cleanup(n.Abort)
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		require.NoError(t, n.WaitReady(ctx))
	}
	return nodes
}

// serves shows that records cross the cluster.
func serves(t *testing.T, nodes []*stele.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := nodes[0].CreateTopic(ctx, "orders", stele.TopicConfig{Partitions: 3})
	require.NoError(t, err)
	for i, n := range nodes {
		producer, err := n.NewProducer(stele.ProducerConfig{})
		require.NoError(t, err)
		at, err := producer.Produce(ctx, "orders", stele.Record{Key: []byte("k"), Value: fmt.Append(nil, i)})
		require.NoError(t, err)
		require.EqualValues(t, i, at[0].Offset)
		require.NoError(t, producer.Close(ctx))
	}
}

// refusedBy calls a node as somebody else would who knows all but what proves
// who he is.
func refusedBy(t *testing.T, node *stele.Node, cfg transport.TCPConfig) *transport.HandshakeError {
	t.Helper()
	stranger, err := transport.NewTCP(cfg)
	require.NoError(t, err)
	defer stranger.Close()
	require.NoError(t, stranger.Start(transport.Identity{Cluster: "orders", Name: "node-2"}, nil))
	_, err = stranger.Call(t.Context(), node.Addr(), "meta.view", nil)
	require.ErrorIs(t, err, transport.ErrUnreachable)
	var refused *transport.HandshakeError
	_ = errors.As(err, &refused)
	return refused
}

// Property: J16 (red: the root passes no TLS on)
func TestClusterWithTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	nodes := overTCP(t, func(c *stele.Config) { c.TLS = ca.tls(t, c.Name) })
	serves(t, nodes)
	refusedBy(t, nodes[0], transport.TCPConfig{})
	refused := refusedBy(t, nodes[0], transport.TCPConfig{TLS: other.tls(t, "node-2")})
	if refused != nil { // nil: the other side was gone before it could say why
		require.Equal(t, transport.RefusedTLS, refused.Reason)
	}
	refused = refusedBy(t, nodes[0], transport.TCPConfig{ServerTLS: &tls.Config{}, ClientTLS: &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"stele/1"}, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			of := ca.tls(t, "node-3")
			cert, err := tls.LoadX509KeyPair(of.CertFile, of.KeyFile)
			return &cert, err
		},
	}})
	require.Equal(t, transport.RefusedSilently, refused.Reason, "node-3 says that it is node-2")
}

// Property: J16 (red: the root passes no secret on)
func TestClusterWithSecret(t *testing.T) {
	secret := func(c *stele.Config) { c.Secret = []byte("0123456789abcdef, at random") }
	nodes := overTCP(t, secret)
	serves(t, nodes)
	require.Equal(t, transport.RefusedSilently, refusedBy(t, nodes[0], transport.TCPConfig{}).Reason)
	require.Equal(t, transport.RefusedSilently, refusedBy(t, nodes[0], transport.TCPConfig{Secret: []byte("0123456789abcdef, another")}).Reason)
}

// Whoever is let in as one node cannot take part under the id of another one.
//
// Property: J16 (red: the name of a peer not compared with its id's; recovery epochs not compared)
func TestNamesAndIDsOfPeersAreCompared(t *testing.T) {
	testcluster.Run(t, testcluster.Options{Nodes: 1}, func(c *testcluster.Cluster) {
		c.StartAll()
		s := c.Node(0).Status()
		real := transport.Identity{Cluster: "test", Name: s.Name, ClusterID: s.ClusterID, Node: uint64(s.Node)}
		for name, peer := range map[string]struct {
			change func(*transport.Identity)
			code   string
		}{
			"itself":          {func(*transport.Identity) {}, "unsupported"}, // it knows no such call
			"another name":    {func(id *transport.Identity) { id.Name = "mallory" }, "retry"},
			"another id":      {func(id *transport.Identity) { id.Node = 7 }, "retry"},
			"none of cluster": {func(id *transport.Identity) { id.ClusterID = [16]byte{} }, "retry"},
		} {
			id := real
			peer.change(&id)
			tr := c.Net.Transport(name)
			require.NoError(c.T, tr.Start(id, nil))
			_, err := tr.Call(c.T.Context(), s.Addr, "no.call", nil)
			var remote *transport.RemoteError
			require.ErrorAs(c.T, err, &remote, name)
			require.Equal(c.T, peer.code, remote.Code, name)
			require.NoError(c.T, tr.Close())
		}
		require.Equal(c.T, stele.Ready, c.Node(0).Readiness().Code)

		newer := real
		newer.Epoch = 1
		tr := c.Net.Transport("newer")
		require.NoError(c.T, tr.Start(newer, nil))
		_, err := tr.Call(c.T.Context(), s.Addr, "no.call", nil)
		var remote *transport.RemoteError
		require.ErrorAs(c.T, err, &remote)
		require.Equal(c.T, "fenced 1", remote.Code, "a forced recovery left this node behind")
		require.NoError(c.T, tr.Close())
	})
}

// A node that lives at the address of another one is not taken for it, and the
// node that waits says so.
//
// Property: J16 (red: the root names nobody at addresses)
func TestAnotherNodeAtAnAddress(t *testing.T) {
	open := func(name string, ln net.Listener, members ...stele.Peer) *stele.Node {
		n, err := stele.Open(t.Context(), stele.Config{Cluster: "orders", Name: name, Dir: t.TempDir(), InitialMembers: members, Listener: ln, JournalBytes: 1 << 20})
		require.NoError(t, err)
		t.Cleanup(n.Abort)
		return n
	}
	listen := func() (net.Listener, string) {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return ln, ln.Addr().String()
	}
	here, hereAddr := listen()
	there, thereAddr := listen()
	open("node-3", there, stele.Peer{Name: "node-3", Addr: thereAddr}, stele.Peer{Name: "node-4", Addr: hereAddr})
	n := open("node-1", here, stele.Peer{Name: "node-1", Addr: hereAddr}, stele.Peer{Name: "node-2", Addr: thereAddr})
	for tries := 0; ; tries++ {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := n.WaitReady(ctx)
		cancel()
		require.Error(t, err)
		if strings.Contains(err.Error(), "another node than expected") {
			break
		}
		require.Less(t, tries, 200, "%v", err)
	}
}

// hangsUpWith is the address of something that says the same to whoever comes.
func hangsUpWith(t *testing.T, says string) string {
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, says)
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = ln.Close(); serving.Wait() })
	return ln.Addr().String()
}

// A node is given the name, the secret or the address of something else. What it
// waits for says what to check, in words that are this node's own: what answers
// there tells it nothing.
//
// Property: J16, J12 (red: what was tried is not in the reason)
func TestANodeSaysWhatToCheck(t *testing.T) {
	secret := []byte("0123456789abcdef, at random")
	nodes := overTCP(t, func(c *stele.Config) { c.Secret = secret })
	other := hangsUpWith(t, "HTTP/1.1 400 Bad Request\r\n\r\n")
	member := nodes[0].Addr()
	cases := []struct {
		name   string
		change func(*stele.Config)
		want   string
	}{
		{"another cluster's name", func(c *stele.Config) { c.Cluster = "orderz" }, member + ` answers, but not as a member of cluster "orderz": check the cluster's name, the secret and the certificates`},
		{"another secret", func(c *stele.Config) { c.Secret = []byte("fedcba9876543210, at random") }, member + ` answers, but not as a member of cluster "orders": check`},
		{"no secret", func(c *stele.Config) { c.Secret = nil }, member + " answers, but"},
		{"TLS where there is none", func(c *stele.Config) { c.TLS = newAuthority(t).tls(t, c.Name) }, member + ` answers, and hangs up: is it a node of cluster "orders", and do both sides use TLS`},
		{"the address of something else", func(c *stele.Config) { c.Join = []string{other} }, "answers, but not as a node does: is it the address of something else?"},
		{"an address where nobody is", func(c *stele.Config) { c.Join = []string{"127.0.0.1:1"} }, "127.0.0.1:1 cannot be reached: dial tcp"},
		{"an address where others do not reach it", func(c *stele.Config) { c.Advertise = "127.0.0.1:1" }, "which leads, takes it for a member at 127.0.0.1:1, and"},
	}
	opened := make([]*stele.Node, len(cases))
	for i, c := range cases {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		cfg := stele.Config{
			Cluster: "orders", Name: "late", Dir: t.TempDir(), Join: []string{member}, Listener: ln, Advertise: ln.Addr().String(),
			Secret: secret, JournalBytes: 1 << 20,
		}
		c.change(&cfg)
		n, err := stele.Open(t.Context(), cfg)
		require.NoError(t, err, c.name)
		t.Cleanup(n.Abort)
		opened[i] = n
	}
	for i, c := range cases {
		n := opened[i]
		for deadline := time.Now().Add(20 * time.Second); !strings.Contains(n.Readiness().Reason, c.want); time.Sleep(5 * time.Millisecond) {
			require.True(t, time.Now().Before(deadline), "%s: %v", c.name, n.Readiness())
		}
	}
}

func TestTrustRefusals(t *testing.T) {
	ca := newAuthority(t)
	tlsOf := func(change func(*stele.TLS)) func(*stele.Config) {
		return func(c *stele.Config) {
			c.TLS = ca.tls(t, "node-1")
			change(c.TLS)
		}
	}
	for want, change := range map[string]func(*stele.Config){
		`Config.Secret = "15 bytes": want 16 to 1024 bytes, or nil`: func(c *stele.Config) { c.Secret = make([]byte, 15) },
		`Config.Secret = "0 bytes": want 16`:                        func(c *stele.Config) { c.Secret = []byte{} },
		`Config.Secret = "1025 bytes": want 16`:                     func(c *stele.Config) { c.Secret = make([]byte, 1025) },
		`Config.Secret = "set": want none beside Transport`: func(c *stele.Config) {
			c.Secret, c.Transport = make([]byte, 16), transport.NewNetwork(1, nil).Transport("a")
		},
		`Config.TLS = "set": want none beside Transport`: func(c *stele.Config) {
			c.TLS, c.Transport = ca.tls(t, "node-1"), transport.NewNetwork(1, nil).Transport("a")
		},
		`Config.TLS = "set": want none beside ServerTLS`: func(c *stele.Config) {
			c.TLS, c.ServerTLS, c.ClientTLS = ca.tls(t, "node-1"), &tls.Config{}, &tls.Config{}
		},
		`Config.TLS.KeyFile = "": want a file, or TLS.Load`: tlsOf(func(f *stele.TLS) { f.KeyFile = "" }),
		`Config.TLS.CertFile = "`: tlsOf(func(f *stele.TLS) {
			f.Load = func() (tls.Certificate, *x509.CertPool, error) { return tls.Certificate{}, nil, nil }
		}),
		`TLS.CAFile is "/nowhere/ca.pem"`: tlsOf(func(f *stele.TLS) { f.CAFile = "/nowhere/ca.pem" }),
		`want "node-1" among them`:        tlsOf(func(f *stele.TLS) { *f = *ca.tls(t, "node-2") }),
	} {
		cfg := stele.Config{
			Cluster: "orders", Name: "node-1", Dir: t.TempDir(), Listen: "127.0.0.1:0",
			InitialMembers: []stele.Peer{{Name: "node-1", Addr: "127.0.0.1:7942"}},
		}
		change(&cfg)
		_, err := stele.Open(t.Context(), cfg)
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, stele.ErrRefused)
	}
}
