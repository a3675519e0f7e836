package gguf

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lukv/lukv/tensor"
)

// A block is encoded so that the squared error of the values that a reader gets back,
// weighted by importance, is small: every step is chosen with the rounded scales that
// the block stores. Sums are in binary64, with every product rounded before it is
// added, so that the bytes are the same on all processors.

// encoder writes one block: x has the block's elements, w their importance.
type encoder func(dst []byte, x, w []float32)

var encoders = map[Type]encoder{
	F32:  func(dst []byte, x, _ []float32) { binary.LittleEndian.PutUint32(dst, math.Float32bits(x[0])) },
	F16:  func(dst []byte, x, _ []float32) { binary.LittleEndian.PutUint16(dst, tensor.F32ToF16(x[0])) },
	BF16: func(dst []byte, x, _ []float32) { binary.LittleEndian.PutUint16(dst, tensor.F32ToBF16(x[0])) },
	Q8_0: encodeQ8_0, Q4_0: encodeQ4_0, Q4_K: encodeQ4_K, Q6_K: encodeQ6_K,
}

// Writable reports whether [Encode] writes the type.
func (t Type) Writable() bool { return encoders[t] != nil }

// Encode appends rows of finite numbers, [n][width], to dst as blocks of type t.
// importance, [width], weighs the squared errors along a row; nil weighs all alike.
// It is an error if the type is not Writable, its blocks do not divide a row, or a
// number is not finite or too large for binary16, which F16 and the scales of blocks are.
func Encode(dst []byte, t Type, x []float32, width int, importance []float32) ([]byte, error) {
	b, encode := blocks[t], encoders[t]
	if encode == nil {
		var names []string
		for _, t := range slices.Sorted(maps.Keys(encoders)) {
			names = append(names, t.String())
		}
		return nil, fmt.Errorf("the type %s is not written, expected one of %s", t, strings.Join(names, ", "))
	}
	if width < 1 || width%b.elements != 0 || len(x)%width != 0 {
		return nil, fmt.Errorf("rows of %d elements, expected a multiple of %d for the type %s", width, b.elements, t)
	}
	most := math.MaxFloat32
	if b.elements > 1 || t == F16 {
		most = 65504 // of binary16: the number itself, or a scale, which never exceeds the largest value
	}
	for i, v := range x {
		if !(math.Abs(float64(v)) <= most) {
			return nil, fmt.Errorf("element %d is %v, expected a number between ±%g for the type %s", i, v, most, t)
		}
	}
	equal := make([]float32, b.elements)
	for i := range equal {
		equal[i] = 1
	}
	at := len(dst)
	dst = append(dst, make([]byte, len(x)/b.elements*b.bytes)...)
	for i := 0; i < len(x); i += b.elements {
		w := equal
		if importance != nil {
			w = importance[i%width : i%width+b.elements]
		}
		encode(dst[at:at+b.bytes], x[i:i+b.elements], w)
		at += b.bytes
	}
	return dst, nil
}

// putHalf stores a scale as binary16 and returns the stored value. A scale that would
// become 0 becomes the smallest number instead: coarse steps lose less than none.
func putHalf(dst []byte, x float64) float64 {
	h := tensor.F32ToF16(float32(x))
	if h&0x7fff == 0 && x != 0 {
		h |= 1
	}
	binary.LittleEndian.PutUint16(dst, h)
	return float64(tensor.F16ToF32(h))
}

// nearest returns x/step rounded to even, from lo to hi; 0, clamped, for a step of 0.
func nearest(x, step float64, lo, hi int) int {
	if step == 0 {
		return min(max(0, lo), hi)
	}
	return min(max(int(math.RoundToEven(x/step)), lo), hi)
}

// largest returns the element of the largest magnitude.
func largest(x []float32) float64 {
	m := float32(0)
	for _, v := range x {
		if max(v, -v) > max(m, -m) {
			m = v
		}
	}
	return float64(m)
}

func encodeQ8_0(dst []byte, x, _ []float32) {
	d := putHalf(dst, math.Abs(largest(x))/127)
	for i, v := range x {
		dst[2+i] = byte(int8(nearest(float64(v), d, -127, 127)))
	}
}

func encodeQ4_0(dst []byte, x, w []float32) {
	d := putHalf(dst, symmetric(x, w, -8, 7))
	for i := range 16 {
		lo, hi := nearest(float64(x[i]), d, -8, 7), nearest(float64(x[i+16]), d, -8, 7)
		dst[2+i] = byte(lo+8) | byte(hi+8)<<4
	}
}

// symmetric returns the step d for which the values q·d, lo ≤ q ≤ hi, come near x.
// It starts from the steps that put the largest value on or near the end lo of the range,
// which reaches further than hi, and takes the best after solving for d with the
// integers that each leads to.
func symmetric(x, w []float32, lo, hi int) float64 {
	top := largest(x)
	if top == 0 {
		return 0
	}
	best, least := top/float64(lo), math.Inf(1)
	for i := -8; i <= 8; i++ {
		d := top / (float64(lo) + 0.1*float64(i))
		num, den := 0.0, 0.0
		for j, v := range x {
			q := float64(nearest(float64(v), d, lo, hi))
			num += float64(float64(w[j]) * float64(q*float64(v)))
			den += float64(float64(w[j]) * float64(q*q))
		}
		if den == 0 {
			continue
		}
		d = num / den
		e := 0.0
		for j, v := range x {
			r := float64(v) - float64(d*float64(nearest(float64(v), d, lo, hi)))
			e += float64(float64(w[j]) * float64(r*r))
		}
		if e < least {
			best, least = d, e
		}
	}
	return best
}

