package command

import (
	"strings"
	"unicode"

	"github.com/lukv/lukv/internal/lineedit"
)

// wordWrap breaks the lines of a text between words, as it comes: a word is held back until it
// is complete. Lines of code between ``` stay as they are, for the terminal to break.
type wordWrap struct {
	columns int // 0: nothing is broken
	at      int // columns of the line so far
	gap     string
	word    []rune
	code    bool // between ```
}

// add takes the next piece of the text and returns what is certain.
func (w *wordWrap) add(text string) string {
	if w.columns <= 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n':
			w.flush(&b)
			b.WriteString(w.gap + "\n")
			w.at, w.gap = 0, ""
		case r == ' ' || r == '\t':
			w.flush(&b)
			w.gap += string(r)
		case lineedit.Width(r) > 1 || unicode.Is(unicode.Mn, r) && len(w.word) == 0: // such scripts break anywhere
			w.flush(&b)
			w.word = append(w.word, r)
			w.flush(&b)
		default:
			w.word = append(w.word, r)
		}
	}
	return b.String()
}

// end returns what was held back.
func (w *wordWrap) end() string {
	var b strings.Builder
	w.flush(&b)
	b.WriteString(w.gap)
	w.gap = ""
	return b.String()
}

// flush writes the word, on a new line if it does not fit.
func (w *wordWrap) flush(b *strings.Builder) {
	if len(w.word) == 0 {
		return
	}
	if w.at == 0 && strings.HasPrefix(string(w.word), "```") {
		w.code = !w.code
	}
	wide := 0
	for _, r := range w.word {
		wide += lineedit.Width(r)
	}
	if w.at > 0 && !w.code && wide <= w.columns && w.at+len(w.gap)+wide > w.columns {
		b.WriteString("\n")
		w.at = 0
	} else {
		b.WriteString(w.gap)
		w.at += len(w.gap)
	}
	b.WriteString(string(w.word))
	w.at += wide
	if w.at > w.columns { // the terminal has broken it
		w.at %= w.columns
	}
	w.gap, w.word = "", w.word[:0]
}
