package structured

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCallReaderPieces: an answer is the same text and calls in whatever pieces it comes, also
// if a mark stands in text with a call far from it.
func TestCallReaderPieces(t *testing.T) {
	type answer struct{ content, names, arguments string }
	for _, c := range []struct {
		syntax callSyntax
		text   string
		want   answer
	}{
		{qwenTools, "so: <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"\"}}\n</tool_call>", answer{"so: ", "f", `{"a": "}\""}`}},
		{mistralTools, `[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"b": [1]}}]`, answer{"", "fg", `{}{"b": [1]}`}},
		{mistralTools, `write "[TOOL_CALLS]" before {"name": "f", "arguments": {}}`, answer{`write "[TOOL_CALLS]" before {"name": "f", "arguments": {}}`, "", ""}},
		{qwenTools, "<tool_call>\n{\"na\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", answer{"<tool_call>\n{\"na\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "", ""}},
	} {
		for size := 1; size <= len(c.text); size++ {
			r := callReader{t: &Tools{callSyntax: &c.syntax, names: map[string]bool{"f": true, "g": true}}}
			var got answer
			for at := 0; at <= len(c.text); at += size {
				end := min(at+size, len(c.text))
				content, calls := r.add(c.text[at:end], at+size > len(c.text))
				got.content += content
				for _, call := range calls {
					got.names += call.Name
					got.arguments += call.Arguments
				}
			}
			require.Equal(t, c.want, got, "%q in pieces of %d", c.text, size)
		}
	}
}
