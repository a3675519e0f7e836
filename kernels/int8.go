package kernels

import (
	"math"
	"runtime"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// # Products with activations as 8-bit integers
//
// Multiply takes quantised weights (tensor.Type.Quantised) with activations that are
// rounded to 8-bit integers, FormInt8 and FormInt8x32. One definition holds for one row and for five hundred, on every
// instruction set.
//
// Activations. A row is cut into blocks of as many elements as a block of the weights has, 32
// or 256; the last may be shorter. With a the largest magnitude in a block,
//
//   - a < 2^-100: all q are 0, and the scale s is 0;
//   - a block with an infinity or a NaN: all q are 0, and s is NaN;
//   - otherwise s = a/127 and q = x·(127/a), rounded to the nearest integer, ties to even,
//     after quotient and product have each been rounded to float32. |q| is at most 127.
//
// Weights. A block is unpacked as tensor.Quants says: integers w in groups of 16, each with
// an integer scale c and an integer minimum l, and two float32 numbers D and Min. The sums
//
//	d = Σ over groups of c·Σ w·q        m = Σ over groups of l·Σ q
//
// are exact in int32 (|d| < 2^28, m < 2^22), so that their order, tiles and instructions are free.
//
// Results. The float part has one order, over ascending blocks, with every product in
// parentheses rounded:
//
//   - blocks of 256: y starts at +0; for each block y = fma(float32(d), (D·s), y) and then,
//     for types with minima (Q2_K, Q4_K, Q5_K), y = fma(-float32(m), (Min·s), y);
//   - blocks of 32: the same chain, starting at +0, runs over 8 blocks at a time (the last may
//     be fewer; types with minima are Q4_1 and Q5_1); its end is added to y, which starts at +0.
//
// Rows of weights are whole blocks: other lengths are refused when a matrix is made. Scales of
// weights that are not finite give results that are not finite.
//
// The sums being exact, a device that follows the same chain could meet the same bits. Devices do
// not: a [Device] widens weights in its products and takes activations as they are, whatever
// precision a model asks for.

const tiniestScale = 0x1p-100

// int8Rows are rows of activations as 8-bit integers, in records of stride bytes:
//
//	q       [cols] int8
//	scale   [cols/block] float32
//	less32  [cols/32] int32, -128 times the sum of 32 q: what w + 128 in place of w adds
//	less16  [cols/16] int32, the same of 16
//	sums32  [cols/32] int16, the sum of 32 q
//	sums16  [cols/16] int16
//	less8   [cols/8] int32, -128 times the sum of 8; of blocks of 256 on amd64 only
//
// where cols is padded to a multiple of 256 with zeros. Kernels may read one step beyond the
// columns of a row, and rows that fill up the last tile of int8TileRows.
type int8Rows struct {
	block, cols, stride int
	mem                 []byte // [rows, padded to whole tiles][stride]
}

const int8TileRows = 6

// newInt8Rows returns rows without memory.
func newInt8Rows(block, cols int) int8Rows {
	r := int8Rows{block: block, cols: (cols + 255) &^ 255}
	r.stride = (r.less8()+4*r.eights()+63)&^63 + 64
	return r
}

// bytes returns the size of n rows and of what a step, of 1,024 columns at most, reads beyond
// the last.
func (r *int8Rows) bytes(n int) int {
	return (n+int8TileRows-1)/int8TileRows*int8TileRows*r.stride + 4096
}

// Offsets of the parts of a record.
func (r *int8Rows) scales() int { return r.cols }
func (r *int8Rows) less32() int { return r.scales() + 4*r.cols/r.block }
func (r *int8Rows) less16() int { return r.less32() + r.cols/8 }
func (r *int8Rows) sums32() int { return r.less16() + r.cols/4 }
func (r *int8Rows) sums16() int { return r.sums32() + r.cols/16 }
func (r *int8Rows) less8() int  { return r.sums16() + r.cols/8 }

// eights returns the length of less8.
func (r *int8Rows) eights() int {
	if r.block == 256 && runtime.GOARCH == "amd64" {
		return r.cols / 8
	}
	return 0
}

func (r *int8Rows) at(row, part int) unsafe.Pointer { return unsafe.Pointer(&r.mem[row*r.stride+part]) }

// int8Row is one row of int8Rows.
type int8Row struct {
	q              []int8
	scale          []float32
	less32, less16 []int32
	sums32, sums16 []int16
	less8          []int32
}

func (r *int8Rows) row(i int) int8Row {
	return int8Row{
		q:      unsafe.Slice((*int8)(r.at(i, 0)), r.cols),
		scale:  unsafe.Slice((*float32)(r.at(i, r.scales())), r.cols/r.block),
		less32: unsafe.Slice((*int32)(r.at(i, r.less32())), r.cols/32),
		less16: unsafe.Slice((*int32)(r.at(i, r.less16())), r.cols/16),
		sums32: unsafe.Slice((*int16)(r.at(i, r.sums32())), r.cols/32),
		sums16: unsafe.Slice((*int16)(r.at(i, r.sums16())), r.cols/16),
		less8:  unsafe.Slice((*int32)(r.at(i, r.less8())), r.eights()),
	}
}

// set rounds x to row i.
func (r *int8Rows) set(c CPU, i int, x []float32) {
	raceRead(x)
	raceWrite(r.mem[i*r.stride : (i+1)*r.stride])
	w := r.row(i)
	for b := range w.scale {
		from := b * r.block
		if from >= len(x) {
			clear(w.q[from : from+r.block])
			w.scale[b] = 0
			continue
		}
		part := x[from:min(from+r.block, len(x))]
		w.scale[b] = c.roundInt8(w.q[from:from+r.block], part)
	}
	c.sumInt8(&w)
}

// roundInt8Portable rounds a block and returns its scale. q may be longer than x.
func roundInt8Portable(q []int8, x []float32) float32 {
	clear(q)
	var most uint32
	for _, v := range x {
		most = max(most, math.Float32bits(v)&0x7fffffff)
	}
	a := math.Float32frombits(most)
	switch {
	case most >= 0x7f800000:
		return float32(math.NaN())
	case a < tiniestScale:
		return 0
	}
	inv := 127 / a
	for i, v := range x {
		q[i] = int8(math.RoundToEven(float64(v * inv)))
	}
	return a / 127
}

func sumInt8Portable(w *int8Row) {
	for g := range w.sums16 {
		s := int16(0)
		for _, v := range w.q[16*g : 16*g+16] {
			s += int16(v)
		}
		w.sums16[g], w.less16[g] = s, -128*int32(s)
	}
	for g := range w.less8 {
		s := int32(0)
		for _, v := range w.q[8*g : 8*g+8] {
			s += int32(v)
		}
		w.less8[g] = -128 * s
	}
	for g := range w.sums32 {
		w.sums32[g] = w.sums16[2*g] + w.sums16[2*g+1]
		w.less32[g] = w.less16[2*g] + w.less16[2*g+1]
	}
}

// matMulInt8 is MatMul with activations as 8-bit integers, of which it reads the first n
// rows, and quantised weights.
func (c CPU) matMulInt8(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) {
	if n <= 0 || lo >= hi {
		return
	}
	_, _ = dst[(n-1)*ldd+hi-1], w.Slice(lo, hi)
	if w.Cols == 0 {
		for r := range n {
			clear(dst[r*ldd+lo : r*ldd+hi])
		}
		return
	}
	for r := range n {
		raceRead(x.mem[r*x.stride : (r+1)*x.stride])
		raceWrite(dst[r*ldd+lo : r*ldd+hi])
	}
	raceRead(w.Slice(lo, hi).Data)
	if lo = c.matMulInt8Asm(dst, ldd, x, n, w, lo, hi); lo < hi {
		matMulInt8Portable(dst, ldd, x, n, w, lo, hi)
	}
}

func matMulInt8Portable(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) {
	var u tensor.Quants
	block, minima := w.Type.Block(), w.Type.Minima()
	size := w.Type.Bytes(block)
	for o := lo; o < hi; o++ {
		row := w.Slice(o, o+1).Data
		for r := range n {
			dst[r*ldd+o] = 0
		}
		for b := 0; b*block < w.Cols; b += max(1, 256/block) {
			for r := range n {
				dst[r*ldd+o] = int8Step(&u, x.row(r), row[b*size:], b, min(256, w.Cols-b*block)/block, w.Type, minima, dst[r*ldd+o])
			}
		}
	}
}

// int8Step continues y by n blocks of a row of w from block b on: a chain of blocks of 32, or
// one of 256.
func int8Step(u *tensor.Quants, x int8Row, w []byte, b, n int, t tensor.Type, minima bool, y float32) float32 {
	block := t.Block()
	sum := y
	if block == 32 {
		sum = 0
	}
	for i := range n {
		t.Unpack(u, w[i*t.Bytes(block):])
		at := (b + i) * block
		d, m := dotInt8(u, x.q[at:at+block], x.sums16[at/16:])
		s := x.scale[b+i]
		sum = fma32(float32(d), u.D*s, sum)
		if minima {
			sum = fma32(-float32(m), u.Min*s, sum)
		}
	}
	if block == 32 {
		return y + sum
	}
	return sum
}

// dotInt8 returns the two sums of a block.
func dotInt8(u *tensor.Quants, x []int8, sums []int16) (d, m int32) {
	for g := range len(x) / 16 {
		s := int32(0)
		for i, v := range x[16*g : 16*g+16] {
			s += int32(u.Q[16*g+i]) * int32(v)
		}
		d += int32(u.Scale[g]) * s
		m += int32(u.Least[g]) * int32(sums[g])
	}
	return d, m
}
