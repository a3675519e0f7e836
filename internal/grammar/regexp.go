package grammar

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Regexp is the texts that a Go regular expression (RE2) matches as a whole. Anchors at
// its ends change nothing; others are followed. Word boundaries and the anchors of lines
// within a text are refused.
func Regexp(expr string) Part {
	return Part{func(c *compiler, from int32) (int32, error) {
		tree, err := syntax.Parse(expr, syntax.Perl)
		if err != nil {
			return 0, fmt.Errorf("regular expression: %w", err)
		}
		to := c.node(c.nodes[from].rule)
		if err := c.expression(from, to, bare(tree), 0, -1, false); err != nil {
			return 0, fmt.Errorf("regular expression: %w", err)
		}
		return to, nil
	}}
}

// bare returns an expression without the anchors at its ends.
func bare(re *syntax.Regexp) *syntax.Regexp {
	if re.Op == syntax.OpConcat {
		for len(re.Sub) > 0 && (re.Sub[0].Op == syntax.OpBeginText || re.Sub[0].Op == syntax.OpBeginLine) {
			re.Sub = re.Sub[1:]
		}
		for n := len(re.Sub); n > 0 && (re.Sub[n-1].Op == syntax.OpEndText || re.Sub[n-1].Op == syntax.OpEndLine); n-- {
			re.Sub = re.Sub[:n-1]
		}
		if len(re.Sub) == 0 {
			re.Op = syntax.OpEmptyMatch
		}
	}
	return re
}

// pattern returns the rule of the JSON strings of least to most characters (most -1: no
// bound) in which a regular expression of ECMA 262 is found. Characters are written as
// themselves where JSON allows it.
func (c *compiler) pattern(text string, least, most int) (int32, error) {
	tree, err := parsePattern(text)
	if err != nil {
		return 0, err
	}
	anything := &syntax.Regexp{Op: syntax.OpStar, Sub: []*syntax.Regexp{{Op: syntax.OpAnyChar}}}
	found := &syntax.Regexp{Op: syntax.OpConcat, Sub: []*syntax.Regexp{anything, tree, anything}}
	r := c.begin(0, -1)
	last := c.node(r)
	c.edge(last, c.rules[r].end, '"', '"')
	return r, c.expression(c.text(c.rules[r].start, `"`), last, found, least, most, true)
}

// place is an instruction of a compiled expression together with the facts that anchors
// and bounds on the length depend on.
type place struct {
	inst         uint32
	length       int32 // characters read, as far as bounds need it
	begun, ended bool  // a character was read; no more may come
}

// placeEdge leads from one place to another, by a character if the first has any.
type placeEdge struct{ from, to int32 }

// expression reads, from one node to another, the texts of least to most characters (most
// -1: no bound) that an expression matches as a whole, inside a JSON string or as they are.
// Places from which no end can be reached get no node.
func (c *compiler) expression(from, to int32, re *syntax.Regexp, least, most int, json bool) error {
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return err
	}
	list, edges, err := c.places(prog, least, most)
	if err != nil {
		return err
	}
	complete := func(p place) bool { return prog.Inst[p.inst].Op == syntax.InstMatch && int(p.length) >= least }
	live := livePlaces(list, edges, complete)
	if !live[0] {
		return nil // nothing
	}
	r := c.nodes[from].rule
	nodes := make([]int32, len(list))
	for i := range nodes {
		if live[i] {
			nodes[i] = c.node(r)
		}
	}
	c.skip(from, nodes[0])
	sets := charSets{c: c, json: json, rules: map[*rune]int32{}}
	for i, p := range list {
		if live[i] && complete(p) {
			c.skip(nodes[i], to)
		}
	}
	chars := setsOf(prog)
	for _, e := range edges {
		switch set := chars[list[e.from].inst]; {
		case !live[e.to] || c.err != nil:
		case set == nil:
			c.skip(nodes[e.from], nodes[e.to])
		default:
			sets.add(nodes[e.from], nodes[e.to], set)
		}
	}
	return nil
}

// setsOf returns the characters of each instruction, nil if it reads none.
func setsOf(prog *syntax.Prog) [][]rune {
	sets := make([][]rune, len(prog.Inst))
	for i := range sets {
		sets[i] = runesOf(&prog.Inst[i])
	}
	return sets
}

