package tokenizer

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSplitByScanner: with every behaviour a scanner cuts as its pattern does.
func TestSplitByScanner(t *testing.T) {
	cut := func(p split, text string) []piece {
		s := new(scratch)
		s.begin(context.Background(), math.MaxInt)
		s.set(text, 0)
		half := len(text) / 2
		s.pieces = []piece{{0, half}, {half, len(text)}}
		p.cut(s, true)
		return s.pieces
	}
	for text := range knownPatterns {
		m, err := newMatcher(text)
		require.NoError(t, err)
		engine := mustCompile(t, text)
		for name, how := range behaviours {
			for _, invert := range []bool{false, true} {
				const s = "It's 12345 o'clock,\n\n  ok 77!  "
				require.Equal(t, cut(split{m: engine, how: how, invert: invert}, s), cut(split{m: m, how: how, invert: invert}, s), "%s, %v, %q", name, invert, text)
			}
		}
	}
}

// TestRewritesInTurn: normalizers that lengthen and shorten a text and prepend a
// blank to each stretch read and write different memory, from call to call.
func TestRewritesInTurn(t *testing.T) {
	var s *scratch
	for i := range 6 {
		tok, err := readHF([]byte(`{"model":{"vocab":{"a":0,"b":1,"Ġ":2,"c":3}},"added_tokens":[{"id":4,"content":"|","normalized":`+fmt.Sprint(i < 3)+`}],
			"normalizer":{"type":"Sequence","normalizers":[{"type":"Lowercase"},{"type":"Replace","pattern":{"String":"b"},"content":"cca"}]},
			"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true,"use_regex":false}}`), &config{})
		require.NoError(t, err)
		if i%3 == 0 {
			s = &scratch{want: true}
		}
		ids, spans, err := tok.encode(t.Context(), s, "BAB|abba", math.MaxInt, EncodeOptions{})
		require.NoError(t, err)
		require.Equal(t, []int32{2, 3, 3, 0, 0, 3, 3, 0, 4, 2, 0, 3, 3, 0, 3, 3, 0, 0}, ids)
		require.Equal(t, []Span{
			{0, 0}, {0, 1}, {0, 1}, {0, 1}, {1, 2}, {2, 3}, {2, 3}, {2, 3}, {3, 4},
			{4, 4}, {4, 5}, {5, 6}, {5, 6}, {5, 6}, {6, 7}, {6, 7}, {6, 7}, {7, 8},
		}, spans)
	}
}
