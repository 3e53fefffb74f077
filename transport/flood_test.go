package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/transport"
)

var floodSize = flag.Int("flood", 200, "connections of a flood from a second process")

// What the second process is told by its environment.
const (
	floodAddr  = "STELE_TEST_FLOOD_ADDR"
	floodFrom  = "STELE_TEST_FLOOD_FROM"
	floodCount = "STELE_TEST_FLOOD_COUNT"
	// floodAtOnce is how many connections it holds at most.
	floodAtOnce = 600
	// places is how many without a handshake the node holds at most.
	places    = 24
	handshake = 500 * time.Millisecond
)

// flood connects very often, says something different each time, and holds on
// until the other side hangs up. Then it says how often it was let in.
func flood(addr string) {
	count, _ := strconv.Atoi(os.Getenv(floodCount))
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(os.Getenv(floodFrom))}}
	lines := [][]byte{
		nil,
		{0xf5},
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		bytes.Repeat([]byte{0x5a}, 4096),
		transport.Hello(transport.Peer{Identity: transport.Identity{Cluster: "other", Name: "x"}}),
		transport.Greeting(4, make([]byte, 32)),
		{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3},
	}
	var connected atomic.Int64
	var all sync.WaitGroup
	held := make(chan struct{}, floodAtOnce)
	for i := range count {
		held <- struct{}{}
		all.Go(func() {
			defer func() { <-held }()
			c, err := dialer.Dial("tcp", addr)
			if err != nil {
				return
			}
			defer c.Close()
			connected.Add(1)
			if i%16 == 15 {
				_ = tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"stele/1"}}).Handshake()
			} else {
				_, _ = c.Write(lines[i%len(lines)])
			}
			_, _ = io.Copy(io.Discard, c)
		})
	}
	all.Wait()
	fmt.Println(connected.Load())
}

// A second process opens thousands of connections as fast as it can, and holds
// on to them, while two nodes talk: every call is answered in time, connections
// that a third node makes meanwhile get through, and then all that the flood
// cost is given back.
//
// Property: J16 (red: no bound of connections without a handshake; the newest that goes in place of the oldest; places kept by who was dropped)
func TestTCPFlood(t *testing.T) {
	ca := newAuthority(t)
	for name, c := range map[string]struct {
		from   string
		change func(name string) func(*transport.TCPConfig)
	}{
		"plain":                  {"127.0.0.2", func(string) func(*transport.TCPConfig) { return func(*transport.TCPConfig) {} }},
		"secret":                 {"127.0.0.2", func(string) func(*transport.TCPConfig) { return withSecret }},
		"TLS":                    {"127.0.0.2", func(name string) func(*transport.TCPConfig) { return ca.load(t, name) }},
		"secret, from this host": {"127.0.0.1", func(string) func(*transport.TCPConfig) { return withSecret }},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "secret" {
				t.Skip("one kind is enough")
			}
			core, logs := observer.New(zap.WarnLevel)
			quick := func(c *transport.TCPConfig) {
				c.MaxHandshakes, c.HandshakeTimeout = places, handshake
			}
			a := loopback(t, "127.0.0.1:0", c.change("a"), quick)
			b := loopback(t, "127.0.0.1:0", c.change("b"), quick, func(c *transport.TCPConfig) { c.Logger = zap.New(core) })
			var frames atomic.Int64
			start(t, a, "a", &host{})
			start(t, b, "b", &host{frame: func(transport.Peer, transport.Class, []byte) { frames.Add(1) }})
			work := func(n int) time.Duration {
				began := clock.System().Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				a.Send(b.Addr(), transport.Append, []byte("frame"))
				got, err := a.Call(ctx, b.Addr(), "m", fmt.Append(nil, n))
				require.NoError(t, err)
				require.Equal(t, fmt.Sprint(n), string(got))
				return clock.System().Now().Sub(began)
			}
			work(-1)
			for frames.Load() == 0 {
				work(-1)
			}
			base := used()

			enemy := exec.CommandContext(t.Context(), os.Args[0])
			enemy.Env = append(os.Environ(), floodAddr+"="+b.Addr(), floodFrom+"="+c.from, floodCount+"="+strconv.Itoa(*floodSize))
			var out bytes.Buffer
			enemy.Stdout, enemy.Stderr = &out, os.Stderr
			require.NoError(t, enemy.Start())
			over := make(chan error, 1)
			go func() { over <- enemy.Wait() }()
			calls, visits, late, most, slowest := 0, 0, 0, 0, time.Duration(0)
			for waiting := true; waiting; {
				select {
				case err := <-over:
					require.NoError(t, err)
					waiting = false
				default:
				}
				slowest = max(slowest, work(calls))
				calls++
				most = max(most, openFiles()-base.files)
				if calls%20 != 1 {
					continue
				}
				// A stream is a connection of its own: somebody new.
				visits++
				began := clock.System().Now()
				s, err := a.OpenStream(t.Context(), b.Addr(), "s")
				if err != nil {
					late++
					// On a machine that is too busy it may have been too slow.
					if clock.System().Now().Sub(began) < handshake {
						require.Equal(t, "127.0.0.1", c.from, "pushed out by strangers from elsewhere: %v", err)
					}
					continue
				}
				require.NoError(t, s.Close())
			}
			connected, err := strconv.Atoi(strings.TrimSpace(out.String()))
			require.NoError(t, err)
			require.Greater(t, connected, *floodSize*9/10)
			t.Logf("%d connections; %d calls, slowest %v; at most %d descriptors more; %d new connections, %d to be tried again", connected, calls, slowest, most, visits, late)
			require.Less(t, most, places+20)
			if visits > 20 {
				require.Less(t, late, visits/2)
			}

			var now resources
			for tries := 0; ; tries++ {
				now = used()
				if now.goroutines <= base.goroutines && now.files <= base.files && b.Stats().Refused >= uint64(connected) {
					break
				}
				require.Less(t, tries, 300, "before %+v, now %+v, refused %d", base, now, b.Stats().Refused)
				pause(t, 20*time.Millisecond)
			}
			require.Less(t, now.heap, base.heap+8<<20)
			require.LessOrEqual(t, logs.Len(), 2, "a line for each host and minute")
			require.Positive(t, logs.Len())
		})
	}
}

type resources struct{ goroutines, files, heap int }

// used is what this process holds.
func used() resources {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return resources{goroutines: runtime.NumGoroutine(), files: openFiles(), heap: int(m.HeapAlloc)}
}

// openFiles is 0 where there is no /proc.
func openFiles() int {
	files, _ := os.ReadDir("/proc/self/fd")
	return len(files)
}

// pause lets other goroutines and the system go on between two looks.
func pause(t *testing.T, d time.Duration) {
	timer := clock.System().NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-t.Context().Done():
	}
}
