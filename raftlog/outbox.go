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

// peerFrames are the frames under construction for one node, in buffers that
// stay; what is sent is a copy of just its size, which the sender owns.
type peerFrames struct {
	node   NodeID
	queued bool // in dirty
	frames [numClasses][]byte
}

// keepFrame is the largest buffer that is kept for the next turn.
const keepFrame = 4 << 20

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
	if len(frame) == 0 {
		frame = append(frame, frameVersion)
	}
	before := len(frame)
	frame, err := appendMessage(frame, group, m)
	if err != nil {
		o.stats.messagesUnsent.Add(1)
		return
	}
	if len(frame) > o.maxFrame && before > 1 {
		// A frame is over the limit only if one message alone is.
		o.send(p.node, class, frame[:before])
		frame = append(frame[:1], frame[before:]...)
	}
	p.frames[class] = frame
	if !p.queued {
		p.queued = true
		o.dirty = append(o.dirty, p)
	}
	o.stats.messagesSent.Add(1)
}

// notify sends a notice, in a frame of its own.
func (o *outbox) notify(to NodeID, n notice) {
	var buf [64]byte
	o.send(to, ClassControl, appendNotice(append(buf[:0], noticeVersion), n))
}

// flush sends all frames.
func (o *outbox) flush() {
	for i, p := range o.dirty {
		for class, frame := range p.frames {
			if len(frame) == 0 {
				continue
			}
			o.send(p.node, uint8(class), frame)
			p.frames[class] = frame[:0]
			if cap(frame) > keepFrame {
				p.frames[class] = nil
			}
		}
		p.queued = false
		o.dirty[i] = nil
	}
	o.dirty = o.dirty[:0]
}

func (o *outbox) send(to NodeID, class uint8, frame []byte) {
	o.stats.framesSent.Add(1)
	o.stats.bytesSent.Add(uint64(len(frame)))
	o.sender.Send(to, class, append(make([]byte, 0, len(frame)), frame...))
}
