package tensor

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// Quants is an unpacked block of a quantised type. Element i of the block is worth
//
//	D·Scale[i/16]·Q[i] - Min·Least[i/16]
//
// Both products are exact in float32 for all types, so that a value is rounded once.
type Quants struct {
	Q            [256]int8
	Scale, Least [16]int8 // Least from 0 to 63
	D, Min       float32
}

// Quantised reports whether t stores blocks of integers with common scales, in GGUF's layout
// of the type of the same name. Blocks have 32 or 256 elements.
func (t Type) Quantised() bool { return t >= Q8_0 && t.Valid() }

// Minima reports whether blocks of t have minima.
func (t Type) Minima() bool {
	switch t {
	case Q4_1, Q5_1, Q2_K, Q4_K, Q5_K:
		return true
	}
	return false
}

// Unpack sets the first Block elements of q, and what belongs to them, to the block that src
// begins with. It panics if t is not Quantised.
func (t Type) Unpack(q *Quants, src []byte) {
	t.UnpackScales(q, src)
	t.UnpackIntegers(&q.Q, src)
}

// UnpackScales is the part of Unpack that sets all fields but Q.
func (t Type) UnpackScales(q *Quants, src []byte) {
	b := src[:formats[t].bytes]
	switch t {
	case Q8_0, Q4_0, Q5_0, IQ4_NL:
		q.scaled(half(b))
	case MXFP4:
		q.scaled(powerOfTwo(b[0]))
	case Q4_1, Q5_1: // q·d + m
		q.scaled(half(b))
		q.Min, q.Least[0], q.Least[1] = -half(b[2:]), 1, 1
	case Q2_K:
		q.D, q.Min = half(b[80:]), half(b[82:])
		a, c := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		const four = 0x0f0f0f0f0f0f0f0f
		setBytes(&q.Scale, a&four, c&four)
		setBytes(&q.Least, a>>4&four, c>>4&four)
	case Q3_K:
		q.D, q.Min, q.Least = half(b[108:]), 0, [16]int8{}
		q.threeScales(b[96:108])
	case Q4_K, Q5_K:
		q.D, q.Min = half(b), half(b[2:])
		q.sixBits(b[4:])
	case Q6_K:
		q.D, q.Min, q.Least = half(b[208:]), 0, [16]int8{}
		setBytes(&q.Scale, binary.LittleEndian.Uint64(b[192:]), binary.LittleEndian.Uint64(b[200:]))
	case IQ4_XS:
		q.D, q.Min, q.Least = half(b), 0, [16]int8{}
		high := binary.LittleEndian.Uint16(b[2:])
		for j := range 8 {
			s := int8(b[4+j/2]>>(4*(j&1))&15) | int8(high>>(2*j)&3<<4)
			q.Scale[2*j], q.Scale[2*j+1] = s-32, s-32
		}
	default:
		panic("tensor: " + t.String() + " is not quantised")
	}
}

// integers are those of a block.
type integers [256]int8

// UnpackIntegers is the part of Unpack that sets Q.
func (t Type) UnpackIntegers(q *[256]int8, src []byte) {
	b, n := src[:formats[t].bytes], (*integers)(q)
	switch t {
	case Q8_0: // d, 32 numbers
		for j, v := range b[2:] {
			n[j] = int8(v)
		}
	case Q4_0, Q4_1, IQ4_NL, MXFP4: // 16 bytes of nibbles after the scales
		levels, first := t.Levels()
		n.nibbles(b[first:])
		n.lookUp(32, levels)
	case Q5_0: // d, 4 bytes of fifth bits, 16 bytes of nibbles; (q - 16)·d
		n.nibbles(b[6:])
		n.fifth(b[2:])
		n.shift(32, 16)
	case Q5_1: // d, m, 4 bytes of fifth bits, 16 bytes of nibbles
		n.nibbles(b[8:])
		n.fifth(b[4:])
	case Q2_K: // 16 bytes of scales (low) and minima (high), 64 bytes of two bits, d, dmin
		n.twoBits(b[16:])
	case Q3_K:
		n.threeBits(b)
	case Q4_K: // d, dmin, 12 bytes of scales and minima, 128 bytes of nibbles
		n.pairs(b[16:])
	case Q5_K:
		n.fiveBits(b)
	case Q6_K:
		n.sixBits(b)
	case IQ4_XS: // d, 2 bytes of upper and 4 of lower bits of 8 scales, 8 times 16 bytes of nibbles
		for j := range 8 {
			n.nibblesAt(32*j, b[8+16*j:])
		}
		n.lookUp(256, &nonlinear)
	default:
		panic("tensor: " + t.String() + " is not quantised")
	}
}

