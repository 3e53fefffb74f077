package stele

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/stelelog/stele/internal/clock"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/transport"
)

// A node that is fenced is in one of two places, and what helps in one destroys
// data in the other: it was left behind, so that its directory is of no use any
// more, or it is in the plan, and the plan was not applied to its directory yet.
// Those of the newer epoch know: they remember who came along. So whoever is fenced
// asks, before it says why, the one that fenced it and all that it knows. The answer:
//
//	u64         recovery epoch of the node that answers
//	u8          what is known of the one that asks
//	16 bytes    id of the plan; zeros unless it is included

// whyMethod is the call that asks why the caller is fenced. It has no content.
const whyMethod = "fence.why"

// What is known of a node of an older epoch.
const (
	standsUnknown  = 0
	standsLeft     = 1 // the recovery to this epoch left it behind
	standsIncluded = 2 // it is in that recovery's plan
)

// standing is what this node knows of one of an older epoch, and the plan.
func (n *network) standing(from transport.Peer) (said byte, plan [16]byte) {
	r := n.roster.Load()
	epoch, _ := epochOf(from)
	switch {
	case r == nil || from.ClusterID != [16]byte(r.cluster) || from.Node == 0 || epoch >= r.epoch:
		return standsUnknown, plan
	case epoch+1 < r.epoch:
		return standsLeft, plan // the plan is about directories of the epoch before
	}
	if came := r.came; came != nil && came.Epoch == r.epoch {
		for _, m := range came.Members {
			if uint64(m.Node) == from.Node {
				return standsIncluded, came.Plan
			}
		}
		return standsLeft, plan
	}
	p := n.parts.Load()
	if p == nil {
		return standsUnknown, plan
	}
	for _, past := range p.meta.Recoveries() {
		if past.Epoch != r.epoch {
			continue
		}
		// Who was a member then and was not left behind came along.
		behind := slices.Contains(past.LeftBehind, NodeID(from.Node))
		if !behind && slices.ContainsFunc(p.meta.Members(), func(m metastore.Member) bool { return uint64(m.Node) == from.Node }) {
			return standsIncluded, past.Plan
		}
		return standsLeft, plan
	}
	return standsUnknown, plan
}

func (n *network) answerWhy(from transport.Peer) ([]byte, error) {
	var epoch uint64
	said, plan := n.standing(from)
	if said != standsUnknown {
		epoch = n.roster.Load().epoch
		n.fence.behind(from, epoch, said == standsIncluded)
	}
	return append(append(binary.BigEndian.AppendUint64(nil, epoch), said), plan[:]...), nil
}

// askWhy asks why this node is fenced, and returns what it is to say: err, or that
// it is in the plan. The first that knows counts. A node that does not answer, or is
// of a release without the call, does not know.
func (n *Node) askWhy(err *EpochFencedError) *EpochFencedError {
	r := n.net.roster.Load()
	if r == nil {
		return err
	}
	addrs := map[string]string{} // and names
	for _, peer := range *r.peers.Load() {
		if peer.Name != n.cfg.Name && peer.Addr != "" {
			addrs[peer.Addr] = peer.Name
		}
	}
	if err.at != "" {
		addrs[err.at] = err.By
	}
	ctx, cancel := context.WithCancel(n.life)
	defer cancel()
	defer clock.System().AfterFunc(fenceCall, cancel).Stop()
	var mu sync.Mutex
	found := err
	var asking sync.WaitGroup
	for addr, name := range addrs {
		asking.Go(func() {
			answer, failed := n.net.transport.Call(ctx, addr, whyMethod, nil)
			if failed != nil || len(answer) != 8+1+16 || answer[8] == standsUnknown {
				return
			}
			epoch := binary.BigEndian.Uint64(answer)
			mu.Lock()
			defer mu.Unlock()
			if answer[8] == standsIncluded && epoch == err.Current && found == err {
				found = &EpochFencedError{Epoch: err.Epoch, Current: epoch, By: name, Plan: [16]byte(answer[9:])}
			}
			cancel()
		})
	}
	asking.Wait()
	return found
}
