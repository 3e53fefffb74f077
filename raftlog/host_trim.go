package raftlog

// TrimLog lets go the front of the group's log: if more than limit bytes of it
// are at or below upTo, as many of its segments as leave keep bytes of them.
// Followers that need what is gone are told by OnBehind of theirs. Nothing at or
// below upTo may be needed to open the group again: its state machine has it
// durably. It is for StateMachine.Applied alone to call, which is not called
// beside an append.
func (g *Group) TrimLog(upTo Index, limit, keep int64) error { return g.log.Trim(upTo, limit, keep) }
