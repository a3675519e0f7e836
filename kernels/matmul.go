package kernels

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// blockK is the length of the blocks into which the reduction axis of a matrix
// product is cut.
const blockK = 2048

// Matrix is a weight matrix [Rows, Cols], row-major, little-endian, of type F32,
// F16 or BF16. Data is read in place and need not be aligned beyond its element size.
type Matrix struct {
	Type       tensor.Type
	Rows, Cols int
	Data       []byte
}

// F32Matrix returns data, [rows][cols], as a matrix. Nothing is copied on
// little-endian processors; the matrix is valid as long as data is.
func F32Matrix(data []float32, rows, cols int) Matrix {
	data = data[:rows*cols]
	m := Matrix{Type: tensor.F32, Rows: rows, Cols: cols}
	if littleEndian {
		m.Data = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), 4*len(data))
		return m
	}
	for _, v := range data {
		m.Data = binary.LittleEndian.AppendUint32(m.Data, math.Float32bits(v))
	}
	return m
}

// rowBytes returns the stored bytes of row o.
func (w *Matrix) rowBytes(o int) []byte {
	n := w.Cols * w.Type.Size()
	return w.Data[o*n : (o+1)*n]
}

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
	if w.Type != tensor.F32 && w.Type != tensor.F16 && w.Type != tensor.BF16 {
		panic("kernels: MatMul with weights of type " + w.Type.String())
	}
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
	if w.Type != tensor.BF16 {
		panic("kernels: MatMulBF16 with weights of type " + w.Type.String())
	}
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

