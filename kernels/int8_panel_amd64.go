//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Products of two rows and more on AVX-512 with VNNI. A panel of weights is unpacked once and
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

	lift   [4][int8PanelRows][2]int16 // see int8Narrow32
	d, min [int8PanelRows]float32     // of blocks of 256
}

// How the integer sums of a panel are scaled: the kinds of panels.
const (
	int8Chain  = iota // one group a block of 32: f32 follow
	int8Wide16        // groups of 16: a product of 32 bits
	int8Wide32

	// The sum of a group fits 16 bits, where one instruction multiplies by the scale and adds. The
	// integers of Q4_K and Q5_K are lowered by 8 and 16 for that; lift has their scales, times
	// 8 and 16, to make up for it.
	int8Narrow16
	int8Narrow32
)

// int8KindOf returns the kind of panels of t, and the number of columns in a group with an
// integer scale or minimum in the file.
func int8KindOf(t tensor.Type) (kind, group int) {
	switch t {
	case tensor.Q6_K:
		return int8Wide16, 16
	case tensor.IQ4_XS:
		return int8Wide32, 32
	case tensor.Q2_K, tensor.Q3_K:
		return int8Narrow16, 16
	case tensor.Q5_K:
		return int8Narrow16, 32
	case tensor.Q4_K:
		return int8Narrow32, 32
	}
	return int8Chain, 32
}

// int8PanelTile is the argument of the routines that multiply. Pointers are to the first row of
// activations, at the panel's first column.
type int8PanelTile struct {
	panel                *int8Panel
	q, less, sums, scale unsafe.Pointer // parts of int8Rows
	stride               int            // bytes from one row to the next
	acc                  unsafe.Pointer // [rows][32] f32
	rows                 int            // a multiple of those of the routine; used up
	kind, groups         int
	pairs                int // of groups that have minima; 0: the type has none
	lift                 int // 1: the panel has it
}

// The routines multiply six, four or two rows at a time.
//
//go:noescape
func int8Panel6AVX512(a *int8PanelTile)

//go:noescape
func int8Panel4AVX512(a *int8PanelTile)

//go:noescape
func int8Panel2AVX512(a *int8PanelTile)

// int8Pack is the argument of the routines that make panels.
type int8Pack struct {
	panel  *int8Panel
	src    unsafe.Pointer // [32] rows of weights, from the panel's first block on
	stride int            // bytes from one row to the next
	step   int            // bytes from the integers of 32 columns, or the halves of a block, to the next

	// Of nibbles: the integers that they stand for, and the bytes of the panel from the columns of
	// lower ones to those of upper ones.
	levels *[16]int8
	upper  int

	// What is prefetched: with every 16 bytes of 16 rows five lines from ahead on, which moves
	// by each bytes. Nothing is read through it.
	ahead uintptr
	each  int
}

// int8PackBytesAVX512 takes integers as bytes.
//
//go:noescape
func int8PackBytesAVX512(a *int8Pack)

// int8PackNibblesAVX512 takes runs of 16 bytes of nibbles.
//
//go:noescape
func int8PackNibblesAVX512(a *int8Pack)

//go:noescape
func int8PackQ5_KAVX512(a *int8Pack)

//go:noescape
func int8PackQ6_KAVX512(a *int8Pack)

// int8PackHalvesAVX512 sets dst, [n][32] f32, to the f16 at byte at of n blocks of every row,
// with the bits of flip flipped. n is at most 8.
//
//go:noescape
func int8PackHalvesAVX512(a *int8Pack, dst unsafe.Pointer, at, n, flip int)

// int8PackScalesAVX512 sets scales to the 16 bytes at byte at of every row, with the bits of
// mask; even bytes are followed by the next even bytes further on.
//
//go:noescape
func int8PackScalesAVX512(a *int8Pack, dst unsafe.Pointer, at, even, mask int)

// int8PackLeastAVX512 sets eight pairs of minima to the 16 bytes at byte at of every row.
//
//go:noescape
func int8PackLeastAVX512(a *int8Pack, dst unsafe.Pointer, at int)

// int8PackHeadersAVX512 takes d, dmin, scales and minima of Q4_K and Q5_K. Scales are stored
// twice, twice bytes apart; lift is 1<<shift times as large.
//
//go:noescape
func int8PackHeadersAVX512(a *int8Pack, twice, shift int)

