package topic_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/topic"
)

// TestProducersElsewhereFollowTheLeader: the one that records were sent to is
// cut off and does not answer, and neither the replica here nor, without one,
// the producer itself waits for it as long as for a call.
//
// Property: P4, P7 (red: no attempt ended with a change of leader; none ended after a while; the one that did not answer tried again while others elect; links that lose and are cut: TestNodesFailUnderLoad)
func TestProducersElsewhereFollowTheLeader(t *testing.T) {
	for _, from := range []string{"a follower", "a node without a replica"} {
		t.Run(from, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startCluster(t, 4, 1)
				made, err := c.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{Partitions: 1, Replicas: 3})
				require.NoError(t, err)
				leader := c.leader("orders", 0)
				n := c.outside(made.Partitions[0])
				if from == "a follower" {
					n = c.follower(made.Partitions[0], leader)
				}
				p := producer(t, n, topic.ProducerConfig{})
				_, err = p.Produce(t.Context(), "orders", record("0"))
				require.NoError(t, err)
				c.isolate(leader.id, true)
				attempt := time.Now().Add(2 * time.Second)
				ended := make(chan error, 1)
				go func() {
					_, err := p.Produce(t.Context(), "orders", record("1"))
					ended <- err
				}()
				settle(t, "another leader", func() bool { return c.leadsBut(leader, "orders") })
				elected := time.Now()
				require.NoError(t, <-ended)
				if elected.Before(attempt) {
					elected = attempt // to the one that is cut off
				}
				require.Less(t, time.Since(elected), time.Second) // virtual
				c.isolate(leader.id, false)
				require.Equal(t, []string{"0", "1"}, n.dump("orders", 0))
			})
		})
	}
}

// leadsBut reports whether a node other than one leads the first partition.
func (c *cluster) leadsBut(other *node, name string) bool {
	for _, n := range c.running() {
		for _, s := range n.topics.Status() {
			if n != other && s.Topic == name && s.Partition == 0 && s.Role == raftlog.RoleLeaderActive {
				return true
			}
		}
	}
	return false
}

// outside returns a node that holds no replica of a partition.
func (c *cluster) outside(p metastore.Partition) *node {
	for _, n := range c.running() {
		if _, on := p.On(n.id); !on {
			return n
		}
	}
	require.FailNow(c.t, "all nodes hold a replica")
	return nil
}

// follower returns a node that holds a replica that does not lead.
func (c *cluster) follower(p metastore.Partition, leader *node) *node {
	at := p.Replicas[0].Node
	if at == leader.id {
		at = p.Replicas[1].Node
	}
	return c.node(raftlog.NodeID(at))
}
