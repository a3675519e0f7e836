package detmath

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The reference: power series in 240-bit arithmetic.

const prec = 240

func num(x float64) *big.Float { return new(big.Float).SetPrec(prec).SetFloat64(x) }

func zero() *big.Float { return new(big.Float).SetPrec(prec) }

// small reports whether t no longer matters in a sum.
func small(t, sum *big.Float) bool {
	return t.Sign() == 0 || sum.Sign() != 0 && t.MantExp(nil) < sum.MantExp(nil)-prec
}

// bigAtanh returns s + s³/3 + s⁵/5 + ...; alternate flips every other sign, which
// gives atan.
func bigAtanh(s *big.Float, alternate bool) *big.Float {
	sum, p, z := zero().Set(s), zero().Set(s), zero().Mul(s, s)
	if alternate {
		z.Neg(z)
	}
	for n := 3.0; ; n += 2 {
		p.Mul(p, z)
		t := zero().Quo(p, num(n))
		if small(t, sum) {
			return sum
		}
		sum.Add(sum, t)
	}
}

func bigLn2() *big.Float { // 2 atanh(1/3)
	v := bigAtanh(zero().Quo(num(1), num(3)), false)
	return v.Mul(v, num(2))
}

func bigPi() *big.Float { // 16 atan(1/5) - 4 atan(1/239)
	a := bigAtanh(zero().Quo(num(1), num(5)), true)
	b := bigAtanh(zero().Quo(num(1), num(239)), true)
	return a.Sub(a.Mul(a, num(16)), b.Mul(b, num(4)))
}

var refLn2, refPi = bigLn2(), bigPi()

func bigLog(x *big.Float) *big.Float {
	m := zero()
	e := zero().Set(x).MantExp(m) // m in [1/2, 1)
	s := zero().Quo(zero().Sub(m, num(1)), zero().Add(m, num(1)))
	v := bigAtanh(s, false)
	v.Mul(v, num(2))
	return v.Add(v, zero().Mul(refLn2, num(float64(e))))
}

func bigExp(x *big.Float) *big.Float {
	k, _ := zero().Quo(x, refLn2).Int64()
	r := zero().Sub(x, zero().Mul(refLn2, num(float64(k))))
	sum, t := num(1), num(1)
	for n := 1.0; ; n++ {
		t.Quo(t.Mul(t, r), num(n))
		if small(t, sum) {
			return sum.SetMantExp(sum, int(k))
		}
		sum.Add(sum, t)
	}
}

// bigSinCos sums the series after removing multiples of 2π.
func bigSinCos(x float64) (sin, cos *big.Float) {
	twoPi := zero().Mul(refPi, num(2))
	k, _ := zero().Quo(num(x), twoPi).Int(nil)
	r := zero().Sub(num(x), zero().Mul(twoPi, zero().SetInt(k)))
	sin, cos = zero(), num(1)
	t := num(1)
	for n := 1; n < 400; n++ {
		t.Quo(t.Mul(t, r), num(float64(n)))
		switch n % 4 {
		case 0:
			cos.Add(cos, t)
		case 1:
			sin.Add(sin, t)
		case 2:
			cos.Sub(cos, t)
		case 3:
			sin.Sub(sin, t)
		}
	}
	return sin, cos
}

// ulps returns the error of got in units in the last place of want.
func ulps(got float64, want *big.Float) float64 {
	d := zero().Sub(num(got), want)
	unit := math.Ldexp(1, want.MantExp(nil)-53)
	u, _ := d.Quo(d, num(unit)).Float64()
	return math.Abs(u)
}

// worst records the largest error.
type worst struct{ err, at float64 }

func (w *worst) see(err, at float64) {
	if !(err <= w.err) {
		w.err, w.at = err, at
	}
}

func (w *worst) check(t *testing.T, name string) {
	t.Helper()
	t.Logf("%s: largest error %.4f ulp at %v", name, w.err, w.at)
	assert.Less(t, w.err, 1.0, "%s(%v)", name, w.at)
}

