package sim

import pb "go.etcd.io/raft/v3/raftpb"

type eventKind uint8

const (
	evTick eventKind = iota
	evDeliver
	evDisk
	evApplied
	evPump
	evClient
	evFault
	evHeal
	evRestart
	evResume
	evCheckpoint
	evCheckpointed
	evGhost
	evMember
	evTold
)

// event is something that happens at a virtual time. Events of a node's
// earlier life are void.
type event struct {
	at   int64
	seq  uint64 // order among events of one time
	kind eventKind
	node int
	life uint64
	r    *replica
	m    *pb.Message
	heal func()
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// eventHeap is a binary heap by time and order of scheduling.
type eventHeap []event

func (h *eventHeap) push(e event) {
	s := append(*h, e)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !s[i].before(&s[up]) {
			break
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
	*h = s
}

func (h *eventHeap) pop() event {
	s := *h
	top := s[0]
	n := len(s) - 1
	s[0] = s[n]
	s[n] = event{}
	s = s[:n]
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			break
		}
		if r := down + 1; r < n && s[r].before(&s[down]) {
			down = r
		}
		if !s[down].before(&s[i]) {
			break
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
	*h = s
	return top
}
