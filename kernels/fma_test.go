package kernels

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// exactFMA returns x*y + z rounded once, computed with exact arithmetic. The
// arguments are finite.
func exactFMA(x, y, z float32) float32 {
	exact := func(f float32) *big.Float { return new(big.Float).SetPrec(1000).SetFloat64(float64(f)) }
	p := new(big.Float).SetPrec(1000).Mul(exact(x), exact(y))
	f, _ := p.Add(p, exact(z)).Float32()
	return f
}

func TestFMA32(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	next := func() float32 {
		for {
			f := math.Float32frombits(randomBits(r, hard, tensor.F32))
			if r.Uint64()%4 == 0 {
				f = math.Float32frombits(math.Float32bits(f) &^ 0xfff) // short significands hit midpoints
			}
			if !math.IsInf(float64(f), 0) {
				return f
			}
		}
	}
	slow := 0
	for range 200_000 {
		x, y, z := next(), next(), next()
		if r.Uint64()%4 == 0 {
			// A sum near a midpoint between two float32.
			z = x * y * math.Float32frombits(uint32(127+23+r.Uint64()%4)<<23)
		}
		want := exactFMA(x, y, z)
		if math.IsInf(float64(z), 0) || math.IsNaN(float64(z)) {
			continue
		}
		require.Equal(t, want, fma32(x, y, z), "fma32(%x, %x, %x)", x, y, z)
		require.Equal(t, want, fma32Slow(x, y, z), "fma32Slow(%x, %x, %x)", x, y, z)
		if float32(float64(x)*float64(y)+float64(z)) != want {
			slow++
		}
	}
	require.Positive(t, slow, "no case in which two roundings differ from one")
}

// exactFlush is a step of the bf16 dot product, exactly as the contract words it.
func exactFlush(x, y, z float32) float32 {
	x, y, z = flush(x), flush(y), flush(z)
	wide := func(f float32) *big.Float { return new(big.Float).SetPrec(1000).SetFloat64(float64(f)) }
	s := new(big.Float).SetPrec(1000).Mul(wide(x), wide(y))
	s.Add(s, wide(z))
	if s.Sign() == 0 {
		return x*y + z // only the sign of zero is open
	}
	rounded := new(big.Float).SetPrec(24).Set(s)
	if new(big.Float).Abs(rounded).Cmp(big.NewFloat(minNormal)) < 0 {
		return float32(math.Copysign(0, float64(s.Sign())))
	}
	f, _ := rounded.Float32()
	return f
}

func TestFMAFlush(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 100_000 {
		st := hard
		if i%2 == 0 {
			st = tiny
		}
		x := bf16(uint16(randomBits(r, st, tensor.BF16)))
		y := bf16(uint16(randomBits(r, st, tensor.BF16)))
		z := math.Float32frombits(randomBits(r, st, tensor.F32))
		if st == tiny { // of the order of the product
			z *= 0x1p-63
		}
		want, got := exactFlush(x, y, z), fmaFlush(x, y, z)
		require.Equal(t, math.Float32bits(want), math.Float32bits(got), "fmaFlush(%x, %x, %x) = %x, want %x", x, y, z, got, want)
	}
}

// TestDotTiny pins the boundary at which a sum counts as tiny (after rounding to
// 24 bits, not before), and that only sums overflow, not products.
func TestDotTiny(t *testing.T) {
	toBF16 := func(f float32) uint16 { return uint16(math.Float32bits(f) >> 16) }
	for _, c := range []struct {
		name string
		x, w [2]float32 // elements 1 and 0 of a group: the sum is x0·w0 after x1·w1
		want float32
	}{
		{"smallest normal", [2]float32{0x1p-63, 0}, [2]float32{0x1p-63, 0}, 0x1p-126},
		{"midpoint rounds up to normal", [2]float32{0x1p-63, 0x1p-75}, [2]float32{0x1p-63, -0x1p-76}, 0x1p-126},
		{"a quarter below rounds up to normal", [2]float32{0x1p-63, 0x1p-76}, [2]float32{0x1p-63, -0x1p-76}, 0x1p-126},
		{"one unit below is flushed", [2]float32{0x1p-63, 0x1p-75}, [2]float32{0x1p-63, -0x1p-75}, 0},
		{"half is flushed", [2]float32{0x1p-63, 0x1p-63}, [2]float32{0x1p-63, -0x1p-64}, 0},
		{"a tiny product is rounded with the sum, not before", [2]float32{0x1.8p-63, 0x1p-64}, [2]float32{0x1p-63, 0x1p-64}, 0x1.cp-126},
		{"a product beyond the largest number is added as it is", [2]float32{-0x1.8p63, 0x1p64}, [2]float32{0x1p64, 0x1p64}, 0x1p126},
		{"a product beyond the largest number is less than infinity", [2]float32{-0x1p70, 0x1p70}, [2]float32{0x1p70, 0x1p70}, float32(math.Inf(-1))},
		{"a subnormal weight is zero", [2]float32{1, 0}, [2]float32{0x1p-127, 0}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := make([]uint16, 32)
			w := Matrix{Type: tensor.BF16, Rows: 9, Cols: 32, Data: make([]byte, 9*64)}
			x[1], x[0] = toBF16(c.x[0]), toBF16(c.x[1])
			for o := range w.Rows {
				d := view[uint16](w.Data[64*o : 64*o+64])
				d[1], d[0] = toBF16(c.w[0]), toBF16(c.w[1])
			}
			for _, cpu := range Variants() {
				dst := make([]float32, w.Rows)
				cpu.MatMulBF16(dst, w.Rows, x, 32, 1, &w, 0, w.Rows)
				for o, got := range dst {
					require.Equal(t, c.want, got, "%v, row %d: want %x, got %x", cpu, o, c.want, got)
				}
			}
		})
	}
}

// TestSubnormalsSurvive checks that no kernel leaves the processor flushing.
func TestSubnormalsSurvive(t *testing.T) {
	x, dst := make([]uint16, 3*64), make([]float32, 3*8)
	w := Matrix{Type: tensor.BF16, Rows: 8, Cols: 64, Data: make([]byte, 8*128)}
	small := float32(0x1p-126)
	for _, c := range Variants() {
		for n := 1; n <= 3; n++ {
			c.MatMulBF16(dst, 8, x, 64, n, &w, 0, 8)
			small *= 0.5
			require.Equal(t, float32(0x1p-127), small, "%v", c)
			small *= 2
			require.Equal(t, float32(0x1p-126), small, "%v", c)
		}
	}
}
