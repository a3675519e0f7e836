package lowbit

import (
	"encoding/binary"
	"slices"

	"github.com/lukv/lukv/tensor"
)

// Matrices of integers with scales that binary16 can hold are repacked into the blocks of
// types that kernels multiply: the values stay the same to the bit. Others become bf16,
// rounded.

// block is the number of elements of those types' blocks.
const block = 32

// Type returns the type into which Pack packs the matrix, and whether it holds the values
// exactly. It is the smallest that does; if none does, BF16.
func (m *Matrix) Type() (t tensor.Type, exact bool) {
	x := m.ints
	if x == nil || x.index != nil || x.group%block != 0 || m.Cols%block != 0 || !halves(x.scales) {
		return tensor.BF16, false
	}
	if x.offsets != nil {
		if x.low >= 0 && x.high <= 15 && halves(x.offsets) {
			return tensor.Q4_1, true
		}
		return tensor.BF16, false
	}
	low, high := x.low, x.high
	if x.zeros != nil {
		low, high = low-slices.Max(x.zeros), high-slices.Min(x.zeros)
	}
	switch {
	case low >= -8 && high <= 7:
		return tensor.Q4_0, true
	case low >= -16 && high <= 15:
		return tensor.Q5_0, true
	case low >= -128 && high <= 127:
		return tensor.Q8_0, true
	}
	return tensor.BF16, false
}

// halves reports whether binary16 holds all numbers exactly.
func halves(x []float32) bool {
	return !slices.ContainsFunc(x, func(v float32) bool { return tensor.F16ToF32(tensor.F32ToF16(v)) != v })
}

// Pack writes n rows from row from on to dst, in the type t that Type returns.
func (m *Matrix) Pack(dst []byte, t tensor.Type, from, n int) {
	if t == tensor.BF16 {
		x := make([]float32, n*m.Cols)
		m.Float32s(x, from, n)
		for i, v := range x {
			binary.LittleEndian.PutUint16(dst[2*i:], tensor.F32ToBF16(v))
		}
		return
	}
	x := m.ints
	q := make([]int16, n*m.Cols)
	x.unpack(q, from, n)
	size := t.Bytes(block)
	for i := 0; i < len(q); i += block {
		g := (from+i/m.Cols)*x.count + i%m.Cols/x.group
		b, to := q[i:i+block], dst[i/block*size:(i/block+1)*size]
		if x.zeros != nil {
			for j := range b {
				b[j] -= x.zeros[g]
			}
		}
		binary.LittleEndian.PutUint16(to, tensor.F32ToF16(x.scales[g]))
		switch t {
		case tensor.Q4_0:
			putNibbles(to[2:], b, 8)
		case tensor.Q4_1:
			binary.LittleEndian.PutUint16(to[2:], tensor.F32ToF16(x.offsets[g]))
			putNibbles(to[4:], b, 0)
		case tensor.Q5_0:
			putFives(to[2:], b)
		case tensor.Q8_0:
			for j, v := range b {
				to[2+j] = byte(int8(v))
			}
		}
	}
}

// putNibbles stores 32 integers in 16 bytes: byte j holds element j in its low half and
// element j+16 in the other.
func putNibbles(dst []byte, q []int16, bias int16) {
	for j := range 16 {
		dst[j] = byte(q[j]+bias) | byte(q[j+16]+bias)<<4
	}
}

// putFives stores 32 integers of 5 bits: the upper bits in a word, then the others.
func putFives(dst []byte, q []int16) {
	upper := uint32(0)
	low := make([]int16, block)
	for j, v := range q {
		v += 16
		upper |= uint32(v>>4) << j
		low[j] = v & 15
	}
	binary.LittleEndian.PutUint32(dst, upper)
	putNibbles(dst[4:], low, 0)
}