// int8Room is where a panel is made.
type int8Room struct {
	panel int8Panel

	rows     [int8PanelRows][320]byte // a copy of less than a whole panel
	integers [int8PanelRows][256]int8
	blocks   [int8PanelRows]tensor.Quants // scales and minima alone
}

// Rooms are made in scratch.sums, quads and strips in scratch.x.
var (
	_ [unsafe.Sizeof(scratch{}.sums) - unsafe.Sizeof(int8Room{})]byte
	_ [unsafe.Sizeof(scratch{}.x) - unsafe.Sizeof(int8QuadRoom{})]byte
	_ [unsafe.Sizeof(scratch{}.x) - unsafe.Sizeof(int8Strip{})]byte
)

// int8Panels multiplies by panels.
func (c CPU) int8Panels(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	room := (*int8Room)(unsafe.Pointer(&s.sums))
	const most = len(s.w) / int8PanelRows / int8TileRows * int8TileRows
	for from := 0; from < n; from += most {
		rows := min(most, n-from)
		acc := s.w[:(rows+int8TileRows-1)/int8TileRows*int8TileRows*int8PanelRows]
		for o := lo; o < hi; o += int8PanelRows {
			outs := min(int8PanelRows, hi-o)
			clear(acc)
			for k := 0; k < w.Cols; k += 256 {
				c.packInt8(room, w, o, outs, k)
				tileInt8(&room.panel, acc, x, from, rows, k, w)
			}
			for r := range rows {
				copy(dst[(from+r)*ldd+o:][:outs], acc[r*int8PanelRows:])
			}
		}
	}
}

// packInt8 unpacks up to 256 columns of outs rows of w.
func (c CPU) packInt8(room *int8Room, w *Matrix, o, outs, k int) {
	t := w.Type
	n := min(256, w.Cols-k) / t.Block()
	row, size := t.Bytes(w.Cols), t.Bytes(n*t.Block())
	src := w.Data[o*row+t.Bytes(k):]
	a := int8Pack{panel: &room.panel, src: unsafe.Pointer(&src[0]), stride: row, step: t.Bytes(t.Block())}
	// The next panel, whose rows are one range of memory, from its beginning to its end.
	a.ahead = uintptr(unsafe.Pointer(unsafe.SliceData(w.Data))) + uintptr((o+int8PanelRows)*row+int8PanelRows*t.Bytes(k))
	if outs < int8PanelRows || size < t.Bytes(256) {
		for i := range outs {
			copy(room.rows[i][:size], src[i*row:])
		}
		a.src, a.stride = unsafe.Pointer(&room.rows), len(room.rows[0])
	}
	c.packIntegers(room, a, n, t)
	if t.Block() == 32 {
		a.packFloats(room, n, t)
	} else {
		a.packGroups(room, t)
	}
}

// packIntegers makes the integers of n blocks of every row.
func (c CPU) packIntegers(room *int8Room, a int8Pack, n int, t tensor.Type) {
	bytes := int8PanelRows / 2 * t.Bytes(256)
	a.each = bytes / 8
	levels, first := t.Levels()
	switch t {
	case tensor.Q8_0:
		a.src, a.each = unsafe.Add(a.src, 2), bytes/16
		int8PackBytesAVX512(&a)
	case tensor.Q4_0, tensor.Q4_1, tensor.IQ4_NL, tensor.MXFP4:
		a.src, a.levels, a.upper = unsafe.Add(a.src, first), levels, 512
		int8PackNibblesAVX512(&a)
	case tensor.IQ4_XS:
		a.src, a.step, a.levels, a.upper = unsafe.Add(a.src, first), 16, levels, 512
		int8PackNibblesAVX512(&a)
	case tensor.Q4_K:
		a.levels, _ = tensor.Q4_0.Levels() // lowered by 8
		a.src, a.step, a.upper = unsafe.Add(a.src, 16), 16, 1024
		int8PackNibblesAVX512(&a)
	case tensor.Q5_K:
		a.each = bytes / 10
		int8PackQ5_KAVX512(&a)
	case tensor.Q6_K:
		a.each = bytes / 12
		int8PackQ6_KAVX512(&a)
	default:
		for i := range room.integers {
			c.unpackIntegers(&room.integers[i], a.row(i, t.Bytes(n*t.Block())), n, t)
		}
		a.src, a.stride, a.step, a.each = unsafe.Pointer(&room.integers), 256, 32, bytes/16
		int8PackBytesAVX512(&a)
	}
}

