package raftlog

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

var rewriteGolden = flag.Bool("rewrite", false, "write golden files anew")

type groupMessage struct {
	group GroupID
	m     *pb.Message
}

func frameMessage(t pb.MessageType, from, to, term uint64) *pb.Message {
	return &pb.Message{Type: t.Enum(), From: new(from), To: new(to), Term: new(term)}
}

func frameEntry(kind pb.EntryType, index, term uint64, data string) *pb.Entry {
	e := &pb.Entry{Type: kind.Enum(), Index: new(index), Term: new(term)}
	if data != "" {
		e.Data = []byte(data)
	}
	return e
}

// goldenMessages has every message that travels and every field.
func goldenMessages() []groupMessage {
	app := frameMessage(pb.MsgApp, 1, 2, 7)
	app.Index, app.LogTerm, app.Commit = new(uint64(41)), new(uint64(5)), new(uint64(40))
	app.Entries = []*pb.Entry{
		frameEntry(pb.EntryNormal, 42, 5, "records"),
		frameEntry(pb.EntryNormal, 43, 7, ""),
		frameEntry(pb.EntryConfChangeV2, 44, 7, "change"),
		frameEntry(pb.EntryConfChange, 45, 7, "old change"),
	}
	empty := frameMessage(pb.MsgApp, 1, 2, 7)
	empty.Index, empty.LogTerm, empty.Commit = new(uint64(1<<40)), new(uint64(5)), new(uint64(300))
	appResp := frameMessage(pb.MsgAppResp, 2, 1, 7)
	appResp.Index, appResp.LogTerm, appResp.Commit = new(uint64(41)), new(uint64(4)), new(uint64(12))
	appResp.Reject, appResp.RejectHint = new(true), new(uint64(39))
	vote := frameMessage(pb.MsgVote, 1, 3, 8)
	vote.Index, vote.LogTerm, vote.Context = new(uint64(45)), new(uint64(7)), []byte("CampaignTransfer")
	beat := frameMessage(pb.MsgHeartbeat, 1, 3, 7)
	beat.Commit, beat.Context = new(uint64(44)), []byte("read 9")
	beatResp := frameMessage(pb.MsgHeartbeatResp, 3, 1, 7)
	beatResp.Context = []byte("read 9")
	read := frameMessage(pb.MsgReadIndex, 3, 1, 0)
	read.Entries = []*pb.Entry{{Data: []byte("read 10")}}
	readResp := frameMessage(pb.MsgReadIndexResp, 1, 3, 7)
	readResp.Index, readResp.LogTerm = new(uint64(44)), new(uint64(0))
	readResp.Entries = []*pb.Entry{{Data: []byte("read 10")}}
	refused := frameMessage(pb.MsgVoteResp, 3, 1, 8)
	refused.Reject = new(true)
	return []groupMessage{
		{1, app}, {1, empty}, {2, appResp}, {300, vote}, {300, refused},
		{1, beat}, {1, beatResp}, {1, read}, {1 << 60, readResp},
		{5, frameMessage(pb.MsgPreVote, 1, 2, 9)}, {5, frameMessage(pb.MsgPreVoteResp, 2, 1, 9)},
		{6, frameMessage(pb.MsgTransferLeader, 1, 2, 0)}, {6, frameMessage(pb.MsgTimeoutNow, 1, 2, 9)},
	}
}

func encodeAll(t testing.TB, messages []groupMessage) []byte {
	frame := []byte{frameVersion}
	for _, gm := range messages {
		var err error
		frame, err = appendMessage(frame, gm.group, gm.m)
		require.NoError(t, err)
	}
	return frame
}

func decodeAll(frame []byte) ([]groupMessage, error) {
	r, err := openFrame(frame)
	if err != nil {
		return nil, err
	}
	var all []groupMessage
	for r.more() {
		group, m, _, err := r.next()
		if err != nil {
			return all, err
		}
		all = append(all, groupMessage{group, m})
	}
	return all, nil
}

func TestFrameRoundTrip(t *testing.T) {
	want := goldenMessages()
	got, err := decodeAll(encodeAll(t, want))
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].group, got[i].group)
		require.True(t, proto.Equal(want[i].m, got[i].m), "want %v\ngot  %v", want[i].m, got[i].m)
	}
}

func TestFrameGolden(t *testing.T) {
	path := filepath.Join("testdata", "frame.v1")
	frame := encodeAll(t, goldenMessages())
	if *rewriteGolden {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, frame, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, frame)
}