// widenQuants widens blocks of a quantised type.
func widenQuants(dst []float32, src []byte, t Type) {
	var q Quants
	f := &formats[t]
	for ; len(dst) > 0; dst, src = dst[f.block:], src[f.bytes:] {
		t.Unpack(&q, src)
		for g := range f.block / 16 {
			// The conversions keep compilers from fusing products with what follows.
			s, m := q.D*float32(q.Scale[g]), float32(q.Min*float32(q.Least[g]))
			for i, v := range q.Q[16*g : 16*g+16] {
				dst[16*g+i] = float32(s*float32(v)) - m
			}
		}
	}
}

func half(b []byte) float32 { return F16ToF32(binary.LittleEndian.Uint16(b)) }

// scaled sets what a block of 32 elements has beside its integers.
func (q *Quants) scaled(d float32) {
	q.D, q.Min = d, 0
	q.Scale, q.Least = [16]int8{1, 1}, [16]int8{}
}

// sixBits unpacks the 8 scales and minima of 6 bits in 12 bytes. The first four of each have
// the lower bits of the first and second four bytes; the upper bits there are those of the last
// four, whose lower bits share the third four bytes.
func (q *Quants) sixBits(b []byte) {
	a, c, d := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
	const six, four, two = 0x3f3f3f3f, 0x0f0f0f0f, 0x30303030
	spread(&q.Scale, a&six, d&four|a>>2&two)
	spread(&q.Least, c&six, d>>4&four|c>>2&two)
}

// threeScales unpacks the 16 scales of 6 bits of Q3_K, less 32: 8 bytes with the lower bits of
// scales j and j+8, 4 with the upper ones of scales j, j+4, j+8 and j+12.
func (q *Quants) threeScales(b []byte) {
	low, high := binary.LittleEndian.Uint64(b), uint64(binary.LittleEndian.Uint32(b[8:]))
	const four, two = 0x0f0f0f0f0f0f0f0f, 0x3030303030303030
	first := low&four | (high<<4|high<<34)&two
	second := low>>4&four | (high|high<<30)&two
	setBytes(&q.Scale, less32(first), less32(second))
}

// less32 subtracts 32 from each of eight bytes, none of which is above 63.
func less32(x uint64) uint64 {
	const signs, each = 0x8080808080808080, 0x2020202020202020
	return (x | signs) - each ^ signs
}

// spread sets two neighbours of dst to each of the eight bytes of a and b.
func spread(dst *[16]int8, a, b uint32) {
	setBytes(dst, twice(a), twice(b))
}

// twice returns each of the four bytes of x twice.
func twice(x uint32) uint64 {
	y := (uint64(x) | uint64(x)<<16) & 0x0000ffff0000ffff
	y = (y | y<<8) & 0x00ff00ff00ff00ff
	return y | y<<8
}

// setBytes sets dst to the bytes of a and b, the lowest first.
func setBytes(dst *[16]int8, a, b uint64) {
	bytes := (*[16]byte)(unsafe.Pointer(dst))
	binary.LittleEndian.PutUint64(bytes[:], a)
	binary.LittleEndian.PutUint64(bytes[8:], b)
}

// powerOfTwo returns the scale of MXFP4, half of 2^(e-127) because its levels are doubled. An
// exponent of 255 is NaN.
func powerOfTwo(e byte) float32 {
	switch {
	case e < 2:
		return math.Float32frombits(1 << 21 << e) // subnormal
	case e == 255:
		return float32(math.NaN())
	}
	return math.Float32frombits((uint32(e) - 1) << 23)
}

