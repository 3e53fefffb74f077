package stele

import (
	"fmt"

	"github.com/stelelog/stele/transport"
)

// TLS is mutual TLS between the nodes of a cluster: where a node finds its
// certificate, which must have the node's name among its DNS names, and the
// authorities that it trusts. What is there is taken in use without a restart
// when it changes.
type TLS = transport.TLS

// TLSError is what is wrong with a certificate, a key or an authority. Open
// returns it, Refused.
type TLSError = transport.TLSError

// validateTrust checks what decides who may connect.
func (c *Config) validateTrust() error {
	if (c.ServerTLS == nil) != (c.ClientTLS == nil) {
		return &ConfigError{"ServerTLS", c.ServerTLS, "set together with ClientTLS, or neither"}
	}
	const none = "none beside Transport, which has its own ways"
	switch n := len(c.Secret); {
	case c.TLS != nil && c.Transport != nil:
		return &ConfigError{"TLS", "set", none}
	case c.Secret != nil && c.Transport != nil:
		return &ConfigError{"Secret", "set", none}
	case c.Secret != nil && (n < transport.MinSecret || n > transport.MaxSecret):
		return &ConfigError{"Secret", fmt.Sprintf("%d bytes", n), fmt.Sprintf("%d to %d bytes, or nil", transport.MinSecret, transport.MaxSecret)}
	case c.TLS == nil:
		return nil
	case c.ServerTLS != nil:
		return &ConfigError{"TLS", "set", "none beside ServerTLS and ClientTLS"}
	}
	for _, f := range []struct{ field, path string }{
		{"TLS.CertFile", c.TLS.CertFile}, {"TLS.KeyFile", c.TLS.KeyFile}, {"TLS.CAFile", c.TLS.CAFile},
	} {
		if c.TLS.Load == nil && f.path == "" {
			return &ConfigError{f.field, f.path, "a file, or TLS.Load"}
		}
		if c.TLS.Load != nil && f.path != "" {
			return &ConfigError{f.field, f.path, "none beside TLS.Load"}
		}
	}
	return nil
}
