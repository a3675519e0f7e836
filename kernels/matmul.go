package kernels

import (
	"sync"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// blockK is the length of the blocks into which the reduction axis of a matrix
// product is cut.
const blockK = 2048

// MatMul computes, for r < n and lo ≤ o < hi,
//
//	dst[r*ldd+o] = Σ_k x[r*ldx+k]·w[o][k]
//
// with f32 activations x [n, w.Cols] whose rows are ldx apart, in the order given in
// the package comment. Weights of any type are widened exactly. Assembly needs
// w.Cols to be a multiple of 16; otherwise the portable function takes over.
func (c CPU) MatMul(dst []float32, ldd int, x []float32, ldx, n int, w *Matrix, lo, hi int) {
	if n <= 0 || lo >= hi {
		return
	}
	checkProduct(w, FormF32)
	if w.Type.Quantised() {
		c.matMulWidened(dst, ldd, x, ldx, n, w, lo, hi)
		return
	}
	c.matMulFloats(dst, ldd, x, ldx, n, w, lo, hi)
}

// matMulFloats is MatMul with weights of a floating-point type.
func (c CPU) matMulFloats(dst []float32, ldd int, x []float32, ldx, n int, w *Matrix, lo, hi int) {
	touch(dst, x, (n-1)*ldd+hi, (n-1)*ldx+w.Cols, w, hi)
	if c.tileRows() == 0 || w.Cols%lanes != 0 || w.Cols == 0 {
		matMulPortable(dst, ldd, x, ldx, n, w, lo, hi)
		return
	}
	for r := range n {
		raceRead(x[r*ldx : r*ldx+w.Cols])
	}
	c.matMulTiles(dst, ldd, unsafe.Pointer(unsafe.SliceData(x)), 4, ldx, n, w, lo, hi)
}

// MatMulBF16 is MatMul with activations already rounded to bf16 and bf16 weights.
// Assembly needs w.Cols to be a multiple of 32.
func (c CPU) MatMulBF16(dst []float32, ldd int, x []uint16, ldx, n int, w *Matrix, lo, hi int) {
	if n <= 0 || lo >= hi {
		return
	}
	checkProduct(w, FormBF16)
	touch(dst, x, (n-1)*ldd+hi, (n-1)*ldx+w.Cols, w, hi)
	if c.tileRows() == 0 || w.Cols%(2*lanes) != 0 || w.Cols == 0 {
		matMulBF16Portable(dst, ldd, x, ldx, n, w, lo, hi)
		return
	}
	for r := range n {
		raceRead(x[r*ldx : r*ldx+w.Cols])
	}
	c.matMulTiles(dst, ldd, unsafe.Pointer(unsafe.SliceData(x)), 2, ldx, n, w, lo, hi)
}

// matMulWidened is MatMul with quantised weights: as many rows as fit the scratch are widened
// at a time.
func (c CPU) matMulWidened(dst []float32, ldd int, x []float32, ldx, n int, w *Matrix, lo, hi int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	room := s.w[:]
	if w.Cols > len(room) {
		room = make([]float32, w.Cols)
	}
	for most := len(room) / max(w.Cols, 1); lo < hi; lo += most {
		rows := w.Slice(lo, min(lo+most, hi))
		wide := room[:rows.Rows*w.Cols]
		c.Widen(wide, rows.Data, w.Type)
		f := F32Matrix(wide, rows.Rows, w.Cols)
		c.matMulFloats(dst[lo:], ldd, x, ldx, n, &f, 0, f.Rows)
	}
}

// touch panics (index out of range) if dst or x has fewer elements than given
// or w fewer rows than hi.
func touch[T any](dst []float32, x []T, dstLen, xLen int, w *Matrix, hi int) {
	_ = dst[dstLen-1]
	if w.Cols > 0 {
		_, _ = x[xLen-1], w.Data[w.Type.Bytes(hi*w.Cols)-1]
	}
}

// tile is the argument of the assembly routines: one block of the reduction
// axis, rows of x by cols of w. Distances are in bytes.
type tile struct {
	x    unsafe.Pointer // [rows][steps·16] f32 or [rows][steps·32] bf16
	ldx  uintptr
	w    unsafe.Pointer // [cols][as x]
	ldw  uintptr
	dst  unsafe.Pointer // [rows][cols] f32
	ldd  uintptr
	rows int // 1 … CPU.tileRows
	cols int // at least 1
	step int // groups of 16 or 32 elements; at least 1
	add  int // -1: the sums are added to dst, 0: they replace what it holds

	// ahead points to one address for every four of cols, if there are CPU.tileRows rows,
	// or on AVX-512 three or more. While four rows of w are multiplied, the 64·step bytes
	// at their address may be prefetched and, unless apart is 0, as many again apart bytes
	// further on (AVX-512); an address of 0 means none. With fewer rows ahead may be nil,
	// which means none at all.
	ahead *uintptr
	apart uintptr

	// How weights are streamed from memory, for few rows of x. If run is not 0, x is multiplied
	// by four runs of neighbouring rows of w at once, each run rows long, of which cols/4 are
	// used, and far is how many bytes ahead of use they are prefetched into the second-level
	// cache. If near is set, they are prefetched once more shortly before use, into the
	// first-level cache, as the first to leave it; with a single row of x, far then asks for one
	// of two neighbouring lines only. Rows of w begin with more blocks of full groups each, before
	// the one of step groups. Without runs, a far other than 0 means that the next rows of w are
	// prefetched into the second-level cache, not the first.
	far, run, more, full int
	near                 bool

	// A tile of 6 rows can be computed in parts of the block, where the routine supports it.
	// Between parts the lanes of all outputs are kept in sums, in the routine's own order.
	// For tileF32AVX512 cols is a multiple of four, and part is 1 for the first of two
	// parts, 2 for the second, 0 for both at once. For tilePackedAVX2 cols is even, part is
	// the number of groups before this part, and packed is room for x, widened.
	part   int
	sums   unsafe.Pointer // [cols][rows][16] f32
	packed unsafe.Pointer // [groups][rows][32] f32

	// wide is the scratch of tiles that are widened before they are multiplied, nil for
	// others. The first tile of a panel then widens the panel, too.
	wide  *scratch
	first bool
}

const (
	// panelBytes is how much of the weights should stay in the second-level cache
	// while the rows of x pass by; panelRows is the most rows of them.
	panelBytes = 512 << 10
	panelRows  = 128

	packedRows = 6 // rows of a packed tile

	// packedSteps is the length of a part of a packed tile: that much of its rows,
	// widened, is half the first-level cache.
	packedSteps = 32

	// wideCols is the number of rows of w in a panel of wide tiles: that many of a block,
	// widened, stay in the second-level cache. wideVectors is the length of a part of the
	// block: that much of six rows of x, widened, is half the first-level cache.
	wideCols    = 64
	wideVectors = 64

	// runCols is the length of rows of w beyond which the first tile of a panel also reads
	// them as runs. For shorter rows, arranging the sums for four runs costs more than it gains.
	runCols = 1024
)

// plan is a product as panels computes it: rows [lo, hi) of w by n rows of x.
type plan struct {
	tile   tile // distances, and how its tiles are computed
	dst    []float32
	x      unsafe.Pointer
	size   int // of an element of x: 4 for f32, 2 for bf16
	n      int
	w      *Matrix
	lo, hi int

	panel int         // rows of w in a panel
	ahead *prefetcher // nil with few rows, which read w once
}

// tiling is how products of many rows use their scratch.
type tiling uint8

const (
	tilesPlain   tiling = iota
	tilesInParts        // sums between two parts of a block
	tilesPacked         // sums, and rows of x widened
	tilesWide           // sums, rows of x and a panel of w widened
)

// scratch is the memory of tiles of many rows. Allocations of its size begin at a page, so
// that no vector in it crosses a cache line.
type scratch struct {
	w    [wideCols * blockK]float32
	x    [packedRows * max(wideVectors*lanes, packedSteps*2*lanes)]float32
	sums [panelRows * packedRows * lanes]float32
	dst  [packedRows * wideCols]float32 // of a tile that recomputes rows of an earlier one
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// use gives the tiles of p the scratch that a tiling needs.
func (p *plan) use(k tiling, s *scratch) {
	switch k {
	case tilesWide:
		p.panel, p.tile.wide, p.ahead.runs = wideCols, s, false
	case tilesPacked:
		p.tile.packed = unsafe.Pointer(&s.x)
		fallthrough
	case tilesInParts:
		p.tile.sums = unsafe.Pointer(&s.sums)
	}
}

// matMulTiles computes a product in tiles. size is the size of an element of x: 4
// for f32, 2 for bf16 with bf16 weights.
func (c CPU) matMulTiles(dst []float32, ldd int, x unsafe.Pointer, size, ldx, n int, w *Matrix, lo, hi int) {
	for r := range n {
		raceWrite(dst[r*ldd+lo : r*ldd+hi])
	}
	raceRead(w.Slice(lo, hi).Data)
	wsize := w.Type.Bytes(1)
	p := plan{
		tile: tile{ldx: uintptr(ldx * size), ldw: uintptr(w.Cols * wsize), ldd: uintptr(4 * ldd)},
		dst:  dst, x: x, size: size, n: n, w: w, lo: lo, hi: hi,
		panel: min(panelRows, max(1, panelBytes/(4*wsize*min(w.Cols, blockK)))*4),
	}
	p.tile.near = c.Streaming == streamFar
	var runs bool
	if p.tile.far, runs = c.stream(n, size); runs {
		c.runs(&p)
		p.tile.far = min(p.tile.far, 1)
	}
	if n < c.tileRows() {
		c.panels(&p)
		return
	}
	p.tile.far = 0
	a := prefetcher{double: c.AVX512}
	a.runs = a.double && w.Cols > runCols && w.Cols <= blockK
	p.ahead = &a
	if k := c.tiling(size, n, w); k != tilesPlain {
		s := scratches.Get().(*scratch)
		defer scratches.Put(s)
		p.use(k, s)
	}
	c.panels(&p)
}

// runs multiplies all rows of x by rows of w as four runs and leaves fewer than four rows
// of w. The beginnings of runs are not prefetched: memory-bound callers should ask for many
// rows at a time.
func (c CPU) runs(p *plan) {
	t, w := p.tile, p.w
	t.x, t.rows = p.x, p.n
	t.more, t.full = (w.Cols-1)/blockK, blockK*p.size/64
	t.step = (w.Cols - t.more*blockK) * p.size / 64
	if t.run = (p.hi - p.lo) / 4; t.run == 0 {
		return
	}
	t.cols = 4 * t.run
	t.w, t.dst = w.at(p.lo, 0), unsafe.Pointer(&p.dst[p.lo])
	c.tile(&t, p.size, w.Type)
	p.lo += t.cols
}

// panels loops over the panels of w, the blocks of their columns, and the rows of x.
func (c CPU) panels(p *plan) {
	t, w, a := p.tile, p.w, p.ahead
	ldd, rows := int(t.ldd)/4, c.tileRows()
	for o := p.lo; o < p.hi; o += p.panel {
		t.cols, t.add = min(p.panel, p.hi-o), 0
		for k := 0; k < w.Cols; k += blockK {
			t.step = min(blockK, w.Cols-k) * p.size / 64
			t.w = w.at(o, k)
			if a != nil {
				a.panel(&t, w, o, k, p.n)
				if t.wide == nil {
					a.share(&t, (p.n+rows-1)/rows)
				}
			}
			for r := 0; r < p.n; r += t.rows {
				t.rows, t.first = t.rowsOf(p.n-r, rows), r == 0
				t.x = unsafe.Add(p.x, r*int(t.ldx)+k*p.size)
				t.dst = unsafe.Pointer(&p.dst[r*ldd+o])
				if a != nil {
					if a.runs && r == 0 {
						c.panelRuns(t, p.size, w.Type)
						continue
					}
					if t.ahead = nil; a.tile(&t, rows, p.n-r-t.rows) {
						t.ahead = &a.list[0]
					}
				}
				c.tile(&t, p.size, w.Type)
			}
			t.add = -1
		}
	}
}

// rowsOf returns how many of n rows of x the next tile has, at most limit.
func (t *tile) rowsOf(n, limit int) int {
	switch {
	case t.wide != nil:
		return min(packedRows, n)
	case t.packed != nil && n >= packedRows && t.cols%2 == 0 && t.step%2 == 0:
		return packedRows
	}
	return evenly(n, limit)
}

// panelRuns computes the first tile of a panel. Whatever part of the panel is still in memory
// is read as four runs of its rows, and the tile is computed in one part: between parts, the
// lanes of the sums would be kept in a different order.
func (c CPU) panelRuns(t tile, size int, wt tensor.Type) {
	t.ahead, t.far, t.sums = nil, c.runAhead(t.rows, size), nil
	rest := t.cols % 4
	if t.cols -= rest; t.cols > 0 {
		t.run = t.cols / 4
		c.tile(&t, size, wt)
	}
	if rest > 0 {
		t.far, t.run = 1, 0
		t.w, t.dst, t.cols = unsafe.Add(t.w, t.cols*int(t.ldw)), unsafe.Add(t.dst, 4*t.cols), rest
		c.tile(&t, size, wt)
	}
}

// tile computes one block of a product. size is the size of an element of x, wt the type of w.
func (c CPU) tile(a *tile, size int, wt tensor.Type) {
	if size == 2 {
		c.tileDot(a)
	} else {
		c.tileF32(a, wt)
	}
}

// evenly divides n into the fewest parts of at most limit, all of nearly equal size,
// and returns the size of the first.
func evenly(n, limit int) int {
	parts := (n + limit - 1) / limit
	return (n + parts - 1) / parts
}

// bf16 widens a bf16 value.
func bf16(x uint16) float32 { return tensor.BF16ToF32(x) }
