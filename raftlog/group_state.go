package raftlog

import (
	"context"

	"github.com/stelelog/stele/storage"
)

// State returns what this replica is at one moment, without its tail: where its
// log stands, the configuration as of exactly Log.LastIndex, and what it promises
// (which may still be on its way to the disk, as the term that it is in). Retry:
// it is closed, or ctx ended.
func (g *Group) State(ctx context.Context) (storage.ReplicaState, error) {
	answer := make(chan storage.ReplicaState, 1)
	err := g.host.inLoop(ctx, func(done chan<- error) {
		if !g.loop.open(g.host.loop) {
			done <- Retry(ErrClosed)
			return
		}
		st := g.loop.stateWithoutTail()
		if g.loop.frozen == nil {
			st.Hard = g.loop.core.hard
		}
		answer <- st
		done <- nil
	})
	if err != nil {
		return storage.ReplicaState{}, Retry(err)
	}
	return <-answer, nil
}
