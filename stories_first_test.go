package stele_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele"
	"github.com/stelelog/stele/internal/testcluster"
)

var (
	starts     = flag.Uint64("starts", 9, "first starts to try")
	startsFrom = flag.Uint64("starts.from", 1, "seed of the first")
)

// Three members start for the first time, in any order and some of them late. One
// loses power just before some change of its disk: while it opens, founds, hears of
// the cluster, adopts it, elects. It comes back with what its disk kept, or with
// nothing. Whatever the moment, there is one cluster in the end, all are in it, and
// it is the same one after all lose power. A disk that is lost before the cluster
// knows what all its members can do is replaced after ten minutes.
//
//	go test . -run TestMixedFirstStart -starts=500
//
// Property: J4 (red: a life that is gone holding the version back for ever)
func TestMixedFirstStart(t *testing.T) {
	for seed := *startsFrom; seed < *startsFrom+*starts; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { mixedFirstStart(t, seed) })
	}
}

func mixedFirstStart(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	victim := int(seed % 3)
	moment := 1 + rng.Int64N(120)
	wiped := rng.IntN(3) == 0
	testcluster.Run(t, testcluster.Options{Seed: seed}, func(c *testcluster.Cluster) {
		t := c.T
		between := func() { c.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second)))) }
		await := c.PowerLossAt(victim, moment)
		for _, i := range rng.Perm(3) {
			c.Start(i)
			between()
		}
		came := await(8 * time.Second)
		if wiped {
			c.Wipe(victim)
		}
		between()
		c.Start(victim)
		ready := func() bool {
			for i := range c.Size() {
				if !c.Node(i).Readiness().Ready() {
					return false
				}
			}
			return true
		}
		c.EventuallyLong(ready, fmt.Sprintf("all are ready; node-%d lost power before change %d (%v), wiped %v", victim+1, moment, came, wiped))
		c.EventuallyLong(func() bool {
			for i := range c.Size() {
				if len(c.Node(i).Members()) != 3 || seat(c, i, victim) != stele.SeatVoter {
					return false
				}
			}
			return true
		}, "there is one life of each")
		id := c.Node(0).Status().ClusterID
		c.PowerLossAll()
		c.StartAll()
		for i := range c.Size() {
			require.Equal(t, id, c.Node(i).Status().ClusterID)
		}
	})
}
