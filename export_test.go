package stele

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/stelelog/stele/membership"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
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

// Tell has a partition that this node leads be closed (topic.KindRetire) or opened
// (topic.KindRestore) for a deletion, as a node would whose metadata say so. code is
// that of the answer's error, 0: it is done.
func (n *Node) Tell(ctx context.Context, t Topic, partition uint32, kind topic.Kind, number uint64) (code byte, err error) {
	request := append([]byte{1, 0}, t.Incarnation[:]...)
	request, method := binary.LittleEndian.AppendUint32(request, partition), "topic.seal"
	if kind != topic.KindSeal {
		method, request = "topic.close", binary.LittleEndian.AppendUint64(append(request, byte(kind)), number)
	}
	response, err := n.net.parts.Load().topics.HandleCall(ctx, 99, method, request)
	if err != nil {
		return 0, err
	}
	return response[1], nil
}
