package jinja

import (
	"sort"
	"strings"
	"unicode/utf8"
)

// Span is a range of bytes text[Start:End].
type Span struct{ Start, End int }

// text is the language's string. It knows which of its bytes came from the
// input: they keep that mark through every operation, so that a reader of the
// rendered text can tell the template's words from a user's.
type text struct {
	s    string
	data []Span // bytes from the input: ascending, disjoint, not empty, not adjacent
	safe bool   // marked by the filters safe and escape
}

// own returns text of the template itself.
func own(s string) text { return text{s: s} }

// foreign returns text from the input.
func foreign(s string) text {
	if s == "" {
		return text{}
	}
	return text{s: s, data: []Span{{0, len(s)}}}
}

// cut returns t.s[from:to].
func (r *run) cut(t text, from, to int) text {
	out := text{s: t.s[from:to], safe: t.safe}
	if from == to {
		return text{safe: t.safe}
	}
	if from == 0 && to == len(t.s) {
		out.data = t.data
		return out
	}
	first := sort.Search(len(t.data), func(i int) bool { return t.data[i].End > from })
	last := first + sort.Search(len(t.data)-first, func(i int) bool { return t.data[first+i].Start >= to })
	if first == last {
		return out
	}
	r.step((last - first) / 16)
	r.allocTimes(last-first, spanBytes)
	out.data = make([]Span, last-first)
	for i, sp := range t.data[first:last] {
		out.data[i] = Span{max(sp.Start, from) - from, min(sp.End, to) - from}
	}
	return out
}

// marker returns a function that reports, for ascending offsets of t,
// whether the byte there came from the input.
func (t text) marker() func(at int) bool {
	left := t.data
	return func(at int) bool {
		for len(left) > 0 && left[0].End <= at {
			left = left[1:]
		}
		return len(left) > 0 && left[0].Start <= at
	}
}

// trim removes the characters for which drop holds from the chosen ends.
func (r *run) trim(t text, drop func(rune) bool, left, right bool) text {
	r.work(len(t.s))
	from, to := 0, len(t.s)
	if left {
		from = to - len(strings.TrimLeftFunc(t.s, drop))
	}
	if right {
		to = from + len(strings.TrimRightFunc(t.s[from:], drop))
	}
	return r.cut(t, from, to)
}

// runeOffset returns the byte offset of the n-th code point of s.
func runeOffset(s string, n int) int {
	for i := range s {
		if n == 0 {
			return i
		}
		n--
	}
	return len(s)
}

// builder builds a text and charges for memory before using it.
type builder struct {
	r    *run
	b    *strings.Builder
	data []Span
}

func (r *run) builder() *builder { return &builder{r: r, b: new(strings.Builder)} }

// grow makes room for n more bytes.
func (b *builder) grow(n int) {
	need, have := b.b.Len()+n, b.b.Cap()
	if need <= have {
		return
	}
	if b.b.Len() == 0 {
		need = max(need, 32)
	} else if have < 1<<16 {
		need = max(need, 2*have)
	} else {
		need = max(need, have+have/4)
	}
	b.r.alloc(need)
	bigger := new(strings.Builder)
	bigger.Grow(need)
	bigger.WriteString(b.b.String())
	b.b = bigger
}

func (b *builder) mark(from, to int) {
	if n := len(b.data); n > 0 && b.data[n-1].End == from {
		b.data[n-1].End = to
		return
	}
	b.r.alloc(2 * spanBytes) // a growing slice holds up to twice what it needs
	b.data = append(b.data, Span{from, to})
}

// add appends t.
func (b *builder) add(t text) {
	b.grow(len(t.s))
	at := b.b.Len()
	b.b.WriteString(t.s)
	for _, sp := range t.data {
		b.mark(at+sp.Start, at+sp.End)
	}
}

// put appends s, marked as data or not as a whole.
func (b *builder) put(s string, data bool) {
	if s == "" {
		return
	}
	b.grow(len(s))
	at := b.b.Len()
	b.b.WriteString(s)
	if data {
		b.mark(at, at+len(s))
	}
}

func (b *builder) text() text { return text{s: b.b.String(), data: b.data} }

// concat joins parts. As in Markup, if any part is safe, those that are not
// are escaped.
func (r *run) concat(parts ...text) text {
	safe := false
	for _, p := range parts {
		safe = safe || p.safe
	}
	b := r.builder()
	n := 0
	for _, p := range parts {
		n += len(p.s)
	}
	b.grow(n)
	for _, p := range parts {
		if safe && !p.safe {
			p = r.escape(p)
		}
		b.add(p)
	}
	out := b.text()
	out.safe = safe
	return out
}

// escape replaces the characters that HTML reserves.
func (r *run) escape(t text) text {
	out := r.mapRunes(t, func(c rune) string {
		switch c {
		case '&':
			return "&amp;"
		case '>':
			return "&gt;"
		case '<':
			return "&lt;"
		case '\'':
			return "&#39;"
		case '"':
			return "&#34;"
		}
		return ""
	})
	out.safe = true
	return out
}

// mapRunes replaces characters; to returns "" for those that stay.
func (r *run) mapRunes(t text, to func(rune) string) text {
	r.work(len(t.s))
	b := r.builder()
	of := t.marker()
	from := 0
	for i, c := range t.s {
		s := to(c)
		if s == "" {
			continue
		}
		r.step(1)
		b.add(r.cut(t, from, i))
		b.put(s, of(i))
		_, n := utf8.DecodeRuneInString(t.s[i:])
		from = i + n
	}
	if from == 0 {
		return t
	}
	b.add(r.cut(t, from, len(t.s)))
	out := b.text()
	out.safe = t.safe
	return out
}

// replace is str.replace; count < 0 means all. The replacement keeps its
// own marks; as in Markup it is escaped if only t is safe.
func (r *run) replace(t, old, repl text, count int) text {
	r.work(len(t.s))
	n := strings.Count(t.s, old.s) // an empty old matches between and around all characters
	if count >= 0 {
		n = min(n, count)
	}
	if n == 0 {
		return t
	}
	if t.safe && !repl.safe {
		repl = r.escape(repl)
	}
	r.step(n)
	b := r.builder()
	from := 0
	for i := range n {
		at := from
		if old.s == "" {
			if i > 0 {
				_, size := utf8.DecodeRuneInString(t.s[from:])
				at += size
			}
		} else {
			at += strings.Index(t.s[from:], old.s)
		}
		b.add(r.cut(t, from, at))
		b.add(repl)
		from = at + len(old.s)
	}
	b.add(r.cut(t, from, len(t.s)))
	out := b.text()
	out.safe = t.safe
	return out
}

// repeat returns t * n.
func (r *run) repeat(t text, n int) text {
	if t.s == "" || n <= 0 {
		return text{safe: t.safe}
	}
	r.step(n)
	if n > r.limits.Memory/len(t.s) {
		r.alloc(r.limits.Memory + 1)
	}
	b := r.builder()
	b.grow(n * len(t.s))
	for range n {
		b.add(t)
	}
	out := b.text()
	out.safe = t.safe
	return out
}
