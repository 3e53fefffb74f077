package transport

// Hello is what a dialler without a secret says first.
func Hello(p Peer) []byte { return appendGreeting(nil, greetHello, laneCalls, appendPeer(nil, p)) }

// Greeting is any greeting.
func Greeting(kind byte, body []byte) []byte {
	return appendGreeting(nil, greetingKind(kind), laneCalls, body)
}
