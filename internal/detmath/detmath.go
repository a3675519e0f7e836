package detmath

import "math"

// dd is an unevaluated sum hi + lo with |lo| of at most half a unit in the last
// place of hi: a number with about 106 significant bits.
type dd struct{ hi, lo float64 }

// twoSum returns a + b exactly.
func twoSum(a, b float64) dd {
	s := a + b
	t := s - a
	return dd{s, (a - (s - t)) + (b - t)}
}

// fastSum is a faster twoSum for |a| >= |b| or a = 0.
func fastSum(a, b float64) dd {
	s := a + b
	return dd{s, b - (s - a)}
}

// mul returns x·y with an error of a few units of 2^-104.
func mul(x, y dd) dd {
	p := float64(x.hi * y.hi)
	e := math.FMA(x.hi, y.hi, -p)
	e = math.FMA(x.hi, y.lo, e)
	e = math.FMA(x.lo, y.hi, e)
	return fastSum(p, e)
}

// add returns x + y with an error of a few units of 2^-104 unless the two nearly
// cancel.
func add(x, y dd) dd {
	s := twoSum(x.hi, y.hi)
	return fastSum(s.hi, s.lo+(x.lo+y.lo))
}

// horner evaluates c[0] + c[1]·x + ... .
func horner(x float64, c []float64) float64 {
	v := c[len(c)-1]
	for i := len(c) - 2; i >= 0; i-- {
		v = math.FMA(v, x, c[i])
	}
	return v
}

// Constants as sums of doubles; log 2 also as a sum whose first part has 40
// bits, so that its products with exponents are exact.
var (
	ln2      = dd{0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56}
	log2e    = dd{0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56}
	oneThird = dd{0x1.5555555555555p-2, 0x1.5555555555555p-56}
)

const (
	ln2Short = 0x1.62e42fefa2000p-1
	ln2Rest  = 0x1.9ef35793c7673p-41
)

// expSeries holds 1/2!, 1/3!, ... 1/13!. For |r| <= log(2)/2 the first omitted term
// is 4e-18 of the sum.
var expSeries = []float64{
	1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
	1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
}

// expScaled returns 2^k · e^(r.hi+r.lo) for |r.hi| up to slightly above log(2)/2.
func expScaled(r dd, k int) float64 {
	z := float64(r.hi * r.hi)
	// e^r = 1 + (hi + (lo + lo·hi + hi²·(1/2 + hi/6 + ...))); terms are added from
	// small to large, so that only the last rounding counts.
	t := math.FMA(z, horner(r.hi, expSeries), math.FMA(r.lo, r.hi, r.lo))
	v := 1 + (r.hi + t)
	switch {
	case k > 1023:
		return float64(v*pow2(k-1)) * 2
	case k < -1022:
		return float64(v*pow2(k+128)) * 0x1p-128
	}
	return v * pow2(k)
}

// pow2 returns 2^k for -1022 <= k <= 1023.
func pow2(k int) float64 { return math.Float64frombits(uint64(k+1023) << 52) }

// expSum returns e^(x.hi+x.lo).
func expSum(x dd) float64 {
	switch {
	case x.hi != x.hi:
		return x.hi
	case x.hi > 710:
		return math.Inf(1)
	case x.hi < -746:
		return 0
	}
	k := math.RoundToEven(x.hi * log2e.hi)
	r := math.FMA(-k, ln2Short, x.hi) // exact
	return expScaled(add(dd{r, 0}, dd{-float64(k * ln2Rest), x.lo}), int(k))
}

// Exp returns e^x.
func Exp(x float64) float64 { return expSum(dd{x, 0}) }

// Exp2 returns 2^x.
func Exp2(x float64) float64 {
	switch {
	case x != x:
		return x
	case x > 1025:
		return math.Inf(1)
	case x < -1076:
		return 0
	}
	k := math.RoundToEven(x)
	return expScaled(mul(dd{x - k, 0}, ln2), int(k))
}

