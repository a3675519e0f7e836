//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Products on AVX-512 with VNNI but for single rows by types that have a routine of their own. A panel of weights is unpacked once and
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
	int8Wide32        // groups of 32: a product of 32 bits

	// The sums of 8, 16 or 32 columns fit 16 bits, where one instruction multiplies by the scale
	// and adds. The integers of Q4_K and Q5_K are lowered by 8 and 16 for that; lift has their
	// scales, times 8 and 16, to make up for it.
	int8Narrow8 // scales are for 16
	int8Narrow16
	int8Narrow32
)

// int8KindOf returns the kind of panels of t, and the number of columns in a group with an
// integer scale or minimum in the file.
func int8KindOf(t tensor.Type) (kind, group int) {
	switch t {
	case tensor.Q6_K:
		return int8Narrow8, 16
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

	ahead uintptr // the address to prefetch, each bytes further for every group
	each  int
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

	// With every 16 bytes of 16 rows three lines are prefetched from ahead on, which moves by each
	// bytes. Nothing is read through it.
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

// Rooms are made in scratch.sums, quads in scratch.x.
var _ [unsafe.Sizeof(scratch{}.sums) - unsafe.Sizeof(int8Room{})]byte

// int8ManyRows is the number of rows of activations from which panels are multiplied together:
// they leave the second-level cache before the next panel comes.
const int8ManyRows = 64

// int8Panels multiplies by panels.
func (c CPU) int8Panels(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	const most = len(s.w) / int8PanelRows / int8TileRows * int8TileRows
	for from := 0; from < n; from += most {
		p := c.newInt8Product(s, x, from, min(most, n-from), w)
		for o := lo; o < hi; o += p.together * int8PanelRows {
			p.run(dst[from*ldd:], ldd, o, min(hi, o+p.together*int8PanelRows))
		}
	}
}

// int8Product is a product of n rows of activations by panels of w.
type int8Product struct {
	c         CPU
	w         Matrix
	n         int
	row, size int // bytes of a row of w, and of 256 columns of it
	together  int // panels that are multiplied together

	room *int8Room
	acc  []float32     // [together][rows][32]
	each int           // elements of acc from one panel to the next
	pack int8Pack      // as far as it is the same for all panels
	tile int8PanelTile // the same, at column 0
	less int           // bytes of less from 256 columns to the next
	sums int           // of sums

	ahead int // bytes of w that are prefetched with every tile
}

func (c CPU) newInt8Product(s *scratch, x *int8Rows, from, n int, w *Matrix) int8Product {
	t := w.Type
	p := int8Product{
		c: c, w: *w, n: n, row: t.Bytes(w.Cols), size: t.Bytes(256), together: 1,
		room: (*int8Room)(unsafe.Pointer(&s.sums)), acc: s.w[:],
	}
	tiles := (n + int8TileRows - 1) / int8TileRows
	p.each = tiles * int8TileRows * int8PanelRows
	if n >= int8ManyRows {
		p.together = len(p.acc) / p.each
	} else {
		p.ahead = min(int8PanelRows*p.size/tiles, 2048) // 32 lines
	}
	p.pack = int8Pack{panel: &p.room.panel, step: t.Bytes(t.Block())}
	kind, group := int8KindOf(t)
	a := &p.tile
	*a = int8PanelTile{panel: &p.room.panel, stride: x.stride, kind: kind, groups: 8}
	a.q, a.scale = x.at(from, 0), x.at(from, x.scales())
	a.less, p.less = x.at(from, x.less32()), 32
	a.sums, p.sums = x.at(from, x.sums32()), 16
	switch kind {
	case int8Narrow8:
		a.less, p.less, a.groups = x.at(from, x.less8()), 128, 16
	case int8Narrow16:
		a.less, p.less, a.groups = x.at(from, x.less16()), 64, 16
	}
	if group == 16 {
		a.sums, p.sums = x.at(from, x.sums16()), 32
	}
	if t.Minima() {
		a.pairs = 128 / group
	}
	if t == tensor.Q4_K || t == tensor.Q5_K {
		a.lift = 1
	}
	return p
}

// run multiplies rows lo to hi of w, of as many panels as are multiplied together.
func (p *int8Product) run(dst []float32, ldd, lo, hi int) {
	panels := (hi - lo + int8PanelRows - 1) / int8PanelRows
	acc := p.acc[:panels*p.each]
	clear(acc)
	// The rows of the next panels are one range of memory, prefetched from its beginning to its
	// end.
	ahead := uintptr(unsafe.Pointer(unsafe.SliceData(p.w.Data))) + uintptr(panels*int8PanelRows*p.row+lo*p.row)
	for k := 0; k < p.w.Cols; k += 256 {
		for i := range panels {
			o := lo + i*int8PanelRows
			p.pack.ahead, p.tile.ahead = ahead, ahead+uintptr(int8PanelRows*p.size-p.aheadTiles())
			p.makePanel(o, min(int8PanelRows, hi-o), k)
			p.multiply(acc[i*p.each:(i+1)*p.each], k)
			ahead += uintptr(int8PanelRows * p.size)
		}
	}
	for r := range p.n { // outside: rows of dst are pages apart
		y := dst[r*ldd+lo : r*ldd+hi]
		for i := range panels {
			copy(y[i*int8PanelRows:], acc[i*p.each+r*int8PanelRows:][:int8PanelRows])
		}
	}
}

// aheadTiles returns the bytes of w that are prefetched with all tiles of a panel.
func (p *int8Product) aheadTiles() int {
	return p.ahead * (p.each / (int8TileRows * int8PanelRows))
}

// makePanel unpacks up to 256 columns of outs rows of w.
func (p *int8Product) makePanel(o, outs, k int) {
	t, a := p.w.Type, p.pack
	n := min(256, p.w.Cols-k) / t.Block()
	a.src, a.stride = unsafe.Pointer(&p.w.Data[o*p.row+k/256*p.size]), p.row
	if outs < int8PanelRows || n*t.Block() < 256 {
		size := t.Bytes(n * t.Block())
		for i := range outs {
			copy(p.room.rows[i][:size], a.rowBytes(i, size))
		}
		a.src, a.stride = unsafe.Pointer(&p.room.rows), len(p.room.rows[0])
	}
	p.packIntegers(a, n)
	if t.Block() == 32 {
		a.packFloats(p.room, n, t)
	} else {
		a.packGroups(p.room, t)
	}
}

// packIntegers makes the integers of n blocks of every row.
func (p *int8Product) packIntegers(a int8Pack, n int) {
	t := p.w.Type
	bytes := (int8PanelRows*p.size - p.aheadTiles()) / 2
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
		for i := range p.room.integers {
			unpackIntegers(&p.room.integers[i], a.rowBytes(i, n*a.step), n, t)
		}
		a.src, a.stride, a.step, a.each = unsafe.Pointer(&p.room.integers), 256, 32, bytes/16
		int8PackBytesAVX512(&a)
	}
}

// rowBytes returns the first n bytes of row i.
func (a *int8Pack) rowBytes(i, n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(a.src, i*a.stride)), n)
}

