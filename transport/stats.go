package transport

import "sync/atomic"

// Stats are counters since Start.
type Stats struct {
	// Classes is indexed by Class.
	Classes [NumClasses]ClassStats
	// Calls and Streams count what this side began, Served what it answered.
	Calls, CallsServed, Streams, StreamsServed uint64
	// Dials counts attempts, DialFailures those that did not end with a
	// handshake, Reconnects the handshakes after a lost connection.
	Dials, DialFailures, Reconnects uint64
	// Accepted counts handshakes of peers, Refused those that this side turned
	// away (of whatever reason: garbage, another cluster, too slow, too many).
	Accepted, Refused uint64
	// Corrupt counts received frames that failed their checksum.
	Corrupt uint64
}

// ClassStats counts frames of one class and their payload bytes.
type ClassStats struct {
	FramesSent, BytesSent         uint64
	FramesReceived, BytesReceived uint64
	// Dropped frames never left this side: queue full, over the limit, peer
	// away, connection lost, closed.
	FramesDropped, BytesDropped uint64
}

// counters is Stats while it is being counted.
type counters struct {
	classes                                    [NumClasses]classCounters
	calls, callsServed, streams, streamsServed atomic.Uint64
	dials, dialFailures, reconnects            atomic.Uint64
	accepted, refused, corrupt                 atomic.Uint64
}

type classCounters struct{ sent, received, dropped pair }

// pair counts frames and their bytes.
type pair struct{ frames, bytes atomic.Uint64 }

func (p *pair) add(frames, bytes int) {
	p.frames.Add(uint64(frames))
	p.bytes.Add(uint64(bytes))
}

func (c *counters) snapshot() Stats {
	s := Stats{
		Calls: c.calls.Load(), CallsServed: c.callsServed.Load(),
		Streams: c.streams.Load(), StreamsServed: c.streamsServed.Load(),
		Dials: c.dials.Load(), DialFailures: c.dialFailures.Load(), Reconnects: c.reconnects.Load(),
		Accepted: c.accepted.Load(), Refused: c.refused.Load(), Corrupt: c.corrupt.Load(),
	}
	for i := range c.classes {
		k := &c.classes[i]
		s.Classes[i] = ClassStats{
			FramesSent: k.sent.frames.Load(), BytesSent: k.sent.bytes.Load(),
			FramesReceived: k.received.frames.Load(), BytesReceived: k.received.bytes.Load(),
			FramesDropped: k.dropped.frames.Load(), BytesDropped: k.dropped.bytes.Load(),
		}
	}
	return s
}
