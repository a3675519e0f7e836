package gguf

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lukv/lukv/tensor"
)

// Type is how the elements of a tensor are stored.
type Type uint32

const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q5_0 Type = 6
	Q5_1 Type = 7
	Q8_0 Type = 8
	Q4_K Type = 12
	Q5_K Type = 13
	Q6_K Type = 14
	BF16 Type = 30
)

// block says how a type stores elements along a row: how many in how many bytes.
type block struct {
	name            string
	elements, bytes int
	dequantise      func(dst []float32, b []byte) // of one block; nil: not read here
}

// blocks lists all types that files are known to hold.
var blocks = map[Type]block{
	F32:  {"F32", 1, 4, func(dst []float32, b []byte) { dst[0] = math.Float32frombits(binary.LittleEndian.Uint32(b)) }},
	F16:  {"F16", 1, 2, func(dst []float32, b []byte) { dst[0] = half(b) }},
	BF16: {"BF16", 1, 2, func(dst []float32, b []byte) { dst[0] = tensor.BF16ToF32(binary.LittleEndian.Uint16(b)) }},
	Q4_0: {"Q4_0", 32, 18, dequantiseQ4_0},
	Q4_1: {"Q4_1", 32, 20, dequantiseQ4_1},
	Q5_0: {"Q5_0", 32, 22, dequantiseQ5_0},
	Q5_1: {"Q5_1", 32, 24, dequantiseQ5_1},
	Q8_0: {"Q8_0", 32, 34, dequantiseQ8_0},
	Q4_K: {"Q4_K", 256, 144, dequantiseQ4_K},
	Q5_K: {"Q5_K", 256, 176, dequantiseQ5_K},
	Q6_K: {"Q6_K", 256, 210, dequantiseQ6_K},

	9: {"Q8_1", 32, 36, nil}, 10: {"Q2_K", 256, 84, nil}, 11: {"Q3_K", 256, 110, nil}, 15: {"Q8_K", 256, 292, nil},
	16: {"IQ2_XXS", 256, 66, nil}, 17: {"IQ2_XS", 256, 74, nil}, 18: {"IQ3_XXS", 256, 98, nil}, 19: {"IQ1_S", 256, 50, nil},
	20: {"IQ4_NL", 32, 18, nil}, 21: {"IQ3_S", 256, 110, nil}, 22: {"IQ2_S", 256, 82, nil}, 23: {"IQ4_XS", 256, 136, nil},
	24: {"I8", 1, 1, nil}, 25: {"I16", 1, 2, nil}, 26: {"I32", 1, 4, nil}, 27: {"I64", 1, 8, nil}, 28: {"F64", 1, 8, nil},
	29: {"IQ1_M", 256, 56, nil}, 34: {"TQ1_0", 256, 54, nil}, 35: {"TQ2_0", 256, 66, nil}, 39: {"MXFP4", 32, 17, nil},
	40: {"NVFP4", 64, 36, nil}, 41: {"Q1_0", 128, 18, nil}, 42: {"Q2_0", 64, 18, nil},
}

// removed lists the types that were taken out of the format; old files hold them.
var removed = map[Type]string{
	4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}

// firstForkType is the first number that ik_llama.cpp gives to its own types.
const firstForkType Type = 97

// unknown returns the error for a type that is not in blocks.
func (t Type) unknown() error {
	if name, ok := removed[t]; ok {
		return fmt.Errorf("type %d (%s) was removed from the format: convert the model again", uint32(t), name)
	}
	if t >= firstForkType {
		return fmt.Errorf("type %d is not known: numbers from %d on are those of the fork ik_llama.cpp, whose own types are not supported", uint32(t), uint32(firstForkType))
	}
	return fmt.Errorf("type %d is not known", uint32(t))
}

