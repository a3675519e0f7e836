package jinja

import (
	"cmp"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// toInt64 returns an integer or bool as int64; ok is false for everything else.
func toInt64(v any) (i int64, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return v, true
	case wide:
		tooWide()
	}
	return 0, false
}

func tooWide() { unsupportedf("calculation with an integer beyond 64 bits") }

// toFloat returns a number as a float.
func toFloat(v any) float64 {
	if f, ok := v.(float64); ok {
		return f
	}
	i, _ := toInt64(v)
	return float64(i)
}

// wholeInt returns f as an integer, if it is one.
func wholeInt(f float64) (int64, bool) {
	if f != math.Trunc(f) || f < math.MinInt64 || f >= math.MaxInt64 {
		return 0, false
	}
	return int64(f), true
}

// truncate returns the integer part of a finite float.
func truncate(f float64) int64 {
	i, ok := wholeInt(math.Trunc(f))
	if !ok {
		tooWide()
	}
	return i
}

// unordered is what compareNumbers returns if either operand is NaN.
const unordered = 2

// compareNumbers returns -1, 0, +1 or unordered, comparing exactly.
func compareNumbers(a, b any) int {
	_, aw := a.(wide)
	_, bw := b.(wide)
	_, af := a.(float64)
	_, bf := b.(float64)
	switch {
	case (aw || bw) && a == b:
		return 0
	case (aw || bw) && (af || bf):
		tooWide()
	case aw && bw:
		return compareWide(a.(wide), b.(wide))
	case aw:
		return wideSign(a)
	case bw:
		return -wideSign(b)
	case af || bf:
		x, y := toFloat(a), toFloat(b)
		if math.IsNaN(x) || math.IsNaN(y) {
			return unordered
		}
		if c := cmp.Compare(x, y); c != 0 || af && bf {
			return c
		}
		// The integer may have been rounded to the float.
		if i, ok := toInt64(a); ok {
			return compareIntFloat(i, y)
		}
		i, _ := toInt64(b)
		return -compareIntFloat(i, x)
	}
	i, _ := toInt64(a)
	j, _ := toInt64(b)
	return cmp.Compare(i, j)
}

// compareIntFloat compares an integer with a float that it rounds to.
func compareIntFloat(i int64, f float64) int {
	whole, ok := wholeInt(f)
	if !ok { // 2^63, above all integers
		return -1
	}
	return cmp.Compare(i, whole)
}

// wideSign returns how a wide integer compares with any 64-bit integer.
func wideSign(v any) int {
	if strings.HasPrefix(string(v.(wide)), "-") {
		return -1
	}
	return 1
}

// compareWide compares two wide integers, which have no leading zeros.
func compareWide(a, b wide) int {
	sign := wideSign(a)
	if other := wideSign(b); sign != other {
		return sign
	}
	return sign * cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// arith returns a op b for two numbers and op one of + - * / // % **.
func arith(op string, a, b any) any {
	_, af := a.(float64)
	_, bf := b.(float64)
	if af || bf {
		return floatArith(op, toFloat(a), toFloat(b))
	}
	x, _ := toInt64(a)
	y, _ := toInt64(b)
	if v, ok := intArith(op, x, y); ok {
		return v
	}
	tooWide()
	return nil
}

// intArith computes in 64 bits; ok is false if the result does not fit.
func intArith(op string, x, y int64) (v any, ok bool) {
	switch op {
	case "+":
		s := x + y
		return s, (s > x) == (y > 0)
	case "-":
		d := x - y
		return d, (d < x) == (y > 0)
	case "*":
		return intProduct(x, y)
	case "**":
		return intPower(x, y)
	}
	if y == 0 {
		failf("%s: division by zero", op)
	}
	if op == "/" {
		large := func(i int64) bool { return i < -1<<53 || i > 1<<53 } // floats hold all others
		if x != 0 && (large(x) || large(y)) {
			f, _ := new(big.Rat).SetFrac64(x, y).Float64()
			return f, true
		}
		return float64(x) / float64(y), true
	}
	if x == math.MinInt64 && y == -1 {
		return nil, false
	}
	q, m := x/y, x%y
	if m != 0 && (m < 0) != (y < 0) {
		q, m = q-1, m+y
	}
	if op == "%" {
		return m, true
	}
	return q, true
}

func intProduct(x, y int64) (int64, bool) {
	abs := func(i int64) uint64 {
		if i < 0 {
			return -uint64(i)
		}
		return uint64(i)
	}
	hi, lo := bits.Mul64(abs(x), abs(y))
	limit := uint64(math.MaxInt64)
	if (x < 0) != (y < 0) {
		limit++
	}
	return x * y, hi == 0 && lo <= limit
}

func intPower(x, y int64) (any, bool) {
	if y < 0 {
		return floatArith("**", float64(x), float64(y)), true
	}
	result, ok := int64(1), true
	switch x {
	case -1, 0, 1: // whatever the exponent
		y = min(y, 2-y%2)
	}
	for ; y > 0 && ok; y-- {
		result, ok = intProduct(result, x)
	}
	return result, ok
}

func floatArith(op string, x, y float64) any {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "**":
		if f := math.Pow(x, y); !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f
		}
		failf("**: the result is not a finite number")
	}
	if y == 0 {
		failf("%s: division by zero", op)
	}
	if op == "/" {
		return x / y
	}
	// The remainder is exact and has the sign of y; the quotient follows from it.
	m := math.Mod(x, y)
	q := (x - m) / y
	switch {
	case m == 0:
		m = math.Copysign(0, y)
	case (m < 0) != (y < 0):
		m, q = m+y, q-1
	}
	switch {
	case op == "%":
		return m
	case q == 0:
		return math.Copysign(0, x/y)
	}
	return math.Round(q)
}

// formatFloat is Python's repr of a float: the shortest digits that read back
// as f, with an exponent below 1e-04 and from 1e+16 on.
func formatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	if exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:]); exp < -4 || exp >= 16 {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if strings.IndexByte(s, '.') < 0 {
		s += ".0"
	}
	return s
}

// plainNumber returns a number as Go reads it: Python skips white space around it and
// single underscores between digits, and knows the decimal digits of all scripts.
func plainNumber(s string) string {
	s = strings.Map(func(c rune) rune {
		if c >= utf8.RuneSelf && unicode.IsDigit(c) {
			zero := c // Unicode has them in runs of ten, which may follow each other
			for unicode.IsDigit(zero - 1) {
				zero--
			}
			c = '0' + (c-zero)%10
		}
		return c
	}, strings.TrimFunc(s, isSpace))
	if !strings.Contains(s, "_") {
		return s
	}
	var b strings.Builder
	before := ' '
	for i, c := range s {
		if c != '_' || !isDecimal(before) || i+1 == len(s) || !isDecimal(rune(s[i+1])) {
			b.WriteRune(c)
		}
		before = c
	}
	return b.String()
}

// parseInt is Python's int(s) for text.
func parseInt(s string) (int64, bool) {
	i, err := strconv.ParseInt(plainNumber(s), 10, 64)
	if err != nil && i != 0 {
		tooWide()
	}
	return i, err == nil
}

// parseFloat is Python's float(s) for text.
func parseFloat(s string) (float64, bool) {
	s = plainNumber(s)
	if strings.ContainsAny(s, "_xXpP") { // Go reads hexadecimal floats, Python does not
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

// roundFloat rounds half to even at digits after the point, exactly.
func roundFloat(f float64, digits int) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) || digits > 323 {
		return f
	}
	out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
	return out
}
