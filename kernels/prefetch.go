package kernels

import "unsafe"

// prefetcher chooses what to prefetch into the second-level cache while tiles are
// computed: the next tile's rows of x and, little by little, the next panel of w.
// Past the end of the product that is what a caller is likely to ask for next.
// Addresses are integers here: nothing is read through them.
type prefetcher struct {
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
func (a *prefetcher) panel(t *tile, w *Matrix, o, k, n int) {
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
		a.w = uintptr(unsafe.Pointer(unsafe.SliceData(w.Data))) + uintptr(w.Type.Bytes(o*w.Cols+k))
	}
	a.x = n*int(t.ldx) > 256<<10
}

// share lets the panel's tiles prefetch two entries of w at once, and no x, if one at a
// time would not be enough. With runs it skips entries instead.
func (a *prefetcher) share(t *tile, tiles int) {
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

// tile fills the list for t, which is followed by follow more rows of x, and reports whether
// t, one of at most limit rows of x, should have it.
func (a *prefetcher) tile(t *tile, limit, follow int) bool {
	if t.rows < limit && !(a.double && t.rows >= 3) && t.wide == nil {
		return false
	}
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
	return true
}
