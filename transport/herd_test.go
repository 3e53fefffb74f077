package transport_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/transport"
)

// All nodes of a cluster behind one address come back at once, and all want more
// places than there are: they displace each other, and all get in.
func TestTCPHerd(t *testing.T) {
	const herd = 6 // of four connections
	ca := newAuthority(t)
	few := func(c *transport.TCPConfig) { c.MaxHandshakes = 8 }
	b := loopback(t, "127.0.0.1:0", ca.load(t, "b"), withSecret, few)
	start(t, b, "b", &host{})
	began := clock.System().Now()
	var all sync.WaitGroup
	for n := range herd {
		name := fmt.Sprint("a", n)
		a := loopback(t, "127.0.0.1:0", ca.load(t, name), withSecret, few)
		start(t, a, name, &host{})
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for {
				for class := range transport.NumClasses {
					a.Send(b.Addr(), class, []byte("frame"))
				}
				_, err := a.Call(ctx, b.Addr(), "m", nil)
				if sent := a.Stats().Classes; err == nil && sent[0].FramesSent > 0 && sent[1].FramesSent > 0 && sent[2].FramesSent > 0 {
					return
				}
				if !assert.NoError(t, ctx.Err()) {
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d connections in %v, %d tries refused", b.Stats().Accepted, clock.System().Now().Sub(began), b.Stats().Refused)
}
