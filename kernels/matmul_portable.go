package kernels

import (
	"encoding/binary"
	"math"
)

func matMulPortable(dst []float32, ldd int, x []float32, ldx, n int, w *Matrix, lo, hi int) {
	var buf [blockK]float32
	for o := lo; o < hi; o++ {
		for k := 0; k < w.Cols || k == 0; k += blockK {
			e := min(k+blockK, w.Cols)
			wb := w.widened(buf[:e-k], o, k)
			for r := range n {
				s := dotF32(x[r*ldx+k:r*ldx+e], wb)
				if k > 0 {
					s = dst[r*ldd+o] + s
				}
				dst[r*ldd+o] = s
			}
		}
	}
}

// dotF32 computes one block of a product with f32 activations.
func dotF32(x, w []float32) float32 {
	var s [lanes]float32
	w = w[:len(x)]
	k := 0
	for ; k+lanes <= len(x); k += lanes {
		dotGroupF32(&s, (*[lanes]float32)(x[k:]), (*[lanes]float32)(w[k:]))
	}
	if k < len(x) {
		var a, b [lanes]float32
		copy(a[:], x[k:])
		copy(b[:], w[k:])
		dotGroupF32(&s, &a, &b)
	}
	return sumLanes(&s)
}

// dotGroupF32 sets every s[i] to fma32(a[i], b[i], s[i]). It computes all 16 sums
// in float64 and checks only once whether any of them needs more care.
func dotGroupF32(s, a, b *[lanes]float32) {
	var t [lanes]float32
	var doubt uint64 // top bit: the condition of fma32 for some lane, or a sum of zero
	for i := range s {
		d := float64(a[i])*float64(b[i]) + float64(s[i])
		t[i] = float32(d)
		u := math.Float64bits(d)
		doubt |= (u&0x1fffffff ^ 0x10000000) - 1
		doubt |= u&(1<<63-1) - 0x381<<52
	}
	if doubt>>63 == 0 {
		*s = t
		return
	}
	for i := range s {
		s[i] = fma32(a[i], b[i], s[i])
	}
}

func matMulBF16Portable(dst []float32, ldd int, x []uint16, ldx, n int, w *Matrix, lo, hi int) {
	for o := lo; o < hi; o++ {
		row := w.Slice(o, o+1).Data
		for k := 0; k < w.Cols || k == 0; k += blockK {
			e := min(k+blockK, w.Cols)
			for r := range n {
				s := dotBF16(x[r*ldx+k:r*ldx+e], row[2*k:2*e])
				if k > 0 {
					s = dst[r*ldd+o] + s
				}
				dst[r*ldd+o] = s
			}
		}
	}
}

// dotBF16 computes one block of a product of bf16 with bf16. w holds len(x) bf16 values.
func dotBF16(x []uint16, w []byte) float32 {
	var s [lanes]float32
	w = w[:2*len(x)]
	k := 0
	for ; k+2*lanes <= len(x); k += 2 * lanes {
		dotGroupBF16(&s, (*[2 * lanes]uint16)(x[k:]), (*[4 * lanes]byte)(w[2*k:]))
	}
	if k < len(x) {
		var a [2 * lanes]uint16
		var b [4 * lanes]byte
		copy(a[:], x[k:])
		copy(b[:], w[2*k:])
		dotGroupBF16(&s, &a, &b)
	}
	// A product may have overflowed where its sum does not; its lane has then stayed
	// infinite or NaN.
	for _, v := range s {
		if beyond(v)>>63 != 0 {
			return dotBF16Slow(x, w)
		}
	}
	return sumLanes(&s)
}

// dotBF16Slow is dotBF16 with every step checked.
//
//go:noinline
func dotBF16Slow(x []uint16, w []byte) float32 {
	var s [lanes]float32
	step := func(i, k int) {
		if k < len(x) {
			s[i] = fmaFlush(bf16(x[k]), bf16(binary.LittleEndian.Uint16(w[2*k:])), s[i])
		} else {
			s[i] = fmaFlush(0, 0, s[i])
		}
	}
	for k := 0; k < len(x); k += 2 * lanes {
		for i := range s {
			step(i, k+2*i+1)
			step(i, k+2*i)
		}
	}
	return sumLanes(&s)
}

// dotGroupBF16 takes both steps of each lane, the odd element first. It checks
// only once whether any number in them was tiny. A lane whose product
// overflows becomes infinite or NaN.
func dotGroupBF16(s *[lanes]float32, a *[2 * lanes]uint16, b *[4 * lanes]byte) {
	var t [lanes]float32
	var doubt uint64
	for i := range s {
		w := binary.LittleEndian.Uint32(b[4*i:])
		x1, w1 := bf16(a[2*i+1]), math.Float32frombits(w&0xffff0000)
		x0, w0 := bf16(a[2*i]), math.Float32frombits(w<<16)
		p1, p0 := x1*w1, x0*w0
		t1 := s[i] + p1
		t[i] = t1 + p0
		doubt |= excess(x1) | excess(w1) | excess(p1) | excess(s[i]) | excess(t1)
		doubt |= excess(x0) | excess(w0) | excess(p0) | excess(t[i])
	}
	if doubt>>63 == 0 {
		*s = t
		return
	}
	for i := range s {
		w := binary.LittleEndian.Uint32(b[4*i:])
		t := fmaFlush(bf16(a[2*i+1]), math.Float32frombits(w&0xffff0000), s[i])
		s[i] = fmaFlush(bf16(a[2*i]), math.Float32frombits(w<<16), t)
	}
}
