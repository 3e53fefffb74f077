package transport_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"github.com/stelelog/stele/transport"
)

// greeter answers what peers send.
type greeter struct{ frames chan string }

func (g greeter) HandleFrame(from transport.Peer, class transport.Class, frame []byte) {
	g.frames <- fmt.Sprintf("%v frame of %s: %s", class, from.Name, frame)
}

func (g greeter) HandleCall(_ context.Context, from transport.Peer, method string, req []byte) ([]byte, error) {
	return fmt.Appendf(nil, "%s %s, dear %s", method, req, from.Name), nil
}

func (g greeter) HandleStream(_ context.Context, _ transport.Peer, _ string, s transport.Stream) error {
	_, err := io.Copy(s, s) // bytes back, until the peer closes its half
	return err
}

// Two nodes over TCP: a frame, which may be lost, and a call, which is answered
// or tells whether it can have been executed.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Panic(err)
		}
	}
	node := func(name string, h transport.Handler) *transport.TCP {
		t, err := transport.NewTCP(transport.TCPConfig{Listen: "127.0.0.1:0"})
		check(err)
		check(t.Start(transport.Identity{Cluster: "hello", Name: name}, h))
		return t
	}
	b := greeter{make(chan string, 1)}
	alice, bob := node("alice", greeter{}), node("bob", b)
	defer alice.Close()
	defer bob.Close()

	alice.Send(bob.Addr(), transport.Control, []byte("are you there?")) // never blocks
	fmt.Println(<-b.frames)

	answer, err := alice.Call(context.Background(), bob.Addr(), "hello", []byte("world"))
	check(err)
	fmt.Printf("%s\n", answer)
	// Output:
	// control frame of alice: are you there?
	// hello world, dear alice
}
