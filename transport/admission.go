package transport

import "fmt"

// Validate returns an error that names the field that a handshake could not
// carry. Every Transport refuses such an identity in Start and ignores it in
// SetIdentity.
func (id Identity) Validate() error {
	if n := len(id.Cluster); n < 1 || n > maxShort {
		return fmt.Errorf("transport: Identity.Cluster has %d bytes, want 1 to %d", n, maxShort)
	}
	if n := len(id.Name); n < 1 || n > maxShort {
		return fmt.Errorf("transport: Identity.Name has %d bytes, want 1 to %d", n, maxShort)
	}
	return nil
}

// Admit is the admission rule of every Transport: 0 if a peer that says theirs
// may talk to a node that is mine, else why not. Both sides ask it, for every
// connection, and again for all of them after SetIdentity; what a refused peer
// is told of it is Told. The order matters: a stranger that does not even know
// the cluster's name learns nothing, not even that an id differs.
func Admit(mine, theirs Identity) Refusal {
	switch {
	case mine.Cluster != theirs.Cluster:
		return RefusedCluster
	case theirs.Validate() != nil:
		return RefusedProtocol
	case mine.ClusterID != [16]byte{} && theirs.ClusterID != [16]byte{} && mine.ClusterID != theirs.ClusterID:
		return RefusedClusterID
	case mine.Node != 0 && mine.Node == theirs.Node && mine.ClusterID == theirs.ClusterID &&
		mine.Process != theirs.Process && mine.Process != 0 && theirs.Process != 0:
		return RefusedClone
	}
	return 0
}

// Told is what the peer that is refused may know of the reason: RefusedSilently
// unless it knows the cluster's name already.
func (r Refusal) Told() Refusal {
	switch r {
	case RefusedVersion, RefusedClusterID, RefusedClone:
		return r
	}
	return RefusedSilently
}
