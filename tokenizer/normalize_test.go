package tokenizer

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// TestLongSegments: in a segment of any length a mark composes with the character
// before it unless one of the same or a higher class comes between them (Unicode
// Standard Annex 15).
func TestLongSegments(t *testing.T) {
	const overline, dot, grave, below = "\u0305", "\u0307", "\u0300", "\u0323"
	many := strings.Repeat(overline, 40)
	for _, tt := range []struct{ text, nfc, nfd string }{
		{"a" + many + grave, "a" + many + grave, "a" + many + grave},
		{"a" + grave + many, "\u00e0" + many, "a" + grave + many},
		{"a" + many + below, "\u1ea1" + many, "a" + below + many},
		{"\u1ea1" + many + grave, "\u1ea1" + many + grave, "a" + below + many + grave},
		{"\u0227" + many, "\u0227" + many, "a" + dot + many},
		{grave + many + "a", grave + many + "a", grave + many + "a"},
	} {
		for form, want := range map[norm.Form]string{norm.NFC: tt.nfc, norm.NFKC: tt.nfc, norm.NFD: tt.nfd, norm.NFKD: tt.nfd} {
			tok := &Tokenizer{normalizers: []normalizer{unicodeForm(form)}}
			require.Equal(t, want, tok.normalize(tt.text), "form %v of %+q", form, tt.text)
		}
	}
}

// TestSpans: the span at the start of a text ends where a segment begins, is in the
// form, and is followed by a segment that is not. The expected segments are taken from
// x/text, one at a time.
func TestSpans(t *testing.T) {
	units := []rune("ae \u00e9\u1ebf\uac00\uac01\u1100\u1161\u11a8\u304b\u304c\u3099\u0301\u0323\u0307\u2126\u0340\u0958\ufb01\u6f22" +
		"\U0001f642\U0001109a\U00011099\U000110ba\U0001d15e\U0002f800\u0300")
	r := rand.New(rand.NewPCG(1, 2))
	short := 0
	for range 4000 {
		var b strings.Builder
		for range r.IntN(12) {
			if r.IntN(10) == 0 {
				b.WriteByte(byte(0x80 + r.IntN(128)))
			} else {
				b.WriteRune(units[r.IntN(len(units))])
			}
		}
		text := b.String()
		for _, form := range []norm.Form{norm.NFC, norm.NFD, norm.NFKC, norm.NFKD} {
			want := 0
			for want < len(text) {
				end := want + runeLen(text, want)
				for end < len(text) && !form.PropertiesString(text[end:]).BoundaryBefore() {
					end += runeLen(text, end)
				}
				if form.QuickSpanString(text[want:end]) < end-want {
					break
				}
				want = end
			}
			require.Equal(t, want, unicodeForm(form).span(text), "form %d of %+q", form, text)
			if want < len(text) {
				short++
			}
			if utf8.ValidString(text) {
				tok := &Tokenizer{normalizers: []normalizer{unicodeForm(form)}}
				require.Equal(t, form.String(text), tok.normalize(text), "form %d of %+q", form, text)
			}
		}
	}
	require.Greater(t, short, 1000)
}

// TestYoungerCharacters: characters that decompose, compose or are ordered only since
// Unicode 10 stay, as in the tokenizers library, while what lies between them is
// normalised by itself. Expected values: Hugging Face tokenizers 0.23.3.
func TestYoungerCharacters(t *testing.T) {
	for _, tt := range []struct{ text, nfc, nfd, nfkc string }{
		{
			"\u337b\u32ff\u337b \U00010781\u030ce\u0301\U0001fbf0\U00011938",
			"\u337b\u32ff\u337b \U00010781\u030c\u00e9\U0001fbf0\U00011938",
			"\u337b\u32ff\u337b \U00010781\u030ce\u0301\U0001fbf0\U00011938",
			"\u5e73\u6210\u32ff\u5e73\u6210 \U00010781\u030c\u00e9\U0001fbf0\U00011938",
		},
		{"n\u0301\u0c3c\u0301\u0323", "\u0144\u0c3c\u0323\u0301", "n\u0301\u0c3c\u0323\u0301", "\u0144\u0c3c\u0323\u0301"},
		{"a\u09fe\u0301", "a\u09fe\u0301", "a\u09fe\u0301", "a\u09fe\u0301"},
		{"a\u0301\u0eba", "\u00e1\u0eba", "a\u0301\u0eba", "\u00e1\u0eba"},
		{"a\u0345\U0001e132\u0323", "a\u0345\U0001e132\u0323", "a\u0345\U0001e132\u0323", "a\u0345\U0001e132\u0323"},
		{"\U00011935\U00011930", "\U00011935\U00011930", "\U00011935\U00011930", "\U00011935\U00011930"},
		{"\u1e9b\U0001e030\u1e9b", "\u1e9b\U0001e030\u1e9b", "\u017f\u0307\U0001e030\u017f\u0307", "\u1e61\U0001e030\u1e61"},
	} {
		for form, want := range map[norm.Form]string{norm.NFC: tt.nfc, norm.NFD: tt.nfd, norm.NFKC: tt.nfkc} {
			tok := &Tokenizer{normalizers: []normalizer{unicodeForm(form)}}
			require.Equal(t, want, tok.normalize(tt.text), "form %v of %+q", form, tt.text)
		}
	}
}

