package raftlog

import "errors"

// ErrRemoved ends what a replica was asked for that was removed from its group.
// It comes as Retry or, for what was in its log, as Unknown.
var ErrRemoved = errors.New("raftlog: the replica was removed from its group")

// Remove tells a replica that it was removed from its group, by somebody who
// knows. It takes no part any more: it neither ticks, nor speaks, nor votes.
// What it knows to be committed is applied still.
//
// A replica that applied its own removal goes on voting when it is asked: until
// the others know that it is out, they may need its vote. One that is told so
// is out for all, since that is told only of a removal that a quorum knows of.
func (c *Core) Remove() {
	if c.failed != nil || c.retired {
		return
	}
	c.removed, c.retired, c.dirty = true, true, true
	c.proposals.fail(ErrRemoved)
	c.changes.lose(Unknown(ErrRemoved))
	c.reads.fail(ErrRemoved)
	c.yielding, c.behind = yielding{}, behind{}
}

// lists reports whether a replica is in a configuration that is known here, if
// any is.
func (c *Core) lists(r ReplicaID) bool {
	if len(c.conf.Voters) == 0 && len(c.nextConf.Voters) == 0 {
		return true
	}
	return listed(c.conf, r) || listed(c.nextConf, r)
}
