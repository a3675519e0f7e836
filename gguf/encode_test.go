package gguf

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// decoded returns what a reader gets of the blocks in data.
func decoded(t require.TestingT, typ Type, data []byte, width int) []float32 {
	x := &Tensor{Type: typ, Shape: []int{len(data) / (width / blocks[typ].elements * blocks[typ].bytes), width}, Data: data}
	out := make([]float32, x.Shape[0]*width)
	require.NoError(t, x.Rows(out, 0, x.Shape[0]))
	return out
}

// The error of normal numbers is that of the number of bits, in parts of their spread:
// a uniform quantiser of n levels over a range r has r/(n·√12).
func TestEncodeError(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	for typ, most := range map[Type]float64{F32: 0, BF16: 2e-3, F16: 3e-4, Q8_0: 6.5e-3, Q6_K: 0.019, Q4_K: 0.075, Q4_0: 0.095} {
		data, err := Encode(nil, typ, x, 1024, nil)
		require.NoError(t, err)
		e := 0.0
		for i, v := range decoded(t, typ, data, 1024) {
			e += float64(v-x[i]) * float64(v-x[i])
		}
		e = math.Sqrt(e / float64(len(x)))
		require.LessOrEqual(t, e, most, "%s", typ)
		require.GreaterOrEqual(t, e, most/2, "%s: the bound says something", typ)
	}
}

// Important elements come out nearer than others do.
func TestEncodeImportance(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	x, w := make([]float32, 1<<15), make([]float32, 256)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	for i := range w {
		w[i] = 0.01
		if i%8 == 0 {
			w[i] = 10
		}
	}
	for _, typ := range []Type{Q4_0, Q4_K, Q6_K} {
		var e [2]float64
		for k, importance := range [][]float32{nil, w} {
			data, err := Encode(nil, typ, x, 256, importance)
			require.NoError(t, err)
			for i, v := range decoded(t, typ, data, 256) {
				if i%8 == 0 {
					e[k] += float64(v-x[i]) * float64(v-x[i])
				}
			}
		}
		require.Less(t, e[1], 0.9*e[0], "%s", typ)
	}
}

// Whatever the numbers, no value moves by more than the steps of its block allow, and
// zeros stay zeros.
func TestEncodeBounds(t *testing.T) {
	steps := map[Type]float64{Q8_0: 127, Q4_0: 7, Q4_K: 15, Q6_K: 31}
	rapid.Check(t, func(t *rapid.T) {
		typ := rapid.SampledFrom([]Type{Q8_0, Q4_0, Q4_K, Q6_K}).Draw(t, "type")
		size := rapid.SampledFrom([]float32{0, 1e-7, 1e-4, 1, 30, 6e4}).Draw(t, "size")
		shift := rapid.SampledFrom([]float32{0, -1, 1}).Draw(t, "shift")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		x := make([]float32, 512)
		top := 0.0
		for i := range x {
			x[i] = size * (shift + float32(2*random.Float64()-1)) / 2
			top = max(top, math.Abs(float64(x[i])))
		}
		data, err := Encode(nil, typ, x, 256, nil)
		require.NoError(t, err)
		for i, v := range decoded(t, typ, data, 256) {
			// Scales themselves are rounded: by 1/63 of the largest, to binary16.
			require.LessOrEqual(t, math.Abs(float64(v-x[i])), 2.5*top/steps[typ]+1e-5, "element %d of %s", i, typ)
		}
	})
}

func TestEncodeRefuses(t *testing.T) {
	for want, f := range map[string]func() error{
		"the type Q5_K is not written": func() error { _, err := Encode(nil, Q5_K, make([]float32, 256), 256, nil); return err },
		"a multiple of 256":            func() error { _, err := Encode(nil, Q4_K, make([]float32, 128), 128, nil); return err },
		"element 1 is NaN":             func() error { _, err := Encode(nil, F32, []float32{0, float32(math.NaN())}, 2, nil); return err },
		"between ±65504": func() error {
			x := make([]float32, 32)
			x[3] = 1e5
			_, err := Encode(nil, Q8_0, x, 32, nil)
			return err
		},
		"±65504 for the type F16": func() error { _, err := Encode(nil, F16, []float32{-7e4}, 1, nil); return err },
	} {
		require.ErrorContains(t, f(), want)
	}
	require.True(t, Q4_K.Writable())
	require.False(t, Q5_K.Writable())
}
