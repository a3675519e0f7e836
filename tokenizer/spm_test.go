package tokenizer

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// spmWith returns a SentencePiece model with fields appended: later messages are
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

// TestSPMUnknown: text that is not a piece is unknown, one token for adjacent
// characters, or becomes its bytes; so does a character that is not a piece but takes
// part in merges, where those do not happen, each with the span of the character.
func TestSPMUnknown(t *testing.T) {
	field := func(n int, data string) string { return string([]byte{byte(n<<3 | 2), byte(len(data))}) + data }
	piece := func(text string, kind byte) string {
		return field(spmPieces, field(pieceText, text)+string([]byte{pieceType << 3, kind}))
	}
	load := func(more string) *Tokenizer {
		tok, err := readSPM([]byte(piece("<unk>", typeUnknown)+piece("a", typeNormal)+piece("xy", typeNormal)+piece("öy", typeNormal)+
			field(spmTrainerSpec, string([]byte{trainerModelType << 3, modelBPE}))+
			field(spmNormalizerSpec, string([]byte{normDummyPrefix << 3, 0}))+more), &config{})
		require.NoError(t, err)
		return tok
	}
	bytes := ""
	for b := range 256 {
		bytes += piece(fmt.Sprintf("<0x%02X>", b), typeByte)
	}
	const unk, a, xy, first = 0, 1, 2, 4
	unknown, fallback := load(""), load(bytes+field(spmTrainerSpec, string([]byte{trainerByteFallback<<3&0x7f | 0x80, trainerByteFallback >> 4, 1})))
	for _, tt := range []struct {
		tok   *Tokenizer
		text  string
		ids   []int32
		spans []Span
	}{
		{unknown, "axéxya", []int32{a, unk, xy, a}, []Span{{0, 1}, {1, 4}, {4, 6}, {6, 7}}},
		{unknown, "xaéyx", []int32{unk, a, unk}, []Span{{0, 1}, {1, 2}, {2, 6}}},
		{fallback, "axéxya", []int32{a, first + 'x', first + 0xc3, first + 0xa9, xy, a}, []Span{{0, 1}, {1, 2}, {2, 4}, {2, 4}, {4, 6}, {6, 7}}},
		{fallback, "xaéyx", []int32{first + 'x', a, first + 0xc3, first + 0xa9, first + 'y', first + 'x'},
			[]Span{{0, 1}, {1, 2}, {2, 4}, {2, 4}, {4, 5}, {5, 6}}},
		{fallback, "aöa", []int32{a, first + 0xc3, first + 0xb6, a}, []Span{{0, 1}, {1, 3}, {1, 3}, {3, 4}}},
	} {
		ids, spans := encodeOffsets(t, tt.tok, tt.text, EncodeOptions{})
		require.Equal(t, tt.ids, ids, tt.text)
		require.Equal(t, tt.spans, spans, tt.text)
		require.Equal(t, tt.ids, tt.tok.Encode(tt.text, EncodeOptions{}), tt.text)
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
