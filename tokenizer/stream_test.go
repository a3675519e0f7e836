package tokenizer

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// checkStream decodes ids one at a time and compares with Decode. No part may end
// inside a character.
func checkStream(t *testing.T, tok *Tokenizer, ids []int32, skip bool) {
	t.Helper()
	d := tok.NewDecoder(skip)
	var b strings.Builder
	for _, id := range ids {
		part := d.Write(id)
		if !utf8.ValidString(part) {
			t.Errorf("streaming %v: part %q for id %d is not UTF-8", ids, part, id)
		}
		b.WriteString(part)
	}
	b.WriteString(d.Flush())
	want := tok.Decode(ids, skip)
	if tok.dec.wholeRuns && strings.Contains(want, "\uFFFD") {
		// A run that is not UTF-8 as a whole keeps the characters before the fault.
		if got, least := kept(b.String()), kept(want); got < least {
			t.Errorf("streaming %v: %d characters are left of %q, expected at least the %d of %q", ids, got, b.String(), least, want)
		}
		return
	}
	if b.String() != want {
		t.Errorf("streaming %v:\nwant %q\n got %q", ids, want, b.String())
	}
}

// kept returns the number of characters of text that are not U+FFFD.
func kept(text string) int {
	return utf8.RuneCountInString(strings.ReplaceAll(text, "\uFFFD", ""))
}

// TestStreamRuns: characters of byte tokens come as soon as they are complete, whatever
// follows in their run.
func TestStreamRuns(t *testing.T) {
	for _, name := range []string{"mini/llama2-style/tokenizer.json"} {
		tok := loadModel(t, name)
		write := func(d *StreamDecoder, text string) (parts []string) {
			for _, b := range []byte(text) {
				id, ok := tok.ID(fmt.Sprintf("<0x%02X>", b))
				require.True(t, ok, name)
				parts = append(parts, d.Write(id))
			}
			return parts
		}
		d := tok.NewDecoder(false)
		d.Continue()
		require.Equal(t, []string{"", "", "", "🙂", "", "", "", "🦆", "\n"}, write(d, "🙂🦆\n"), name)
		require.Equal(t, []string{"a", "", "\uFFFDb"}, write(d, "a\xf0b"), name)
		require.Equal(t, []string{"", ""}, write(d, "\xf0\x9f"), name)
		require.Equal(t, "\uFFFD\uFFFD", d.Flush(), name)
	}
}

// TestContinue: a text that goes on from another one keeps the blank before its first word.
func TestContinue(t *testing.T) {
	for _, name := range []string{"mini/llama2-style/tokenizer.json", "mini/metaspace-always-unk/tokenizer.json"} {
		tok := loadModel(t, name)
		ids := tok.Encode("a lead", EncodeOptions{})
		for cut := range ids {
			before, d := tok.Decode(ids[:cut], false), tok.NewDecoder(false)
			if cut > 0 {
				d.Continue()
			}
			for _, id := range ids[cut:] {
				before += d.Write(id)
			}
			require.Equal(t, "a lead", before+d.Flush(), "%s: after %d tokens", name, cut)
		}
	}
}

// encodeOffsets is EncodeOffsets for calls that must not fail.
func encodeOffsets(t testing.TB, tok *Tokenizer, text string, o EncodeOptions) ([]int32, []Span) {
	t.Helper()
	ids, spans, err := tok.EncodeOffsets(t.Context(), text, o)
	if err != nil {
		t.Fatalf("encode %.80q: %v", text, err)
	}
	return ids, spans
}

// checkSpans checks that spans lie in the text and begin in ascending order.
func checkSpans(t *testing.T, name, text string, ids []int32, spans []Span) {
	t.Helper()
	if len(ids) != len(spans) {
		t.Errorf("%s: %d ids, %d spans", name, len(ids), len(spans))
		return
	}
	last := 0
	for i, s := range spans {
		if s.Start < last || s.End < s.Start || s.End > len(text) {
			t.Errorf("%s: token %d of %d has span %v behind %d in a text of %d bytes", name, i, len(ids), s, last, len(text))
			return
		}
		last = s.Start
	}
}

// TestStreamReuse checks that a decoder is like new after Flush, even if it held
// bytes or blanks back.
func TestStreamReuse(t *testing.T) {
	for _, name := range []string{"mini/llama2-style/tokenizer.json", "mini/llama3-style/tokenizer.json", "mini/spm-noprefix/tokenizer.model", "mini/tekken-v7/tekken.json"} {
		tok := loadModel(t, name)
		ids := tok.Encode(" Hi 🙂 e", EncodeOptions{SpecialAsText: true})
		d := tok.NewDecoder(false)
		for cut := range len(ids) + 1 {
			for _, id := range ids[:cut] {
				d.Write(id)
			}
			d.Flush()
			got := ""
			for _, id := range ids {
				got += d.Write(id)
			}
			if got += d.Flush(); got != tok.Decode(ids, false) {
				t.Errorf("%s: after %d tokens and Flush: %q, want %q", name, cut, got, tok.Decode(ids, false))
			}
		}
	}
}

// TestStripEnds checks a decoder that strips characters from both ends of the
// whole text: what may have to go is held back until it is known to stay.
func TestStripEnds(t *testing.T) {
	tok, err := readHF(minimal(`,"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":"a","start":1,"stop":2}]}`), &config{})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"": "", "a": "", "aa": "", "b": "b", "aab": "ab", "baaaa": "baa", "abaaba": "baab", "aaaaa": "aa"} {
		ids := tok.Encode(text, EncodeOptions{})
		if got := tok.Decode(ids, false); got != want {
			t.Errorf("strip %q: got %q, want %q", text, got, want)
		}
	}
}

func TestBadPrefix(t *testing.T) {
	for _, tt := range []struct {
		bytes string
		n     int
		open  bool
	}{
		{"\x80", 1, false}, {"\xff", 1, false}, {"\xc0\x80", 1, false}, {"\xc3", 1, true}, {"\xc3x", 1, false},
		{"\xe4", 1, true}, {"\xe4\xbd", 2, true}, {"\xe4\xbdx", 2, false}, {"\xe0\x80", 1, false}, {"\xed\xa0", 1, false},
		{"\xf0\x9f", 2, true}, {"\xf0\x9f\x99", 3, true}, {"\xf0\x80", 1, false}, {"\xf4\x90", 1, false}, {"\xf5", 1, false},
	} {
		if n, open := badPrefix([]byte(tt.bytes)); n != tt.n || open != tt.open {
			t.Errorf("badPrefix(%q) = %d, %v, want %d, %v", tt.bytes, n, open, tt.n, tt.open)
		}
	}
}

// TestStripTokens checks a decoder that strips a given number of characters from the
// ends of each token.
func TestStripTokens(t *testing.T) {
	strip := `{"type":"Strip","content":"_","start":1,"stop":2}`
	for _, decoder := range []string{strip, `{"type":"Sequence","decoders":[{"type":"ByteFallback"},` + strip + `]}`} {
		tok, err := readHF([]byte(`{"model":{"vocab":{"_a_":0,"___b___":1,"____":2}},"decoder":`+decoder+`}`), &config{})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := tok.Decode([]int32{0, 1, 2, 0}, false), "a__b__a"; got != want {
			t.Errorf("strip %s: got %q, want %q", decoder, got, want)
		}
	}
}
