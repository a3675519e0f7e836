package tokenizer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/lukv/lukv/internal/turns"
)

// scratch is the memory of one call. It comes from the pool of its tokenizer, so
// that the cache of words stays warm between calls.
//
// A stretch of text between added tokens passes through cur: first normalised,
// then cut into pieces. Each step that changes bytes writes a new cur; src tells
// where the bytes come from if spans are wanted.
type scratch struct {
	ids   []int32
	spans []Span
	want  bool // spans are wanted

	ctx   context.Context
	limit int   // tokens that ids may hold
	err   error // why the call ends before its text does
	work  int   // bytes until the next look at ctx and limit

	cur    string
	base   int    // position of cur in the text while src is nil
	src    []Span // by byte of cur: the bytes of the text it stands for; nil: itself
	pieces []piece

	// The two buffers that cur and src alternate between.
	out    []byte
	outSrc []Span
	norm   []byte
	bufs   [2][]byte
	srcs   [2][]Span
	turn   int
	// A second pair of buffers, for pre-tokenizers that work on a part of cur.
	altBufs [2][]byte
	altSrcs [2][]Span

	spare   []piece
	found   []piece
	search  patternSearch
	matches []match
	list    mergeList
	parts   []part // that symbols became
	links   []link
	heap    rankHeap

	symbols      []symbol // of a word, or of a window on it
	before       []symbol // of the token before the window
	joint        []symbol // before and the first token of the window
	jointParts   []part
	merged       []symbol // what parts came from
	window       []symbol // of the previous window: what it emitted
	windowBefore []symbol // and its before
	joined       []symbol // the joint that was last found to stay two tokens,
	joinedAt     int      // the second of which begins here

	cache   []cacheEntry // cacheSize entries, from the first word on
	unkLast bool         // SentencePiece: the last token is unknown and its stretch goes on
}

// piece is a part of cur, cur[start:end].
type piece struct{ start, end int }

// What an idle scratch keeps: bytes in a buffer, entries in a list.
const (
	keepBytes   = 4 << 20
	keepEntries = 1 << 19
)

// lookEvery is how many bytes of work pass between two checks of the
// context: a fraction of a millisecond.
const lookEvery = 1 << 14

// errLimit says that there are more tokens than the call may return.
var errLimit = errors.New("more tokens than the limit")

// begin makes a scratch ready for a call.
func (s *scratch) begin(ctx context.Context, limit int) {
	s.ctx, s.limit, s.err, s.work = ctx, limit, nil, lookEvery
	s.ids, s.spans = s.ids[:0], s.spans[:0]
}

// spent counts n bytes of work and reports whether the call has to end: a loop that
// can be long then breaks off and leaves whatever it has.
func (s *scratch) spent(n int) bool {
	s.work -= n + 1
	return s.work < 0 && s.pause()
}

// pause is look in the middle of a long text, where it also makes room for ids:
// append, growing by a quarter at a time, would copy them five times.
func (s *scratch) pause() bool {
	if cap(s.ids)-len(s.ids) < lookEvery {
		s.ids = slices.Grow(s.ids, max(len(s.ids), lookEvery))
	}
	return s.look()
}

// look checks the context and the limit and reports whether the call has to end.
func (s *scratch) look() bool {
	if s.err != nil {
		return true
	}
	s.work = lookEvery
	if err := turns.Check(s.ctx); err != nil {
		s.err = err
	} else if len(s.ids) > s.limit {
		s.err = errLimit
	}
	if s.err != nil {
		s.work = -1
	}
	return s.err != nil
}

