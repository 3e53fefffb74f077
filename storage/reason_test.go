package storage_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stelelog/stele/storage"
)

var asideAt = time.UnixMilli(1_796_000_000_123).UTC()

// because is a reason of a topic that was deleted.
func because(text string) storage.Reason {
	return storage.Reason{Kind: storage.ReasonDeleted, Text: text, At: asideAt}
}

// What an older release wrote, which had neither kinds nor times, is read.
func TestAnOlderReasonIsRead(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "logs", "REASON.1"))
	require.NoError(t, err)
	from, why, err := storage.DecodeReason(b)
	require.NoError(t, err)
	require.Equal(t, "orders@00", from)
	require.Equal(t, storage.Reason{Kind: storage.ReasonOther, Text: "no record\nnames it"}, why)
	require.False(t, why.Kind.HeldForPerson(), "as it was before there were kinds")
}

// A reason comes back as it was written; a time to the millisecond, and none as none.
func TestAReasonIsReadAsItWasWritten(t *testing.T) {
	for _, why := range []storage.Reason{
		because("x"),
		{Kind: storage.ReasonLonger, Text: "\"a\"\nb\xff"},
		{Kind: "of-a-newer-release", At: asideAt},
		{Kind: storage.ReasonForeign, At: time.UnixMilli(-1).UTC()},
	} {
		b := storage.EncodeReason("orders@00", why)
		_, have, err := storage.DecodeReason(b)
		require.NoError(t, err)
		require.Equal(t, why, have)
		_, _, err = storage.DecodeReason(storage.SealText([]byte(strings.Replace(string(b[:len(b)-16]), " 2\n", " 3\n", 1))))
		require.ErrorContains(t, err, "format version 3, this build knows 1 to 2")
	}
	_, have, err := storage.DecodeReason(storage.EncodeReason("a", storage.Reason{Kind: "k", At: asideAt.Add(time.Microsecond)}))
	require.NoError(t, err)
	require.Equal(t, asideAt, have.At)
	for _, kind := range []storage.ReasonKind{"", "Foreign", "a b", "a\nb", storage.ReasonKind(strings.Repeat("k", 33))} {
		_, _, err := storage.DecodeReason(storage.EncodeReason("a", storage.Reason{Kind: kind}))
		require.Error(t, err, "%q", kind)
	}
}

// Property: S11 (red: a time with a sign was taken)
func FuzzReason(f *testing.F) {
	f.Add([]byte("stele quarantine 1\nfrom \"a\"\nreason \"b\"\n"))
	f.Add([]byte("stele quarantine 2\nfrom \"a\"\nkind deleted\ntime 123\nreason \"b\"\n"))
	f.Add([]byte("stele quarantine 2\nfrom \"a\"\nkind deleted\ntime +1\nreason \"b\"\n"))
	f.Add([]byte("stele quarantine 2\nfrom \"a\"\nkind \ntime 0\nreason \"b\"\n"))
	f.Add([]byte("stele quarantine 3\nfrom \"a\"\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		b := storage.SealText(body)
		from, why, err := storage.DecodeReason(b)
		if err != nil {
			return
		}
		again := storage.EncodeReason(from, why)
		haveFrom, have, err := storage.DecodeReason(again)
		require.NoError(t, err)
		require.Equal(t, from, haveFrom)
		require.Equal(t, why, have)
		if strings.HasPrefix(string(b), "stele quarantine 2\n") {
			require.Equal(t, strings.Split(string(b), "\n")[2:4], strings.Split(string(again), "\n")[2:4], "kind and time have one form")
		}
	})
}