// places returns the places that texts may go through, the first of them first, and their
// edges in order of the places.
func (c *compiler) places(prog *syntax.Prog, least, most int) (list []place, edges []placeEdge, err error) {
	if c.patterns += len(prog.Inst); c.patterns > maxNodes {
		return nil, nil, fmt.Errorf("all patterns together need more than %d states", maxNodes)
	}
	begins, ends := false, false
	for i := range prog.Inst {
		in := &prog.Inst[i]
		begins = begins || in.Op == syntax.InstEmptyWidth && syntax.EmptyOp(in.Arg) == syntax.EmptyBeginText
		ends = ends || in.Op == syntax.InstEmptyWidth && syntax.EmptyOp(in.Arg) == syntax.EmptyEndText
	}
	index := map[place]int32{}
	at := int32(-1)
	visit := func(p place) {
		p.begun, p.ended = p.begun && begins, p.ended && ends
		i, ok := index[p]
		if !ok {
			i = int32(len(list))
			index[p] = i
			list = append(list, p)
		}
		if at >= 0 {
			edges = append(edges, placeEdge{at, i})
		}
	}
	visit(place{inst: uint32(prog.Start)})
	for i := 0; i < len(list); i++ {
		at = int32(i)
		if err := c.look(1); err != nil {
			return nil, nil, err
		}
		if c.patterns++; c.patterns > maxNodes {
			return nil, nil, fmt.Errorf("all patterns together need more than %d states", maxNodes)
		}
		p := list[i]
		in := &prog.Inst[p.inst]
		follow := func(to uint32) {
			next := p
			next.inst = to
			visit(next)
		}
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			follow(in.Out)
			follow(in.Arg)
		case syntax.InstCapture, syntax.InstNop:
			follow(in.Out)
		case syntax.InstEmptyWidth:
			switch syntax.EmptyOp(in.Arg) {
			case syntax.EmptyBeginText:
				if !p.begun {
					follow(in.Out)
				}
			case syntax.EmptyEndText:
				p.ended = true
				follow(in.Out)
			default:
				return nil, nil, errors.New("anchors of lines and word borders inside of it are not supported")
			}
		default: // characters
			if next := int(p.length) + 1; readsCharacter(in) && !p.ended && (most < 0 || next <= most) {
				if most < 0 {
					next = min(next, least)
				}
				visit(place{inst: in.Out, length: int32(next), begun: true})
			}
		}
	}
	return list, edges, nil
}

var (
	anyRune      = []rune{0, unicode.MaxRune}
	anyRuneNotNL = []rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune}
)

// runesOf returns the characters of an instruction as pairs of bounds, none if it reads no
// character. Equal slices of instructions stay equal.
func runesOf(in *syntax.Inst) []rune {
	switch in.Op {
	case syntax.InstRuneAny:
		return anyRune
	case syntax.InstRuneAnyNotNL:
		return anyRuneNotNL
	case syntax.InstRune1, syntax.InstRune:
		if len(in.Rune) != 1 {
			return in.Rune
		}
		r := in.Rune[0]
		out := []rune{r, r}
		if syntax.Flags(in.Arg)&syntax.FoldCase != 0 {
			for x := unicode.SimpleFold(r); x != r; x = unicode.SimpleFold(x) {
				out = append(out, x, x)
			}
		}
		return out
	}
	return nil
}

// readsCharacter reports whether an instruction reads one of at least one character.
func readsCharacter(in *syntax.Inst) bool {
	switch in.Op {
	case syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
		return true
	}
	return (in.Op == syntax.InstRune1 || in.Op == syntax.InstRune) && len(in.Rune) > 0
}

// livePlaces reports from which places a complete one can be reached.
func livePlaces(list []place, edges []placeEdge, complete func(place) bool) []bool {
	first := make([]int32, len(list)+1) // of the edges into a place, in into
	for _, e := range edges {
		first[e.to+1]++
	}
	for i := range list {
		first[i+1] += first[i]
	}
	into, filled := make([]int32, len(edges)), slices.Clone(first)
	for _, e := range edges {
		into[filled[e.to]] = e.from
		filled[e.to]++
	}
	var todo []int32
	for i, p := range list {
		if complete(p) {
			todo = append(todo, int32(i))
		}
	}
	live := make([]bool, len(list))
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !live[i] {
			live[i] = true
			todo = append(todo, into[first[i]:first[i+1]]...)
		}
	}
	return live
}

// charSets adds the edges of sets of characters. A set with control characters or beyond
// ASCII becomes a rule of its own, which all its places share.
type charSets struct {
	c     *compiler
	json  bool            // inside a JSON string
	rules map[*rune]int32 // by the first element of a set: a set is compared once, however often it occurs
}

