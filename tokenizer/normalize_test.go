package tokenizer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// TestLongSegments: in a segment of any length a mark composes with the character in
// front of it unless one of its own class or a higher one stands between (Unicode
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
