package tokenizer

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"unicode"

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

// falcon is the pre-tokenizer of Falcon.
const falcon = `{"type":"Punctuation","behavior":"Contiguous"},{"type":"ByteLevel","add_prefix_space":false},{"type":"Digits","individual_digits":false},{"type":"Split","pattern":{"Regex":"[0-9][0-9][0-9]"},"behavior":"Isolated"}`

// TestPunctuationAndBytes cuts at punctuation, and at digits after ByteLevel, where bytes
// of longer characters count as well. Expected values: Hugging Face tokenizers 0.23.3.
func TestPunctuationAndBytes(t *testing.T) {
	const text = "Hi, «ò12345» ½x--\u061d\u166d $3\n"
	for _, tt := range []struct {
		steps string
		want  []string
	}{
		{falcon, []string{"Hi", ",", " ", "«", "\xc3", "\xb2", "123", "45", "»", " \xc2", "\xbd", "x", "--", "\u061d", "\u166d", " ", "$", "3", "\n"}},
		{`{"type":"Punctuation"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, []string{"Hi", ",", " ", "«", "ò12345", "»", " ½x", "-", "-", "\u061d", "\u166d", " ", "$", "3\n"}},
		{`{"type":"Punctuation","behavior":"Removed"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, []string{"Hi", " ", "ò12345", " ½x", "\u061d", " ", "3\n"}},
		{`{"type":"Punctuation","behavior":"MergedWithNext"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}`, []string{"Hi", ", ", "«ò12345", "» ½x", "-", "-\u061d", "\u166d ", "$3\n"}},
		{`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},{"type":"Digits","individual_digits":true}`, []string{"Hi, \xc2\xab\xc3", "\xb2", "1", "2", "3", "4", "5", "\xc2\xbb \xc2", "\xbd", "x--\u061d\u166d $", "3", "\n"}},
		{`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},{"type":"Split","pattern":{"String":"34"},"behavior":"MergedWithPrevious"}`, []string{"Hi, «ò1234", "5» ½x--\u061d\u166d $3\n"}},
	} {
		var part hfPart
		require.NoError(t, json.Unmarshal([]byte(`{"type":"Sequence","pretokenizers":[`+tt.steps+`]}`), &part))
		steps, bytes, err := hfPreTokenizer(nil, part)
		require.NoError(t, err, tt.steps)
		require.True(t, bytes)
		s := new(scratch)
		s.begin(t.Context(), math.MaxInt)
		s.set(text, 0)
		s.pieces = []piece{{0, len(text)}}
		for _, step := range steps {
			step.cut(s, true)
		}
		var got []string
		for _, p := range s.pieces {
			got = append(got, s.cur[p.start:p.end])
		}
		require.Equal(t, tt.want, got, tt.steps)
	}
	count := 0
	for r := range rune(unicode.MaxRune + 1) {
		if punctuation().code[0].set.has(r) {
			count++
		}
	}
	require.Equal(t, 726, count, "characters of punctuation")

	// No merge across the cut inside a character.
	tok, err := readHF([]byte(`{"model":{"vocab":{"Ã":0,"²":1,"Ã²":2,"³":3,"©":4,"Ã©":5},"merges":["Ã ²","Ã ©"]},
		"pre_tokenizer":{"type":"Sequence","pretokenizers":[`+falcon+`]}}`), &config{})
	require.NoError(t, err)
	require.Equal(t, []int32{0, 1, 5}, tok.Encode("òé", EncodeOptions{}))
	checkTokenizer(t, tok, fuzzText)
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