// logSeries holds 1/5, 1/7, ... 1/25 of atanh(s)/s = 1 + s²/3 + s⁴/5 + ... . For
// s² <= 0.0295 the first omitted term is 2^-66 of the sum.
var logSeries = []float64{
	1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25,
}

// logParts returns k and log m with x = 2^k·m and m between √½ and √2, for
// positive finite x. The relative error of log m is below 2^-62.
func logParts(x float64) (k float64, log dd) {
	e := 0
	if x < 0x1p-1022 {
		x *= 0x1p+54
		e = -54
	}
	b := math.Float64bits(x)
	e += int(b>>52) - 1023
	m := math.Float64frombits(b&(1<<52-1) | 1023<<52)
	if m > math.Sqrt2 {
		m /= 2
		e++
	}
	// log m = 2 atanh(s) with s = (m-1)/(m+1); m-1 is exact.
	f, den := m-1, twoSum(m, 1)
	s := dd{hi: f / den.hi}
	rest := math.FMA(-s.hi, den.hi, f)
	s.lo = math.FMA(-s.hi, den.lo, rest) / den.hi
	z := mul(s, s)
	tail := float64(z.hi*z.hi) * horner(z.hi, logSeries)
	u := add(mul(z, oneThird), dd{tail, 0})
	// 2s(1+u)
	log = mul(s, add(dd{1, 0}, u))
	return float64(e), dd{2 * log.hi, 2 * log.lo}
}

// logSum returns log x for positive finite x.
func logSum(x float64) dd {
	k, log := logParts(x)
	return add(add(dd{float64(k * ln2Short), 0}, dd{float64(k * ln2Rest), 0}), log)
}

// Log returns the natural logarithm: NaN below 0, -Inf at 0.
func Log(x float64) float64 {
	if v, ok := logSpecial(x); ok {
		return v
	}
	return logSum(x).hi
}

// Log2 returns the logarithm to base 2: NaN below 0, -Inf at 0. It is exact for
// powers of 2.
func Log2(x float64) float64 {
	if v, ok := logSpecial(x); ok {
		return v
	}
	k, log := logParts(x)
	return add(dd{k, 0}, mul(log, log2e)).hi
}

func logSpecial(x float64) (v float64, ok bool) {
	switch {
	case x != x || x > math.MaxFloat64:
		return x, true
	case x < 0:
		return math.NaN(), true
	case x == 0:
		return math.Inf(-1), true
	}
	return 0, false
}

// Pow returns x^y, with the special cases of math.Pow.
func Pow(x, y float64) float64 {
	switch {
	case x == 0 || x == 1 || y == 0 || x != x || y != y || math.IsInf(x, 0) || math.IsInf(y, 0):
		return math.Pow(x, y) // a constant for each case, without arithmetic
	case x < 0:
		if math.Trunc(y) != y {
			return math.NaN()
		}
		v := Pow(-x, y)
		if math.Mod(y, 2) != 0 {
			v = -v
		}
		return v
	}
	log := logSum(x)
	p := float64(log.hi * y)
	if math.IsInf(p, 0) {
		return expSum(dd{p, 0})
	}
	return expSum(fastSum(p, math.FMA(log.lo, y, math.FMA(log.hi, y, -p))))
}

// π/2 as a sum: three parts of 30 bits, whose products with numbers of up to 23
// bits are exact, and the rest.
const (
	halfPi1 = 0x1.921fb54p+0
	halfPi2 = 0x1.10b46118p-30
	halfPi3 = 0x1.313198ap-61
	halfPi4 = 0x1.701b839a25205p-92

	twoOverPi = 0x1.45f306dc9c883p-1
)

