package chat

import (
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
)

const (
	// maxDigits is the longest integer in decimal digits, as in Python.
	maxDigits = 4300
	// maxBits bounds integers in between; 10**maxDigits fits.
	maxBits = 1 << 14
)

// normInt returns b as int64 where it fits. It takes over b.
func normInt(b *big.Int) any {
	if b.IsInt64() {
		return b.Int64()
	}
	if b.BitLen() > maxBits {
		limitf("integer of %d bits is longer than %d", b.BitLen(), maxBits)
	}
	return b
}

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
	}
	return 0, false
}

// toBig returns an integer or bool as a big.Int, not to be changed.
func toBig(v any) *big.Int {
	if b, ok := v.(*big.Int); ok {
		return b
	}
	i, _ := toInt64(v)
	return big.NewInt(i)
}

// toFloat returns a number as a float; it fails where an integer is too large.
func toFloat(v any) float64 {
	switch v := v.(type) {
	case float64:
		return v
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		if math.IsInf(f, 0) {
			failf("integer too large to convert to a float")
		}
		return f
	}
	i, _ := toInt64(v)
	return float64(i)
}

// arith is a op b for two numbers and op one of + - * / // % **.
func arith(op string, a, b any) any {
	_, af := a.(float64)
	_, bf := b.(float64)
	if af || bf {
		return floatArith(op, toFloat(a), toFloat(b))
	}
	x, xok := toInt64(a)
	y, yok := toInt64(b)
	if xok && yok {
		if v, ok := intArith(op, x, y); ok {
			return v
		}
	}
	return bigArith(op, toBig(a), toBig(b))
}