// TestHangulFinals: in NFKC the compatibility form of a final consonant composes with
// the syllable before it, by the definition of the form.
func TestHangulFinals(t *testing.T) {
	tok := &Tokenizer{normalizers: []normalizer{unicodeForm(norm.NFKC)}}
	require.Equal(t, "\uac03 \uac03\u11aa", tok.normalize("\uac00\u3133 \uac00\uffa3\u3133"))
	require.Equal(t, "\u11aa\uac01\u11aa", tok.normalize("\u3133\uac01\u3133"))
}

// TestLongChain: a chain of common steps, each counted at its worst. Expected value:
// Hugging Face tokenizers 0.23.3.
func TestLongChain(t *testing.T) {
	tok, err := readHF(minimal(`,"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"},{"type":"Replace","pattern":{"Regex":"\\s"},"content":"▁"}]}`), &config{})
	require.NoError(t, err)
	require.Equal(t, "i\u0307ⱥ▁صلى▁الله▁عليه▁وسلم▁fi", tok.normalize("İȺ\u3000\ufdfa\nﬁ"))
}

// TestNothingLeft: where normalising leaves nothing of a stretch, no prefix goes before
// it. Expected values: Hugging Face tokenizers 0.23.3.
func TestNothingLeft(t *testing.T) {
	for _, pre := range []string{
		`{"type":"ByteLevel","add_prefix_space":true,"use_regex":false}`,
		`{"type":"Metaspace","replacement":"_","prepend_scheme":"always"}`,
		`{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":false}`,
	} {
		tok, err := readHF([]byte(`{"model":{"vocab":{"_":0,"Ġ":1,"b":2}},"added_tokens":[{"id":5,"content":"<s>","special":true}],
			"normalizer":{"type":"Strip","strip_left":true,"strip_right":true},"pre_tokenizer":`+pre+`}`), &config{})
		require.NoError(t, err)
		require.Empty(t, tok.Encode(" \n", EncodeOptions{}), pre)
		require.Equal(t, []int32{5, 5}, tok.Encode(" <s> <s>\t", EncodeOptions{}), pre)
	}
}

// TestLowercaseOffsets: a character keeps the span of the original one, even if its
// lower case is longer.
func TestLowercaseOffsets(t *testing.T) {
	tok, err := readHF([]byte(`{"model":{"vocab":{"a":0,"b":1,"é":2,"i":3,"\u0307":4}},"normalizer":{"type":"Lowercase"}}`), &config{})
	require.NoError(t, err)
	ids, spans := encodeOffsets(t, tok, "aBÉ\u0130b", EncodeOptions{})
	require.Equal(t, []int32{0, 1, 2, 3, 4, 1}, ids)
	require.Equal(t, []Span{{0, 1}, {1, 2}, {2, 4}, {4, 6}, {4, 6}, {6, 7}}, spans)
}

// TestStepsStop: every step over a text stops soon after its call has to end.
func TestStepsStop(t *testing.T) {
	const n = 1 << 14
	const soon = n / 2
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	text := strings.Repeat("Ab 1e\u0301, ", n)
	ended := func() *scratch {
		s := new(scratch)
		s.begin(gone, math.MaxInt)
		s.set(text, 0)
		s.pieces = []piece{{0, len(text)}}
		return s
	}
	for _, p := range []normalizer{lowercase{}, unicodeForm(norm.NFC), unicodeForm(norm.NFKC), spmNormal{escape: true}} {
		s := ended()
		p.normalize(s, true)
		require.NotEmpty(t, s.cur, "%T", p)
		require.Less(t, len(s.cur), len(text)/4, "%T", p)
	}
	for _, p := range []normalizer{replaceText{m: literal("b"), new: "B"}, replaceText{m: digitRuns{classes(), 1}, new: "9"}} {
		s := ended()
		p.normalize(s, true)
		require.Less(t, strings.Count(s.cur, "B")+strings.Count(s.cur, "9"), soon, "%T", p)
	}
	s := ended()
	metaspace{mark: "_"}.cut(s, true)
	require.Less(t, strings.Count(s.cur, "_"), soon)
	require.Less(t, len(s.cur), len(text)/4)
	for _, m := range []matcher{
		literal("b"), digitRuns{classes(), 1}, byteDigits(1), punctuation(), gpt2Scanner{classes()}, llamaScanner{classes(), 3}, tekkenScanner{classes(), 3, true}, mustCompile(t, `\s`), mustCompile(t, `x?`),
	} {
		require.Less(t, len(m.find(ended(), nil, text)), soon, "%T", m)
		for _, how := range behaviours {
			require.Less(t, len(split{m: m, how: how}.cutOne(ended(), nil, piece{0, len(text)})), soon, "%T, behaviour %d", m, how)
			// The same for many pieces.
			s := ended()
			s.pieces = s.pieces[:0]
			for i := range n {
				s.pieces = append(s.pieces, piece{i, i + 1})
			}
			split{m: m, how: how}.cut(s, true)
			require.Less(t, len(s.pieces), n-1, "%T, behaviour %d", m, how)
		}
	}
}

func mustCompile(t *testing.T, text string) *pattern {
	t.Helper()
	p, err := compilePattern(text)
	require.NoError(t, err)
	return p
}
