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

// int8ScalesAVX512 and int8LeastAVX512 set a panel's scales of groups, and minima of pairs of
// groups, to bytes of words, one for each row. From a group to the next are bits bits.
//
//go:noescape
func int8ScalesAVX512(dst *[int8PanelRows]int32, words *[int8PanelRows]uint64, groups, bits int)

//go:noescape
func int8LeastAVX512(dst *[int8PanelRows][2]int16, words *[int8PanelRows]uint64, pairs, bits int)

// int8Room is where a panel is made.
type int8Room struct {
	panel    int8Panel
	integers [int8PanelRows][256]int8
	block    tensor.Quants

	scale, least [2][int8PanelRows]uint64    // of blocks of 256: groups 0 to 7 and 8 to 15, a byte each
	halves       [2][8][int8PanelRows]uint16 // of others: d and min as stored
}

// Rooms, and strips, are made in scratch.x.
var (
	_ [unsafe.Sizeof(scratch{}.x) - unsafe.Sizeof(int8Room{})]byte
	_ [unsafe.Sizeof(scratch{}.x) - unsafe.Sizeof(int8Strip{})]byte
)

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
		unpackIntegers(&room.integers[i], b, n, w.Type)
		if block == 32 {
			room.readScales(i, b, n, w.Type)
		} else {
			room.readGroups(i, b, w.Type)
		}
	}
	for half := range 2 {
		int8TransposeAVX512(unsafe.Pointer(&room.panel.w[0][16*half]), unsafe.Pointer(&room.integers[16*half]))
	}
	if block == 32 {
		c.packScales(room, n, w.Type)
	} else {
		room.packGroups(w.Type)
	}
}

// readScales reads what n blocks of 32 of row i have beside integers.
func (room *int8Room) readScales(i int, b []byte, n int, t tensor.Type) {
	size := t.Bytes(32)
	if t == tensor.MXFP4 { // no halves: straight to the panel
		for g := range n {
			t.UnpackScales(&room.block, b[g*size:])
			room.panel.floats(0)[g*int8PanelRows+i] = room.block.D
		}
		return
	}
	for g := range n {
		room.halves[0][g][i] = binary.LittleEndian.Uint16(b[g*size:])
	}
	if hasMinima(t) {
		for g := range n {
			room.halves[1][g][i] = binary.LittleEndian.Uint16(b[g*size+2:]) ^ 0x8000
		}
	}
}

// packScales moves what readScales has read to the panel.
func (c CPU) packScales(room *int8Room, n int, t tensor.Type) {
	if t == tensor.MXFP4 {
		return
	}
	for part := range 2 {
		if part == 1 && !hasMinima(t) {
			return
		}
		src := unsafe.Slice((*byte)(unsafe.Pointer(&room.halves[part])), 2*n*int8PanelRows)
		c.Widen(room.panel.floats(part)[:n*int8PanelRows], src, tensor.F16)
	}
}

// floats returns D (part 0) or Min (part 1) of a panel of blocks of 32: [8][32].
func (p *int8Panel) floats(part int) []float32 {
	at := unsafe.Pointer(&p.scale)
	if part == 1 {
		at = unsafe.Pointer(&p.least)
	}
	return unsafe.Slice((*float32)(at), 8*int8PanelRows)
}

// readGroups reads what a block of 256 of row i has beside integers.
func (room *int8Room) readGroups(i int, b []byte, t tensor.Type) {
	p, u := &room.panel, &room.block
	t.UnpackScales(u, b)
	p.d[i], p.min[i] = u.D, u.Min
	scale, least := (*[2]uint64)(unsafe.Pointer(&u.Scale)), (*[2]uint64)(unsafe.Pointer(&u.Least))
	room.scale[0][i], room.scale[1][i] = scale[0], scale[1]
	room.least[0][i], room.least[1][i] = least[0], least[1]
}

// packGroups moves what readGroups has read to the panel.
func (room *int8Room) packGroups(t tensor.Type) {
	p, every := &room.panel, groupOf(t)/16
	groups := 8 / every
	for half := range 2 {
		int8ScalesAVX512(&p.scale[groups*half], &room.scale[half], groups, 8*every)
		if hasMinima(t) {
			int8LeastAVX512(&p.least[groups/2*half], &room.least[half], groups/2, 8*every)
		}
	}
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