func (t Type) String() string {
	if b, ok := blocks[t]; ok {
		return b.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Readable reports whether rows of the type can be read.
func (t Type) Readable() bool { return blocks[t].dequantise != nil }

// Rows dequantises n rows into dst, [n][RowLength], starting with row from,
// counted over all outer dimensions. It panics if the tensor does not have that
// many. A type that is not Readable is an error.
func (t *Tensor) Rows(dst []float32, from, n int) error {
	b := blocks[t.Type]
	if b.dequantise == nil {
		return fmt.Errorf("tensor %q: the type %s is not supported", t.Name, t.Type)
	}
	width := t.RowLength()
	stride := width / b.elements * b.bytes
	data := t.Data[from*stride : (from+n)*stride]
	dst = dst[:n*width]
	for len(dst) > 0 {
		b.dequantise(dst[:b.elements], data[:b.bytes])
		dst, data = dst[b.elements:], data[b.bytes:]
	}
	return nil
}

// half reads a binary16 value.
func half(b []byte) float32 { return tensor.F16ToF32(binary.LittleEndian.Uint16(b)) }

// Every product below is exact in float32 (the 11 bits of a scale times at most
// 13 of integers), so that a value is rounded once. The conversions around
// products keep compilers from fusing them with what follows.

func dequantiseQ8_0(dst []float32, b []byte) {
	d := half(b)
	for j := range 32 {
		dst[j] = d * float32(int8(b[2+j]))
	}
}

// Nibbles: byte j holds element j (low) and element j+16 (high).

func dequantiseQ4_0(dst []float32, b []byte) {
	d := half(b)
	for j, q := range b[2:18] {
		dst[j] = d * float32(int(q&15)-8)
		dst[j+16] = d * float32(int(q>>4)-8)
	}
}

func dequantiseQ4_1(dst []float32, b []byte) {
	d, m := half(b), half(b[2:])
	for j, q := range b[4:20] {
		dst[j] = float32(d*float32(q&15)) + m
		dst[j+16] = float32(d*float32(q>>4)) + m
	}
}

// Bit j of the word qh is bit 4 of element j.

func dequantiseQ5_0(dst []float32, b []byte) {
	d, qh := half(b), binary.LittleEndian.Uint32(b[2:])
	for j, q := range b[6:22] {
		dst[j] = d * float32(int(uint32(q&15)|qh>>j&1<<4)-16)
		dst[j+16] = d * float32(int(uint32(q>>4)|qh>>(j+16)&1<<4)-16)
	}
}

func dequantiseQ5_1(dst []float32, b []byte) {
	d, m, qh := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:])
	for j, q := range b[8:24] {
		dst[j] = float32(d*float32(uint32(q&15)|qh>>j&1<<4)) + m
		dst[j+16] = float32(d*float32(uint32(q>>4)|qh>>(j+16)&1<<4)) + m
	}
}

// scaleMin unpacks the scale and the minimum of sub-block j of a K block.
func scaleMin(b []byte, j int) (scale, least float32) {
	if j < 4 {
		return float32(b[j] & 63), float32(b[j+4] & 63)
	}
	return float32(b[j+4]&15 | b[j-4]>>6<<4), float32(b[j+4]>>4 | b[j]>>6<<4)
}

// dequantiseQ4_K: d, dmin, 12 bytes of scales and minima, 128 bytes of nibbles;
// bytes 32i… hold sub-block 2i (low) and 2i+1 (high).
func dequantiseQ4_K(dst []float32, b []byte) {
	d, least := half(b), half(b[2:])
	for j := range 8 {
		s, m := scaleMin(b[4:16], j)
		s, m = float32(d*s), float32(least*m)
		for l, q := range b[16+j/2*32 : 48+j/2*32] {
			dst[32*j+l] = float32(s*float32(q>>(4*(j&1))&15)) - m
		}
	}
}

// dequantiseQ5_K is Q4_K with 32 bytes of fifth bits before the nibbles: bit j
// of byte l belongs to element l of sub-block j.
func dequantiseQ5_K(dst []float32, b []byte) {
	d, least := half(b), half(b[2:])
	high := b[16:48]
	for j := range 8 {
		s, m := scaleMin(b[4:16], j)
		s, m = float32(d*s), float32(least*m)
		for l, q := range b[48+j/2*32 : 80+j/2*32] {
			dst[32*j+l] = float32(s*float32(q>>(4*(j&1))&15|high[l]>>j&1<<4)) - m
		}
	}
}

// dequantiseQ6_K: 128 bytes of low nibbles, 64 bytes of upper bits, 16 scales of
// groups of 16, d. Each half of 128 elements uses 64, 32 and 8 of these.
func dequantiseQ6_K(dst []float32, b []byte) {
	d := half(b[208:])
	for h := range 2 {
		low, high, scales, out := b[64*h:], b[128+32*h:], b[192+8*h:], dst[128*h:]
		for l := range 32 {
			for part := range 4 { // elements l, l+32, l+64, l+96
				q := low[l+32*(part&1)] >> (4 * (part >> 1)) & 15
				q |= high[l] >> (2 * part) & 3 << 4
				s := float32(int8(scales[2*part+l/16]))
				out[l+32*part] = float32(d*s) * float32(int(q)-32)
			}
		}
	}
}
