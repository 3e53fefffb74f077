// Package transport moves frames, calls and streams between the nodes of a
// cluster. It knows addresses and classes of traffic, and no meanings; it
// imports nothing of this module but the clock.
//
//	             ordered     answered   back-pressure   may be lost
//	Send         per class   no         no (bounded)    silently, counted
//	Call         no          yes        by deadline     with a typed error
//	OpenStream   yes         by bytes   yes             with a typed error
//
// If a host's network must be the only network, it gives TCP the connections of
// its own (TCPConfig.Dialer and Listener), or writes a Transport, with Admit,
// Identity.Validate and RemoteErrorOf for the rules that all have; the suite in
// transporttest says whether it may. examples/httptransport does some of both.
// Two come with the package:
//
// Memory lives in a Network in one process, with latency, loss, duplication,
// reordering, one-way cuts and corruption, all drawn from a seed. In a
// testing/synctest bubble it runs in virtual time. Bytes cross it, never
// pointers.
//
// TCP gives each peer a connection for each of the lanes control, append,
// bulk and calls, made when first needed, and one to each stream. So bulk never
// delays a heartbeat, and a call never waits behind replication:
//
//	Send(peer, Append) --> queue (bytes bounded) --> writer ==TCP==> reader --> HandleFrame
//	Call(peer)         --> queue (bytes bounded) --> writer ==TCP==> reader --> HandleCall
//	                                    caller <-- reader <==TCP== writer <-- queue <--'
//
// A connection belongs to the side that dialled it; two nodes that talk have
// one in each direction. The peer that is dialled never sends anything of its
// own accord on it, but answers and signs of life. format.go draws the bytes.
//
// # Who may talk
//
// Both sides say who they are before anything else: cluster name, node name,
// cluster id, node id, recovery epoch, process. Names of clusters must be
// equal, ids must be equal once both are known. A stranger learns nothing, not
// even a reason, unless it already knows the cluster's name; who does not speak
// the protocol is hung up on. Peers that passed are trusted not to be
// malicious, only to be broken: their lengths, kinds and checksums are still
// judged.
//
//	                what a peer must have    what it protects
//	nothing set     the cluster's name       against mistakes
//	Secret          the join secret          who connects; not what follows, from one
//	                                         who can change it on its way
//	TLS             a certificate with its   who connects and as whom, and all that
//	                node's name              follows, also from being read
//
// Secret and TLS are proven before anybody says who it is; the dialler proves
// first (secret.go). Together they are bound to each other.
//
// # Hostile peers
//
// A connection has HandshakeTimeout (3 s) for all of its handshakes, whatever
// it says in the meantime. No more than MaxHandshakes (128) wait for theirs; a
// further one takes the place of the oldest of the host that has the most (of
// IPv6: of the /64), so that a flood displaces itself. Accepting never waits
// for a handshake. Who is refused is counted in Stats.Refused and logged once
// a minute per host, of at most 1024 hosts a minute.
//
// A process is refused while another one with the same node id is connected,
// and shown as an error when both go on to live: see roster.go. Only TCP does
// that. Memory, and a Transport that just asks Admit, know a clone only when it
// talks to its original; transporttest asks for no more.
//
// # What an error says
//
//	ErrUnreachable   certainly not executed: retry
//	  *HandshakeError, *TooLargeError are such
//	ErrInterrupted   perhaps executed
//	*RemoteError     the handler answered with an error
//
// # Goroutines of TCP
//
//	accept      from Start; one, and one for each connection accepted, which
//	            shakes hands, then reads
//	send        one for each connection, writes what its queue holds
//	tend        one for each link (peer and lane) while it has a connection or
//	            something to send: dials, backs off, then writes
//	receive     one for each dialled connection
//	handlers    one for each call that is served
//	watch       one: pings, and closes connections that are silent or stuck for
//	            PeerTimeout, or idle for IdleTimeout
//
// All end with Close, which waits for them, and so for the handlers. Memory has
// one goroutine for each peer and class that sends to it, and one for each
// call and stream that is served.
//
// Locks of TCP are leaves: none is taken while another is held.
package transport