// affine returns the step d ≥ 0 and the offset m ≥ 0 for which the values
// q·d − m, 0 ≤ q ≤ top, come near x.
func affine(x, w []float32, top int) (d, m float64) {
	low, high := 0.0, math.Inf(-1) // the offset cannot be negative
	for _, v := range x {
		low, high = min(low, float64(v)), max(high, float64(v))
	}
	if high <= low {
		return 0, -low
	}
	least := math.Inf(1)
	for i := -4; i <= 10; i++ {
		step := (high - low) / (float64(top) + 0.2*float64(i))
		s, o := solveAffine(x, w, step, -low, top)
		e := 0.0
		for j, v := range x {
			r := float64(v) - (float64(s*float64(nearest(float64(v)+o, s, 0, top))) - o)
			e += float64(float64(w[j]) * float64(r*r))
		}
		if e < least {
			d, m, least = s, o, e
		}
	}
	return d, m
}

// solveAffine returns the step and offset of the least squared error for the integers
// that step and offset give.
func solveAffine(x, w []float32, step, offset float64, top int) (d, m float64) {
	var n, sq, sqq, sx, sqx float64
	for j, v := range x {
		q, wj, xj := float64(nearest(float64(v)+offset, step, 0, top)), float64(w[j]), float64(v)
		n += wj
		sq += float64(wj * q)
		sqq += float64(float64(wj*q) * q)
		sx += float64(wj * xj)
		sqx += float64(float64(wj*q) * xj)
	}
	det := float64(n*sqq) - float64(sq*sq)
	if det <= 0 {
		return step, offset
	}
	d = (float64(n*sqx) - float64(sq*sx)) / det
	m = (float64(sq*sqx) - float64(sqq*sx)) / det // of x ≈ q·d − m
	if m < 0 && sqq > 0 {
		d, m = sqx/sqq, 0
	}
	if !(d > 0) {
		return step, offset
	}
	return d, m
}

func encodeQ4_K(dst []byte, x, w []float32) {
	var steps, offsets [8]float64
	for j := range 8 {
		steps[j], offsets[j] = affine(x[32*j:32*j+32], w[32*j:32*j+32], 15)
	}
	d := putHalf(dst, maxOf(steps[:])/63)
	least := putHalf(dst[2:], maxOf(offsets[:])/63)
	scales := dst[4:16]
	clear(dst[4:])
	for j := range 8 {
		sc, m := nearest(steps[j], d, 0, 63), nearest(offsets[j], least, 0, 63)
		putScaleMin(scales, j, byte(sc), byte(m))
		step, offset := float64(d*float64(sc)), float64(least*float64(m))
		shift := 4 * (j & 1)
		for i := range 32 {
			q := nearest(float64(x[32*j+i])+offset, step, 0, 15)
			dst[16+32*(j/2)+i] |= byte(q) << shift
		}
	}
}

// putScaleMin packs the scale and the minimum, of 6 bits, of sub-block j of a K block
// whose bits are still 0.
func putScaleMin(b []byte, j int, scale, least byte) {
	if j < 4 {
		b[j] |= scale
		b[j+4] |= least
		return
	}
	b[j+4] |= scale&15 | least<<4
	b[j-4] |= scale >> 4 << 6
	b[j] |= least >> 4 << 6
}

func encodeQ6_K(dst []byte, x, w []float32) {
	var steps [16]float64
	top := 0.0
	for j := range steps {
		steps[j] = symmetric(x[16*j:16*j+16], w[16*j:16*j+16], -32, 31)
		if math.Abs(steps[j]) > math.Abs(top) {
			top = steps[j]
		}
	}
	clear(dst)
	d := putHalf(dst[208:], top/-128)
	for j := range steps {
		sc := nearest(steps[j], d, -128, 127)
		dst[192+j] = byte(int8(sc))
		step := float64(d * float64(sc))
		for i := range 16 {
			putQ6(dst, 16*j+i, byte(nearest(float64(x[16*j+i]), step, -32, 31)+32))
		}
	}
}

// putQ6 stores the 6 bits of element e of a Q6_K block: half h = e/128 has the low four
// bits in 64 bytes, of elements l and l+64 in one, and the upper two in 32 bytes.
func putQ6(dst []byte, e int, q byte) {
	h, quarter, l := e/128, e%128/32, e%32
	dst[64*h+32*(quarter&1)+l] |= q & 15 << (4 * (quarter >> 1))
	dst[128+32*h+l] |= q >> 4 << (2 * quarter)
}

func maxOf(x []float64) float64 {
	m := 0.0
	for _, v := range x {
		m = max(m, v)
	}
	return m
}
