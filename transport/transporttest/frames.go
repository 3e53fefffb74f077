package transporttest

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/transport"
)

func classes() []transport.Class {
	return []transport.Class{transport.Control, transport.Append, transport.Bulk}
}

func framesInOrder(t *testing.T, net Network) {
	const count = 2000
	a, b := two(t, net)
	together(3, func(i int) {
		class := classes()[i]
		for n := range count {
			f := binary.BigEndian.AppendUint32([]byte{byte(class)}, uint32(n))
			a.Send(b.Addr(), class, append(f, pattern(n, n%100)...))
		}
	})
	var want [transport.NumClasses]uint32
	for range 3 * count {
		f := next(t, b.frames)
		require.Equal(t, a.Addr(), f.from.Addr)
		require.Equal(t, identity("a"), f.from.Identity)
		require.Equal(t, byte(f.class), f.data[0], "class")
		n := binary.BigEndian.Uint32(f.data[1:])
		require.Equal(t, want[f.class], n, "order within %v", f.class)
		require.Equal(t, pattern(int(n), int(n%100)), f.data[5:])
		want[f.class]++
	}
}

func frameSizes(t *testing.T, net Network) {
	a, b := two(t, net)
	for i, size := range []int{0, 1, 8<<10 - 1, 8 << 10, 64<<10 + 1, 1<<20 - 1, net.MaxFrame} {
		if size > net.MaxFrame {
			continue
		}
		want := pattern(i, size)
		a.Send(b.Addr(), classes()[i%3], want)
		got := next(t, b.frames)
		require.Equal(t, size, len(got.data))
		require.True(t, string(want) == string(got.data), "%d bytes changed on the way", size)
	}
}

func frameTooLarge(t *testing.T, net Network) {
	a, b := two(t, net)
	a.Send(b.Addr(), transport.Append, make([]byte, net.MaxFrame+1))
	a.Send(b.Addr(), transport.Append, []byte("next"))
	require.Equal(t, "next", string(next(t, b.frames).data))
	require.EqualValues(t, 1, a.Stats().Classes[transport.Append].FramesDropped)
}

func framesAreCopies(t *testing.T, net Network) {
	spoil := func(n *node) {
		record := n.frames
		n.frame = func(from transport.Peer, class transport.Class, data []byte) {
			record <- frame{from, class, append([]byte(nil), data...)}
			clear(data) // the handler owns it
		}
	}
	a := begin(t, net.New(), identity("a"))
	var peers []*node
	for i := range 3 {
		peers = append(peers, begin(t, net.New(), identity(name(i)), spoil))
	}
	for _, size := range []int{10, 20 << 10} {
		f := pattern(size, size)
		for range 5 {
			for _, p := range peers {
				a.Send(p.Addr(), transport.Append, f)
			}
		}
		for _, p := range peers {
			for range 5 {
				require.Equal(t, pattern(size, size), next(t, p.frames).data)
			}
		}
		require.Equal(t, pattern(size, size), f, "the sender's frame changed")
	}
}

func framePanics(t *testing.T, net Network) {
	a, b := two(t, net, func(n *node) {
		record := n.frames
		n.frame = func(from transport.Peer, class transport.Class, data []byte) {
			if string(data) == "bad" {
				panic("a bug of the host")
			}
			record <- frame{from, class, data}
		}
	})
	a.Send(b.Addr(), transport.Append, []byte("bad"))
	eventually(t, "frames arrive again", func() bool {
		a.Send(b.Addr(), transport.Append, []byte("good"))
		return len(b.frames) > 0
	})
}

func bulkDelaysNothing(t *testing.T, net Network) {
	release, blocked := make(chan struct{}), make(chan struct{}, 1)
	a, b := two(t, net, func(n *node) {
		record := n.frames
		n.frame = func(from transport.Peer, class transport.Class, data []byte) {
			if class == transport.Bulk {
				select {
				case blocked <- struct{}{}:
				default:
				}
				<-release
			}
			record <- frame{from, class, data}
		}
	})
	const bulks = 40
	for i := range bulks {
		a.Send(b.Addr(), transport.Bulk, pattern(i, min(256<<10, net.MaxFrame)))
	}
	next(t, blocked) // and all the bulk behind it waits
	for _, class := range []transport.Class{transport.Control, transport.Append} {
		a.Send(b.Addr(), class, []byte("urgent"))
		require.Equal(t, class, next(t, b.frames).class)
	}
	_, err := a.Call(within(t), b.Addr(), "m", nil)
	require.NoError(t, err)
	close(release)
	for range bulks {
		require.Equal(t, transport.Bulk, next(t, b.frames).class)
	}
}
