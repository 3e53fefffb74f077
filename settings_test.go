package stele

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// settingsV1 is what directories hold.
const settingsV1 = "stele settings 1\nsegment-bytes 67108864\ncrc32c d635f388\n"

func TestSettingsFormat(t *testing.T) {
	golden := []byte(settingsV1)
	s := settings{segmentBytes: 64 << 20}
	require.Equal(t, string(golden), string(s.encode()))
	got, err := decodeSettings("SETTINGS", golden)
	require.NoError(t, err)
	require.Equal(t, s, got)
	for i := range golden {
		_, err := decodeSettings("SETTINGS", golden[:i])
		require.Error(t, err, "%d bytes", i)
		for bit := range 8 {
			damaged := append([]byte(nil), golden...)
			damaged[i] ^= 1 << bit
			_, err := decodeSettings("SETTINGS", damaged)
			require.Error(t, err, "byte %d, bit %d", i, bit)
		}
	}
}

// Property: S11 (red: the number read without comparing the rest of the text)
func FuzzSettings(f *testing.F) {
	f.Add(settings{segmentBytes: 4096}.encode())
	f.Add([]byte("stele settings 2\nanything"))
	f.Add([]byte("stele settings 1\nsegment-bytes 4096\nanything"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := decodeSettings("SETTINGS", text); err == nil {
			require.Equal(t, string(text), string(s.encode()))
		}
	})
}
