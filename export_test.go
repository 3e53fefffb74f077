package stele

import (
	"context"
	"errors"

	"github.com/stelelog/stele/membership"
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

// Tried are the addresses at which a node that is part of no cluster yet asked in its
// last attempt, which met nobody who leads; none: it did not come to that.
func (n *Node) Tried() (addrs []string) {
	var met *membership.LeaderlessError
	if j := n.entering.Load(); j != nil && errors.As(j.Waiting(), &met) {
		for _, t := range met.Tried {
			addrs = append(addrs, t.Addr)
		}
	}
	return addrs
}

// Setting is a setting of the cluster, as this node's metadata have it.
func (n *Node) Setting(key string) (value string, ok bool, err error) {
	return n.net.parts.Load().meta.Setting(key)
}

// SetSetting makes or changes one.
func (n *Node) SetSetting(ctx context.Context, key, value string) error {
	return n.net.parts.Load().meta.SetSetting(ctx, key, value)
}

// MetadataLag is the value of the metric metadata_lag_entries.
var MetadataLag = metadataLag
