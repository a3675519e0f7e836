package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// A preTokenizer cuts s.pieces further; it may rewrite s.cur. first says that
// the stretch is at the very start of the text.
type preTokenizer interface {
	cut(s *scratch, first bool)
}

// behaviour is what a Split does with the matches of its pattern.
type behaviour int

const (
	isolated behaviour = iota
	removed
	contiguous
	mergedWithPrevious
	mergedWithNext
)

var behaviours = map[string]behaviour{
	"Isolated":           isolated,
	"Removed":            removed,
	"Contiguous":         contiguous,
	"MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext":     mergedWithNext,
}

// match is a part of a piece and whether the pattern matched it.
type match struct {
	piece
	hit bool
}

type split struct {
	m      matcher
	how    behaviour
	invert bool
}

func (p split) cut(s *scratch, _ bool) {
	out := s.spare[:0]
	for _, pc := range s.pieces {
		if s.spent(pc.end - pc.start) {
			break
		}
		out = p.cutOne(s, out, pc)
	}
	s.pieces, s.spare = out, s.pieces
}

func (p split) cutOne(s *scratch, out []piece, pc piece) []piece {
	text := s.cur[pc.start:pc.end]
	if sc, ok := p.m.(scanner); ok && p.how == isolated {
		for i := 0; i < len(text); {
			e := sc.scan(text, i)
			out = append(out, piece{pc.start + i, pc.start + e})
			if s.spent(e - i) {
				break
			}
			i = e
		}
		return out
	}
	s.found = p.m.find(s, s.found[:0], text)
	parts := s.matches[:0]
	prev := 0
	for _, f := range s.found {
		if prev != f.start {
			parts = append(parts, match{piece{pc.start + prev, pc.start + f.start}, p.invert})
		}
		parts = append(parts, match{piece{pc.start + f.start, pc.start + f.end}, !p.invert})
		prev = f.end
	}
	if prev != len(text) {
		parts = append(parts, match{piece{pc.start + prev, pc.end}, p.invert})
	}
	s.matches = parts

	from := len(out)
	switch p.how {
	case isolated:
		for _, m := range parts {
			out = append(out, m.piece)
		}
	case removed:
		for _, m := range parts {
			if !m.hit {
				out = append(out, m.piece)
			}
		}
	case contiguous:
		was := false
		for _, m := range parts {
			if m.hit == was && len(out) > from {
				out[len(out)-1].end = m.end
			} else {
				out = append(out, m.piece)
			}
			was = m.hit
		}
	case mergedWithPrevious:
		was := false
		for _, m := range parts {
			if m.hit && !was && len(out) > from {
				out[len(out)-1].end = m.end
			} else {
				out = append(out, m.piece)
			}
			was = m.hit
		}
	case mergedWithNext:
		// A match joins what follows it, unless that is a match.
		for i, m := range parts {
			if i > 0 && parts[i-1].hit && !m.hit {
				out[len(out)-1].end = m.end
			} else {
				out = append(out, m.piece)
			}
		}
	}
	keep := out[:from]
	for _, q := range out[from:] {
		if q.start < q.end {
			keep = append(keep, q)
		}
	}
	return keep
}

// byteLevel is the ByteLevel pre-tokenizer without its change of alphabet: the
// model works on bytes.
type byteLevel struct {
	prefixSpace bool
	words       matcher // nil if its regular expression is off
}

func (p byteLevel) cut(s *scratch, first bool) {
	if p.prefixSpace {
		prepend(s, func(i int, text string) string {
			if text == "" || strings.HasPrefix(text, " ") {
				return ""
			}
			return " "
		})
	}
	if p.words != nil {
		split{m: p.words}.cut(s, first)
	}
}

// prepend puts prefix(i, text) before each piece, where text is the i-th piece.
func prepend(s *scratch, prefix func(i int, text string) string) {
	s.rewrite()
	for i, pc := range s.pieces {
		at := len(s.out)
		s.put(prefix(i, s.cur[pc.start:pc.end]), pc.start, pc.start)
		s.copyOver(pc.start, pc.end)
		s.pieces[i] = piece{at, len(s.out)}
	}
	s.finish()
}

type prependScheme int

const (
	prependAlways prependScheme = iota
	prependFirst
	prependNever
)

// metaspace writes blanks as a visible character and marks the start of words.
type metaspace struct {
	mark   string // the replacement, one character
	scheme prependScheme
	split  bool
}

func (p metaspace) cut(s *scratch, first bool) {
	s.rewrite()
	for i, pc := range s.pieces {
		at := len(s.out)
		text := s.cur[pc.start:pc.end]
		if text != "" && !strings.HasPrefix(text, " ") && !strings.HasPrefix(text, p.mark) &&
			(p.scheme == prependAlways || p.scheme == prependFirst && first && i == 0) {
			s.put(p.mark, pc.start, pc.start)
		}
		for j := 0; j < len(text); {
			k := strings.IndexByte(text[j:], ' ')
			if k < 0 {
				k = len(text) - j
			}
			s.copyOver(pc.start+j, pc.start+j+k)
			j += k
			if s.spent(k) {
				break
			}
			if j < len(text) {
				s.put(p.mark, pc.start+j, pc.start+j+1)
				j++
			}
		}
		s.pieces[i] = piece{at, len(s.out)}
	}
	s.finish()
	if p.split {
		split{m: literal(p.mark), how: mergedWithNext}.cut(s, first)
	}
}

// oneRune returns the length of s if it is a single character, else 0.
func oneRune(s string) int {
	r, n := utf8.DecodeRuneInString(s)
	if n != len(s) || r == utf8.RuneError && n <= 1 {
		return 0
	}
	return n
}
