package tensor

import (
	"encoding/binary"
	"math"
)

// Quants is an unpacked block of a quantised type. Element i of the block is worth
//
//	D·Scale[i/16]·Q[i] - Min·Least[i/16]
//
// Both products are exact in float32 for all types, so that a value is rounded once.
type Quants struct {
	Q            [256]int8
	Scale, Least [16]int16 // Scale from -128 to 127, Least from 0 to 63
	D, Min       float32
}

// Quantised reports whether t stores blocks of integers with common scales, in GGUF's layout
// of the type of the same name. Blocks have 32 or 256 elements.
func (t Type) Quantised() bool { return t >= Q8_0 && t <= MXFP4 }

// Unpack sets the first Block elements of q, and what belongs to them, to the block that src
// begins with. It panics if t is not Quantised.
func (t Type) Unpack(q *Quants, src []byte) {
	src = src[:formats[t].bytes]
	switch t { // not a table of functions, whose arguments would escape
	case Q8_0:
		unpackQ8_0(q, src)
	case Q4_0:
		unpackQ4_0(q, src)
	case Q4_1:
		unpackQ4_1(q, src)
	case Q5_0:
		unpackQ5_0(q, src)
	case Q5_1:
		unpackQ5_1(q, src)
	case Q2_K:
		unpackQ2_K(q, src)
	case Q3_K:
		unpackQ3_K(q, src)
	case Q4_K:
		unpackQ4_K(q, src)
	case Q5_K:
		unpackQ5_K(q, src)
	case Q6_K:
		unpackQ6_K(q, src)
	case IQ4_NL:
		unpackIQ4_NL(q, src)
	case IQ4_XS:
		unpackIQ4_XS(q, src)
	case MXFP4:
		unpackMXFP4(q, src)
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

// scaled sets what a block of 32 elements has beside its numbers.
func (q *Quants) scaled(d float32) {
	q.D, q.Min = d, 0
	q.Scale, q.Least = [16]int16{1, 1}, [16]int16{}
}

// offset is scaled for values q·d + m.
func (q *Quants) offset(d, m float32) {
	q.scaled(d)
	q.Min, q.Least = -m, [16]int16{1, 1}
}

// nibbles unpacks 16 bytes: byte j holds element j (low) and element j+16 (high).
func (q *Quants) nibbles(b []byte) {
	for j, v := range b[:16] {
		q.Q[j], q.Q[j+16] = int8(v&15), int8(v>>4)
	}
}

// shift subtracts off from the first n numbers.
func (q *Quants) shift(n int, off int8) {
	for i := range q.Q[:n] {
		q.Q[i] -= off
	}
}

// Q8_0: d, 32 numbers.
func unpackQ8_0(q *Quants, b []byte) {
	q.scaled(half(b))
	for j, v := range b[2:34] {
		q.Q[j] = int8(v)
	}
}

// Q4_0: d, 16 bytes of nibbles; (q - 8)·d.
func unpackQ4_0(q *Quants, b []byte) {
	q.scaled(half(b))
	q.nibbles(b[2:])
	q.shift(32, 8)
}

// Q4_1: d, m, 16 bytes of nibbles; q·d + m.
func unpackQ4_1(q *Quants, b []byte) {
	q.offset(half(b), half(b[2:]))
	q.nibbles(b[4:])
}

// fifth adds bit 4 of 32 elements: bit j of the word belongs to element j.
func (q *Quants) fifth(b []byte) {
	high := binary.LittleEndian.Uint32(b)
	for j := range q.Q[:32] {
		q.Q[j] |= int8(high >> j & 1 << 4)
	}
}

// Q5_0: d, 4 bytes of fifth bits, 16 bytes of nibbles; (q - 16)·d.
func unpackQ5_0(q *Quants, b []byte) {
	q.scaled(half(b))
	q.nibbles(b[6:])
	q.fifth(b[2:])
	q.shift(32, 16)
}

// Q5_1: d, m, 4 bytes of fifth bits, 16 bytes of nibbles; q·d + m.
func unpackQ5_1(q *Quants, b []byte) {
	q.offset(half(b), half(b[2:]))
	q.nibbles(b[8:])
	q.fifth(b[4:])
}

// pairs unpacks 128 bytes of nibbles: bytes 32i… hold sub-blocks of 32 elements 2i (low) and
// 2i+1 (high).
func (q *Quants) pairs(b []byte) {
	for j := range 8 {
		for l, v := range b[j/2*32 : j/2*32+32] {
			q.Q[32*j+l] = int8(v >> (4 * (j & 1)) & 15)
		}
	}
}

// sixBits unpacks the 8 scales and minima of 6 bits in 12 bytes.
func (q *Quants) sixBits(b []byte) {
	for j := range 8 {
		var s, m byte
		if j < 4 {
			s, m = b[j]&63, b[j+4]&63
		} else {
			s, m = b[j+4]&15|b[j-4]>>6<<4, b[j+4]>>4|b[j]>>6<<4
		}
		q.Scale[2*j], q.Scale[2*j+1] = int16(s), int16(s)
		q.Least[2*j], q.Least[2*j+1] = int16(m), int16(m)
	}
}

// Q4_K: d, dmin, 12 bytes of scales and minima, 128 bytes of nibbles.
func unpackQ4_K(q *Quants, b []byte) {
	q.D, q.Min = half(b), half(b[2:])
	q.sixBits(b[4:])
	q.pairs(b[16:])
}

// Q5_K: as Q4_K, with 32 bytes of fifth bits before the nibbles: bit j of byte l belongs to
// element l of sub-block j.
func unpackQ5_K(q *Quants, b []byte) {
	q.D, q.Min = half(b), half(b[2:])
	q.sixBits(b[4:])
	q.pairs(b[48:])
	for j := range 8 {
		for l, v := range b[16:48] {
			q.Q[32*j+l] |= int8(v >> j & 1 << 4)
		}
	}
}

// Q6_K: 128 bytes of low nibbles, 64 bytes of upper bits, 16 scales, d; (q - 32)·d·scale.
// A half of 128 elements uses 64 and 32 of these bytes.
func unpackQ6_K(q *Quants, b []byte) {
	for h := range 2 {
		low, high, out := b[64*h:], b[128+32*h:], q.Q[128*h:]
		for l := range 32 {
			for part := range 4 { // elements l, l+32, l+64, l+96
				v := low[l+32*(part&1)] >> (4 * (part >> 1)) & 15
				out[l+32*part] = int8(v|high[l]>>(2*part)&3<<4) - 32
			}
		}
	}
	for g := range q.Scale {
		q.Scale[g] = int16(int8(b[192+g]))
	}
	q.D, q.Min, q.Least = half(b[208:]), 0, [16]int16{}
}

// twoBits unpacks 64 bytes: bits 2·part of byte l of a half hold element 32·part + l.
func (q *Quants) twoBits(b []byte) {
	for i := range q.Q {
		h, part, l := i/128, i/32%4, i%32
		q.Q[i] = int8(b[32*h+l] >> (2 * part) & 3)
	}
}

// Q2_K: 16 bytes of scales (low) and minima (high), 64 bytes of two bits, d, dmin.
func unpackQ2_K(q *Quants, b []byte) {
	for g, v := range b[:16] {
		q.Scale[g], q.Least[g] = int16(v&15), int16(v>>4)
	}
	q.twoBits(b[16:])
	q.D, q.Min = half(b[80:]), half(b[82:])
}

// Q3_K: 32 bytes of high bits, 64 bytes of two bits, 12 bytes of scales of 6 bits, d;
// (q - 4)·d·(scale - 32). Bit j of high byte l belongs to element l of sub-block j of 32.
func unpackQ3_K(q *Quants, b []byte) {
	q.twoBits(b[32:])
	for i := range q.Q {
		q.Q[i] += int8(b[i%32]>>(i/32)&1<<2) - 4
	}
	s := b[96:108]
	for j := range q.Scale {
		v := s[j%8]>>(4*(j/8))&15 | s[8+j%4]>>(2*(j/4))&3<<4
		q.Scale[j] = int16(v) - 32
	}
	q.D, q.Min, q.Least = half(b[108:]), 0, [16]int16{}
}

// levels are the values that the nibbles of IQ4_NL and IQ4_XS stand for.
var levels = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// e2m1 are the values of the nibbles of MXFP4, doubled.
var e2m1 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// lookUp replaces the first n numbers by entries of a table.
func (q *Quants) lookUp(n int, table *[16]int8) {
	for i, v := range q.Q[:n] {
		q.Q[i] = table[v&15]
	}
}

// IQ4_NL: d, 16 bytes of nibbles; level·d.
func unpackIQ4_NL(q *Quants, b []byte) {
	q.scaled(half(b))
	q.nibbles(b[2:])
	q.lookUp(32, &levels)
}

// IQ4_XS: d, 2 bytes of upper and 4 of lower bits of 8 scales, 128 bytes: 16 for each
// sub-block of 32; level·d·(scale - 32).
func unpackIQ4_XS(q *Quants, b []byte) {
	high := binary.LittleEndian.Uint16(b[2:])
	for j := range 8 {
		s := int16(b[4+j/2]>>(4*(j&1))&15) | int16(high>>(2*j)&3<<4)
		q.Scale[2*j], q.Scale[2*j+1] = s-32, s-32
		for l, v := range b[8+16*j : 24+16*j] {
			q.Q[32*j+l], q.Q[32*j+l+16] = int8(v&15), int8(v>>4)
		}
	}
	q.lookUp(256, &levels)
	q.D, q.Min, q.Least = half(b), 0, [16]int16{}
}

// MXFP4: the exponent of a power of two, which is halved because levels are doubled, and 16
// bytes of nibbles. An exponent of 255 is NaN.
func unpackMXFP4(q *Quants, b []byte) {
	e := uint32(b[0])
	d := (e - 1) << 23
	switch {
	case e < 2:
		d = 1 << 21 << e // subnormal
	case e == 255:
		d = 0x7fc00000
	}
	q.scaled(math.Float32frombits(d))
	q.nibbles(b[1:])
	q.lookUp(32, &e2m1)
}
