package grammar

import (
	"fmt"
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

// Regexp is the texts that a Go regular expression (RE2) matches as a whole. Anchors at
// its ends change nothing; others, and word boundaries, are refused.
func Regexp(expr string) Part {
	return Part{func(c *compiler, from int32) (int32, error) {
		tree, err := syntax.Parse(expr, syntax.Perl)
		if err != nil {
			return 0, fmt.Errorf("regular expression: %w", err)
		}
		prog, err := syntax.Compile(bare(tree).Simplify())
		if err != nil {
			return 0, fmt.Errorf("regular expression: %w", err)
		}
		return c.program(from, prog)
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

// program adds a compiled expression: a node for each instruction.
func (c *compiler) program(from int32, prog *syntax.Prog) (int32, error) {
	r := c.nodes[from].rule
	at := make([]int32, len(prog.Inst))
	for i := range at {
		at[i] = c.node(r)
	}
	c.skip(from, at[prog.Start])
	to := c.node(r)
	for i := range prog.Inst {
		if c.err != nil {
			return 0, c.err
		}
		in := &prog.Inst[i]
		switch in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			c.skip(at[i], at[in.Out])
			c.skip(at[i], at[in.Arg])
		case syntax.InstCapture, syntax.InstNop:
			c.skip(at[i], at[in.Out])
		case syntax.InstMatch:
			c.skip(at[i], to)
		case syntax.InstFail:
		case syntax.InstEmptyWidth:
			return 0, fmt.Errorf("regular expression: anchors and word borders inside of it are not supported")
		case syntax.InstRuneAny:
			c.runes(at[i], at[in.Out], 0, unicode.MaxRune)
		case syntax.InstRuneAnyNotNL:
			c.runes(at[i], at[in.Out], 0, '\n'-1)
			c.runes(at[i], at[in.Out], '\n'+1, unicode.MaxRune)
		case syntax.InstRune1, syntax.InstRune:
			if len(in.Rune) == 1 {
				c.runes(at[i], at[in.Out], in.Rune[0], in.Rune[0])
				if syntax.Flags(in.Arg)&syntax.FoldCase != 0 {
					for x := unicode.SimpleFold(in.Rune[0]); x != in.Rune[0]; x = unicode.SimpleFold(x) {
						c.runes(at[i], at[in.Out], x, x)
					}
				}
				continue
			}
			for k := 0; k+1 < len(in.Rune); k += 2 {
				c.runes(at[i], at[in.Out], in.Rune[k], in.Rune[k+1])
			}
		}
	}
	return to, nil
}

// runes reads a character from lo to hi as UTF-8.
func (c *compiler) runes(from, to int32, lo, hi rune) {
	const low, high = 0xd800, 0xdfff // surrogates are not characters
	if lo <= high && hi >= low {
		if lo < low {
			c.runes(from, to, lo, low-1)
		}
		lo = high + 1
	}
	if lo > hi || c.err != nil {
		return
	}
	// Split into parts in which every byte has its own range.
	for _, most := range []rune{0x7f, 0x7ff, 0xffff} {
		if lo <= most && most < hi {
			c.runes(from, to, lo, most)
			c.runes(from, to, most+1, hi)
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
				c.runes(from, to, lo, lo|m)
				c.runes(from, to, (lo|m)+1, hi)
				return
			}
			if hi&m != m {
				c.runes(from, to, lo, hi&^m-1)
				c.runes(from, to, hi&^m, hi)
				return
			}
		}
	}
	a, b := utf8.AppendRune(nil, lo), utf8.AppendRune(nil, hi)
	for i := range a {
		next := to
		if i < len(a)-1 {
			next = c.node(c.nodes[from].rule)
		}
		c.edge(from, next, a[i], b[i])
		from = next
	}
}
