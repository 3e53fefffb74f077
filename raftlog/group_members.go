package raftlog

import "context"

// ChangeMembers changes the group's configuration; only the leader does. It
// returns nil once this very change, named by its id, is applied here, left if
// it was joint, and known to a quorum of the new configuration, so that the
// replicas that it removed may be shut down. Who is where is not part of it: see
// UpdatePeers, which is to know a new learner before.
//
//	Retry    nothing happened: *NotLeaderError, ErrNotActive, ErrChangePending,
//	         ErrTransferring, ErrOverloaded, ErrDiskStalled
//	Refused  and nothing ever will, in this configuration: *ChangeError
//	Unknown  leadership was lost, or ctx ended: Status().Conf of whoever leads
//	         tells, or the same change with the same id there
//
// A leader takes one change at a time, and none before it has applied an entry
// of its term. More than one replica are changed through a joint configuration,
// which whoever leads leaves by itself. A leader neither removes nor demotes
// itself.
func (g *Group) ChangeMembers(ctx context.Context, ch Change) error {
	call := &changeCall{done: make(chan error, 1)}
	if err := g.host.call(ctx, func() { g.host.loop.changeMembers(g, ch, call) }); err != nil {
		return err
	}
	return g.awaitEnd(ctx, call.done)
}

// Resign ends this replica's leadership. From now on it accepts nothing:
// proposals are refused with ErrTransferring, earlier ones end as they do when
// leadership is lost. It hands over to the first of the successors that votes,
// is not dead and takes over, then to the voters that are heard from, the most
// caught-up first. If nobody takes over it falls silent, so that the others
// elect.
//
// It returns nil once this replica leads no more: after a round trip if the
// first is well, after an election timeout for each voter and two more at most.
// The error is Retry: *NotLeaderError, or ErrNoTarget in a group with one voter,
// which leads on. If ctx ends first it goes on.
func (g *Group) Resign(ctx context.Context, successors ...ReplicaID) error {
	t := &transfer{done: make(chan error, 1), resign: true}
	if err := g.host.call(ctx, func() { g.host.loop.resign(g, successors, t) }); err != nil {
		return err
	}
	return g.awaitEnd(ctx, t.done)
}

// awaitEnd waits for the outcome of a call that the loop has taken in.
func (g *Group) awaitEnd(ctx context.Context, done <-chan error) error {
	ended, err := await(ctx, g.host, done)
	if err != nil {
		return err
	}
	return ended
}