func TestFrameRefusesWhatDoesNotTravel(t *testing.T) {
	frame := []byte{frameVersion}
	for _, kind := range []pb.MessageType{pb.MsgHup, pb.MsgProp, pb.MsgSnap, pb.MsgStorageAppend, pb.MsgUnreachable} {
		b, err := appendMessage(frame, 1, frameMessage(kind, 1, 2, 3))
		require.Error(t, err, kind)
		require.Equal(t, frame, b)
	}
	gap := frameMessage(pb.MsgApp, 1, 2, 7)
	gap.Index, gap.LogTerm = new(uint64(4)), new(uint64(3))
	for _, e := range []*pb.Entry{frameEntry(pb.EntryNormal, 6, 3, "gap"), frameEntry(pb.EntryNormal, 5, 2, "fallen term")} {
		gap.Entries = []*pb.Entry{e}
		b, err := appendMessage(frame, 1, gap)
		require.Error(t, err)
		require.Equal(t, frame, b)
	}
}

// A frame that is cut or changed anywhere is an error or other messages, and
// never a panic.
// Property: S11 (red: the length of data not checked)
func TestFrameDamage(t *testing.T) {
	frame := encodeAll(t, goldenMessages())
	for i := range frame {
		_, err := decodeAll(frame[:i])
		if i == 0 {
			require.Error(t, err)
		}
		for bit := range 8 {
			damaged := append([]byte(nil), frame...)
			damaged[i] ^= 1 << bit
			_, _ = decodeAll(damaged)
		}
	}
	_, err := decodeAll([]byte{frameVersion + 1})
	require.ErrorIs(t, err, errFrame)
}

// Small entries do not keep a large frame alive; large ones are not copied.
func TestFrameAliasing(t *testing.T) {
	small, large := frameMessage(pb.MsgApp, 1, 2, 7), frameMessage(pb.MsgApp, 1, 2, 7)
	small.Index, small.LogTerm = new(uint64(4)), new(uint64(7))
	small.Entries = []*pb.Entry{frameEntry(pb.EntryNormal, 5, 7, "small")}
	large.Index, large.LogTerm = new(uint64(4)), new(uint64(7))
	large.Entries = []*pb.Entry{frameEntry(pb.EntryNormal, 5, 7, string(make([]byte, 1000)))}
	frame := encodeAll(t, []groupMessage{{1, small}, {2, large}})
	got, err := decodeAll(frame)
	require.NoError(t, err)
	clear(frame)
	frame[len(frame)-1] = 9
	require.Equal(t, "small", string(got[0].m.Entries[0].Data))
	require.EqualValues(t, 9, got[1].m.Entries[0].Data[999])
}

// allocated measures what f allocates, in bytes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A count is a claim. Memory comes with what backs it.
// Property: S11 (red: memory for all entries at once; reads with many entries taken in)
func TestFrameCountsAreClaims(t *testing.T) {
	const claimed = 1 << 19
	for name, body := range map[string][]byte{
		"append without entries": append(binary.AppendUvarint([]byte{byte(pb.MsgApp), flagEntries, 1, 1, 2, 3}, claimed),
			bytes.Repeat([]byte{3}, 2*claimed)...), // 3 is no kind
		"read with many names": append(binary.AppendUvarint([]byte{byte(pb.MsgReadIndex), flagEntries, 1, 1, 2, 3}, claimed),
			make([]byte, claimed)...),
		"answer with two names": {byte(pb.MsgReadIndexResp), flagEntries, 1, 1, 2, 3, 2, 4, 'a', 4, 'b'},
	} {
		t.Run(name, func(t *testing.T) {
			frame := append([]byte{frameVersion}, body...)
			require.Less(t, allocated(func() {
				_, err := decodeAll(frame)
				require.ErrorIs(t, err, errFrame)
			}), uint64(1<<16))
		})
	}
}

// Entries are read into several pieces of memory.
func TestFrameWithManyEntries(t *testing.T) {
	m := frameMessage(pb.MsgApp, 1, 2, 7)
	m.Index, m.LogTerm = new(uint64(4)), new(uint64(7))
	for i := range 3*slabEntries + 1 {
		m.Entries = append(m.Entries, frameEntry(pb.EntryNormal, uint64(5+i), 7, fmt.Sprint("entry ", i)))
	}
	got, err := decodeAll(encodeAll(t, []groupMessage{{1, m}}))
	require.NoError(t, err)
	require.True(t, proto.Equal(m, got[0].m))
}

