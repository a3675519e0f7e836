//go:build !purego

package kernels

import (
	"encoding/binary"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Products of many rows on AVX-512 with VNNI. A panel of weights is unpacked once and
// multiplied by all rows of activations, six at a time.

// int8PanelRows is the number of rows of weights in a panel.
const int8PanelRows = 32

// int8Panel is up to 256 columns of 32 rows of weights, unpacked.
type int8Panel struct {
	w [64][int8PanelRows][4]uint8 // four columns at a time, 128 added to the integers

	// Of types with blocks of 256: the scales of groups of 16 or 32, and the minima of pairs of
	// groups. Of others: D and Min of every block, as f32.
	scale [16][int8PanelRows]int32
	least [8][int8PanelRows][2]int16

	d, min [int8PanelRows]float32 // of blocks of 256
}

// int8PanelTile is the argument of the assembly routines. Pointers are to the first row of
// activations, at the panel's first column.
type int8PanelTile struct {
	panel                *int8Panel
	q, less, sums, scale unsafe.Pointer // parts of int8Rows
	stride               int            // bytes from one row to the next
	acc                  unsafe.Pointer // [rows][32] f32
	rows                 int            // a multiple of 6
	groups               int            // of int8PanelChainAVX512
	pairs                int            // of groups that have minima; 0: the type has none
}

// int8Panel32AVX512 takes types with blocks of 256 and scales for 32 elements, int8Panel16AVX512
// those with scales for 16, int8PanelChainAVX512 types with blocks of 32.
//
//go:noescape
func int8Panel32AVX512(a *int8PanelTile)

//go:noescape
func int8Panel16AVX512(a *int8PanelTile)

//go:noescape
func int8PanelChainAVX512(a *int8PanelTile)

// int8TransposeAVX512 packs [16][256] integers into w of a panel.
//
//go:noescape
func int8TransposeAVX512(dst, src unsafe.Pointer)

// int8Room is where a panel is made.
type int8Room struct {
	panel    int8Panel
	integers [int8PanelRows][256]int8
	block    tensor.Quants
}

// int8Panels multiplies by panels.
func (c CPU) int8Panels(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	room := (*int8Room)(unsafe.Pointer(&s.x))
	const most = len(s.w) / int8PanelRows / int8TileRows * int8TileRows
	for from := 0; from < n; from += most {
		rows := min(most, n-from)
		acc := s.w[:(rows+int8TileRows-1)/int8TileRows*int8TileRows*int8PanelRows]
		for o := lo; o < hi; o += int8PanelRows {
			outs := min(int8PanelRows, hi-o)
			clear(acc)
			for k := 0; k < w.Cols; k += 256 {
				c.packInt8(room, w, o, outs, k)
				c.tileInt8(&room.panel, acc, x, from, k, w)
			}
			for r := range rows {
				copy(dst[(from+r)*ldd+o:][:outs], acc[r*int8PanelRows:])
			}
		}
	}
}

// packInt8 unpacks up to 256 columns of outs rows of w.
func (c CPU) packInt8(room *int8Room, w *Matrix, o, outs, k int) {
	block := w.Type.Block()
	n := min(256, w.Cols-k) / block
	row, size := w.Type.Bytes(w.Cols), w.Type.Bytes(n*block)
	src := w.Data[w.Type.Bytes(o*w.Cols+k):]
	for i := range outs {
		b := src[i*row : i*row+size]
		c.unpackIntegers(&room.integers[i], b, n, w.Type)
		if block == 32 {
			room.packScales(i, b, n, w.Type)
		} else {
			room.packGroups(i, b, w.Type)
		}
	}
	for half := range 2 {
		int8TransposeAVX512(unsafe.Pointer(&room.panel.w[0][16*half]), unsafe.Pointer(&room.integers[16*half]))
	}
}

// packScales sets what row i of a panel has beside integers to that of n blocks of 32.
func (room *int8Room) packScales(i int, b []byte, n int, t tensor.Type) {
	p, u := &room.panel, &room.block
	size, minima := t.Bytes(32), hasMinima(t)
	for g := range n {
		if t == tensor.MXFP4 || minima {
			t.UnpackScales(u, b[g*size:])
		} else {
			u.D = tensor.F16ToF32(binary.LittleEndian.Uint16(b[g*size:]))
		}
		*(*float32)(unsafe.Pointer(&p.scale[g][i])) = u.D
		if minima {
			*(*float32)(unsafe.Pointer(&p.least[g][i])) = u.Min
		}
	}
}

// packGroups is packScales for one block of 256.
func (room *int8Room) packGroups(i int, b []byte, t tensor.Type) {
	p, u := &room.panel, &room.block
	t.UnpackScales(u, b)
	p.d[i], p.min[i] = u.D, u.Min
	every := groupOf(t) / 16
	for g := range 16 / every {
		p.scale[g][i] = int32(u.Scale[g*every])
	}
	if !hasMinima(t) {
		return
	}
	for g := range 16 / every {
		p.least[g/2][i][g%2] = u.Least[g*every]
	}
}

// groupOf returns the number of elements that share an integer scale.
func groupOf(t tensor.Type) int {
	switch t {
	case tensor.Q2_K, tensor.Q3_K, tensor.Q6_K:
		return 16
	}
	return 32
}

// tileInt8 multiplies a panel, at column k of w, by the rows of x that acc has room for, from
// row from on.
func (c CPU) tileInt8(p *int8Panel, acc []float32, x *int8Rows, from, k int, w *Matrix) {
	a := int8PanelTile{
		panel: p, q: x.at(from, k), scale: x.at(from, x.scales()+4*k/x.block), stride: x.stride,
		acc: unsafe.Pointer(&acc[0]), rows: len(acc) / int8PanelRows,
	}
	group := groupOf(w.Type)
	if group == 32 {
		a.less, a.sums = x.at(from, x.less32()+k/8), x.at(from, x.sums32()+k/16)
	} else {
		a.less, a.sums = x.at(from, x.less16()+k/4), x.at(from, x.sums16()+k/8)
	}
	if hasMinima(w.Type) {
		a.pairs = 128 / group
	}
	switch {
	case x.block == 32:
		a.groups = min(256, w.Cols-k) / 32
		int8PanelChainAVX512(&a)
	case group == 32:
		int8Panel32AVX512(&a)
	default:
		int8Panel16AVX512(&a)
	}
}
