package topic_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/internal/simfs"
	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
	"github.com/stelelog/stele/storage"
	"github.com/stelelog/stele/topic"
)

var damageFlips = flag.Int("damage.flips", 5, "how many bits are flipped one by one")

var damageMiB = flag.Int("damage.mib", 2, "size of the log that is damaged, in MiB")

// damaged is three nodes with one partition of some MiB, and what each was told.
type damaged struct {
	*cluster
	top  metastore.Topic
	want []string

	telling sync.Mutex
	told    map[raftlog.NodeID][]topic.DamageChange
}

func newDamaged(t *testing.T, seed uint64, mib int) *damaged {
	d := &damaged{told: map[raftlog.NodeID][]topic.DamageChange{}}
	d.cluster = newCluster(t, 3, seed)
	d.segment = int64(mib) << 18 // four of them, and a bit
	d.config = func(cfg *topic.Config) {
		node := cfg.Node
		cfg.NoBalance, cfg.NoHandBack = true, true
		cfg.VerifyInterval, cfg.VerifyBytesPerSecond = 5*time.Minute, 1<<30
		cfg.OnDamage = func(c topic.DamageChange) {
			d.telling.Lock()
			defer d.telling.Unlock()
			d.told[node] = append(d.told[node], c)
		}
	}
	d.startAll()
	var err error
	d.top, err = d.node(1).topics.CreateTopic(t.Context(), "orders", metastore.TopicConfig{})
	require.NoError(t, err)
	p := producer(t, d.node(1), topic.ProducerConfig{})
	for i := range mib << 20 / 10_000 {
		d.want = append(d.want, fmt.Sprintf("%d-%s", i, strings.Repeat("x", 10_000)))
		_, err := p.ProduceTo(t.Context(), "orders", 0, record(d.want[i]))
		require.NoError(t, err)
	}
	require.NoError(t, p.Close(t.Context()))
	settle(t, "all have all", func() bool {
		for _, n := range d.running() {
			g := n.topics.OpenGroup(d.top.Incarnation, 0)
			if g == nil || g.Log().NextOffset() < storage.Offset(len(d.want)) {
				return false
			}
		}
		return true
	})
	pass(2 * time.Minute) // the first round
	return d
}

// content returns the segments of the partition's log on a node, with their names.
func (d *damaged) content(id raftlog.NodeID) []string { return d.read(id, d.segments(id)) }

// equal reports whether the logs are, byte for byte.
func (d *damaged) equal() bool {
	one := d.content(1)
	return slices.Equal(one, d.content(2)) && slices.Equal(one, d.content(3))
}

// flipEvery flips a bit in every so many bytes of the log on a node.
func (d *damaged) flipEvery(id raftlog.NodeID, distance int64, rng *rand.Rand) (flips int) {
	for _, path := range d.segments(id) {
		info, err := d.disks[id].Stat(path)
		require.NoError(d.t, err)
		for at := rng.Int64N(distance); at < info.Size(); at += distance {
			require.NoError(d.t, d.disks[id].Flip(path, at, uint(rng.IntN(8))))
			flips++
		}
	}
	return flips
}

// status is that of the partition on a node.
func (d *damaged) status(id raftlog.NodeID) topic.PartitionStatus {
	all := d.node(id).topics.Status()
	require.Len(d.t, all, 1)
	return all[0]
}

// readHere reads all of the partition from the replica on a node alone, and returns
// how many reads were refused. What is not refused is right.
func (d *damaged) readHere(id raftlog.NodeID) (refused int) {
	g := d.node(id).topics.OpenGroup(d.top.Incarnation, 0)
	require.NotNil(d.t, g)
	at := 0
	for at < len(d.want) {
		read, err := g.Log().ReadAt(storage.Offset(at), 64<<10, nil)
		if err != nil {
			require.ErrorAs(d.t, err, new(*storage.DamageError))
			refused++
			at++
			continue
		}
		for _, f := range read.Frames {
			if f.Count == 0 {
				continue
			}
			require.EqualValues(d.t, 1, f.Count)
			require.Contains(d.t, string(f.Payload), d.want[f.BaseOffset])
			at = int(f.BaseOffset) + 1
		}
	}
	return refused
}