// packFloats sets D and Min of n blocks of 32.
func (a int8Pack) packFloats(room *int8Room, n int, t tensor.Type) {
	p := a.panel
	if t != tensor.MXFP4 {
		int8PackHalvesAVX512(&a, unsafe.Pointer(&p.scale), 0, n, 0)
		if t.Minima() {
			int8PackHalvesAVX512(&a, unsafe.Pointer(&p.least), 2, n, 1<<31)
		}
		return
	}
	d, u := (*[8][int8PanelRows]float32)(unsafe.Pointer(&p.scale)), &room.blocks[0]
	for i := range int8PanelRows {
		b := a.rowBytes(i, n*a.step)
		for g := range n {
			t.UnpackScales(u, b[g*a.step:])
			d[g][i] = u.D
		}
	}
}

// packGroups sets scales and minima of blocks of 256.
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
		int8PackScalesAVX512(&a, scale, 192, 128, 0xffff)
		return
	}
	size := t.Bytes(256)
	for i := range room.blocks {
		u := &room.blocks[i]
		t.UnpackScales(u, a.rowBytes(i, size))
		p.d[i], p.min[i] = u.D, u.Min
	}
	first := &room.blocks[0]
	a.src, a.stride = unsafe.Pointer(first), int(unsafe.Sizeof(*first))
	at, even, mask := int(unsafe.Offsetof(first.Scale)), 128, 0xffff
	if t == tensor.IQ4_XS { // a scale for 32
		even, mask = 0, -1
	}
	int8PackScalesAVX512(&a, scale, at, even, mask)
	if t.Minima() {
		int8PackLeastAVX512(&a, least, int(unsafe.Offsetof(first.Least)))
	}
}

// multiply multiplies the panel, at column k of w, by all rows.
func (p *int8Product) multiply(acc []float32, k int) {
	a, block := p.tile, k/256
	a.each = p.ahead / a.groups
	if a.kind == int8Chain {
		a.groups = min(256, p.w.Cols-k) / 32
		a.scale = unsafe.Add(a.scale, 32*block)
	} else {
		a.scale = unsafe.Add(a.scale, 4*block)
	}
	a.q = unsafe.Add(a.q, 256*block)
	a.less = unsafe.Add(a.less, p.less*block)
	a.sums = unsafe.Add(a.sums, p.sums*block)
	for n := p.n; n > 0; {
		a.acc = unsafe.Pointer(&acc[0])
		rows := a.multiply(n)
		if n -= rows; n > 0 {
			acc = acc[rows*int8PanelRows:]
			skip := rows * a.stride
			a.q, a.less = unsafe.Add(a.q, skip), unsafe.Add(a.less, skip)
			a.sums, a.scale = unsafe.Add(a.sums, skip), unsafe.Add(a.scale, skip)
		}
	}
}

// multiply multiplies n rows or the first of them, and returns how many.
func (a *int8PanelTile) multiply(n int) int {
	switch {
	case n <= 2:
		n, a.rows = 2, 2
		int8Panel2AVX512(a)
	case n <= 4:
		n, a.rows = 4, 4
		int8Panel4AVX512(a)
	default:
		n = max(1, n/6) * 6
		a.rows = n
		int8Panel6AVX512(a)
	}
	return n
}
