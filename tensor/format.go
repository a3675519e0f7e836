package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// format is how a type stores its elements: block elements that follow one another take
// bytes bytes. Nothing else computes with the sizes of elements.
type format struct {
	name         string
	block, bytes int
}

// formats describes all types. The zero Type takes no bytes.
var formats = [typeCount + 1]format{
	0:   {"", 1, 0},
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2}, F64: {"F64", 1, 8},
	I64: {"I64", 1, 8}, I32: {"I32", 1, 4}, I16: {"I16", 1, 2}, I8: {"I8", 1, 1},
	U64: {"U64", 1, 8}, U32: {"U32", 1, 4}, U16: {"U16", 1, 2}, U8: {"U8", 1, 1},
	Bool: {"BOOL", 1, 1}, F8E4M3: {"F8_E4M3", 1, 1}, F8E5M2: {"F8_E5M2", 1, 1},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 1, 1}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 1, 1},
	F8E8M0: {"F8_E8M0", 1, 1}, C64: {"C64", 1, 8},
	Q8_0: {"Q8_0", 32, 34}, Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q5_0: {"Q5_0", 32, 22}, Q5_1: {"Q5_1", 32, 24},
	Q2_K: {"Q2_K", 256, 84}, Q3_K: {"Q3_K", 256, 110}, Q4_K: {"Q4_K", 256, 144}, Q5_K: {"Q5_K", 256, 176}, Q6_K: {"Q6_K", 256, 210},
	IQ4_NL: {"IQ4_NL", 32, 18}, IQ4_XS: {"IQ4_XS", 256, 136}, MXFP4: {"MXFP4", 32, 17},
	F4: {"F4", 2, 1}, F6E2M3: {"F6_E2M3", 4, 3}, F6E3M2: {"F6_E3M2", 4, 3},
}

// Block returns how many elements that follow one another are stored as a unit, 1 for types
// whose elements are stored one by one.
func (t Type) Block() int { return formats[t].block }

// Align returns the alignment of stored elements in bytes, 1 where they are read in blocks.
func (t Type) Align() int {
	if f := &formats[t]; f.block == 1 {
		return f.bytes
	}
	return 1
}

// Bytes returns the number of bytes that n elements take. It panics unless they are whole
// blocks.
func (t Type) Bytes(n int) int {
	f := &formats[t]
	if f.block == 1 {
		return n * f.bytes
	}
	return f.blocks(n) * f.bytes
}

func (f *format) blocks(n int) int {
	if n%f.block != 0 {
		panic(fmt.Sprintf("tensor: %d elements of %s are not whole blocks of %d", n, f.name, f.block))
	}
	return n / f.block
}

// Weights reports whether matrices of the type can be multiplied and widened.
func (t Type) Weights() bool { return t == F32 || t == F16 || t == BF16 || t.Quantised() }

// Widen sets dst to the first len(dst) elements of src, which are whole blocks of a type
// whose values can be converted (floating point: exactly; F64 and quantised types with minima:
// rounded once, to nearest even).
// It panics for other types.
func (t Type) Widen(dst []float32, src []byte) {
	src = src[:t.Bytes(len(dst))]
	switch t { // not a table of functions, whose arguments would escape
	case F32:
		widenF32(dst, src)
	case F16:
		widenF16(dst, src)
	case BF16:
		widenBF16(dst, src)
	case F64:
		widenF64(dst, src)
	default:
		if t.Quantised() {
			widenQuants(dst, src, t)
			return
		}
		panic(fmt.Sprintf("tensor: cannot widen %v to float32", t))
	}
}

func widenF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func widenF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func widenBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func widenF64(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
	}
}