// Property: S4 (red: what a read met was not looked at; that it is repaired was not
// told)
//
// A bit is flipped in every 4 KiB of a replica's log, of the leader's and of a
// follower's: the round finds it, other replicas give it, and nobody reads anything
// else than what was written, while they do.
func TestDamageIsFoundAndRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDamaged(t, 1, *damageMiB)
		rng := rand.New(rand.NewPCG(1, 1))
		for id := raftlog.NodeID(1); id <= 3; id++ {
			require.True(t, d.equal(), "node %v", id)
			flips := d.flipEvery(id, 4096, rng)
			t.Logf("node %v: %d bits", id, flips)
			require.Equal(t, d.want, d.node(id).dump("orders", 0), "from whoever has it")
			settle(t, "it is repaired", func() bool { return d.status(id).Damage == nil && d.equal() })
			require.Zero(t, d.readHere(id))
			d.telling.Lock()
			told := d.told[id]
			d.telling.Unlock()
			require.NotEmpty(t, told)
			require.Error(t, told[0].Reason)
			require.NoError(t, told[len(told)-1].Reason)
			require.Positive(t, told[len(told)-1].Repaired)
		}
		_, err := producer(t, d.node(1), topic.ProducerConfig{}).ProduceTo(t.Context(), "orders", 0, record("after"))
		require.NoError(t, err)
	})
}

// Property: S4 (red: there was one round; damage ended a log's part in the round)
//
// What nobody reads is found by the next round. The damage is of every kind, one at a
// time.
func TestARoundFindsWhatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDamaged(t, 2, 1)
		disk, paths := d.disks[2], d.segments(2)
		require.Greater(t, len(paths), 3)
		remove := func(path string) error {
			dir, err := disk.OpenDir(disk.PathDir(path))
			return errors.Join(err, disk.Remove(path), dir.Sync(), dir.Close())
		}
		for what, spoil := range map[string]func() error{
			"bits":     func() error { return errors.Join(disk.Flip(paths[0], 9000, 1), disk.Flip(paths[2], 1, 7)) },
			"a page":   func() error { return disk.ZeroPage(paths[1], 50_000) },
			"an end":   func() error { return disk.Truncate(paths[1], 77_777) },
			"a file":   func() error { return remove(paths[1]) },
			"the last": func() error { return disk.Flip(paths[len(paths)-1], 30_000, 3) },
		} {
			require.NoError(t, spoil(), what)
			pass(6 * time.Minute)
			settle(t, what+" is repaired", d.equal)
			require.NoError(t, d.status(2).Damage, what)
			require.Zero(t, d.readHere(2), what)
		}
	})
}

// One bit at a time, anywhere in the log of any replica.
//
// Property: S4 (red: there was one round)
func TestOneBitAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDamaged(t, 6, *damageMiB)
		for k := range *damageFlips {
			rng := rand.New(rand.NewPCG(uint64(k), 6))
			id := raftlog.NodeID(1 + rng.IntN(3))
			paths := d.segments(id)
			path := paths[rng.IntN(len(paths))]
			info, err := d.disks[id].Stat(path)
			require.NoError(t, err)
			at, bit := rng.Int64N(info.Size()), uint(rng.IntN(8))
			require.NoError(t, d.disks[id].Flip(path, at, bit))
			d.readHere(id)
			settle(t, fmt.Sprintf("bit %d of byte %d of %s on %v is repaired", bit, at, path, id), func() bool {
				pass(time.Minute)
				return d.equal()
			})
			require.NoError(t, d.status(id).Damage)
		}
	})
}

