package main

import (
	"io"
	"strings"

	"github.com/lukv/lukv/tokenizer"
)

// streamer writes an answer as its tokens come, up to the first stop text, of
// which it never writes a part.
type streamer struct {
	dec     *tokenizer.StreamDecoder
	stops   []string
	w       io.Writer
	held    string // may be the beginning of a stop text
	all     strings.Builder
	stopped bool
}

func newStreamer(tok *tokenizer.Tokenizer, stops []string, w io.Writer) *streamer {
	return &streamer{dec: tok.NewDecoder(true), stops: stops, w: w}
}

// token takes the next token and reports whether a stop text was completed.
func (s *streamer) token(id int32) (stopped bool, err error) {
	err = s.text(s.dec.Write(id))
	return s.stopped, err
}

// flush writes what was held back. Call it at the end.
func (s *streamer) flush() error {
	if s.stopped {
		return nil
	}
	if err := s.text(s.dec.Flush()); err != nil || s.stopped {
		return err
	}
	err := s.emit(s.held)
	s.held = ""
	return err
}

func (s *streamer) text(text string) error {
	s.held += text
	cut, hold := -1, 0
	for _, stop := range s.stops {
		if i := strings.Index(s.held, stop); i >= 0 && (cut < 0 || i < cut) {
			cut = i
		}
		for n := min(len(stop)-1, len(s.held)); n > hold; n-- {
			if strings.HasSuffix(s.held, stop[:n]) {
				hold = n
			}
		}
	}
	if cut >= 0 {
		s.stopped = true
		text, s.held = s.held[:cut], ""
		return s.emit(text)
	}
	text, s.held = s.held[:len(s.held)-hold], s.held[len(s.held)-hold:]
	return s.emit(text)
}

func (s *streamer) emit(text string) error {
	if text == "" {
		return nil
	}
	s.all.WriteString(text)
	_, err := io.WriteString(s.w, text)
	return err
}