// trim drops the call's values and any buffers that one very long text has grown.
func (s *scratch) trim() {
	s.ctx = nil
	s.cur, s.src = "", nil
	if cap(s.ids) > keepEntries {
		s.ids, s.spans = nil, nil
	}
	for i := range s.bufs {
		if max(cap(s.bufs[i]), cap(s.altBufs[i])) > keepBytes {
			s.bufs[i], s.altBufs[i] = nil, nil
		}
		if max(cap(s.srcs[i]), cap(s.altSrcs[i])) > keepEntries {
			s.srcs[i], s.altSrcs[i] = nil, nil
		}
	}
	s.out, s.outSrc = nil, nil
	if max(cap(s.pieces), cap(s.spare), cap(s.matches), cap(s.found)) > keepEntries {
		s.pieces, s.spare, s.matches, s.found = nil, nil, nil, nil
	}
	if cap(s.search.stack) > keepEntries {
		s.search.stack = nil
	}
	if max(cap(s.links), cap(s.heap), cap(s.parts), cap(s.symbols)) > keepEntries {
		s.links, s.heap, s.parts, s.symbols = nil, nil, nil, nil
		s.merged, s.window = nil, nil
	}
}

// set makes text, which starts at base in the whole text, the current stretch.
func (s *scratch) set(text string, base int) {
	s.cur, s.base, s.src = text, base, nil
}

// origin maps cur[start:end] to the bytes of the text that it stands for.
func (s *scratch) origin(start, end int) Span {
	if s.src == nil {
		return Span{s.base + start, s.base + end}
	}
	if start >= end {
		switch {
		case start < len(s.src):
			return Span{s.src[start].Start, s.src[start].Start}
		case len(s.src) > 0:
			return Span{s.src[len(s.src)-1].End, s.src[len(s.src)-1].End}
		}
		return Span{s.base, s.base}
	}
	return Span{s.src[start].Start, max(s.src[start].Start, s.src[end-1].End)}
}

func (s *scratch) emit(id int32, start, end int) {
	s.ids = append(s.ids, id)
	if s.want {
		s.spans = append(s.spans, s.origin(start, end))
	}
}

// rewrite starts a rewrite of cur.
func (s *scratch) rewrite() {
	s.out, s.outSrc = s.bufs[s.turn][:0], s.srcs[s.turn][:0]
	s.out = slices.Grow(s.out, len(s.cur)+len(s.cur)/8+64)
}

// put adds text that stands for cur[start:end].
func (s *scratch) put(text string, start, end int) {
	s.out = append(s.out, text...)
	if s.want {
		o := s.origin(start, end)
		for range len(text) {
			s.outSrc = append(s.outSrc, o)
		}
	}
}

// copyOver adds cur[start:end] as it is.
func (s *scratch) copyOver(start, end int) {
	s.out = append(s.out, s.cur[start:end]...)
	if s.want {
		for i := start; i < end; i++ {
			s.outSrc = append(s.outSrc, s.origin(i, i+1))
		}
	}
}

// finish makes what was written since rewrite the current stretch. The bytes stay
// untouched until the rewrite after the next.
func (s *scratch) finish() {
	s.bufs[s.turn], s.srcs[s.turn] = s.out, s.outSrc
	s.cur = unsafe.String(unsafe.SliceData(s.out), len(s.out))
	s.src = nil
	if s.want {
		s.src = s.outSrc
		if s.src == nil {
			s.src = []Span{}
		}
	}
	s.turn = 1 - s.turn
}

// replaceAll rewrites cur with every old replaced by new.
func (s *scratch) replaceAll(old, new string) {
	if !strings.Contains(s.cur, old) {
		return
	}
	s.rewrite()
	for i := 0; ; {
		k := strings.Index(s.cur[i:], old)
		if k < 0 {
			s.copyOver(i, len(s.cur))
			break
		}
		s.copyOver(i, i+k)
		s.put(new, i+k, i+k+len(old))
		i += k + len(old)
		if s.spent(k + len(old)) {
			break
		}
	}
	s.finish()
}

// runeLen returns the length of the character at s[i:], at least 1.
func runeLen(s string, i int) int {
	if s[i] < utf8.RuneSelf {
		return 1
	}
	_, n := utf8.DecodeRuneInString(s[i:])
	return n
}

// A mark is a place in the output to go back to.
type mark struct {
	ids, spans int
	unkLast    bool
}

func (s *scratch) mark() mark { return mark{len(s.ids), len(s.spans), s.unkLast} }

func (s *scratch) backTo(m mark) {
	s.ids, s.spans, s.unkLast = s.ids[:m.ids], s.spans[:m.spans], m.unkLast
}
