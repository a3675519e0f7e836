//go:build !purego

package kernels

import (
	"encoding/binary"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Products of few rows on AVX-512 with VNNI by types without a routine for one row: a strip of
// a row of weights is unpacked and multiplied by every row of activations.

// int8Strip is 512 or 1,024 columns of a row of weights, unpacked.
type int8Strip struct {
	blocks [4]tensor.Quants // of types with blocks of 256

	w      [512]int8 // sixteen blocks of 32
	d, min [16]float32
	halves [2][16]uint16 // d and min as stored
}

// int8StripTile is the argument of the assembly routines. Pointers are to parts of one row of
// activations, at the strip's first column.
type int8StripTile struct {
	strip          *int8Strip
	q, scale       unsafe.Pointer
	less, sums     unsafe.Pointer // less32 and sums32 for blocks of 32; else less16 and sums16
	y              unsafe.Pointer // f32, continued
	blocks, minima int            // minima is 1 if the type has them

	// Lines of weights from ahead on are prefetched some kilobytes further on.
	ahead unsafe.Pointer
	lines int
}

//go:noescape
func int8Strip256AVX512(a *int8StripTile)

//go:noescape
func int8Strip32AVX512(a *int8StripTile)

// int8ByStrip multiplies n rows of x by rows lo to hi of w.
func (c CPU) int8ByStrip(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	strip := (*int8Strip)(unsafe.Pointer(&s.x))
	block, most := w.Type.Block(), 4
	if block == 32 {
		most = 16
	}
	a := int8StripTile{strip: strip}
	if hasMinima(w.Type) {
		a.minima = 1
	}
	for o := lo; o < hi; o++ {
		row := w.Slice(o, o+1).Data
		for r := range n {
			dst[r*ldd+o] = 0
		}
		for k := 0; k < w.Cols; k += most * block {
			a.blocks = min(most, (w.Cols-k)/block)
			src := row[w.Type.Bytes(k):][:w.Type.Bytes(a.blocks*block)]
			c.unpackStrip(strip, src, a.blocks, w.Type)
			a.ahead, a.lines = unsafe.Pointer(&src[0]), (len(src)+63)/64
			for r := range n {
				a.y = unsafe.Pointer(&dst[r*ldd+o])
				a.run(x, r, k)
				a.lines = 0
			}
		}
	}
}

func (a *int8StripTile) run(x *int8Rows, r, k int) {
	a.q, a.scale = x.at(r, k), x.at(r, x.scales()+4*k/x.block)
	if x.block == 32 {
		a.less, a.sums = x.at(r, x.less32()+k/8), x.at(r, x.sums32()+k/16)
		int8Strip32AVX512(a)
		return
	}
	a.less, a.sums = x.at(r, x.less16()+k/4), x.at(r, x.sums16()+k/8)
	int8Strip256AVX512(a)
}

// unpackStrip unpacks n blocks.
func (c CPU) unpackStrip(s *int8Strip, src []byte, n int, t tensor.Type) {
	size := t.Bytes(t.Block())
	if t.Block() == 256 {
		for i := range n {
			b := src[i*size:]
			unpackIntegers(&s.blocks[i].Q, b, 1, t)
			t.UnpackScales(&s.blocks[i], b)
		}
		return
	}
	for i := 0; i < n; i += 8 {
		unpackIntegers((*[256]int8)(s.w[32*i:]), src[i*size:], min(8, n-i), t)
	}
	if t == tensor.MXFP4 {
		u := &s.blocks[0]
		for i := range n {
			t.UnpackScales(u, src[i*size:])
			s.d[i] = u.D
		}
		return
	}
	for i := range n {
		s.halves[0][i] = binary.LittleEndian.Uint16(src[i*size:])
	}
	c.widenHalves(&s.d, &s.halves[0])
	if hasMinima(t) {
		for i := range n {
			s.halves[1][i] = binary.LittleEndian.Uint16(src[i*size+2:]) ^ 0x8000
		}
		c.widenHalves(&s.min, &s.halves[1])
	}
}

func (c CPU) widenHalves(dst *[16]float32, src *[16]uint16) {
	c.Widen(dst[:], unsafe.Slice((*byte)(unsafe.Pointer(src)), 32), tensor.F16)
}
