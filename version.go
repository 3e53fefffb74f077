package stele

import "github.com/stelelog/stele/metastore"

// ClusterVersionError refuses what needs a higher version of the cluster than all
// of its members can be part of, and names those that cannot. It is Retry: once
// they run a newer build, or have no lower Config.MaxVersion, the version is raised.
type ClusterVersionError = metastore.ClusterVersionError

// versionOfMembers is the cluster version at which members come and go.
const versionOfMembers = 2

// behind names the members that hold the cluster's version back: as this node sees
// them if it leads the metadata, else as the leader told it last.
func (n *Node) behind() []string {
	if p := n.net.parts.Load(); p != nil {
		if names, ok := p.steward.Behind(); ok {
			return names
		}
	}
	if h := n.heartbeater.Load(); h != nil {
		return h.Behind()
	}
	return nil
}
