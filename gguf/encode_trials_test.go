package gguf

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// What the search finds, step by step: one trial after another, one quotient for each
// element.

func plainNearest(x, step float64, lo, hi int) float64 {
	if step == 0 {
		return 0
	}
	return min(max(math.RoundToEven(x/step), float64(lo)), float64(hi))
}

func plainError(x, w []float32, step, offset float64, lo, hi int) (e float64) {
	for j, v := range x {
		r := float64(v) - (float64(step*plainNearest(float64(v)+offset, step, lo, hi)) - offset)
		e += float64(float64(w[j]) * float64(r*r))
	}
	return e
}

func plainSymmetric(x, w []float32, lo, hi int) float64 {
	top := 0.0
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(top) {
			top = float64(v)
		}
	}
	if top == 0 {
		return 0
	}
	best, least := top/float64(lo), math.Inf(1)
	for i := -8; i <= 8; i++ {
		d := top / (float64(lo) + float64(0.1*float64(i)))
		num, den := 0.0, 0.0
		for j, v := range x {
			q := plainNearest(float64(v), d, lo, hi)
			num += float64(float64(w[j]) * float64(q*float64(v)))
			den += float64(float64(w[j]) * float64(q*q))
		}
		if den == 0 {
			continue
		}
		d = num / den
		if e := plainError(x, w, d, 0, lo, hi); e < least {
			best, least = d, e
		}
	}
	return best
}

func plainAffine(x, w []float32, top int) (d, m float64) {
	low, high := 0.0, math.Inf(-1)
	for _, v := range x {
		low, high = min(low, float64(v)), max(high, float64(v))
	}
	if high <= low {
		return 0, -low
	}
	least := math.Inf(1)
	for i := -4; i <= 10; i++ {
		s, o := (high-low)/(float64(top)+float64(0.2*float64(i))), -low
		var n, sq, sqq, sx, sqx float64
		for j, v := range x {
			q, wj, xj := plainNearest(float64(v)+o, s, 0, top), float64(w[j]), float64(v)
			n += wj
			sq += float64(wj * q)
			sqq += float64(float64(wj*q) * q)
			sx += float64(wj * xj)
			sqx += float64(float64(wj*q) * xj)
		}
		s, o = solveAffine(n, sq, sqq, sx, sqx, s, o)
		if e := plainError(x, w, s, o, 0, top); e < least {
			d, m, least = s, o, e
		}
	}
	return d, m
}

// portably calls test with assembly, if there is any, and without.
func portably(test func()) {
	was := assembly
	defer func() { assembly = was }()
	test()
	assembly = false
	test()
}

// drawElements returns elements that share a scale, and their weights: normal numbers of
// all sizes, numbers on or next to the middle between two of a grid, few different ones,
// and some of each.
func drawElements(t *rapid.T, size int) (x, w []float32) {
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	scale := float32(math.Ldexp(1, rapid.IntRange(-149, 14).Draw(t, "exponent")))
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	weights := rapid.IntRange(0, 4).Draw(t, "weights")
	constant, shift := float32(random.NormFloat64()), float32(rapid.IntRange(-2, 2).Draw(t, "shift"))
	for range size {
		v := float32(0)
		switch k := kind; {
		case k == 0:
			v = float32(random.NormFloat64()) + shift
		case k == 1: // halves of a grid with its end at ±32 or ±8
			v = float32(random.IntN(130)-65) / 64
		case k == 2: // and their neighbours
			v = float32(random.IntN(130)-65) / 64
			v = math.Float32frombits(math.Float32bits(v) + uint32(random.IntN(3)) - 1)
			if v != v || v > 2 || v < -2 {
				v = 0
			}
		case k == 3:
			v = constant
		case k == 4: // one large, others far smaller
			v = float32(random.NormFloat64()) * 1e-6
			if random.IntN(16) == 0 {
				v = 1
			}
		default:
			v = float32(random.IntN(3))
		}
		x = append(x, max(-65504, min(65504, v*scale)))
		u := float32(1)
		switch weights {
		case 1:
			u = float32(random.ExpFloat64())
		case 2:
			u = float32(random.IntN(2))
		case 3:
			u = float32(math.Ldexp(random.Float64(), random.IntN(250)-140))
		case 4:
			u = 0
		}
		w = append(w, u)
	}
	return x, w
}