// No log could hold it, so it must not get into one.
func TestFrameRefusesOversizedEntries(t *testing.T) {
	m := frameMessage(pb.MsgApp, 1, 2, 7)
	m.Index, m.LogTerm = new(uint64(4)), new(uint64(7))
	m.Entries = []*pb.Entry{frameEntry(pb.EntryNormal, 5, 7, "")}
	m.Entries[0].Data = make([]byte, MaxProposalBytes+1)
	frame := encodeAll(t, []groupMessage{{1, m}})
	_, err := decodeAll(frame)
	require.ErrorIs(t, err, errFrame)
	m.Entries[0].Data = m.Entries[0].Data[1:]
	got, err := decodeAll(encodeAll(t, []groupMessage{{1, m}}))
	require.NoError(t, err)
	require.Len(t, got[0].m.Entries[0].Data, MaxProposalBytes)
}

func goldenNotices() []notice {
	return []notice{
		{kind: noticeBehind, group: 1, from: 2, to: 300, term: 1 << 40, start: 77},
		{kind: noticeRemoved, group: 1 << 60, from: 7, to: 1<<64 - 1},
	}
}

func encodeNotices(all []notice) []byte {
	frame := []byte{noticeVersion}
	for _, n := range all {
		frame = appendNotice(frame, n)
	}
	return frame
}

func TestNoticesGolden(t *testing.T) {
	path := filepath.Join("testdata", "notices.v2")
	frame := encodeNotices(goldenNotices())
	if *rewriteGolden {
		require.NoError(t, os.WriteFile(path, frame, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, frame)
	got, err := readNotices(frame)
	require.NoError(t, err)
	require.Equal(t, goldenNotices(), got)
}

// What a later build adds is skipped; builds before this one drop the frame as
// a whole.
func TestNoticesOfLaterBuilds(t *testing.T) {
	frame := append(encodeNotices(nil), 9, 3, 1, 2, 3)                   // another kind
	frame = append(frame, byte(noticeRemoved), 7, 1, 2, 3, 0, 0, 77, 78) // more fields
	got, err := readNotices(append(frame, encodeNotices(goldenNotices())[1:]...))
	require.NoError(t, err)
	require.Equal(t, append([]notice{{kind: noticeRemoved, group: 1, from: 2, to: 3}}, goldenNotices()...), got)
	_, err = openFrame(frame)
	require.ErrorIs(t, err, errFrame)
	_, err = readNotices([]byte{frameVersion})
	require.ErrorIs(t, err, errFrame)
	for _, cut := range [][]byte{{1}, {1, 5, 1}, {1, 4, 1, 2, 3, 4}, {2, 0}, {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		_, err := readNotices(append([]byte{noticeVersion}, cut...))
		require.ErrorIs(t, err, errFrame, "%v", cut)
	}
}

// Property: S11 (red: the length of a notice not checked)
func FuzzNotices(f *testing.F) {
	f.Add(encodeNotices(goldenNotices()))
	f.Add([]byte{noticeVersion})
	f.Add([]byte{noticeVersion, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var got []notice
		var err error
		spent := allocated(func() { got, err = readNotices(append([]byte(nil), frame...)) })
		require.Less(t, spent, uint64(1<<16+100*len(frame)))
		if err != nil {
			require.ErrorIs(t, err, errFrame)
			return
		}
		again, err := readNotices(encodeNotices(got))
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}

// Property: S11 (red: the count of entries not bounded by the bytes left)
func FuzzFrame(f *testing.F) {
	f.Add(encodeAll(f, goldenMessages()))
	f.Add([]byte{frameVersion})
	f.Add([]byte{})
	// A count of entries that nothing backs.
	f.Add([]byte{frameVersion, byte(pb.MsgApp), flagEntries, 1, 1, 2, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var got []groupMessage
		var err error
		spent := allocated(func() { got, err = decodeAll(append([]byte(nil), frame...)) })
		// An entry of two bytes becomes a struct of some 200.
		require.Less(t, spent, uint64(1<<16+500*len(frame)))
		if err != nil {
			require.ErrorIs(t, err, errFrame)
			return
		}
		// A flag may announce a zero; encoded once, nothing changes any more.
		canonical := encodeAll(t, got)
		again, err := decodeAll(canonical)
		require.NoError(t, err)
		require.Equal(t, canonical, encodeAll(t, again))
	})
}
