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

// toInteger rounds a number below 2^51 to an even integer when it is added and taken away
// again.
const toInteger = 3 << 51

// grid is the multiples of a step by the integers from lo ≤ 0 to hi ≥ 0, at most 2^7 in
// magnitude.
type grid struct{ step, inverse, lo, hi float64 }

func newGrid(step, lo, hi float64) grid {
	g := grid{step: step, lo: lo, hi: hi}
	if step != 0 {
		g.inverse = 1 / step
	}
	return g
}

// clearly is how far a product with the inverse may lie from an integer for the quotient to
// be nearest to the same integer. Up to 2^8 the two differ by three roundings, less than
// 2^-43; what is larger is clamped.
const clearly = 0.5 - 0x1p-40

// nearest returns x/step rounded to even, from lo to hi; 0 for a step of 0.
func (g *grid) nearest(x float64) float64 {
	y := float64(x * g.inverse)
	q := y + toInteger - toInteger
	if !(y-q <= clearly && q-y <= clearly) {
		q = x/g.step + toInteger - toInteger
	}
	if q < g.lo {
		return g.lo
	}
	if q > g.hi {
		return g.hi
	}
	return q
}

// largest returns the first element of the largest magnitude.
func largest(x []float32) float64 {
	m, most := float32(0), float32(0)
	for _, v := range x {
		if v > most {
			m, most = v, v
		} else if -v > most {
			m, most = v, -v
		}
	}
	return float64(m)
}

func encodeQ8_0(dst []byte, x, _ []float32) {
	g := newGrid(putHalf(dst, math.Abs(largest(x))/127), -127, 127)
	for i, v := range x {
		dst[2+i] = byte(int8(g.nearest(float64(v))))
	}
}

func encodeQ4_0(dst []byte, x, w []float32) {
	g := newGrid(putHalf(dst, symmetric(x, w, -8, 7)), -8, 7)
	for i := range 16 {
		lo, hi := int(g.nearest(float64(x[i]))), int(g.nearest(float64(x[i+16])))
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
	var t trials
	t.n = 17
	for i := range t.n {
		t.step[i] = top / (float64(lo) + float64(0.1*float64(i-8)))
	}
	t.set(x, w, lo, hi)
	t.sum()
	n, last := 0, math.NaN()
	for i, den := range t.sqq[:t.n] {
		if den == 0 {
			continue
		}
		d := t.sqx[i] / den
		t.step[n] = d
		if d != last { // else it is the same trial
			n++
		}
		last = d
	}
	t.n = n
	if d, _, ok := t.best(); ok {
		return d
	}
	return top / float64(lo)
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
	var t trials
	t.set(x, w, 0, top)
	t.n = 15
	for i := range t.n {
		t.step[i], t.offset[i] = (high-low)/(float64(top)+float64(0.2*float64(i-4))), -low
	}
	t.sum()
	sum, sumX := 0.0, 0.0
	for j, wj := range t.w[:len(x)] {
		sum += wj
		sumX += t.xw[j]
	}
	n := 0
	for i := range t.n {
		d, m = solveAffine(sum, t.sq[i], t.sqq[i], sumX, t.sqx[i], t.step[i], t.offset[i])
		if n == 0 || d != t.step[n-1] || m != t.offset[n-1] { // else it is the same trial
			t.step[n], t.offset[n] = d, m
			n++
		}
	}
	t.n = n
	d, m, _ = t.best()
	return d, m
}

// solveAffine returns the step and offset of the least squared error for the integers q
// with these weighted sums of 1, q, q², x, q·x; those given if there are none.
func solveAffine(n, sq, sqq, sx, sqx, step, offset float64) (d, m float64) {
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
	scale := newGrid(putHalf(dst, maxOf(steps[:])/63), 0, 63)
	least := newGrid(putHalf(dst[2:], maxOf(offsets[:])/63), 0, 63)
	scales := dst[4:16]
	clear(dst[4:])
	for j := range 8 {
		sc, m := scale.nearest(steps[j]), least.nearest(offsets[j])
		putScaleMin(scales, j, byte(sc), byte(m))
		g, offset := newGrid(float64(scale.step*sc), 0, 15), float64(least.step*m)
		shift := 4 * (j & 1)
		for i := range 32 {
			q := g.nearest(float64(x[32*j+i]) + offset)
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
	var q [256]byte
	scale := newGrid(putHalf(dst[208:], top/-128), -128, 127)
	for j := range steps {
		sc := scale.nearest(steps[j])
		dst[192+j] = byte(int8(sc))
		g := newGrid(float64(scale.step*sc), -32, 31)
		for i, v := range x[16*j : 16*j+16] {
			q[16*j+i] = byte(int(g.nearest(float64(v))) + 32)
		}
	}
	// Half h has the low four bits in 64 bytes, of elements l and l+64 in one, and the upper
	// two in 32 bytes.
	for h := range 2 {
		for l := range 32 {
			a, b, c, d := q[128*h+l], q[128*h+32+l], q[128*h+64+l], q[128*h+96+l]
			dst[64*h+l] = a&15 | c<<4
			dst[64*h+32+l] = b&15 | d<<4
			dst[128+32*h+l] = a>>4 | b>>4<<2 | c>>4<<4 | d>>4<<6
		}
	}
}

func maxOf(x []float64) float64 {
	m := 0.0
	for _, v := range x {
		m = max(m, v)
	}
	return m
}
