package topic

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHandBacks has all that speaks against handing a leadership back.
func TestHandBacks(t *testing.T) {
	ready := ledPartition{led: time.Minute, preferred: 7, stays: true, voter: true, sinceContact: 1, sinceCaughtUp: 20}
	for name, c := range map[string]struct {
		change func(*ledPartition)
		want   bool
	}{
		"ready":                     {func(p *ledPartition) {}, true},
		"leads where it should":     {func(p *ledPartition) { p.here = true }, false},
		"dead or draining":          {func(p *ledPartition) { p.stays = false }, false},
		"learns":                    {func(p *ledPartition) { p.voter = false }, false},
		"never heard from":          {func(p *ledPartition) { p.sinceContact = -1 }, false},
		"silent for a while":        {func(p *ledPartition) { p.sinceContact = 21 }, false},
		"never caught up":           {func(p *ledPartition) { p.sinceCaughtUp = -1 }, false},
		"was caught up a while ago": {func(p *ledPartition) { p.sinceCaughtUp = 21 }, false},
		"a move is under way":       {func(p *ledPartition) { p.busy = true }, false},
		"has just begun to lead":    {func(p *ledPartition) { p.led = ledFor - 1 }, false},
		"did not take over":         {func(p *ledPartition) { p.failed = handBackAgain - 1 }, false},
		"did not take over once":    {func(p *ledPartition) { p.failed = handBackAgain }, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := ready
			c.change(&p)
			require.Equal(t, c.want, len(handBacks([]ledPartition{p}, 1)) == 1)
		})
	}
	many := make([]ledPartition, 10)
	for i := range many {
		many[i] = ready
		many[i].partition = uint32(i)
		many[i].led += time.Duration(i%3) * time.Second
	}
	got := handBacks(many, 4)
	var order []uint32
	for _, p := range got {
		order = append(order, p.partition)
	}
	require.Equal(t, []uint32{2, 5, 8, 1}, order, "a few at a time, the longest first")
	require.Equal(t, uint32(0), many[0].partition, "the argument is left as it was")
	require.Empty(t, handBacks(nil, 4))
}