// sinSeries and cosSeries hold the coefficients of sin r = r + r³·S(r²) and
// cos r = 1 - r²/2 + r⁴·C(r²). For |r| <= π/4 the first omitted terms are 1e-19
// and 2e-20 of the sums.
var (
	sinSeries = []float64{
		-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800,
		-1.0 / 1307674368000, 1.0 / 355687428096000,
	}
	cosSeries = []float64{
		1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200,
		1.0 / 20922789888000, -1.0 / 6402373705728000,
	}
)

// maxQuarters is the largest number of quarter turns that SinCos can subtract exactly.
const maxQuarters = 1 << 23

// SinCos returns the sine and the cosine of x radians. Beyond ±1.3e7, and for
// infinities, both are NaN.
func SinCos(x float64) (sin, cos float64) {
	k := math.RoundToEven(x * twoOverPi)
	if !(math.Abs(k) <= maxQuarters) {
		return math.NaN(), math.NaN()
	}
	r := dd{x, 0}
	if k != 0 {
		s := twoSum(math.FMA(-k, halfPi1, x), -float64(k*halfPi2)) // exact
		r = add(s, add(dd{-float64(k * halfPi3), 0}, dd{-float64(k * halfPi4), 0}))
	}
	z := float64(r.hi * r.hi)
	// The corrections are the derivatives times lo.
	s := math.FMA(float64(z*r.hi), horner(z, sinSeries), math.FMA(-float64(0.5*z), r.lo, r.lo))
	sin = r.hi + s
	half := float64(0.5 * z)
	w := 1 - half
	c := math.FMA(float64(z*z), horner(z, cosSeries), -float64(r.hi*r.lo))
	cos = w + (((1 - w) - half) + c)
	switch int(k) & 3 {
	case 1:
		sin, cos = cos, -sin
	case 2:
		sin, cos = -sin, -cos
	case 3:
		sin, cos = -cos, sin
	}
	return sin, cos
}

// SumExp returns Σ e^(x-m), added in order: the bits of a loop over Exp in less than half of its time.
// m is at least the largest x.
func SumExp(x []float32, m float64) float64 {
	sum := 0.0
	for ; len(x) >= 4; x = x[4:] {
		a, b, c, d := float64(x[0])-m, float64(x[1])-m, float64(x[2])-m, float64(x[3])-m
		if !(min(a, b, c, d) > -700) { // subnormal, 0 or not a number
			sum = sum + Exp(a) + Exp(b) + Exp(c) + Exp(d)
			continue
		}
		// Four chains of dependent operations beside each other.
		ka, ra := reduced(a)
		kb, rb := reduced(b)
		kc, rc := reduced(c)
		kd, rd := reduced(d)
		va, vb, vc, vd := lastOfSeries, lastOfSeries, lastOfSeries, lastOfSeries
		for i := len(expSeries) - 2; i >= 0; i-- {
			t := expSeries[i]
			va, vb = math.FMA(va, ra.hi, t), math.FMA(vb, rb.hi, t)
			vc, vd = math.FMA(vc, rc.hi, t), math.FMA(vd, rd.hi, t)
		}
		sum = sum + scaled(ka, ra, va) + scaled(kb, rb, vb) + scaled(kc, rc, vc) + scaled(kd, rd, vd)
	}
	for _, v := range x {
		sum += Exp(float64(v) - m)
	}
	return sum
}

var lastOfSeries = expSeries[len(expSeries)-1]

// reduced returns k and r with x = k·log 2 + r.
func reduced(x float64) (k float64, r dd) {
	k = math.RoundToEven(x * log2e.hi)
	return k, twoSum(math.FMA(-k, ln2Short, x), -float64(k*ln2Rest))
}

// scaled returns 2^k · e^r of a normal number, given the value of expSeries at r.
func scaled(k float64, r dd, series float64) float64 {
	t := math.FMA(float64(r.hi*r.hi), series, math.FMA(r.lo, r.hi, r.lo))
	return float64((1 + (r.hi + t)) * pow2(int(k)))
}
