package tokenizer

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// spmWith is a SentencePiece model with more fields behind it: later messages are
// merged into earlier ones.
func spmWith(t *testing.T, fields ...byte) []byte {
	t.Helper()
	model, err := os.ReadFile("testdata/models/mini/spm-noprefix/tokenizer.model")
	require.NoError(t, err)
	return append(model, fields...)
}

func TestSPMRefusesBytesAsUnknownSurface(t *testing.T) {
	// TrainerSpec (field 2) with unk_surface (field 44) that is not UTF-8.
	_, err := readSPM(spmWith(t, 0x12, 5, 0xe2, 0x02, 2, 0xff, 0xff), &config{})
	require.ErrorContains(t, err, "unknown piece")
}

// TestSPMSettings sets flags of a model: treat_whitespace_as_suffix (field 24 of
// TrainerSpec) and escape_whitespaces (field 5 of NormalizerSpec).
func TestSPMSettings(t *testing.T) {
	_, err := readSPM(spmWith(t, 0x12, 3, 0xc0, 0x01, 1), &config{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "treat_whitespace_as_suffix")
	_, err = readSPM(spmWith(t, 0x12, 3, 0xc0, 0x01, 0), &config{})
	require.NoError(t, err)
	for escape, want := range map[byte]string{0: "a b", 1: "a\u2581b"} {
		tok, err := readSPM(spmWith(t, 0x1a, 2, 0x28, escape), &config{})
		require.NoError(t, err)
		require.Equal(t, want, tok.normalize("a b"))
	}
}

func TestParseByte(t *testing.T) {
	for name, want := range map[string]int{
		"<0x00>": 0, "<0x0A>": 10, "<0x9a>": 0x9a, "<0xfF>": 255,
		"": -1, "<0x": -1, "<0xA>": -1, "<0x00A>": -1, "<0x0G>": -1, "<0xg0>": -1, "<0x@0>": -1, "<0x`0>": -1, "<0x:0>": -1, "<0x/0>": -1,
		"[0x0A>": -1, "<0X0A>": -1, "<0x0A)": -1, "<0x0A>>": -1,
	} {
		b, ok := parseByte(name)
		require.Equal(t, want >= 0, ok, name)
		if ok {
			require.Equal(t, byte(want), b, name)
		}
	}
}
