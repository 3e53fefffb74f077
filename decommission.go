package stele

import (
	"context"
	"errors"
	"fmt"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// ErrDraining: this node is about to leave its cluster and takes in no more
// records. It is Retry: through another node.
var ErrDraining = topic.ErrDraining

// ErrDecommissionCancelled: somebody took the decommission back. It is Refused.
var ErrDecommissionCancelled = raftlog.Refused(errors.New("stele: the decommission was taken back"))

// Departure is how far a member is on its way out of the cluster.
type Departure = metastore.Departure

// How far a member is on its way out.
const (
	Stays        = metastore.Stays        // it is not leaving
	Drains       = metastore.Drains       // its partitions are moved off; that can be taken back
	DrainsForced = metastore.DrainsForced // the same, whatever is left behind
	Leaves       = metastore.Leaves       // it is taken out of the metadata; that cannot be taken back
)

// DecommissionOptions say how a node is taken out of its cluster.
type DecommissionOptions struct {
	// Force goes on where a decommission would wait for a person: when fewer than
	// three voters would be left, and when the node is dead and cannot say whether
	// it has answered all records that it took in. Nothing that was acknowledged is
	// lost by it.
	Force bool
}

// Decommission takes a node out of the cluster: its partitions are moved to other
// nodes, what it took in is delivered, it hands its leaderships over, leaves the
// metadata's group, and its record ends with a tombstone: its directory can never
// come back, its name can. It returns when that has begun, durably. From then on
// whoever leads the metadata goes on with it; the Decommission only watches. Calling
// it again, anywhere, watches the same one, and may force it.
//
// name is that of any node, this one too. *NoMemberError (Refused).
func (n *Node) Decommission(ctx context.Context, name string, opts DecommissionOptions) (*Decommission, error) {
	p, err := n.serving(ctx, "Node.Decommission")
	if err != nil {
		return nil, err
	}
	if err := p.meta.Barrier(ctx); err != nil {
		return nil, err
	}
	m, err := p.member(name)
	if err != nil {
		return nil, err
	}
	to := Drains
	if opts.Force {
		to = DrainsForced
	}
	switch have := m.Liveness.Departure; {
	case have == Leaves, have == to, have == DrainsForced:
	default:
		if err := p.meta.SetDeparture(ctx, m.Node, m.Nonce, to); err != nil && !errors.Is(err, metastore.ErrMemberLeaving) {
			return nil, err
		}
	}
	return &Decommission{parts: p, member: m}, nil
}

// Decommission is a decommission that is under way. Its methods are safe for
// concurrent use, and answer from what this node knows.
type Decommission struct {
	parts  *parts
	member metastore.Member
}

// Progress is where a decommission stands.
type Progress struct {
	Name      string
	Node      NodeID
	Departure Departure
	Replicas  uint64 // of partitions, that are still to be moved off
	Done      bool   // it is no member any more
}

// Progress returns where the decommission stands. The error is why the metadata
// cannot be read.
func (o *Decommission) Progress() (Progress, error) {
	at := Progress{Name: o.member.Name, Node: o.member.Node}
	m, ok := o.parts.meta.Member(o.member.Node)
	if !ok {
		at.Departure, at.Done = Leaves, true
		return at, nil
	}
	at.Departure = m.Liveness.Departure
	var err error
	at.Replicas, _, err = o.parts.meta.Load(m.Node)
	return at, err
}

// Wait returns nil when the node is out of the cluster. ErrDecommissionCancelled
// if somebody took it back; if ctx ends first, the error is Unknown, says where
// it stands and matches ctx.Err(), and the decommission goes on.
func (o *Decommission) Wait(ctx context.Context) error {
	if err := needs(ctx, "Decommission.Wait"); err != nil {
		return err
	}
	for {
		_, changed := o.parts.meta.Watch()
		at, err := o.Progress()
		switch {
		case err != nil:
			return err
		case at.Done:
			return nil
		case at.Departure == Stays:
			return ErrDecommissionCancelled
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return raftlog.Unknown(fmt.Errorf("stele: %s %v, with %d replicas: %w", at.Name, at.Departure, at.Replicas, ctx.Err()))
		}
	}
}

// Cancel takes the decommission back: the node stays, with what it still has. It
// is refused once the node leaves the metadata, which nothing stops.
func (o *Decommission) Cancel(ctx context.Context) error {
	if err := needs(ctx, "Decommission.Cancel"); err != nil {
		return err
	}
	return o.parts.meta.SetDeparture(ctx, o.member.Node, o.member.Nonce, Stays)
}
