package lineedit

import (
	"fmt"
	"strings"
)

// Completer proposes replacements for text[from:], where text is what has been typed
// up to the cursor.
type Completer func(text string) (from int, candidates []string)

// complete applies the Tab key: it inserts the prefix common to all candidates, or
// lists them if that has been typed already.
func (e *editor) complete() {
	if e.t.Complete == nil {
		return
	}
	text := string(e.line[:e.at])
	from, candidates := e.t.Complete(text)
	if from < 0 || from > len(text) || len(candidates) == 0 {
		return
	}
	common := candidates[0]
	for _, c := range candidates[1:] {
		common = commonPrefix(common, c)
	}
	if len(common) > len(text)-from {
		e.remove(len([]rune(text[:from])), e.at)
		e.insert([]rune(common)...)
		return
	}
	if len(candidates) > 1 {
		at := e.at
		e.at = len(e.line)
		e.draw()
		var shown strings.Builder
		for _, r := range strings.Join(candidates, "  ") {
			shown.WriteRune(visible(r))
		}
		fmt.Fprintf(e.t, "\n%s\n", shown.String())
		e.at, e.below = at, 0
	}
}

// commonPrefix returns the longest common prefix of a and b, in whole characters.
func commonPrefix(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return strings.ToValidUTF8(a[:i], "")
}