func TestAccuracy(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	n := 3000
	if testing.Short() {
		n = 300
	}
	var exp, exp2, log, log2, pow, sin, cos worst
	for i := range n {
		x := (rng.Float64() - 0.5) * 1400
		if i%2 == 0 {
			x = math.Ldexp(rng.Float64()-0.5, -rng.IntN(30))
		}
		exp.see(ulps(Exp(x), bigExp(num(x))), x)
		exp2.see(ulps(Exp2(x), bigExp(zero().Mul(num(x), refLn2))), x)

		p := math.Ldexp(1+rng.Float64(), rng.IntN(2000)-1000)
		if i%2 == 0 {
			p = 1 + math.Ldexp(rng.Float64()-0.5, -rng.IntN(40))
		}
		if p != 1 {
			ref := bigLog(num(p))
			log.see(ulps(Log(p), ref), p)
			log2.see(ulps(Log2(p), zero().Quo(ref, refLn2)), p)
		}

		base := math.Exp(rng.Float64() * 20)
		y := (rng.Float64() - 0.5) * 60
		pow.see(ulps(Pow(base, y), bigExp(zero().Mul(bigLog(num(base)), num(y)))), base)

		a := (rng.Float64() - 0.5) * 2.6e7
		switch i % 4 {
		case 0:
			a = math.Ldexp(rng.Float64()-0.5, -rng.IntN(30))
		case 1: // close to a multiple of π/2, where digits cancel
			k := num(math.Floor(rng.Float64() * 8e6))
			a, _ = k.Mul(k, refPi).Quo(k, num(2)).Float64()
		case 2:
			a = math.Floor(a) // a position
		}
		s, c := SinCos(a)
		rs, rc := bigSinCos(a)
		sin.see(ulps(s, rs), a)
		cos.see(ulps(c, rc), a)
	}
	exp.check(t, "Exp")
	exp2.check(t, "Exp2")
	log.check(t, "Log")
	log2.check(t, "Log2")
	pow.check(t, "Pow")
	sin.check(t, "Sin")
	cos.check(t, "Cos")
}

func TestSpecialCases(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	tiny := math.SmallestNonzeroFloat64
	cases := []struct {
		name      string
		got, want float64
	}{
		{"exp 0", Exp(0), 1}, {"exp inf", Exp(inf), inf}, {"exp -inf", Exp(-inf), 0}, {"exp nan", Exp(nan), nan},
		{"exp 1e300", Exp(1e300), inf}, {"exp -1e300", Exp(-1e300), 0}, {"exp 709.79", Exp(709.79), inf},
		{"exp -745.2", Exp(-745.2), 0}, {"exp -745.1", Exp(-745.1), tiny},
		{"exp2 10", Exp2(10), 1024}, {"exp2 1023", Exp2(1023), 0x1p1023}, {"exp2 1024", Exp2(1024), inf},
		{"exp2 -1074", Exp2(-1074), tiny}, {"exp2 -1040", Exp2(-1040), 0x1p-1040}, {"exp2 -1080", Exp2(-1080), 0},
		{"exp2 inf", Exp2(inf), inf}, {"exp2 -inf", Exp2(-inf), 0}, {"exp2 nan", Exp2(nan), nan},
		{"log 1", Log(1), 0}, {"log 0", Log(0), -inf}, {"log -1", Log(-1), nan}, {"log inf", Log(inf), inf}, {"log nan", Log(nan), nan},
		{"log2 1", Log2(1), 0}, {"log2 8", Log2(8), 3}, {"log2 tiny", Log2(tiny), -1074}, {"log2 0", Log2(0), -inf},
		{"log2 -1", Log2(-1), nan}, {"log2 inf", Log2(inf), inf}, {"log2 nan", Log2(nan), nan},
		{"pow 2 10", Pow(2, 10), 1024}, {"pow 10 3", Pow(10, 3), 1000}, {"pow -2 3", Pow(-2, 3), -8}, {"pow -2 4", Pow(-2, 4), 16},
		{"pow -2 .5", Pow(-2, 0.5), nan}, {"pow 0 0", Pow(0, 0), 1}, {"pow 0 -1", Pow(0, -1), inf}, {"pow nan 0", Pow(nan, 0), 1},
		{"pow 1 nan", Pow(1, nan), 1}, {"pow 2 nan", Pow(2, nan), nan}, {"pow 2 inf", Pow(2, inf), inf}, {"pow .5 inf", Pow(0.5, inf), 0},
		{"pow inf -1", Pow(inf, -1), 0}, {"pow 1e300 1e300", Pow(1e300, 1e300), inf}, {"pow 1e300 -1e300", Pow(1e300, -1e300), 0},
		{"pow 2 -1074", Pow(2, -1074), tiny}, {"pow x 1", Pow(1.1, 1), 1.1},
	}
	for _, c := range cases {
		if math.IsNaN(c.want) {
			assert.True(t, math.IsNaN(c.got), "%s: got %v", c.name, c.got)
		} else {
			assert.Equal(t, c.want, c.got, c.name)
		}
	}
	for _, x := range []float64{inf, -inf, nan, 1.32e7, -1e9, 1e100, math.MaxFloat64} {
		s, c := SinCos(x)
		assert.True(t, math.IsNaN(s) && math.IsNaN(c), "%v", x)
	}
	s, c := SinCos(0)
	assert.Equal(t, []float64{0, 1}, []float64{s, c})
	for _, x := range []float64{0.1, 1, 3, 100, 12345.678} { // symmetry, bit for bit
		s, c := SinCos(x)
		ms, mc := SinCos(-x)
		assert.Equal(t, []float64{s, c}, []float64{-ms, mc})
	}
}

