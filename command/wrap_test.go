package command

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestWordWrap: lines are broken between words, the same however the text is cut, and code,
// indentation and what is wider than the terminal stay as they are.
func TestWordWrap(t *testing.T) {
	for _, test := range []struct {
		columns    int
		text, want string
	}{
		{10, "one two three four", "one two\nthree four"},
		{10, "one two three  \nfour\n\nfive ", "one two\nthree  \nfour\n\nfive "},
		{10, "1234567890 12345678901 2 three four", "1234567890 12345678901 2 three\nfour"},
		{10, "  - item of a list", "  - item\nof a list"},
		{10, "```\nx := one + two + three\n```\none two three", "```\nx := one + two + three\n```\none two\nthree"},
		{6, "中文字詞語", "中文字\n詞語"},
		{6, "e\u0301t\u0301e\u0301 dé jà", "e\u0301t\u0301e\u0301 dé\njà"},
		{0, "one two three four", "one two three four"},
	} {
		for n := range len(test.text) + 1 {
			w := wordWrap{columns: test.columns}
			// A piece is never a part of a character.
			first := strings.ToValidUTF8(test.text[:n], "")
			assert.Equal(t, test.want, w.add(first)+w.add(test.text[len(first):])+w.end(), "%q cut at %d", test.text, n)
		}
	}
	w := wordWrap{columns: 10}
	assert.Equal(t, "one", w.add("one tw"), "a word is shown when it is complete")
}
