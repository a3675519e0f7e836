package dialog

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lukv/lukv/tokenizer"
)

// Answer turns an answer's tokens into text as they come, up to the first stop
// text. It never returns part of a stop text, wherever the token boundaries
// are, nor part of a character. It belongs to one goroutine.
type Answer struct {
	tok     *tokenizer.Tokenizer
	dec     *tokenizer.StreamDecoder
	stops   []string
	held    string // may be the beginning of a stop text
	keep    bool   // the stop text stays in the answer
	all     strings.Builder
	stopped bool
}

// NewAnswer returns an empty answer. It ends before the first of the stop texts,
// which [CheckStops] accepts.
func NewAnswer(tok *tokenizer.Tokenizer, stops []string) *Answer {
	return &Answer{tok: tok, dec: tok.NewDecoder(true), stops: stops}
}

// ShowSpecial leaves special tokens in the text. Call it before the first token.
func (a *Answer) ShowSpecial() { a.dec = a.tok.NewDecoder(false) }

// KeepStop keeps the stop text that ends the answer as part of it. Call it before the
// first token.
func (a *Answer) KeepStop() { a.keep = true }

// CheckStops reports stop texts that cannot be searched for: empty ones,
// which occur everywhere, and those that are not UTF-8, which no text
// contains.
func CheckStops(stops []string) error {
	for _, s := range stops {
		switch {
		case s == "":
			return fmt.Errorf("the text is empty")
		case !utf8.ValidString(s):
			return fmt.Errorf("%q is not UTF-8", s)
		}
	}
	return nil
}

// Token takes the next token and returns the text that is now certain, which
// may be empty. Once a stop text is complete it reports true; further tokens
// are ignored.
func (a *Answer) Token(id int32) (text string, stopped bool) {
	if a.stopped {
		return "", true
	}
	return a.add(a.dec.Write(id)), a.stopped
}

// End returns what was held back. Call it once, after the last token.
func (a *Answer) End() string {
	if a.stopped {
		return ""
	}
	text := a.add(a.dec.Flush())
	if !a.stopped {
		a.all.WriteString(a.held)
		text, a.held = text+a.held, ""
	}
	return text
}

// Text returns everything returned so far.
func (a *Answer) Text() string { return a.all.String() }

// Stopped reports whether a stop text has ended the answer.
func (a *Answer) Stopped() bool { return a.stopped }

// add takes text and returns the part of it, and of what was held back, that is
// certain. The stop text that is completed first counts, or the longest of
// those completed together, so that it does not matter how text is split into
// pieces.
func (a *Answer) add(text string) string {
	a.held += text
	start, end, hold := -1, 0, 0
	for _, stop := range a.stops {
		if i := strings.Index(a.held, stop); i >= 0 {
			if e := i + len(stop); start < 0 || e < end || e == end && i < start {
				start, end = i, e
			}
		}
		for n := min(len(stop)-1, len(a.held)); n > hold; n-- {
			if strings.HasSuffix(a.held, stop[:n]) {
				hold = n
			}
		}
	}
	if start >= 0 {
		a.stopped = true
		if a.keep {
			start = end
		}
		text, a.held = a.held[:start], ""
	} else {
		text, a.held = a.held[:len(a.held)-hold], a.held[len(a.held)-hold:]
	}
	a.all.WriteString(text)
	return text
}
