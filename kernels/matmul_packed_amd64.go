//go:build !purego

package kernels

import (
	"sync"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Products of many rows on AVX-512. Both x and w are widened to f32 once, in the order
// in which they are multiplied: w for all rows of x, and six rows of x at a time for a
// panel of w.

const (
	// wideCols is the number of rows of w in a panel: that many of a block, widened, stay
	// in the second-level cache.
	wideCols = 64

	// wideVectors is the length of a part of the block: that much of six rows of x, widened,
	// is half the first-level cache.
	wideVectors = 64
)

// packedTile is the argument of the assembly routines: a part of the block, six rows of x
// by cols of w. Distances are in bytes.
type packedTile struct {
	x      unsafe.Pointer // [6][groups·16] f32 or [6][groups·32] bf16
	ldx    uintptr
	w      unsafe.Pointer // [cols][as x]
	ldw    uintptr
	dst    unsafe.Pointer // [6][cols] f32
	ldd    uintptr
	cols   int // a multiple of 4
	groups int
	add    int      // as in tile
	ahead  *uintptr // as in tile
	before int      // groups of the block before the part
	last   int      // 1: the part is the last one of the block, and dst receives the sums
	fresh  int      // 1: w is read and packed, 0: it is already packed

	packedX unsafe.Pointer // room for [vectors][6][16] f32
	packedW unsafe.Pointer // [cols/4][vectors of the block][4][16] f32, from the part's first vector on
	stepW   uintptr        // from four rows of packed w to the next
	sums    unsafe.Pointer // [cols/4][6][4][16] f32, between parts
}

// packedRoom is memory for packed tiles.
type packedRoom struct {
	w    [wideCols * blockK]float32
	x    [wideVectors * packedRows * lanes]float32
	sums [wideCols * packedRows * lanes]float32
	dst  [packedRows * wideCols]float32 // of a tile that recomputes rows of an earlier one
}

var packedRooms = sync.Pool{New: func() any { return new(packedRoom) }}

// Packed tiles with f32 activations and weights of the named type; Dot is bf16 with bf16.

//go:noescape
func packedF32AVX512(a *packedTile)

//go:noescape
func packedBF16AVX512(a *packedTile)

//go:noescape
func packedF16AVX512(a *packedTile)

//go:noescape
func packedDotAVX512(a *packedTile)

// packsWide reports whether a product of n rows of x, whose elements have size bytes,
// should use packed tiles of AVX-512. The longer the rows, the more of them it takes: sums
// are kept between parts of a block, and w is read in shorter runs.
func (c CPU) packsWide(size, n int, w *Matrix) bool {
	if !c.AVX512 || size == 2 && c.AVX512BF16 && !c.SlowDot {
		return false
	}
	switch {
	case w.Cols <= wideVectors*lanes:
		return n >= 24
	case w.Type == tensor.F32:
		return false // nothing to widen: tiles in parts
	case w.Cols <= blockK:
		return n >= 24
	}
	return n >= 48
}

// panelsWide is panels with packed tiles of AVX-512.
func (c CPU) panelsWide(t tile, a *ahead, dst []float32, x unsafe.Pointer, size, n int, w *Matrix, lo, hi int) {
	room := packedRooms.Get().(*packedRoom)
	defer packedRooms.Put(room)
	wsize, ldd := w.Type.Size(), int(t.ldd)/4
	group := lanes
	if size == 2 {
		group = 2 * lanes
	}
	for o := lo; o < hi; o += wideCols {
		t.cols, t.add = min(wideCols, hi-o), 0
		for k := 0; k < w.Cols; k += blockK {
			t.step = min(blockK, w.Cols-k) / group
			t.w = unsafe.Pointer(&w.Data[(o*w.Cols+k)*wsize])
			a.panel(&t, w, o, k, n)
			for r := 0; r < n; r += packedRows {
				t.rows = min(packedRows, n-r)
				t.x = unsafe.Add(x, r*int(t.ldx)+k*size)
				t.dst = unsafe.Pointer(&dst[r*ldd+o])
				a.tile(&t, n-r-t.rows)
				c.wideTile(&t, room, size, w.Type, r == 0)
			}
			t.add = -1
		}
	}
}

// wideTile computes a tile of up to six rows of x; first says whether it is the first of
// a panel. A tile of fewer than six rows is filled up with the rows before it, of which
// there are always enough.
func (c CPU) wideTile(t *tile, room *packedRoom, size int, wt tensor.Type, first bool) {
	elems := 64 / size // of a group
	p := packedTile{
		x: t.x, ldx: t.ldx, w: t.w, ldw: t.ldw, dst: t.dst, ldd: t.ldd, cols: t.cols &^ 3, add: t.add, ahead: t.ahead,
		packedX: unsafe.Pointer(&room.x), packedW: unsafe.Pointer(&room.w), sums: unsafe.Pointer(&room.sums),
		stepW: uintptr(4 * 4 * elems * t.step),
	}
	missing := packedRows - t.rows
	if missing > 0 {
		p.x = unsafe.Add(p.x, -missing*int(t.ldx))
		p.dst, p.ldd, p.add = unsafe.Pointer(&room.dst), 4*wideCols, 0
	}
	if first {
		p.fresh = 1
	}
	for p.cols > 0 && p.last == 0 {
		p.groups = min(wideVectors*lanes/elems, t.step-p.before)
		if p.before+p.groups == t.step {
			p.last = 1
		}
		p.run(size, wt)
		p.x, p.w = unsafe.Add(p.x, 64*p.groups), unsafe.Add(p.w, elems*wt.Size()*p.groups)
		p.packedW = unsafe.Add(p.packedW, 4*4*elems*p.groups)
		p.before += p.groups
	}
	if missing > 0 {
		for r := range t.rows {
			to := unsafe.Slice((*float32)(unsafe.Add(t.dst, r*int(t.ldd))), p.cols)
			for i, v := range room.dst[(missing+r)*wideCols:][:p.cols] {
				if t.add != 0 {
					v = to[i] + v
				}
				to[i] = v
			}
		}
	}
	if rest := t.cols - p.cols; rest > 0 {
		last := *t
		last.w, last.dst, last.cols = unsafe.Add(t.w, p.cols*int(t.ldw)), unsafe.Add(t.dst, 4*p.cols), rest
		c.tile(&last, size, wt)
	}
}

func (p *packedTile) run(size int, wt tensor.Type) {
	switch {
	case size == 2:
		packedDotAVX512(p)
	case wt == tensor.F32:
		packedF32AVX512(p)
	case wt == tensor.F16:
		packedF16AVX512(p)
	default:
		packedBF16AVX512(p)
	}
}
