package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// Widen sets dst to the first len(dst) elements of src, as t.Widen does.
func (c CPU) Widen(dst []float32, src []byte, t tensor.Type) {
	raceRead(src[:t.Bytes(len(dst))])
	raceWrite(dst)
	if t.Quantised() {
		c.widenBlocks(dst, src, t)
		return
	}
	n := c.widenAsm(dst, src, t)
	t.Widen(dst[n:], src[t.Bytes(n):])
}

// RoundBF16 sets dst[i] to src[i] rounded to bf16 (nearest, ties to even).
// Subnormal numbers become zeros of the same sign; NaN stays NaN. dst and src have
// the same length.
func (c CPU) RoundBF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	raceRead(src)
	raceWrite(dst)
	for i := c.roundBF16Asm(dst, src); i < len(src); i++ {
		dst[i] = roundBF16(src[i])
	}
}

// RoundedBF16 sets dst[i] to src[i] rounded as by RoundBF16, for i < len(src). dst may be src.
func (c CPU) RoundedBF16(dst, src []float32) {
	var part [256]uint16
	dst = dst[:len(src)]
	for len(src) > 0 {
		n := min(len(src), len(part))
		c.RoundBF16(part[:n], src[:n])
		i := 0
		if littleEndian {
			i = c.widenAsm(dst[:n], unsafe.Slice((*byte)(unsafe.Pointer(&part)), 2*n), tensor.BF16)
		}
		for ; i < n; i++ {
			dst[i] = bf16(part[i])
		}
		dst, src = dst[n:], src[n:]
	}
}

func roundBF16(x float32) uint16 {
	if b := math.Float32bits(x); b&0x7f800000 == 0 {
		return uint16(b >> 16 & 0x8000)
	}
	return tensor.F32ToBF16(x)
}

// Narrow stores src[i], rounded as by RoundTo, as element i of dst, which holds
// len(src) little-endian elements of type F32, F16 or BF16.
func (c CPU) Narrow(dst []byte, src []float32, t tensor.Type) {
	raceRead(src)
	raceWrite(dst[:t.Bytes(len(src))])
	n := c.narrowAsm(dst, src, t)
	dst, src = dst[t.Bytes(n):t.Bytes(len(src))], src[n:]
	switch t {
	case tensor.F32:
		for i, x := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
	case tensor.F16, tensor.BF16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], uint16(RoundTo(t, x)))
		}
	default:
		panic(fmt.Sprintf("kernels: cannot narrow to %v", t))
	}
}

// RoundTo returns x rounded to t (F32, F16 or BF16; nearest, ties to even) as
// the stored bits. Unlike RoundBF16 it keeps subnormal bf16 numbers.
func RoundTo(t tensor.Type, x float32) uint32 {
	switch t {
	case tensor.F32:
		return math.Float32bits(x)
	case tensor.F16:
		return uint32(tensor.F32ToF16(x))
	case tensor.BF16:
		return uint32(tensor.F32ToBF16(x))
	}
	panic(fmt.Sprintf("kernels: cannot round to %v", t))
}

// load returns element i of an array of type t at p, widened.
func load(p unsafe.Pointer, t tensor.Type, i int) float32 {
	switch t {
	case tensor.F32:
		return *(*float32)(unsafe.Add(p, 4*i))
	case tensor.F16:
		return tensor.F16ToF32(*(*uint16)(unsafe.Add(p, 2*i)))
	default:
		return bf16(*(*uint16)(unsafe.Add(p, 2*i)))
	}
}

// load16 returns elements i to i+15 of an array of type t at p, widened into buf
// unless they are already f32.
func load16(buf *[16]float32, p unsafe.Pointer, t tensor.Type, i int) *[16]float32 {
	switch t {
	case tensor.F32:
		return (*[16]float32)(unsafe.Add(p, 4*i))
	case tensor.F16:
		for j, h := range (*[16]uint16)(unsafe.Add(p, 2*i)) {
			buf[j] = tensor.F16ToF32(h)
		}
	default:
		for j, h := range (*[16]uint16)(unsafe.Add(p, 2*i)) {
			buf[j] = bf16(h)
		}
	}
	return buf
}