func (s *charSets) add(from, to int32, set []rune) {
	c := s.c
	if set[len(set)-1] < utf8.RuneSelf && set[0] >= ' ' {
		c.chars(from, to, set, s.json)
		return
	}
	r, ok := s.rules[&set[0]]
	if !ok {
		key := fmt.Sprintf("%t %x", s.json, set)
		if r, ok = c.sets[key]; !ok {
			r = c.begin(0, -1)
			c.chars(c.rules[r].start, c.rules[r].end, set, s.json)
			c.sets[key] = r
		}
		s.rules[&set[0]] = r
	}
	c.call(from, to, r)
}

// shortEscapes are the control characters that JSON has letters for.
const shortEscapes = "\b\f\n\r\t"

// chars reads a character of a set: as UTF-8 or, inside a JSON string, as JSON writes it.
func (c *compiler) chars(from, to int32, set []rune, json bool) {
	t := utf8Tree{c: c, next: map[utf8Edge]int32{}}
	if json {
		c.stringChars(from, to, set, &t)
		return
	}
	for i := 0; i < len(set); i += 2 {
		t.runes(from, to, set[i], set[i+1])
	}
}

// stringChars reads a character of a set inside a JSON string.
func (c *compiler) stringChars(from, to int32, set []rune, t *utf8Tree) {
	escape, digits := int32(-1), [2]int32{-1, -1}
	child := func(at *int32, parent int32, text string) int32 {
		if *at < 0 {
			*at = c.text(parent, text)
		}
		return *at
	}
	for i := 0; i < len(set); i += 2 {
		lo, hi := set[i], set[i+1]
		for r := lo; r <= min(hi, 0x1f); r++ {
			at := child(&escape, from, `\`)
			if k := strings.IndexRune(shortEscapes, r); k >= 0 {
				c.edge(at, to, "bfnrt"[k], "bfnrt"[k])
				continue
			}
			at = child(&digits[r>>4], at, "u00"+string(rune('0'+r>>4)))
			d := "0123456789abcdef"[r&15]
			c.edge(at, to, d, d)
		}
		for _, r := range []rune{'"', '\\'} {
			if lo <= r && r <= hi {
				c.edge(child(&escape, from, `\`), to, byte(r), byte(r))
			}
		}
		for _, plain := range [][2]rune{{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, unicode.MaxRune}} {
			if a, b := max(lo, plain[0]), min(hi, plain[1]); a <= b {
				t.runes(from, to, a, b)
			}
		}
	}
}

// utf8Tree adds sets of characters as UTF-8. Characters that begin with the same bytes
// share the nodes after them, so that a node has at most one edge for a byte.
type utf8Tree struct {
	c    *compiler
	next map[utf8Edge]int32
}

type utf8Edge struct {
	from   int32
	lo, hi byte
}

// runes reads a character from lo to hi.
func (t *utf8Tree) runes(from, to int32, lo, hi rune) {
	const low, high = 0xd800, 0xdfff // surrogates are not characters
	if lo <= high && hi >= low {
		if lo < low {
			t.runes(from, to, lo, low-1)
		}
		lo = high + 1
	}
	if lo > hi || t.c.err != nil {
		return
	}
	// Split into parts in which every byte has its own range.
	for _, most := range []rune{0x7f, 0x7ff, 0xffff} {
		if lo <= most && most < hi {
			t.runes(from, to, lo, most)
			t.runes(from, to, most+1, hi)
			return
		}
	}
	if hi > 0x7f {
		for bits := 6; bits <= 18; bits += 6 {
			m := rune(1)<<bits - 1
			if lo&^m == hi&^m {
				continue
			}
			if lo&m != 0 {
				t.runes(from, to, lo, lo|m)
				t.runes(from, to, (lo|m)+1, hi)
				return
			}
			if hi&m != m {
				t.runes(from, to, lo, hi&^m-1)
				t.runes(from, to, hi&^m, hi)
				return
			}
		}
	}
	a, b := utf8.AppendRune(nil, lo), utf8.AppendRune(nil, hi)
	last := len(a) - 1
	for i := range last {
		e := utf8Edge{from, a[i], b[i]}
		next, ok := t.next[e]
		if !ok {
			next = t.c.node(t.c.nodes[from].rule)
			t.c.edge(from, next, a[i], b[i])
			t.next[e] = next
		}
		from = next
	}
	t.c.edge(from, to, a[last], b[last])
}