// row returns the first n bytes of row i.
func (a *int8Pack) row(i, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(a.src, i*a.stride)), n)
}

// packFloats sets D and Min of n blocks of 32.
func (a *int8Pack) packFloats(room *int8Room, n int, t tensor.Type) {
	p := a.panel
	if t != tensor.MXFP4 {
		int8PackHalvesAVX512(a, unsafe.Pointer(&p.scale), 0, n, 0)
		if hasMinima(t) {
			int8PackHalvesAVX512(a, unsafe.Pointer(&p.least), 2, n, 1<<31)
		}
		return
	}
	d, u := (*[8][int8PanelRows]float32)(unsafe.Pointer(&p.scale)), &room.blocks[0]
	for i := range int8PanelRows {
		b := a.row(i, n*a.step)
		for g := range n {
			t.UnpackScales(u, b[g*a.step:])
			d[g][i] = u.D
		}
	}
}

// packGroups sets what blocks of 256 have beside integers.
func (a int8Pack) packGroups(room *int8Room, t tensor.Type) {
	p := a.panel
	scale, least := unsafe.Pointer(&p.scale), unsafe.Pointer(&p.least)
	switch t {
	case tensor.Q4_K:
		int8PackHeadersAVX512(&a, 0, 3)
		return
	case tensor.Q5_K:
		int8PackHeadersAVX512(&a, 128, 4)
		return
	case tensor.Q6_K:
		int8PackHalvesAVX512(&a, unsafe.Pointer(&p.d), 208, 1, 0)
		int8PackScalesAVX512(&a, scale, 192, 128, -1)
		return
	}
	size := t.Bytes(256)
	for i := range room.blocks {
		u := &room.blocks[i]
		t.UnpackScales(u, a.row(i, size))
		p.d[i], p.min[i] = u.D, u.Min
	}
	first := &room.blocks[0]
	a.src, a.stride = unsafe.Pointer(first), int(unsafe.Sizeof(*first))
	at, even, mask := int(unsafe.Offsetof(first.Scale)), 128, 0xffff
	if t == tensor.IQ4_XS { // a scale for 32
		even, mask = 0, -1
	}
	int8PackScalesAVX512(&a, scale, at, even, mask)
	if hasMinima(t) {
		int8PackLeastAVX512(&a, least, int(unsafe.Offsetof(first.Least)))
	}
}

// tileInt8 multiplies a panel, at column k of w, by n rows of x, from row from on.
func tileInt8(p *int8Panel, acc []float32, x *int8Rows, from, n, k int, w *Matrix) {
	kind, group := int8KindOf(w.Type)
	a := int8PanelTile{panel: p, stride: x.stride, kind: kind}
	less, sums := x.less32()+k/8, x.sums32()+k/16
	switch kind {
	case int8Chain:
		a.groups = min(256, w.Cols-k) / 32
	case int8Narrow16, int8Wide16:
		a.groups, less = 16, x.less16()+k/4
	default:
		a.groups = 8
	}
	if group == 16 {
		sums = x.sums16() + k/8
	}
	if hasMinima(w.Type) {
		a.pairs = 128 / group
	}
	if w.Type == tensor.Q4_K || w.Type == tensor.Q5_K {
		a.lift = 1
	}
	for n > 0 {
		a.q, a.less, a.sums = x.at(from, k), x.at(from, less), x.at(from, sums)
		a.scale, a.acc = x.at(from, x.scales()+4*k/x.block), unsafe.Pointer(&acc[0])
		rows := a.multiply(n)
		acc, from, n = acc[min(rows*int8PanelRows, len(acc)):], from+rows, n-rows
	}
}

// multiply multiplies n rows or the first of them, and returns how many.
func (a *int8PanelTile) multiply(n int) int {
	switch a.rows = n / 6 * 6; {
	case n <= 2:
		a.rows = 2
		int8Panel2AVX512(a)
		return 2
	case n <= 4:
		a.rows = 4
		int8Panel4AVX512(a)
		return 4
	case n <= 6:
		a.rows = 6
	}
	rows := a.rows
	int8Panel6AVX512(a)
	return rows
}
