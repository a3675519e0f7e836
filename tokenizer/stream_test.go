package tokenizer

import (
	"strings"
	"testing"
	"unicode/utf8"
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
	if want := tok.Decode(ids, skip); b.String() != want {
		t.Errorf("streaming %v:\nwant %q\n got %q", ids, want, b.String())
	}
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