// intArith handles what stays within int64; ok is false otherwise.
func intArith(op string, x, y int64) (v any, ok bool) {
	switch op {
	case "+":
		s := x + y
		return s, (s > x) == (y > 0)
	case "-":
		d := x - y
		return d, (d < x) == (y > 0)
	case "*":
		hi, lo := bits.Mul64(absUint(x), absUint(y))
		if hi != 0 || lo > math.MaxInt64 {
			return nil, false
		}
		return x * y, true
	case "/":
		const exact = 1 << 53 // integers below are floats without rounding
		if y == 0 || max(absUint(x), absUint(y)) > exact {
			return nil, false
		}
		return float64(x) / float64(y), true
	case "//", "%":
		if y == 0 || x == math.MinInt64 && y == -1 {
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
	return nil, false
}

func absUint(x int64) uint64 {
	if x < 0 {
		return -uint64(x)
	}
	return uint64(x)
}

func bigArith(op string, x, y *big.Int) any {
	z := new(big.Int)
	switch op {
	case "+":
		return normInt(z.Add(x, y))
	case "-":
		return normInt(z.Sub(x, y))
	case "*":
		return normInt(z.Mul(x, y))
	case "**":
		return bigPow(x, y)
	}
	if y.Sign() == 0 {
		failf("%s: division by zero", op)
	}
	if op == "/" {
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if math.IsInf(f, 0) {
			failf("/: integer division result too large for a float")
		}
		return f
	}
	m := new(big.Int)
	z.QuoRem(x, y, m)
	if m.Sign() != 0 && m.Sign() != y.Sign() {
		z.Sub(z, big.NewInt(1))
		m.Add(m, y)
	}
	if op == "%" {
		return normInt(m)
	}
	return normInt(z)
}

func bigPow(x, y *big.Int) any {
	if y.Sign() < 0 {
		return floatArith("**", toFloat(x), toFloat(y))
	}
	if x.BitLen() <= 1 { // -1, 0 and 1 stay small whatever the exponent
		switch {
		case y.Sign() == 0:
			return int64(1)
		case y.Bit(0) == 1:
			return x.Int64()
		}
		return x.Int64() * x.Int64()
	}
	if !y.IsInt64() || y.Int64() > maxBits || int64(x.BitLen()-1)*y.Int64() > maxBits {
		limitf("**: result longer than %d bits", maxBits)
	}
	return normInt(new(big.Int).Exp(x, y, nil))
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
		return floatPow(x, y)
	}
	if y == 0 {
		failf("%s: division by zero", op)
	}
	if op == "/" {
		return x / y
	}
	m := math.Mod(x, y)
	div := (x - m) / y
	if m == 0 {
		m = math.Copysign(0, y)
	} else if (m < 0) != (y < 0) {
		m += y
		div--
	}
	if op == "%" {
		return m
	}
	if div == 0 {
		return math.Copysign(0, x/y)
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return floor
}

func floatPow(x, y float64) float64 {
	if x == 0 && y < 0 {
		failf("**: zero cannot be raised to a negative power")
	}
	if x < 0 && !math.IsInf(x, 0) && !math.IsInf(y, 0) && y != math.Trunc(y) {
		unsupportedf("**: complex result of a negative base")
	}
	f := math.Pow(x, y)
	if math.IsInf(f, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		failf("**: float result out of range")
	}
	return f
}

// formatInt is an integer in decimal.
func formatInt(v any) string {
	if i, ok := toInt64(v); ok {
		return strconv.FormatInt(i, 10)
	}
	s := toBig(v).String()
	if len(strings.TrimPrefix(s, "-")) > maxDigits {
		limitf("integer longer than %d digits cannot be printed", maxDigits)
	}
	return s
}

// formatFloat is Python's repr of a float: the shortest digits that read back,
// with an exponent below 1e-04 and from 1e+16 on.
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

// parsePyInt is Python's int(s, base) for text.
func parsePyInt(s string, base int) (any, bool) {
	s = strings.TrimFunc(s, isSpace)
	neg := false
	if s != "" && (s[0] == '-' || s[0] == '+') {
		neg = s[0] == '-'
		s = s[1:]
	}
	if base == 0 || base == 2 || base == 8 || base == 16 {
		if len(s) > 2 && s[0] == '0' {
			prefix := map[byte]int{'b': 2, 'B': 2, 'o': 8, 'O': 8, 'x': 16, 'X': 16}[s[1]]
			if prefix != 0 && (base == 0 || base == prefix) {
				base = prefix
				s = strings.TrimPrefix(s[2:], "_")
			}
		}
	}
	if base == 0 {
		base = 10
		if strings.Trim(s, "0_") != "" && strings.HasPrefix(s, "0") {
			return nil, false
		}
	}
	if s == "" || s[0] == '_' || s[len(s)-1] == '_' || strings.Contains(s, "__") {
		return nil, false
	}
	s = strings.ReplaceAll(s, "_", "")
	if base < 2 || base > 36 || s == "" || s[0] == '-' || s[0] == '+' {
		return nil, false
	}
	if len(s) > maxDigits {
		return nil, false
	}
	b, ok := new(big.Int).SetString(s, base)
	if !ok {
		return nil, false
	}
	if neg {
		b.Neg(b)
	}
	return normInt(b), true
}

// parsePyFloat is Python's float(s) for text.
func parsePyFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	for i := range len(s) {
		if s[i] == 'x' || s[i] == 'X' || s[i] == 'p' || s[i] == 'P' {
			return 0, false // Go reads hexadecimal floats, Python does not
		}
		if s[i] == '_' && (i == 0 || i+1 == len(s) || !isDecimal(s[i-1]) || !isDecimal(s[i+1])) {
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
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
	if digits < -308 {
		return math.Copysign(0, f)
	}
	if digits >= 0 {
		out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
		return out
	}
	// |f| / 10^-digits rounded half to even, times 10^-digits, in exact arithmetic
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
	exact := new(big.Rat).SetFloat64(f)
	q := roundHalfEven(exact.Quo(exact, new(big.Rat).SetInt(scale)))
	out, _ := new(big.Float).SetInt(q.Mul(q, scale)).Float64()
	if math.IsInf(out, 0) {
		failf("round: result too large for a float")
	}
	if out == 0 {
		return math.Copysign(0, f)
	}
	return out
}

// roundHalfEven rounds x to the nearest integer, ties to even.
func roundHalfEven(x *big.Rat) *big.Int {
	two := big.NewInt(2)
	num := new(big.Int).Mul(x.Num(), two)
	num.Add(num, x.Denom())
	den := new(big.Int).Mul(x.Denom(), two)
	q, m := new(big.Int).DivMod(num, den, new(big.Int)) // floor(x + 1/2)
	if m.Sign() == 0 && q.Bit(0) == 1 {
		q.Sub(q, big.NewInt(1))
	}
	return q
}
