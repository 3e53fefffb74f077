package raftlog

import (
	pb "go.etcd.io/raft/v3/raftpb"
)

// outbox collects the messages of one turn of the loop, of all groups, into
// one frame for each peer and class. Only the loop touches it.
type outbox struct {
	sender   Sender
	maxFrame int
	stats    *counters
	peers    map[NodeID]*peerFrames
	dirty    []*peerFrames // with something to send
}

type peerFrames struct {
	node   NodeID
	queued bool // in dirty
	frames [numClasses][]byte
	last   [numClasses]int // length of the last frame: how much to reserve
}

func newOutbox(sender Sender, maxFrame int, stats *counters) *outbox {
	return &outbox{sender: sender, maxFrame: maxFrame, stats: stats, peers: map[NodeID]*peerFrames{}}
}

// add appends a message for a node; a frame that is full leaves at once.
// Messages that cannot be encoded are lost, and counted.
func (o *outbox) add(to NodeID, group GroupID, m *pb.Message) {
	class, _ := travels(m.GetType())
	p := o.peers[to]
	if p == nil {
		p = &peerFrames{node: to}
		o.peers[to] = p
	}
	frame := p.frames[class]
	if frame == nil {
		frame = append(make([]byte, 0, p.last[class]+p.last[class]/4+64), frameVersion)
	}
	before := len(frame)
	grown, err := appendMessage(frame, group, m)
	if err != nil {
		o.stats.messagesUnsent.Add(1)
		return
	}
	if len(grown) > o.maxFrame && before > 1 {
		// The message goes into a frame of its own, so that a frame is over
		// the limit only if one message is.
		own := append([]byte{frameVersion}, grown[before:]...)
		o.send(p, class, grown[:before:before])
		grown = own
	}
	p.frames[class] = grown
	if !p.queued {
		p.queued = true
		o.dirty = append(o.dirty, p)
	}
	o.stats.messagesSent.Add(1)
}

// flush sends all frames.
func (o *outbox) flush() {
	for i, p := range o.dirty {
		for class, frame := range p.frames {
			if frame != nil {
				o.send(p, uint8(class), frame)
				p.frames[class] = nil
			}
		}
		p.queued = false
		o.dirty[i] = nil
	}
	o.dirty = o.dirty[:0]
}

func (o *outbox) send(p *peerFrames, class uint8, frame []byte) {
	p.last[class] = min(len(frame), o.maxFrame)
	o.stats.framesSent.Add(1)
	o.stats.bytesSent.Add(uint64(len(frame)))
	o.sender.Send(p.node, class, frame)
}
