package grammar

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

const (
	maxMultiples = 1000 // between two bounds
	maxStep      = 100  // without leading and trailing zeros
)

// bounds are those of a number; nil: none.
type bounds struct {
	least, most         *big.Rat
	leastOpen, mostOpen bool
}

// multiples returns the rule of the multiples of a number: each by itself where there are few
// between two bounds, otherwise of any length, where the only bound is a minimum of 0.
func (c *compiler) multiples(whole bool, v any, b bounds) (int32, error) {
	step, err := rational(v)
	if err != nil {
		return 0, err
	}
	if step.Sign() <= 0 {
		return 0, fmt.Errorf("found %s, expected more than 0", compact(v))
	}
	if whole { // whole multiples of p/q are the multiples of p
		step = new(big.Rat).SetInt(step.Num())
	}
	if b.least != nil && b.most != nil {
		return c.listed(step, b)
	}
	digits, _ := step.FloatPrec()
	scaled := new(big.Rat).Mul(step, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(digits)), nil)))
	switch m := scaled.Num(); {
	case !m.IsInt64() || m.Int64() > maxStep:
		return 0, fmt.Errorf("found %s, expected at most %d besides powers of ten, or a minimum and a maximum", compact(v), maxStep)
	case b.most != nil || b.least != nil && (b.least.Sign() != 0 || b.leastOpen):
		return 0, errors.New("not supported beside a single bound other than a minimum of 0")
	default:
		return c.divisible(int(m.Int64()), digits, b.least == nil), nil
	}
}

// listed returns the rule of the multiples of a step between two bounds.
func (c *compiler) listed(step *big.Rat, b bounds) (int32, error) {
	quotient := new(big.Rat).Quo(b.least, step)
	first := new(big.Int).Div(quotient.Num(), quotient.Denom()) // rounds down
	if x := new(big.Rat).Mul(new(big.Rat).SetInt(first), step); x.Cmp(b.least) < 0 || b.leastOpen && x.Cmp(b.least) == 0 {
		first.Add(first, big.NewInt(1))
	}
	digits, _ := step.FloatPrec()
	r := c.begin(0, -1)
	var words []string
	for x := new(big.Rat).Mul(new(big.Rat).SetInt(first), step); ; x.Add(x, step) {
		if order := x.Cmp(b.most); order > 0 || b.mostOpen && order == 0 {
			break
		}
		if len(words) == maxMultiples {
			return 0, fmt.Errorf("not supported beside bounds with more than %d multiples between them", maxMultiples)
		}
		text := x.FloatString(digits)
		if strings.Contains(text, ".") {
			text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
		}
		words = append(words, text)
	}
	if len(words) > 0 {
		c.words(c.rules[r].start, c.rules[r].end, words)
	}
	return r, nil
}

// divisible returns the rule of numbers with at most the given digits after the point that
// are divisible by m if the point is left out: an automaton of remainders.
func (c *compiler) divisible(m, digits int, negative bool) int32 {
	r := c.begin(0, -1)
	start, end := c.rules[r].start, c.rules[r].end
	d := &divider{c: c, r: r, m: m, digits: digits, nodes: map[remainder]int32{}}
	d.next(start, remainder{}, '1', '9')
	zero := d.node(remainder{whole: maxDigits}) // no digit follows a leading zero
	c.edge(start, zero, '0', '0')
	if negative {
		minus := c.text(start, "-")
		d.next(minus, remainder{}, '1', '9')
		if digits > 0 {
			d.small(c.text(minus, "0"))
		}
	}
	for len(d.todo) > 0 {
		at := d.todo[len(d.todo)-1]
		d.todo = d.todo[:len(d.todo)-1]
		d.expand(at, end)
	}
	return r
}

// divider makes the automaton of numbers divisible by m.
type divider struct {
	c         *compiler
	r         int32
	m, digits int
	nodes     map[remainder]int32
	todo      []remainder
}

// remainder is a place in a number.
type remainder struct {
	whole    int // digits before the point
	fraction int // after it
	of       int // what has been read, divided by m
}

func (d *divider) node(at remainder) int32 {
	n, ok := d.nodes[at]
	if !ok {
		n = d.c.node(d.r)
		d.nodes[at] = n
		d.todo = append(d.todo, at)
	}
	return n
}

// next reads one of some digits before the point.
func (d *divider) next(from int32, at remainder, lo, hi byte) {
	for b := lo; b <= hi; b++ {
		d.c.edge(from, d.node(remainder{whole: at.whole + 1, of: (10*at.of + int(b-'0')) % d.m}), b, b)
	}
}

// after reads one of some digits after the point.
func (d *divider) after(from int32, at remainder, lo, hi byte) {
	for b := lo; b <= hi; b++ {
		d.c.edge(from, d.node(remainder{fraction: at.fraction + 1, of: (10*at.of + int(b-'0')) % d.m}), b, b)
	}
}

// small reads the rest of a number between 0 and 1 after its zero.
func (d *divider) small(from int32) {
	from = d.c.text(from, ".")
	for f := range d.digits {
		d.after(from, remainder{fraction: f}, '1', '9')
		if f+1 < d.digits {
			from = d.c.text(from, "0")
		}
	}
}

// expand adds what follows a place.
func (d *divider) expand(at remainder, end int32) {
	from := d.nodes[at]
	rest := at.of
	for range d.digits - at.fraction {
		rest = rest * 10 % d.m
	}
	if rest == 0 {
		d.c.skip(from, end)
	}
	if at.fraction == 0 && at.whole < maxDigits {
		d.next(from, at, '0', '9')
	}
	switch {
	case at.fraction == 0 && d.digits > 0:
		d.after(d.c.text(from, "."), at, '0', '9')
	case at.fraction > 0 && at.fraction < d.digits:
		d.after(from, at, '0', '9')
	}
}