// Property: S4 (red: the leader stayed; the replica was not asked again)
//
// While nobody can give what is damaged, the range is refused and shown, the leader
// hands over, and the replica goes on voting and acknowledging. It is repaired as soon
// as somebody can.
func TestWhatNobodyCanGiveIsRefusedUntilSomebodyCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDamaged(t, 3, 1)
		var cut sync.Map
		cut.Store("all", true)
		d.onFlow(func(_, _ raftlog.NodeID, _ []byte) error {
			if _, is := cut.Load("all"); is {
				return errors.New("the stream broke")
			}
			return nil
		})
		leader := d.leader("orders", 0)
		d.flipEvery(leader.id, 4096, rand.New(rand.NewPCG(3, 3)))
		require.Equal(t, len(d.want), d.readHere(leader.id))
		settle(t, "the leader hands over", func() bool { return d.leader("orders", 0).id != leader.id })
		settle(t, "it is shown", func() bool { return d.status(leader.id).Damage != nil })
		require.ErrorAs(t, d.status(leader.id).Damage, new(*storage.DamageError))

		other := d.leader("orders", 0)
		for id := raftlog.NodeID(1); id <= 3; id++ { // of the three, two are needed
			if id != leader.id && id != other.id {
				d.isolate(id, true)
			}
		}
		p := producer(t, other, topic.ProducerConfig{})
		for i := range 20 {
			d.want = append(d.want, fmt.Sprint("damaged ", i))
			_, err := p.ProduceTo(t.Context(), "orders", 0, record(d.want[len(d.want)-1]))
			require.NoError(t, err)
		}
		require.Equal(t, other.id, d.leader("orders", 0).id, "it does not lead")
		pass(time.Minute)
		require.Error(t, d.status(leader.id).Damage)
		cut.Delete("all")
		settle(t, "it is repaired", func() bool { return d.status(leader.id).Damage == nil })
		require.Zero(t, d.readHere(leader.id))
		for id := raftlog.NodeID(1); id <= 3; id++ {
			d.isolate(id, false)
		}
	})
}

// Property: S4 (red: one sender that had it damaged ended the repair; a sender with
// damage behind the frame that was asked for gave nothing)
//
// Each replica is damaged, no entry in all: together they have everything.
func TestReplicasRepairEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDamaged(t, 4, 1)
		for k := range d.segments(1) {
			for id := raftlog.NodeID(1); id <= 3; id++ {
				path := d.segments(id)[k]
				info, err := d.disks[id].Stat(path)
				require.NoError(t, err)
				for at := int64(0); at < info.Size(); at += 1 << 10 {
					if (at/(32<<10)+int64(id))%3 == 0 {
						require.NoError(t, d.disks[id].Flip(path, at, 5))
					}
				}
			}
		}
		pass(6 * time.Minute)
		settle(t, "all is repaired", func() bool {
			for id := raftlog.NodeID(1); id <= 3; id++ {
				if d.status(id).Damage != nil {
					return false
				}
			}
			return d.equal()
		})
		require.Equal(t, d.want, d.node(1).dump("orders", 0))
		d.crash(2, simfs.Strict)
		d.start(2)
		settle(t, "it is durable", d.equal)
	})
}

// Property: S4 (red: what an open met was not repaired; what failed a replica was not)
//
// A node is down while the end of its log is damaged, which it has to read before it
// can apply anything, or cut off, or gone: the replica is repaired from the others and
// takes part again.
func TestAReplicaThatCannotGoOnForDamageIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDamaged(t, 5, 1)
		for what, spoil := range map[string]func(disk *simfs.FS, last string) error{
			"bits":   func(disk *simfs.FS, last string) error { return disk.Flip(last, 2_000, 3) },
			"an end": func(disk *simfs.FS, last string) error { return disk.Truncate(last, 1_001) },
			"a file": func(disk *simfs.FS, last string) error { return disk.Remove(last) },
		} {
			for d.node(2).topics.OpenGroup(d.top.Incarnation, 0) == nil {
				pass(100 * time.Millisecond)
			}
			d.node(2).host.Close(t.Context()) // what is applied is in the table
			d.crash(2, simfs.Kill)
			paths := d.segments(2)
			require.NoError(t, spoil(d.disks[2], paths[len(paths)-1]), what)
			d.start(2)
			p := producer(t, d.node(1), topic.ProducerConfig{})
			d.want = append(d.want, what)
			_, err := p.ProduceTo(t.Context(), "orders", 0, record(what))
			require.NoError(t, err)
			settle(t, what+" is repaired", func() bool {
				return d.node(2).topics.OpenGroup(d.top.Incarnation, 0) != nil && d.status(2).Err == nil && d.equal()
			})
			require.Zero(t, d.readHere(2))
			require.Positive(t, d.node(2).topics.Stats().Repaired, what)
		}
	})
}

