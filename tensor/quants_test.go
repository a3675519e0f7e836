package tensor

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// quantValue returns what element i of a block is worth by the formula of its type, in
// binary64, with every part picked out of the bytes on its own.
func quantValue(t Type, b []byte, i int) float64 {
	f16 := func(at int) float64 { return float64(F16ToF32(binary.LittleEndian.Uint16(b[at:]))) }
	bits := func(v byte, at, n int) int { return int(v) >> at & (1<<n - 1) }
	nibble := func(at int) int { // of 32 elements
		return bits(b[at+i%16], 4*(i%32/16), 4)
	}
	word := func(at int) int { return bits(b[at+i/8], i%8, 1) << 4 }
	g, sub := i/16, i/32
	six := func(at int) (s, m int) { // scales and minima of Q4_K and Q5_K
		if sub < 4 {
			return bits(b[at+sub], 0, 6), bits(b[at+sub+4], 0, 6)
		}
		return bits(b[at+sub+4], 0, 4) + bits(b[at+sub-4], 6, 2)<<4, bits(b[at+sub+4], 4, 4) + bits(b[at+sub], 6, 2)<<4
	}
	two := func(at int) int { return bits(b[at+i/128*32+i%32], i%128/32*2, 2) }
	switch t {
	case Q8_0:
		return f16(0) * float64(int8(b[2+i]))
	case Q4_0:
		return f16(0) * float64(nibble(2)-8)
	case Q4_1:
		return f16(0)*float64(nibble(4)) + f16(2)
	case Q5_0:
		return f16(0) * float64(nibble(6)+word(2)-16)
	case Q5_1:
		return f16(0)*float64(nibble(8)+word(4)) + f16(2)
	case Q2_K:
		return f16(80)*float64(bits(b[g], 0, 4)*two(16)) - f16(82)*float64(bits(b[g], 4, 4))
	case Q3_K:
		s := bits(b[96+g%8], g/8*4, 4) + bits(b[104+g%4], g/4*2, 2)<<4
		return f16(108) * float64((s-32)*(two(32)+4*bits(b[i%32], sub, 1)-4))
	case Q4_K, Q5_K:
		s, m := six(4)
		at := 16
		high := 0
		if t == Q5_K {
			at, high = 48, bits(b[16+i%32], sub, 1)<<4
		}
		q := bits(b[at+i/64*32+i%32], i/32%2*4, 4) + high
		return f16(0)*float64(s*q) - f16(2)*float64(m)
	case Q6_K:
		h, part, l := i/128, i%128/32, i%32
		q := bits(b[64*h+l+part%2*32], part/2*4, 4) + bits(b[128+32*h+l], 2*part, 2)<<4
		return f16(208) * float64(int8(b[192+g])) * float64(q-32)
	case IQ4_NL:
		return f16(0) * float64(nonlinear[nibble(2)])
	case IQ4_XS:
		s := bits(b[4+sub/2], sub%2*4, 4) + int(binary.LittleEndian.Uint16(b[2:]))>>(2*sub)&3<<4
		return f16(0) * float64(s-32) * float64(nonlinear[nibble(8+16*sub)])
	case MXFP4:
		if b[0] == 255 {
			return math.NaN()
		}
		return math.Ldexp(float64(e2m1[nibble(1)]), int(b[0])-128)
	}
	panic("no such type")
}

// TestQuants compares random blocks of every quantised type, those with subnormal and
// infinite scales included, with the formula of the type, rounded once.
func TestQuants(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	for typ := Q8_0; typ <= MXFP4; typ++ {
		n := typ.Block()
		b := make([]byte, 3*typ.Bytes(n))
		got := make([]float32, 3*n)
		for range 500 {
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			typ.Widen(got, b)
			for i, v := range got {
				want := float32(quantValue(typ, b[i/n*typ.Bytes(n):], i%n))
				if want != v && !(want != want && v != v) {
					t.Fatalf("%v, element %d: found %v, expected %v", typ, i, v, want)
				}
			}
		}
	}
}

func TestQuantisedBytes(t *testing.T) {
	n, err := Bytes(Q4_K, []int{3, 512})
	require.NoError(t, err)
	require.Equal(t, 3*2*144, n)
	_, err = Bytes(Q4_K, []int{256, 3})
	require.ErrorContains(t, err, "3 elements are not whole blocks of 256")
	_, err = Bytes(Q8_0, nil)
	require.Error(t, err)
	_, err = ParseType("Q4_K")
	require.Error(t, err, "not a type of safetensors")
	x := Make(Q8_0, 2, 64)
	require.Equal(t, 128, x.Len())
	require.Len(t, x.Row(1).Data, 2*34)
	require.Len(t, x.Float32s(nil), 128)
}