// nibbles unpacks 16 bytes: byte j holds element j (low) and element j+16 (high).
func (n *integers) nibbles(b []byte) { n.nibblesAt(0, b) }

// nibblesAt is nibbles for the 32 elements from at on.
func (n *integers) nibblesAt(at int, b []byte) {
	for j, v := range b[:16] {
		n[at+j], n[at+j+16] = int8(v&15), int8(v>>4)
	}
}

// shift subtracts off from the first count integers.
func (n *integers) shift(count int, off int8) {
	for i := range n[:count] {
		n[i] -= off
	}
}

// fifth adds bit 4 of 32 elements: bit j of the word belongs to element j.
func (n *integers) fifth(b []byte) {
	high := binary.LittleEndian.Uint32(b)
	for j := range n[:32] {
		n[j] |= int8(high >> j & 1 << 4)
	}
}

// pairs unpacks 128 bytes of nibbles: bytes 32i… hold sub-blocks of 32 elements 2i (low) and
// 2i+1 (high).
func (n *integers) pairs(b []byte) {
	for j := range 8 {
		for l, v := range b[j/2*32 : j/2*32+32] {
			n[32*j+l] = int8(v >> (4 * (j & 1)) & 15)
		}
	}
}

// fiveBits unpacks Q5_K: as Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of
// byte l belongs to element l of sub-block j.
func (n *integers) fiveBits(b []byte) {
	n.pairs(b[48:])
	for j := range 8 {
		for l, v := range b[16:48] {
			n[32*j+l] |= int8(v >> j & 1 << 4)
		}
	}
}

// sixBits unpacks Q6_K: 128 bytes of low nibbles, 64 bytes of upper bits, 16 scales, d;
// (q - 32)·d·scale. A half of 128 elements uses 64 and 32 of these bytes.
func (n *integers) sixBits(b []byte) {
	for h := range 2 {
		low, high, out := b[64*h:], b[128+32*h:], n[128*h:]
		for l := range 32 {
			for part := range 4 { // elements l, l+32, l+64, l+96
				v := low[l+32*(part&1)] >> (4 * (part >> 1)) & 15
				out[l+32*part] = int8(v|high[l]>>(2*part)&3<<4) - 32
			}
		}
	}
}

// twoBits unpacks 64 bytes: bits 2·part of byte l of a half hold element 32·part + l.
func (n *integers) twoBits(b []byte) {
	for i := range n {
		h, part, l := i/128, i/32%4, i%32
		n[i] = int8(b[32*h+l] >> (2 * part) & 3)
	}
}

// threeBits unpacks Q3_K: 32 bytes of high bits, 64 bytes of two bits, 12 bytes of scales of 6
// bits, d; (q - 4)·d·(scale - 32). Bit j of high byte l belongs to element l of sub-block j of 32.
func (n *integers) threeBits(b []byte) {
	n.twoBits(b[32:])
	for i := range n {
		n[i] += int8(b[i%32]>>(i/32)&1<<2) - 4
	}
}

// The integers that nibbles stand for: those of Q4_1; of Q4_0; of IQ4_NL and IQ4_XS; of MXFP4,
// doubled.
var (
	plain     = [16]int8{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	centred   = [16]int8{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
	nonlinear = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
	e2m1      = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
)

// Levels returns the integers that the nibbles of t stand for, nil if t has more than nibbles,
// and the place of the first nibbles in a block. Every 32 elements have 16 bytes of nibbles,
// the first 16 elements in the lower ones.
func (t Type) Levels() (levels *[16]int8, first int) {
	switch t {
	case Q4_0:
		return &centred, 2
	case Q4_1:
		return &plain, 4
	case IQ4_NL:
		return &nonlinear, 2
	case IQ4_XS:
		return &nonlinear, 8
	case MXFP4:
		return &e2m1, 1
	}
	return nil, 0
}

// lookUp replaces the first count integers by entries of a table.
func (n *integers) lookUp(count int, table *[16]int8) {
	for i, v := range n[:count] {
		n[i] = table[v&15]
	}
}
