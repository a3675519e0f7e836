package command

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestScreen(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":         "plain\ttext\n",
		"\x1b[2J\x1b]0;t\x07":   "␛[2J␛]0;t␇",
		"a\rb\r\nc\x00\x7f\x08": "a␍b\nc␀␡␈",
		"\u009b31m \u202edrow":  "\uFFFD31m \uFFFDdrow",
		"\x9b31m":               "\uFFFD31m",
		"Grüße 世界 🙂 e\u0301":    "Grüße 世界 🙂 e\u0301",
	} {
		var out bytes.Buffer
		_, err := (&screen{w: &out}).Write([]byte(in))
		require.NoError(t, err)
		assert.Equal(t, want, out.String(), "%q", in)
	}
}

// TestScreenPieces: however the input is split, no control character gets through, and
// text without any stays the same.
func TestScreenPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		var out bytes.Buffer
		s := &screen{w: &out}
		for rest := in; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			if _, err := s.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		for _, r := range out.String() {
			if unicode.IsControl(r) && r != '\n' && r != '\t' {
				t.Fatalf("%q became %q", in, out.String())
			}
		}
		plain := strings.ToValidUTF8(string(in), "")
		if strings.ContainsFunc(plain, unicode.IsControl) || len(plain) != len(in) {
			return
		}
		if got := out.String(); strings.Map(shown, plain) != got {
			t.Fatalf("%q became %q", in, got)
		}
	})
}
