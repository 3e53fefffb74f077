package sim

import (
	pb "go.etcd.io/raft/v3/raftpb"
)

// oldMessages is how many messages of the past the network can bring back.
const oldMessages = 256

// network loses, doubles, delays and reorders, cuts single directions, and
// now and then delivers a message of any age once more, or to the wrong one.
type network struct {
	w    *world
	cut  [][]bool // from, to
	old  []*pb.Message
	seen int
}

func (k *network) init(w *world) {
	k.w = w
	k.cut = make([][]bool, w.opts.Nodes)
	for i := range k.cut {
		k.cut[i] = make([]bool, w.opts.Nodes)
	}
}

func (k *network) healAll() {
	for _, row := range k.cut {
		clear(row)
	}
}

// isolate cuts a node off, in the directions given.
func (k *network) isolate(n int, in, out bool) {
	for i := range k.cut {
		if i != n {
			k.cut[n][i] = k.cut[n][i] || out
			k.cut[i][n] = k.cut[i][n] || in
		}
	}
}

func (k *network) send(from *replica, m *pb.Message) {
	w := k.w
	to := from.g.byID(m.GetTo())
	w.trace.note(w.now, from.name, "sends "+m.GetType().String(), m.GetTo(), m.GetTerm(), m.GetIndex(), boolBit(m.GetReject()))
	k.remember(m)
	if to == nil || k.cut[from.n.index][to.n.index] || w.chance(w.faults.drop) {
		return
	}
	k.deliver(to, m)
	if w.chance(w.faults.double) {
		k.deliver(to, m)
	}
}

func (k *network) deliver(to *replica, m *pb.Message) {
	w := k.w
	d := w.between(200*microsecond, 2*millisecond)
	if w.chance(w.faults.late) {
		d = w.exp(200 * millisecond)
	}
	w.after(d, event{kind: evDeliver, node: to.n.index, r: to, m: copyMessage(m)})
}

// remember keeps a fair sample of all messages ever sent.
func (k *network) remember(m *pb.Message) {
	k.seen++
	if len(k.old) < oldMessages {
		k.old = append(k.old, m)
	} else if i := k.w.rng.IntN(k.seen); i < oldMessages {
		k.old[i] = m
	}
}

// ghost brings an old message back.
func (k *network) ghost() {
	w := k.w
	if w.faults.ghostEvery == 0 {
		return
	}
	w.after(w.exp(w.faults.ghostEvery), event{kind: evGhost})
	if len(k.old) == 0 {
		return
	}
	m := k.old[w.rng.IntN(len(k.old))]
	g := w.groups[w.rng.IntN(len(w.groups))]
	to := g.byID(m.GetTo())
	if to == nil || w.chance(0.1) {
		to = g.kept[w.rng.IntN(len(g.kept))]
	}
	k.deliver(to, m)
}

// copyMessage makes what another process would have decoded: entries and bytes
// are immutable and may be shared, slices that raft may append to are not.
func copyMessage(m *pb.Message) *pb.Message {
	n := len(m.GetEntries())
	return &pb.Message{
		Type: m.Type, To: m.To, From: m.From, Term: m.Term, LogTerm: m.LogTerm, Index: m.Index,
		Entries: m.GetEntries()[:n:n], Commit: m.Commit, Vote: m.Vote, Reject: m.Reject, RejectHint: m.RejectHint,
		Context: m.Context,
	}
}
