package grammar

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
)

// maxDigits is the most digits that numbers have on either side of the point, unless a
// bound has more: whole numbers fit 64 bits.
const maxDigits = 18

// limit is a bound of a nonnegative number.
type limit struct {
	whole, fraction string // decimal digits; no leading zeros in one nor trailing ones in the other
	open            bool   // the bound itself is excluded
}

// decimals returns the rule of numbers. With bounds they have no exponent.
func (c *compiler) decimals(whole bool, o *object, path string) (int32, error) {
	var least, most *big.Rat
	var leastOpen, mostOpen bool
	for _, k := range []string{"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"} {
		v, ok := o.values[k]
		if !ok {
			continue
		}
		if on, isBool := v.(bool); isBool && strings.HasPrefix(k, "exclusive") { // of draft 4: the other keyword is the bound
			if strings.HasSuffix(k, "inimum") {
				leastOpen = leastOpen || on
			} else {
				mostOpen = mostOpen || on
			}
			continue
		}
		x, err := rational(v)
		if err != nil {
			return 0, fmt.Errorf("schema at %s/%s: %w", path, k, err)
		}
		open := strings.HasPrefix(k, "exclusive")
		if strings.HasSuffix(k, "inimum") {
			if least == nil || least.Cmp(x) < 0 || least.Cmp(x) == 0 && open {
				least, leastOpen = x, open
			}
		} else if most == nil || most.Cmp(x) > 0 || most.Cmp(x) == 0 && open {
			most, mostOpen = x, open
		}
	}
	if v, ok := o.values["multipleOf"]; ok {
		r, err := c.multiples(whole, v, bounds{least, most, leastOpen, mostOpen})
		if err != nil {
			err = fmt.Errorf("schema at %s/multipleOf: %w", path, err)
		}
		return r, err
	}
	if least != nil || most != nil {
		return c.between(whole, least, most, leastOpen, mostOpen), nil
	}
	kept := &c.number
	if whole {
		kept = &c.integer
	}
	if *kept < 0 {
		if *kept = c.between(whole, nil, nil, false, false); !whole {
			c.exponent(*kept)
		}
	}
	return *kept, nil
}

// rational reads a bound.
func rational(v any) (*big.Rat, error) {
	n, ok := v.(json.Number)
	if !ok {
		return nil, fmt.Errorf("found %.30s, expected a number", compact(v))
	}
	// A short number can have many digits: 1e-999999 takes long to read.
	i := strings.IndexAny(n.String(), "eE")
	short := len(n) <= 64 && (i < 0 || len(n)-i <= len("e-99"))
	if f, err := n.Float64(); err == nil && short && f > -1e30 && f < 1e30 {
		if x, ok := new(big.Rat).SetString(n.String()); ok {
			if digits, exact := x.FloatPrec(); exact && digits < maxDigits {
				return x, nil
			}
		}
	}
	return nil, fmt.Errorf("found %.30s, expected a number below 1e30 with less than %d digits after the point", n, maxDigits)
}

// between returns the rule of numbers between two bounds; nil means none.
func (c *compiler) between(whole bool, least, most *big.Rat, leastOpen, mostOpen bool) int32 {
	r := c.begin(0, -1)
	start := c.rules[r].start
	zero := new(big.Rat)
	if most == nil || most.Sign() >= 0 {
		lo, open := zero, false
		if least != nil && least.Sign() >= 0 {
			lo, open = least, leastOpen
		}
		c.positive(start, whole, newLimit(lo, open), newLimit(most, mostOpen))
	}
	if least == nil || least.Sign() < 0 {
		lo, open := zero, true // -0 is excluded
		if most != nil && most.Sign() < 0 {
			lo, open = new(big.Rat).Neg(most), mostOpen
		}
		var hi *limit
		if least != nil {
			hi = newLimit(new(big.Rat).Neg(least), leastOpen)
		}
		c.positive(c.text(start, "-"), whole, newLimit(lo, open), hi)
	}
	return r
}

func newLimit(x *big.Rat, open bool) *limit {
	if x == nil {
		return nil
	}
	whole, fraction, _ := strings.Cut(x.FloatString(maxDigits), ".")
	return &limit{whole, strings.TrimRight(fraction, "0"), open}
}

// digits is a place in a number: how many digits were read, and whether they still
// equal those of a bound.
type digits struct {
	n      int
	lo, hi bool
}

// positive reads a number without a sign from lo to hi, nil for no bound.
func (c *compiler) positive(from int32, whole bool, lo, hi *limit) {
	r := c.nodes[from].rule
	end := c.rules[r].end
	// to adds an edge to the next place for every digit that is allowed.
	to := func(at int32, d digits, lowest, low, high byte, next func(digits) int32) {
		for b := byte('0'); b <= '9'; b++ {
			n := digits{d.n + 1, d.lo && b == low, d.hi && b == high}
			if b >= lowest && (!d.lo || b >= low) && (!d.hi || b <= high) {
				c.edge(at, next(n), b, b)
			}
		}
	}
	afterPoint := map[digits]int32{}
	var fraction func(d digits) int32
	fraction = func(d digits) int32 {
		if at, ok := afterPoint[d]; ok {
			return at
		}
		at := c.node(r)
		afterPoint[d] = at
		if d.n > 0 {
			c.complete(at, end, d, lo, hi)
		}
		if d.n < maxDigits {
			var low, high byte = '0', '0'
			if d.lo && d.n < len(lo.fraction) {
				low = lo.fraction[d.n]
			}
			if d.hi && d.n < len(hi.fraction) {
				high = hi.fraction[d.n]
			}
			to(at, d, '0', low, high, fraction)
		}
		return at
	}
	longest := max(maxDigits, len(lo.whole))
	if hi != nil {
		longest = len(hi.whole)
	}
	for length := len(lo.whole); length <= longest; length++ {
		front := map[digits]int32{}
		var integer func(d digits) int32
		integer = func(d digits) int32 {
			if at, ok := front[d]; ok {
				return at
			}
			at := c.node(r)
			front[d] = at
			if d.n == length {
				d.n = 0
				c.complete(at, end, d, lo, hi)
				if !whole {
					c.edge(at, fraction(d), '.', '.')
				}
				return at
			}
			var lowest, low, high byte = '0', '0', '0'
			if d.n == 0 && length > 1 {
				lowest = '1'
			}
			if d.lo {
				low = lo.whole[d.n]
			}
			if d.hi {
				high = hi.whole[d.n]
			}
			to(at, d, lowest, low, high, integer)
			return at
		}
		c.skip(from, integer(digits{0, length == len(lo.whole), hi != nil && length == len(hi.whole)}))
	}
}

// complete ends a number after d.n digits of its fraction if it is within the bounds.
func (c *compiler) complete(at, end int32, d digits, lo, hi *limit) {
	if d.lo && (d.n < len(lo.fraction) || lo.open) {
		return
	}
	if d.hi && d.n >= len(hi.fraction) && hi.open {
		return
	}
	c.skip(at, end)
}

// exponent adds exponents of one or two digits to a rule of numbers.
func (c *compiler) exponent(r int32) {
	end := c.node(r)
	c.nodes[end].end = true
	old := c.rules[r].end
	c.nodes[old].end = true
	e, sign, digit := c.node(r), c.node(r), c.node(r)
	c.edge(old, e, 'E', 'E')
	c.edge(old, e, 'e', 'e')
	c.edge(e, sign, '+', '+')
	c.edge(e, sign, '-', '-')
	c.skip(e, sign)
	c.edge(sign, digit, '0', '9')
	c.skip(digit, end)
	c.edge(digit, end, '0', '9')
}