// The search side by side finds what the one step by step finds, to the bit.
func TestTrials(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, w := drawElements(t, rapid.SampledFrom([]int{16, 32}).Draw(t, "size"))
		portably(func() {
			for _, r := range [][2]int{{-8, 7}, {-32, 31}} {
				require.Equal(t, plainSymmetric(x, w, r[0], r[1]), symmetric(x, w, r[0], r[1]), "%v, weights %v", x, w)
			}
			d, m := affine(x, w, 15)
			wantD, wantM := plainAffine(x, w, 15)
			require.Equal(t, wantD, d, "%v, weights %v", x, w)
			require.Equal(t, wantM, m, "%v, weights %v", x, w)
		})
	})
}

// Sums and errors are those of the step, whatever it is: also one that puts every element
// on the middle between two integers, or as near as numbers get.
func TestTrialSums(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		var tr trials
		var x, w [maxScaled]float32
		step := math.Ldexp(random.Float64()+0.5, random.IntN(40)-30)
		for j := range x {
			x[j] = float32((float64(random.IntN(80)-40) + 0.5) * step)
			w[j] = random.Float32()
		}
		tr.n = 1 + random.IntN(maxTrials)
		for i := range tr.n {
			tr.step[i] = float64(x[random.IntN(len(x))]) / (float64(random.IntN(60)) + 0.5)
			for range random.IntN(3) {
				tr.step[i] = math.Nextafter(tr.step[i], 0)
			}
			if random.IntN(2) == 0 {
				tr.offset[i] = float64(random.IntN(3)) * step
			}
			if random.IntN(20) == 0 {
				tr.step[i] = 0
			}
		}
		tr.set(x[:], w[:], -32, 31)
		portably(func() {
			tr.sum()
			tr.measure()
			for i, d := range tr.step[:tr.n] {
				sq, sqq, sqx := 0.0, 0.0, 0.0
				for j, v := range x {
					q := plainNearest(float64(v)+tr.offset[i], d, -32, 31)
					sq += float64(float64(w[j]) * q)
					sqq += float64(float64(w[j]) * float64(q*q))
					sqx += float64(float64(w[j]) * float64(q*float64(v)))
				}
				if d != 0 { // else the sums have no meaning
					require.Equal(t, []float64{sq, sqq, sqx}, []float64{tr.sq[i], tr.sqq[i], tr.sqx[i]})
				}
				require.Equal(t, plainError(x[:], w[:], d, tr.offset[i], -32, 31), tr.e[i], "step %v", d)
			}
		})
	}
}

// The integer of an element is that of the quotient, even next to the middle between two.
func TestGridNearest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1_000_000 {
		step := math.Ldexp(random.Float64()+0.5, random.IntN(60)-40)
		x := (float64(random.IntN(300)-150) + 0.5) * step
		for range random.IntN(4) {
			x = math.Nextafter(x, float64(random.IntN(3)-1)*math.MaxFloat64)
		}
		g := newGrid(step, -128, 127)
		require.Equal(t, plainNearest(x, step, -128, 127), g.nearest(x), "%v / %v", x, step)
	}
	for _, step := range []float64{0, 5e-324, 1e-310, 1e300} {
		for _, x := range []float64{0, 1, -1, 5e-324, 65504} {
			g := newGrid(step, -128, 127)
			if got := g.nearest(x); got != plainNearest(x, step, -128, 127) {
				t.Errorf("%v / %v: %v", x, step, got)
			}
		}
	}
}

// Bytes of the search step by step, recorded. Q8_0 has none.
func TestEncodeRecorded(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 22))
	x, w := make([]float32, 1<<15), make([]float32, 1024)
	for i := range x {
		x[i] = float32(random.NormFloat64()) * float32(math.Ldexp(1, i/1024%32-20))
		if i%3 == 0 { // as from BF16
			x[i] = math.Float32frombits(math.Float32bits(x[i]) &^ 0xffff)
		}
	}
	for i := range w {
		w[i] = float32(random.ExpFloat64())
	}
	for typ, want := range map[Type][2]string{
		Q8_0: {"ec547991e274ae6f", "ec547991e274ae6f"},
		Q4_0: {"a8392b52254dfc5f", "1c4cb81445eb9480"},
		Q4_K: {"e3ed017b9d5ff2a1", "ae51176f9fe5f716"},
		Q6_K: {"abeae534b5d30588", "1198264945eaee43"},
	} {
		portably(func() {
			for i, importance := range [][]float32{nil, w} {
				data, err := Encode(nil, typ, x, len(w), importance)
				require.NoError(t, err)
				require.Equal(t, want[i], fmt.Sprintf("%x", sha256.Sum256(data))[:16], "%s", typ)
			}
		})
	}
}