// forge changes every record in a segment on a node, and its checksums: as if the
// node had decided otherwise.
func (d *damaged) forge(id raftlog.NodeID, k int, bit byte) {
	t := d.t
	path := d.segments(id)[k]
	f, err := d.disks[id].OpenReadWrite(path, "")
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	table := crc32.MakeTable(crc32.Castagnoli)
	for at := int64(0); at < info.Size(); {
		header := make([]byte, 52) // see package storage
		_, err = f.ReadAt(header, at)
		require.NoError(t, err)
		frame := make([]byte, 52+binary.LittleEndian.Uint32(header[44:]))
		_, err = f.ReadAt(frame, at)
		require.NoError(t, err)
		if len(frame) > 200 {
			frame[len(frame)-100] ^= bit
		}
		binary.LittleEndian.PutUint32(frame[48:], crc32.Checksum(frame[52:], table))
		binary.LittleEndian.PutUint32(frame, crc32.Checksum(frame[4:52], table))
		_, err = f.WriteAt(frame, at)
		require.NoError(t, err)
		at += int64(len(frame))
	}
	require.NoError(t, errors.Join(f.Sync(), f.Close()))
}

// Property: S4 (red: digests were not compared; half of the replicas were a majority;
// what follows what was written over was read on, and passed over)
//
// One replica has another record than the two others, with checksums that are right:
// it gets the segment from them. If all three differ nothing is changed, and it is
// shown.
func TestTheAuditRepairsTheOneThatDiffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDamaged(t, 7, 4) // segments are longer than what is got at a time
		want := d.content(1)
		for id := raftlog.NodeID(1); id <= 3; id++ {
			d.forge(id, 1, 4)
			require.False(t, d.equal())
			pass(11 * time.Minute) // each has verified twice
			settle(t, "it is what the others have", d.equal)
			require.True(t, slices.Equal(want, d.content(id)), "not the other way round")
			require.NoError(t, d.status(id).Damage)
			require.Positive(t, d.node(id).topics.Stats().Repaired)
		}
		d.forge(1, 2, 1)
		d.forge(2, 2, 2)
		before := [][]string{d.content(1), d.content(2), d.content(3)}
		pass(11 * time.Minute)
		for id := raftlog.NodeID(1); id <= 3; id++ {
			require.ErrorContains(t, d.status(id).Damage, "no majority agrees")
			require.True(t, slices.Equal(before[id-1], d.content(id)), "nothing was changed")
		}
		d.forge(1, 2, 1)
		pass(21 * time.Minute)
		settle(t, "a majority agrees again", d.equal)
		for id := raftlog.NodeID(1); id <= 3; id++ {
			require.NoError(t, d.status(id).Damage)
		}
	})
}

// Property: S4 (red: what the first replica gave was believed)
//
// A replica's segment is damaged, and the leader, which is asked first, has something
// else there than was written, with checksums that are right: its word alone is not
// taken, and does not become that of a majority.
func TestWhatOneReplicaAloneSaysIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDamaged(t, 8, 1)
		want := d.content(1)
		leader := d.leader("orders", 0).id
		ill := leader%3 + 1
		d.forge(leader, 1, 4)
		require.NoError(t, d.disks[ill].Flip(d.segments(ill)[1], 2_000, 3))
		require.Equal(t, 1, d.readHere(ill))
		settle(t, "it is told", func() bool {
			damage := d.status(ill).Damage
			return damage != nil && strings.Contains(damage.Error(), "each something else")
		})
		pass(11 * time.Minute) // the audit finds which of them is wrong
		settle(t, "all have what was written", d.equal)
		require.True(t, slices.Equal(want, d.content(ill)))
		require.NoError(t, d.status(ill).Damage)
	})
}
