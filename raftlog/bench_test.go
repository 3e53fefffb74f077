package raftlog_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stretchr/testify/require"
)

// pipe delivers the frames of one host to another in order, from a goroutine
// of its own, as a transport does.
type pipe struct {
	from   raftlog.NodeID
	frames map[raftlog.NodeID]chan []byte
}

func (p *pipe) Send(to raftlog.NodeID, _ uint8, frame []byte) {
	select {
	case p.frames[to] <- frame:
	default: // full: lost
	}
}

// sink is a state machine that only counts.
type sink struct{ next raftlog.Offset }

func (s *sink) Apply(entries []raftlog.Entry, results []raftlog.Result) error {
	for i, e := range entries {
		if len(e.Data) > 0 {
			results[i] = raftlog.Result{Verdict: raftlog.VerdictData, BaseOffset: s.next, Count: 1}
			s.next++
		}
	}
	return nil
}

func (s *sink) Applied(raftlog.Index) {}

// BenchmarkPropose measures entries through three hosts on the machine's disk:
// each is synced on a quorum and applied before its callback.
func BenchmarkPropose(b *testing.B) {
	for _, bc := range []struct{ groups, inFlight, size int }{
		{1, 1, 1 << 10}, {1, 64, 1 << 10}, {16, 512, 1 << 10}, {128, 2048, 1 << 10}, {1000, 4096, 1 << 10},
	} {
		b.Run(fmt.Sprintf("groups=%d/flight=%d/size=%d", bc.groups, bc.inFlight, bc.size), func(b *testing.B) {
			benchmarkPropose(b, bc.groups, bc.inFlight, bc.size)
		})
	}
}

func benchmarkPropose(b *testing.B, groups, inFlight, size int) {
	leaders, stop := benchHosts(b, groups)
	defer stop()
	data := make([]byte, size)
	tokens := make(chan struct{}, inFlight)
	var failed sync.Once
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		tokens <- struct{}{}
		leaders[i%groups].Propose(data, func(p raftlog.Proposal) {
			if p.Err != nil {
				failed.Do(func() { b.Error(p.Err) })
			}
			<-tokens
		})
	}
	for range inFlight {
		tokens <- struct{}{}
	}
	b.StopTimer()
}

func benchHosts(b *testing.B, groups int) (leaders []*raftlog.Group, stop func()) {
	const nodes = 3
	pipes := make([]*pipe, nodes)
	for i := range pipes {
		pipes[i] = &pipe{from: raftlog.NodeID(i + 1), frames: map[raftlog.NodeID]chan []byte{}}
		for k := range nodes {
			pipes[i].frames[raftlog.NodeID(k+1)] = make(chan []byte, 4096)
		}
	}
	var hosts []*raftlog.Host
	var stores []*storage.Store
	var wg sync.WaitGroup
	led := make(chan *raftlog.Group, groups*nodes)
	for i := range nodes {
		store, err := storage.Open(storage.Config{FS: storage.DiskFS(), Dir: b.TempDir()})
		require.NoError(b, err)
		host, err := raftlog.Open(raftlog.Config{Node: raftlog.NodeID(i + 1), Store: store, Sender: pipes[i]})
		require.NoError(b, err)
		hosts, stores = append(hosts, host), append(stores, store)
	}
	for i, p := range pipes {
		for to, frames := range p.frames {
			wg.Go(func() {
				for f := range frames {
					hosts[to-1].HandleFrame(raftlog.NodeID(i+1), f)
				}
			})
		}
	}
	byID := make([]sync.Map, nodes)
	for g := range groups {
		begin := &raftlog.Begin{Dir: fmt.Sprintf("groups/%d", g), Index: 1, Term: 1}
		peers := map[raftlog.ReplicaID]raftlog.NodeID{}
		for i := range nodes {
			r := raftlog.ReplicaID(g*10 + i + 1)
			begin.Conf.Voters = append(begin.Conf.Voters, r)
			peers[r] = raftlog.NodeID(i + 1)
		}
		for i, h := range hosts {
			group, err := h.OpenGroup(raftlog.GroupOptions{
				Group: raftlog.GroupID(g + 1), Replica: begin.Conf.Voters[i], Peers: peers, Create: begin, Machine: &sink{},
				OnStatus: func(s raftlog.Status) {
					if s.Role == raftlog.RoleLeaderActive {
						if group, ok := byID[i].Load(s.Group); ok {
							led <- group.(*raftlog.Group)
						}
					}
				},
			})
			require.NoError(b, err)
			byID[i].Store(raftlog.GroupID(g+1), group)
		}
	}
	seen := map[raftlog.GroupID]bool{}
	for len(seen) < groups {
		if g := <-led; !seen[g.ID()] {
			seen[g.ID()] = true
			leaders = append(leaders, g)
		}
	}
	return leaders, func() {
		for _, h := range hosts {
			h.Abort()
		}
		for _, p := range pipes {
			for _, frames := range p.frames {
				close(frames)
			}
		}
		wg.Wait()
		for _, s := range stores {
			require.NoError(b, s.Close())
		}
	}
}
