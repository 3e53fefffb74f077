package topic

import (
	"errors"
	"slices"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// ErrLost: a forced recovery left no replica of a partition: its records are gone, and
// it serves no more. The topic's other partitions do: a person copies from them what is
// to be kept, to another topic, deletes this one, and makes it again if its name is
// wanted. It comes as Retry: the name may come back.
var ErrLost = errors.New("topic: a forced recovery left no replica of the partition: copy the other partitions of its topic elsewhere, then delete the topic")

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
