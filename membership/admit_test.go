package membership

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/metastore"
	"github.com/stelelog/stele/raftlog"
)

// Property: J8, J13, J17 (red: a member of the configuration judged as a newcomer; a joiner one type short was admitted; the newest applied not counted; silence counted beyond this leadership; who asked before the old life spoke was let wait)
func TestAdmit(t *testing.T) {
	newcomer := JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Addr: "z:1", Newest: 21}
	wiped := JoinRequest{Name: "c", Nonce: raftlog.Nonce{98}, Addr: "c:1", Newest: 21}
	silent := func(f *Facts) { f.Members[2].Silent = 30 * time.Second }
	for _, c := range []struct {
		name  string
		facts *Facts
		ask   JoinRequest
		tomb  *metastore.Tombstone
		asked Asked
		want  Admission // without the reason
		why   string    // part of the reason
	}{
		{"a new node", factsOf(3, 3), newcomer, nil, Asked{}, Admission{Verdict: VerdictAdmit}, ""},
		{"an observer is admitted, too", factsOf(3, 3), JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Newest: 21, Observer: true}, nil, Asked{}, Admission{Verdict: VerdictAdmit}, ""},
		{"a life that was removed", factsOf(3, 3), newcomer, &metastore.Tombstone{Node: 9}, Asked{}, Admission{Verdict: VerdictRemoved}, "was removed"},
		{"a life that was refused for good", factsOf(3, 3), newcomer, &metastore.Tombstone{Refused: true}, Asked{}, Admission{Verdict: VerdictRemoved}, "another name"},
		{"before the cluster can record it", factsOf(3, 3).with(func(f *Facts) { f.Version = 1 }), newcomer, nil, Asked{}, Admission{Verdict: VerdictWait}, "at version 1"},

		// J8: a member is a member.
		{"a voter joins again", factsOf(3, 3), JoinRequest{Name: "b", Nonce: raftlog.Nonce{2}, Addr: "new:1", Newest: 21}, nil, Asked{}, Admission{Verdict: VerdictMember, Member: &factsOf(3, 3).Members[1]}, ""},
		{"a learner joins again", factsOf(4, 3), JoinRequest{Name: "d", Nonce: raftlog.Nonce{4}, Newest: 21}, nil, Asked{}, Admission{Verdict: VerdictMember, Member: &factsOf(4, 3).Members[3]}, ""},
		{"under another name", factsOf(3, 3), JoinRequest{Name: "x", Nonce: raftlog.Nonce{2}, Newest: 21}, nil, Asked{}, Admission{Verdict: VerdictRefused}, `"b"`},
		{"under a name that looks like a member's", factsOf(3, 3), JoinRequest{Name: "B", Nonce: raftlog.Nonce{99}, Newest: 21}, nil, Asked{}, Admission{Verdict: VerdictRefused}, "case of letters"},

		// Segments are cut alike everywhere.
		{"with other segments", factsOf(3, 3).with(func(f *Facts) { f.SegmentBytes = 8192 }), JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Newest: 21, SegmentBytes: 4096}, nil, Asked{}, Admission{Verdict: VerdictOther}, "4096 bytes, those of the cluster 8192"},
		{"with the same", factsOf(3, 3).with(func(f *Facts) { f.SegmentBytes = 8192 }), JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Newest: 21, SegmentBytes: 8192}, nil, Asked{}, Admission{Verdict: VerdictAdmit}, ""},
		{"with those of the cluster", factsOf(3, 3).with(func(f *Facts) { f.SegmentBytes = 8192 }), newcomer, nil, Asked{}, Admission{Verdict: VerdictAdmit}, ""},

		// J13: what it applies.
		{"less than was applied", factsOf(3, 3), JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Newest: 18}, nil, Asked{}, Admission{Verdict: VerdictOlder, Need: 21}, "newer build"},
		{"as much as the oldest member, less than was applied", factsOf(3, 3).with(func(f *Facts) {
			f.NewestApplied = 16
			f.Members[1].Liveness.Newest = 14
		}), JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Newest: 15}, nil, Asked{}, Admission{Verdict: VerdictOlder, Need: 16}, "newer build"},
		{"less than every member", factsOf(3, 3).with(func(f *Facts) {
			f.NewestApplied = 11
			f.Members[1].Liveness.Newest = 14
		}), JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Newest: 13}, nil, Asked{}, Admission{Verdict: VerdictOlder, Need: 14}, ""},
		{"as much as the oldest member", factsOf(3, 3).with(func(f *Facts) {
			f.NewestApplied = 11
			f.Members[1].Liveness.Newest = 14
		}), JoinRequest{Name: "z", Nonce: raftlog.Nonce{99}, Newest: 14}, nil, Asked{}, Admission{Verdict: VerdictAdmit}, ""},
		{"a member of the configuration never is refused", factsOf(3, 3), JoinRequest{Name: "b", Nonce: raftlog.Nonce{2}, Newest: 1}, nil, Asked{}, Admission{Verdict: VerdictMember, Member: &factsOf(3, 3).Members[1]}, ""},

		// J17: a wiped disk is a new node.
		{"the old life was heard lately", factsOf(3, 3).with(func(f *Facts) { f.Members[2].Silent = 30*time.Second - 1 }), wiped, nil, Asked{Seen: 1000}, Admission{Verdict: VerdictWait}, "silent for 30s"},
		{"it is silent", factsOf(3, 3).with(silent), wiped, nil, Asked{Seen: 1000}, Admission{Verdict: VerdictReplace, Replaces: 3, Seen: 1000}, ""},
		{"under a leader of 29.9 s", factsOf(3, 3).with(silent).with(func(f *Facts) { f.LedFor = 29900 * time.Millisecond }), wiped, nil, Asked{Seen: 1000}, Admission{Verdict: VerdictWait}, "one leader"},
		{"a heartbeat of it is on its way", factsOf(3, 3).with(silent).with(func(f *Facts) { f.Members[2].Pending = true }), wiped, nil, Asked{Seen: 1000}, Admission{Verdict: VerdictWait}, "alive"},
		{"it spoke after the ask, not applied yet", factsOf(3, 3), wiped, nil, Asked{Seen: 1000, Heard: true}, Admission{Verdict: VerdictWait}, "alive"},
		{"it spoke after the ask", factsOf(3, 3).with(func(f *Facts) { f.Members[2].Liveness.Stamp = 1001 }), wiped, nil, Asked{Seen: 1000, Heard: true}, Admission{Verdict: VerdictBurn, Replaces: 3, Seen: 1000}, "has spoken"},
		{"it spoke after the ask, and is silent by now", factsOf(3, 3).with(silent).with(func(f *Facts) { f.Members[2].Liveness.Stamp = 1001 }), wiped, nil, Asked{Seen: 1000, Heard: true}, Admission{Verdict: VerdictBurn, Replaces: 3, Seen: 1000}, ""},
		{"the name of the leader", factsOf(3, 3), JoinRequest{Name: "a", Nonce: raftlog.Nonce{97}, Newest: 21}, nil, Asked{}, Admission{Verdict: VerdictWait}, "alive"},
		{"wiped twice: the newest life counts", factsOf(4, 3).with(silent).with(func(f *Facts) {
			f.Members[3].Name, f.Members[3].Liveness.Replaces = "c", 3
		}), wiped, nil, Asked{}, Admission{Verdict: VerdictWait}, "n4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Admit(c.facts, c.ask, c.tomb, c.asked)
			require.Contains(t, got.Reason, c.why)
			if c.why == "" && got.Verdict != VerdictBurn {
				require.Equal(t, got.Verdict == VerdictOlder, got.Reason != "")
			}
			got.Reason = ""
			if c.want.Member != nil {
				require.NotNil(t, got.Member)
				require.Equal(t, c.want.Member.Node, got.Member.Node)
				got.Member, c.want.Member = nil, nil
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestAFirstMemberCannotBeTooOld(t *testing.T) {
	require.Equal(t, VerdictAdmit, Admit(&Facts{Version: 2}, JoinRequest{Name: "a"}, nil, Asked{}).Verdict)
}
