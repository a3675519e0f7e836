package dialog

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

func TestAnswerEndsBeforeStopTexts(t *testing.T) {
	for _, c := range []struct {
		stops []string
		parts []string
		want  string
	}{
		{nil, []string{"ab", "c"}, "abc"},
		{[]string{"END"}, []string{"a E", "N", "D b"}, "a "},
		{[]string{"END"}, []string{"a E", "N", "X", "E"}, "a ENXE"},
		{[]string{"xyz", "y"}, []string{"ax", "y"}, "ax"},
		{[]string{"é!"}, []string{"caf", "é", "é!"}, "café"},
		{[]string{"a"}, []string{"a"}, ""},
		{[]string{"abcd", "bc"}, []string{"abcd"}, "a"}, // completed first
		{[]string{"bc", "abc"}, []string{"xabc"}, "x"},  // completed together
	} {
		a := &Answer{stops: newStops(t, c.stops...)}
		out := ""
		for _, p := range c.parts {
			if !a.Stopped() {
				out += a.add(p)
			}
			for _, stop := range c.stops {
				assert.NotContains(t, out, stop)
			}
		}
		if !a.Stopped() {
			out += string(a.held)
		}
		assert.Equal(t, c.want, out, "%q", c.parts)
	}
}

// TestAnswerTokens draws texts, encodes them, and compares with a search in the
// whole text: token boundaries do not matter, and every piece is UTF-8.
func TestAnswerTokens(t *testing.T) {
	tok, err := tokenizer.Load(builtin.Files())
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune("abé世🙂 \n")), 0, 30, -1).Draw(t, "text")
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("abé世🙂")), 1, 4, -1), 0, 3).Draw(t, "stops")
		// The first place where a stop text is complete, by definition.
		want, stopped, by := text, false, ""
		for end := 0; end <= len(text) && !stopped; end++ {
			for start := 0; start < end && !stopped; start++ {
				for _, stop := range stops {
					if text[start:end] == stop {
						want, stopped, by = text[:start], true, stop
						break
					}
				}
			}
		}
		prepared, err := NewStops(stops)
		if err != nil {
			t.Fatal(err)
		}
		a := NewAnswer(tok, prepared)
		got := ""
		for _, id := range tok.Encode(text, tokenizer.EncodeOptions{}) {
			piece, _ := a.Token(id)
			if !utf8.ValidString(piece) {
				t.Fatalf("the piece %q is not UTF-8", piece)
			}
			got += piece
		}
		got += a.End()
		if got != want || a.Text() != want || a.Stopped() != stopped || a.StopText() != by {
			t.Fatalf("%q with stops %q: got %q, stopped by %q, want %q, %q", text, stops, got, a.StopText(), want, by)
		}
	})
}

// TestShowSpecial: special tokens are in the text only if asked for.
func TestShowSpecial(t *testing.T) {
	tok, err := tokenizer.Load(builtin.Files())
	require.NoError(t, err)
	ids := append(tok.Encode("a ", tokenizer.EncodeOptions{}), tok.EOS())
	for _, show := range []bool{false, true} {
		a, want := NewAnswer(tok, nil), "a "
		if show {
			a.ShowSpecial()
			want += tok.Piece(tok.EOS())
		}
		for _, id := range ids {
			a.Token(id)
		}
		a.End()
		require.Equal(t, want, a.Text())
	}
}
