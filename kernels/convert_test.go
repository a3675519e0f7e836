package kernels

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"

	"github.com/lukv/lukv/tensor"
)

// Every 16-bit pattern widens exactly and comes back from Narrow.
func TestWidenAndNarrowEveryPattern(t *testing.T) {
	src := make([]byte, 2<<16)
	for i := range 1 << 16 {
		binary.LittleEndian.PutUint16(src[2*i:], uint16(i))
	}
	wide, back := make([]float32, 1<<16), make([]byte, 2<<16)
	for _, c := range Variants() {
		for _, typ := range []tensor.Type{tensor.F16, tensor.BF16} {
			c.Widen(wide, src, typ)
			c.Narrow(back, wide, typ)
			for i := range wide {
				want := math.Float32frombits(uint32(i) << 16)
				if typ == tensor.F16 {
					want = float16.Frombits(uint16(i)).Float32()
				}
				if want != want {
					require.True(t, wide[i] != wide[i], "%v, %v %#x: got %v, want NaN", c, typ, i, wide[i])
					got := binary.LittleEndian.Uint16(back[2*i:])
					require.Equal(t, "", diff(typ, src[2*i:2*i+2], back[2*i:2*i+2]), "%v, %v %#x: narrowed to %#x", c, typ, i, got)
					continue
				}
				if math.Float32bits(want) != math.Float32bits(wide[i]) {
					t.Fatalf("%v, %v %#x: got %v, want %v", c, typ, i, wide[i], want)
				}
				if got := binary.LittleEndian.Uint16(back[2*i:]); got != uint16(i) {
					t.Fatalf("%v, %v %#x: narrowed to %#x", c, typ, i, got)
				}
			}
		}
	}
}

// The neighbourhood of every boundary between two 16-bit numbers rounds as the
// definition says.
func TestNarrowAtBoundaries(t *testing.T) {
	var x []float32
	for h := range 1 << 16 {
		for d := uint32(0x7fff); d <= 0x8001; d++ { // around the midpoint of two bf16
			x = append(x, math.Float32frombits(uint32(h)<<16+d))
		}
		m := math.Float32bits(float16.Frombits(uint16(h)).Float32()) + 0x1000 // of two normal f16
		x = append(x, math.Float32frombits(m-1), math.Float32frombits(m), math.Float32frombits(m+1))
	}
	bf, f16, flushed := make([]byte, 2*len(x)), make([]byte, 2*len(x)), make([]uint16, len(x))
	for _, c := range Variants() {
		c.Narrow(bf, x, tensor.BF16)
		c.Narrow(f16, x, tensor.F16)
		c.RoundBF16(flushed, x)
		for i, v := range x {
			if v != v {
				continue
			}
			want := [3]uint16{tensor.F32ToBF16(v), float16.Fromfloat32(v).Bits(), tensor.F32ToBF16(flush(v))}
			got := [3]uint16{binary.LittleEndian.Uint16(bf[2*i:]), binary.LittleEndian.Uint16(f16[2*i:]), flushed[i]}
			if got != want {
				t.Fatalf("%v: bf16, f16 and bf16 without subnormals of %#x: %#x, expected %#x", c, math.Float32bits(v), got, want)
			}
		}
	}
}

func TestExpAccuracyAndLimits(t *testing.T) {
	var x []float32
	for i := -130_000; i < 130_000; i++ {
		x = append(x, float32(i)/1000)
	}
	for _, v := range []float32{exp2Low, exp2High, 88.37626, -87, 0} {
		x = append(x, v, math.Nextafter32(v, -200), math.Nextafter32(v, 200))
	}
	inf := float32(math.Inf(1))
	x = append(x, inf, -inf, float32(math.NaN()), 1e38, -1e38, 1e-40, float32(math.Copysign(0, -1)))
	got, got2 := make([]float32, len(x)), make([]float32, len(x))
	for _, c := range Variants() {
		c.Exp(got, x)
		copy(got2, x)
		c.softmaxWeights(got2, Softmax{Sum: 1}) // its weights are then Exp2 of the scores
		worst, worst2 := 0.0, 0.0
		for i, v := range x {
			want, want2 := Exp(v), Exp2(v)
			if math.Float32bits(want) != math.Float32bits(got[i]) || math.Float32bits(want2) != math.Float32bits(got2[i]) {
				require.Equal(t, "", diff(tensor.F32, bytesOf(want), bytesOf(got[i])), "%v: Exp(%v)", c, v)
				require.Equal(t, "", diff(tensor.F32, bytesOf(want2), bytesOf(got2[i])), "%v: Exp2(%v)", c, v)
			}
			if want := math.Exp2(float64(v)); v >= exp2Low && v < exp2High {
				worst2 = max(worst2, math.Abs(float64(got2[i])/want-1))
			}
			if want := math.Exp(float64(v)); v >= -86 && v < 88 {
				worst = max(worst, math.Abs(float64(got[i])/want-1))
			}
		}
		assert.Less(t, worst, 2e-7, "%v: relative error of Exp", c)
		assert.Less(t, worst2, 1.1e-7, "%v: relative error of Exp2", c)
	}
	assert.Equal(t, float32(0), Exp2(math.Nextafter32(exp2Low, -200)))
	assert.GreaterOrEqual(t, Exp2(exp2Low), float32(minNormal))
	assert.Equal(t, inf, Exp2(exp2High))
	assert.Less(t, Exp2(math.Nextafter32(exp2High, 0)), inf)
	assert.Equal(t, float32(1), Exp(0))
}

func bytesOf(x float32) mem {
	return binary.LittleEndian.AppendUint32(nil, math.Float32bits(x))
}
