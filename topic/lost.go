package topic

import (
	"errors"
	"slices"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// ErrLost: a forced recovery left no replica of a partition. Only deleting the topic
// helps, or a directory that had one and could not be read then. It comes as Retry:
// the name may come back.
var ErrLost = errors.New("topic: a forced recovery left no replica of the partition: only deleting the topic helps")

// orLost is err, or if a partition has been lost for good that, and with it what
// helps.
func (m *Manager) orLost(p metastore.Partition, err error) error {
	for _, r := range m.cfg.Meta.Recoveries() {
		if slices.Contains(r.Lost, p.Group) {
			return raftlog.Retry(ErrLost)
		}
	}
	return err
}
