package dialog

import (
	"strings"

	"github.com/lukv/lukv/tokenizer"
)

// Answer turns an answer's tokens into text as they come, up to the first stop
// text. It never returns part of a stop text, wherever the token boundaries
// are, nor part of a character. It belongs to one goroutine.
type Answer struct {
	tok   *tokenizer.Tokenizer
	dec   *tokenizer.StreamDecoder
	stops *Stops
	at    int32  // the node of stops that held ends in
	held  []byte // may be the beginning of a stop text
	keep  bool   // the stop text stays in the answer
	all   strings.Builder
	stop  string // the stop text that ended it; empty: none has
}

// NewAnswer returns an empty answer, which ends before the first of the stop texts.
func NewAnswer(tok *tokenizer.Tokenizer, stops *Stops) *Answer {
	return &Answer{tok: tok, dec: tok.NewDecoder(true), stops: stops}
}

// Continue makes the answer go on from the text of its prompt, so that the blank before
// its first word is kept. Call it before the first token, after ShowSpecial.
func (a *Answer) Continue() { a.dec.Continue() }

// ShowSpecial leaves special tokens in the text. Call it before the first token.
func (a *Answer) ShowSpecial() { a.dec = a.tok.NewDecoder(false) }

// KeepStop keeps the stop text that ends the answer as part of it. Call it before the
// first token.
func (a *Answer) KeepStop() { a.keep = true }

// Token takes the next token and returns the text that is now certain, which
// may be empty. Once a stop text is complete it reports true; further tokens
// are ignored.
func (a *Answer) Token(id int32) (text string, stopped bool) {
	if a.Stopped() {
		return "", true
	}
	return a.add(a.dec.Write(id)), a.Stopped()
}

// End returns the text that was held back. Call it once, after the last token.
func (a *Answer) End() string {
	if a.Stopped() {
		return ""
	}
	text := a.add(a.dec.Flush())
	if !a.Stopped() {
		a.all.Write(a.held)
		text, a.held = text+string(a.held), nil
	}
	return text
}

// Text returns everything returned so far.
func (a *Answer) Text() string { return a.all.String() }

// Stopped reports whether a stop text has ended the answer.
func (a *Answer) Stopped() bool { return a.stop != "" }

// StopText returns the stop text that has ended the answer; empty if none has.
func (a *Answer) StopText() string { return a.stop }

// add takes text and returns the part of it, and of the text held back, that is
// certain. The stop text that is completed first counts, or the longest of
// those completed together, so that it does not matter how text is split into
// pieces.
func (a *Answer) add(text string) string {
	if a.stops == nil {
		a.all.WriteString(text)
		return text
	}
	sure := -1
	for i := 0; i < len(text) && !a.Stopped(); i++ {
		a.at = a.stops.step(a.at, text[i])
		if n := int(a.stops.nodes[a.at].stop); n > 0 {
			sure = len(a.held) + i + 1
			a.stop = (string(a.held) + text[:i+1])[sure-n:]
			if !a.keep {
				sure -= n
			}
		}
	}
	if !a.Stopped() {
		sure = len(a.held) + len(text) - int(a.stops.nodes[a.at].depth)
	}
	if len(a.held) == 0 { // usually: nothing of the text is copied twice
		a.held = append(a.held, text[sure:]...)
		text = text[:sure]
	} else {
		a.held = append(a.held, text...)
		text = string(a.held[:sure])
		if sure > 0 {
			a.held = append(a.held[:0], a.held[sure:]...)
		}
	}
	if a.Stopped() {
		a.held = nil
	}
	a.all.WriteString(text)
	return text
}