// TestBits pins the results: the hash must be the same on every architecture.
// It changes only when an algorithm of this package changes.
func TestBits(t *testing.T) {
	h := fnv.New64a()
	rng := rand.New(rand.NewPCG(3, 4))
	var buf []byte
	for range 20000 {
		x := rng.Float64()
		s, c := SinCos(x * 1e6)
		for _, v := range []float64{Exp(float64(x*100) - 50), Exp2(float64(x*100) - 50), Log(x), Log2(x), Pow(1e6, -x), s, c} {
			buf = binary.LittleEndian.AppendUint64(buf[:0], math.Float64bits(v))
			h.Write(buf)
		}
	}
	assert.Equal(t, uint64(0x2996457803c87cea), h.Sum64(), "%#x", h.Sum64())
}

var sink float64

func BenchmarkFunctions(b *testing.B) {
	for _, f := range []struct {
		name string
		f    func(x float64) float64
	}{
		{"Exp", Exp}, {"Exp2", Exp2}, {"Log", Log}, {"Log2", Log2},
		{"Pow", func(x float64) float64 { return Pow(x, -0.37) }},
		{"SinCos", func(x float64) float64 { s, c := SinCos(x); return s + c }},
	} {
		b.Run(f.name, func(b *testing.B) {
			b.ReportAllocs()
			x := 1.0
			for b.Loop() {
				sink += f.f(x)
				x += 0.37
				if x > 700 {
					x = 1
				}
			}
		})
	}
}

func TestSumExp(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, scale := range []float64{0, 1e-3, 1, 8, 100, 500, 2000} {
		for n := range 70 {
			x := make([]float32, n)
			m := math.Inf(-1)
			for i := range x {
				x[i] = float32(rng.NormFloat64() * scale)
				if rng.IntN(40) == 0 {
					x[i] = float32(math.Inf(-1))
				}
				m = max(m, float64(x[i]))
			}
			if math.IsInf(m, 0) {
				continue
			}
			want := 0.0
			for _, v := range x {
				want += Exp(float64(v) - m)
			}
			assert.Equal(t, math.Float64bits(want), math.Float64bits(SumExp(x, m)), "scale %g, %d numbers", scale, n)
		}
	}
	assert.True(t, math.IsNaN(SumExp([]float32{0, 0, float32(math.NaN()), 0}, 0)))
}

func BenchmarkSumExp(b *testing.B) {
	x := make([]float32, 128256)
	for i := range x {
		x[i] = -float32(i%31) / 2
	}
	b.Run("each", func(b *testing.B) {
		for b.Loop() {
			sum := 0.0
			for _, v := range x {
				sum += Exp(float64(v))
			}
		}
	})
	b.Run("four", func(b *testing.B) {
		for b.Loop() {
			SumExp(x, 0)
		}
	})
}