// touch panics (index out of range) if dst or x has fewer elements than given
// or w fewer rows than hi.
func touch[T any](dst []float32, x []T, dstLen, xLen int, w *Matrix, hi int) {
	_ = dst[dstLen-1]
	if w.Cols > 0 {
		_, _ = x[xLen-1], w.Data[hi*w.Cols*w.Type.Size()-1]
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
}

const (
	// panelBytes is how much of the weights should stay in the second-level cache
	// while the rows of x pass by; panelRows is the most rows of them.
	panelBytes = 512 << 10
	panelRows  = 128

	packedRows = 6 // rows of a packed tile

	// runCols is the length of rows of w beyond which the first tile of a panel also reads
	// them as runs. For shorter rows, arranging the sums for four runs costs more than it gains.
	runCols = 1024
)

// matMulTiles computes a product in tiles. size is the size of an element of x: 4
// for f32, 2 for bf16 with bf16 weights.
func (c CPU) matMulTiles(dst []float32, ldd int, x unsafe.Pointer, size, ldx, n int, w *Matrix, lo, hi int) {
	for r := range n {
		raceWrite(dst[r*ldd+lo : r*ldd+hi])
	}
	raceRead(w.Data[lo*w.Cols*w.Type.Size() : hi*w.Cols*w.Type.Size()])
	t := tile{ldx: uintptr(ldx * size), ldw: uintptr(w.Cols * w.Type.Size()), ldd: uintptr(4 * ldd)}
	t.near = c.Streaming == streamFar
	var runs bool
	if t.far, runs = c.stream(n, size); runs {
		lo = c.runs(t, dst, x, size, n, w, lo, hi)
		t.far = min(t.far, 1)
	}
	if n < c.tileRows() {
		c.panels(t, nil, dst, x, size, n, w, lo, hi)
		return
	}
	t.far = 0
	a := ahead{double: c.AVX512}
	a.runs = a.double && w.Cols > runCols && w.Cols <= blockK
	t.ahead = &a.list[0]
	c.roomyPanels(t, &a, dst, x, size, n, w, lo, hi)
}

// runs multiplies n rows of x by rows of w as four runs, and returns where it stopped: fewer
// than four rows are left. The beginnings of runs are not prefetched: memory-bound callers
// should ask for many rows at a time.
func (c CPU) runs(t tile, dst []float32, x unsafe.Pointer, size, n int, w *Matrix, lo, hi int) int {
	t.x, t.rows = x, n
	t.more, t.full = (w.Cols-1)/blockK, blockK*size/64
	t.step = (w.Cols - t.more*blockK) * size / 64
	if t.run = (hi - lo) / 4; t.run == 0 {
		return lo
	}
	t.cols = 4 * t.run
	t.w, t.dst = unsafe.Pointer(&w.Data[lo*w.Cols*w.Type.Size()]), unsafe.Pointer(&dst[lo])
	c.tile(&t, size, w.Type)
	return lo + t.cols
}

// panels loops over the panels of w, the blocks of their columns, and the rows of x.
func (c CPU) panels(t tile, a *ahead, dst []float32, x unsafe.Pointer, size, n int, w *Matrix, lo, hi int) {
	wsize, ldd := w.Type.Size(), int(t.ldd)/4
	group := lanes
	if size == 2 {
		group = 2 * lanes
	}
	panel := min(panelRows, max(1, panelBytes/(4*wsize*min(w.Cols, blockK)))*4)
	rows := c.tileRows()
	list := t.ahead
	for o := lo; o < hi; o += panel {
		t.cols, t.add = min(panel, hi-o), 0
		for k := 0; k < w.Cols; k += blockK {
			t.step = min(blockK, w.Cols-k) / group
			t.w = unsafe.Pointer(&w.Data[(o*w.Cols+k)*wsize])
			if a != nil {
				a.panel(&t, w, o, k, n)
				a.share(&t, (n+rows-1)/rows)
			}
			for r := 0; r < n; r += t.rows {
				t.rows = evenly(n-r, rows)
				if t.packed != nil && n-r >= packedRows && t.cols%2 == 0 && t.step%2 == 0 {
					t.rows = packedRows
				}
				t.x = unsafe.Add(x, r*int(t.ldx)+k*size)
				t.dst = unsafe.Pointer(&dst[r*ldd+o])
				if a != nil {
					if a.runs && r == 0 {
						c.panelRuns(t, size, w.Type)
						continue
					}
					if t.ahead = nil; t.rows >= rows || a.double && t.rows >= 3 {
						t.ahead = list
						a.tile(&t, n-r-t.rows)
					}
				}
				c.tile(&t, size, w.Type)
			}
			t.add = -1
		}
	}
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

// ahead says what to prefetch into the second-level cache while tiles are
// computed: the next tile's rows of x and, little by little, the next panel of w.
// Past the end of the product that is what a caller is likely to ask for next.
// Addresses are integers here: nothing is read through them.
type ahead struct {
	list [panelRows / 4]uintptr // of the current tile
	x    bool                   // rows of x do not stay in the cache by themselves

	// double says that tiles of fewer rows prefetch too, and two entries at once where one
	// would not be enough for the next panel: this keeps memory busy even where few tiles
	// are computed.
	double bool

	// runs says that the first tile of a panel reads it as runs and prefetches nothing. The
	// others then prefetch evenly spaced rows of the next panel, as many as they have entries
	// for: memory is always busy, and the second-level cache does not wait for it.
	runs bool

	w     uintptr // the next entry of w
	wstep uintptr // bytes of w from one entry to the next
	left  int     // entries that remain
}

// panel prepares for the panel at row o and column k of w, for n rows of x.
func (a *ahead) panel(t *tile, w *Matrix, o, k, n int) {
	rows := t.cols
	if k += blockK; k >= w.Cols {
		k, o = 0, o+rows
		rows = min(rows, w.Rows-o)
	}
	a.left = 0
	if rows > 0 {
		each := max(1, 64*t.step/int(t.ldw))
		a.left = (rows + each - 1) / each
		a.wstep = uintptr(each) * t.ldw
		a.w = uintptr(unsafe.Pointer(unsafe.SliceData(w.Data))) + uintptr((o*w.Cols+k)*w.Type.Size())
	}
	a.x = n*int(t.ldx) > 256<<10
}

// share lets the panel's tiles prefetch two entries of w at once, and no x, if one at a
// time would not be enough. With runs it skips entries instead.
func (a *ahead) share(t *tile, tiles int) {
	t.apart = 0
	quads := t.cols / 4
	switch others := (tiles - 1) * quads; {
	case a.runs && others > 0 && a.left > others:
		every := (a.left + others - 1) / others
		a.left = (a.left + every - 1) / every
		a.wstep *= uintptr(every)
		a.x = false
	case a.double && a.left > tiles*quads:
		a.left = (a.left + 1) / 2
		t.apart = uintptr(a.left) * a.wstep
		a.x = false
	}
}

// tile fills the list for t, which is followed by follow more rows of x.
func (a *ahead) tile(t *tile, follow int) {
	list := a.list[:t.cols/4]
	if a.x {
		n := min(len(list), t.rows, follow)
		for i := range n {
			list[i] = uintptr(t.x) + uintptr(t.rows+i)*t.ldx
		}
		list = list[n:]
	}
	for i := range list {
		if a.left == 0 {
			list[i] = 0
			continue
		}
		list[i] = a.w
		a.w += a.wstep
		a.left--
	}
}

// evenly divides n into the fewest parts of at most limit, all of nearly equal size,
// and returns the size of the first.
func evenly(n, limit int) int {
	parts := (n + limit - 1) / limit
	return (n + parts - 1) / parts
}

func matMulPortable(dst []float32, ldd int, x []float32, ldx, n int, w *Matrix, lo, hi int) {
	var buf [blockK]float32
	size := w.Type.Size()
	for o := lo; o < hi; o++ {
		row := w.rowBytes(o)
		for k := 0; k < w.Cols || k == 0; k += blockK {
			e := min(k+blockK, w.Cols)
			wb := widenBytes(buf[:e-k], row[k*size:e*size], w.Type)
			for r := range n {
				s := dotF32(x[r*ldx+k:r*ldx+e], wb)
				if k > 0 {
					s = dst[r*ldd+o] + s
				}
				dst[r*ldd+o] = s
			}
		}
	}
}

// dotF32 computes one block of a product with f32 activations.
func dotF32(x, w []float32) float32 {
	var s [lanes]float32
	w = w[:len(x)]
	k := 0
	for ; k+lanes <= len(x); k += lanes {
		dotGroupF32(&s, (*[lanes]float32)(x[k:]), (*[lanes]float32)(w[k:]))
	}
	if k < len(x) {
		var a, b [lanes]float32
		copy(a[:], x[k:])
		copy(b[:], w[k:])
		dotGroupF32(&s, &a, &b)
	}
	return sumLanes(&s)
}

// dotGroupF32 sets every s[i] to fma32(a[i], b[i], s[i]). It computes all 16 sums
// in float64 and checks only once whether any of them needs more care.
func dotGroupF32(s, a, b *[lanes]float32) {
	var t [lanes]float32
	var doubt uint64 // top bit: the condition of fma32 for some lane, or a sum of zero
	for i := range s {
		d := float64(a[i])*float64(b[i]) + float64(s[i])
		t[i] = float32(d)
		u := math.Float64bits(d)
		doubt |= (u&0x1fffffff ^ 0x10000000) - 1
		doubt |= u&(1<<63-1) - 0x381<<52
	}
	if doubt>>63 == 0 {
		*s = t
		return
	}
	for i := range s {
		s[i] = fma32(a[i], b[i], s[i])
	}
}

func matMulBF16Portable(dst []float32, ldd int, x []uint16, ldx, n int, w *Matrix, lo, hi int) {
	for o := lo; o < hi; o++ {
		row := w.rowBytes(o)
		for k := 0; k < w.Cols || k == 0; k += blockK {
			e := min(k+blockK, w.Cols)
			for r := range n {
				s := dotBF16(x[r*ldx+k:r*ldx+e], row[2*k:2*e])
				if k > 0 {
					s = dst[r*ldd+o] + s
				}
				dst[r*ldd+o] = s
			}
		}
	}
}

// dotBF16 computes one block of a product of bf16 with bf16. w holds len(x) bf16 values.
func dotBF16(x []uint16, w []byte) float32 {
	var s [lanes]float32
	w = w[:2*len(x)]
	k := 0
	for ; k+2*lanes <= len(x); k += 2 * lanes {
		dotGroupBF16(&s, (*[2 * lanes]uint16)(x[k:]), (*[4 * lanes]byte)(w[2*k:]))
	}
	if k < len(x) {
		var a [2 * lanes]uint16
		var b [4 * lanes]byte
		copy(a[:], x[k:])
		copy(b[:], w[2*k:])
		dotGroupBF16(&s, &a, &b)
	}
	// A product may have overflowed where its sum does not; its lane has then stayed
	// infinite or NaN.
	for _, v := range s {
		if beyond(v)>>63 != 0 {
			return dotBF16Slow(x, w)
		}
	}
	return sumLanes(&s)
}

// dotBF16Slow is dotBF16 with every step checked.
//
//go:noinline
func dotBF16Slow(x []uint16, w []byte) float32 {
	var s [lanes]float32
	step := func(i, k int) {
		if k < len(x) {
			s[i] = fmaFlush(bf16(x[k]), bf16(binary.LittleEndian.Uint16(w[2*k:])), s[i])
		} else {
			s[i] = fmaFlush(0, 0, s[i])
		}
	}
	for k := 0; k < len(x); k += 2 * lanes {
		for i := range s {
			step(i, k+2*i+1)
			step(i, k+2*i)
		}
	}
	return sumLanes(&s)
}

// dotGroupBF16 takes both steps of each lane, the odd element first. It checks
// only once whether any number in them was tiny. A lane whose product
// overflows becomes infinite or NaN.
func dotGroupBF16(s *[lanes]float32, a *[2 * lanes]uint16, b *[4 * lanes]byte) {
	var t [lanes]float32
	var doubt uint64
	for i := range s {
		w := binary.LittleEndian.Uint32(b[4*i:])
		x1, w1 := bf16(a[2*i+1]), math.Float32frombits(w&0xffff0000)
		x0, w0 := bf16(a[2*i]), math.Float32frombits(w<<16)
		p1, p0 := x1*w1, x0*w0
		t1 := s[i] + p1
		t[i] = t1 + p0
		doubt |= excess(x1) | excess(w1) | excess(p1) | excess(s[i]) | excess(t1)
		doubt |= excess(x0) | excess(w0) | excess(p0) | excess(t[i])
	}
	if doubt>>63 == 0 {
		*s = t
		return
	}
	for i := range s {
		w := binary.LittleEndian.Uint32(b[4*i:])
		t := fmaFlush(bf16(a[2*i+1]), math.Float32frombits(w&0xffff0000), s[i])
		s[i] = fmaFlush(bf16(a[2*i]), math.Float32frombits(w<<16), t)
	}
}

// bf16 widens a bf16 value.
func bf16(x uint16) float32 { return tensor.BF16ToF32(x) }

// widenBytes returns the elements of src, stored with type t, as float32. It
// uses buf, of as many elements, unless src is already aligned f32.
func widenBytes(buf []float32, src []byte, t tensor.Type) []float32 {
	if t == tensor.F32 && littleEndian && uintptr(unsafe.Pointer(unsafe.SliceData(src)))%4 == 0 {
		return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(src))), len(buf))
	}
	widenPortable(buf, src, t)
	return buf
}
