package stele

import (
	"context"

	"github.com/stelelog/stele/raftlog"
)

// AddStray gives a vote on the metadata to a replica that is no member: what no call
// of the library does. The node must lead the metadata.
func (n *Node) AddStray(ctx context.Context, r ReplicaID) error {
	g := n.net.parts.Load().meta.Group()
	for _, c := range []raftlog.Change{{ID: raftlog.ChangeID{1}, Learners: []ReplicaID{r}}, {ID: raftlog.ChangeID{2}, Voters: []ReplicaID{r}}} {
		if err := g.ChangeMembers(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
