package lukv

import (
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/kernels"
)

// QueryWindow is a ring of the most recent query rows of one layer together
// with their positions. Row i of a pass is [H*D], head q at [q*D, (q+1)*D). It
// owns its memory; not safe for concurrent writes, safe for concurrent reads.
type QueryWindow struct {
	heads, dim int
	rows       []float32 // [cap][H*D]
	pos        []int32   // [cap]
	start, n   int       // oldest row and number of rows
}

// NewQueryWindow returns an empty window for up to capacity rows.
func NewQueryWindow(heads, headDim, capacity int) *QueryWindow {
	capacity = max(capacity, 0)
	return &QueryWindow{
		heads: heads, dim: headDim,
		rows: make([]float32, capacity*heads*headDim),
		pos:  make([]int32, capacity),
	}
}

// Len returns the number of rows held.
func (w *QueryWindow) Len() int { return w.n }

// Cap returns the most rows the window can hold.
func (w *QueryWindow) Cap() int { return len(w.pos) }

// Append copies one row, [H*D], of the token at position pos; if the window is
// full, the oldest row is dropped. Positions must ascend.
func (w *QueryWindow) Append(pos int, row []float32) {
	if len(w.pos) == 0 {
		return
	}
	at := w.slot(w.n)
	if w.n == len(w.pos) {
		w.start = w.slot(1)
	} else {
		w.n++
	}
	w.pos[at] = int32(pos)
	copy(w.rows[at*w.heads*w.dim:], row[:w.heads*w.dim])
}

func (w *QueryWindow) slot(i int) int {
	i += w.start
	if i >= len(w.pos) {
		i -= len(w.pos)
	}
	return i
}

// Row returns the query of head q in row i, 0 the oldest: [D], a view that the
// next Append may overwrite.
func (w *QueryWindow) Row(i, q int) []float32 {
	at := (w.slot(i)*w.heads + q) * w.dim
	return w.rows[at : at+w.dim : at+w.dim]
}

// Position returns the position of row i.
func (w *QueryWindow) Position(i int) int { return int(w.pos[w.slot(i)]) }

// Trim forgets all but the last n rows.
func (w *QueryWindow) Trim(n int) {
	if drop := w.n - max(n, 0); drop > 0 {
		w.start = w.slot(drop) % max(len(w.pos), 1)
		w.n -= drop
	}
	if w.n == 0 {
		w.start = 0
	}
}

// Rows returns the rows held, oldest first and contiguous, [Len][H*D]: a view
// unless the ring has wrapped around.
func (w *QueryWindow) Rows() []float32 {
	width := w.heads * w.dim
	if end := w.start + w.n; end > len(w.pos) {
		return slices.Concat(w.rows[w.start*width:len(w.pos)*width], w.rows[:(end-len(w.pos))*width])
	}
	return w.rows[w.start*width : (w.start+w.n)*width]
}

// DropFrom forgets rows at positions pos and later, for a cache that was
// truncated.
func (w *QueryWindow) DropFrom(pos int) {
	for w.n > 0 && w.Position(w.n-1) >= pos {
		w.n--
	}
}

// Reserve makes room for n rows in total and keeps the rows held.
func (w *QueryWindow) Reserve(n int) {
	if n <= len(w.pos) {
		return
	}
	width := w.heads * w.dim
	rows, pos := make([]float32, n*width), make([]int32, n)
	for i := range w.n {
		at := w.slot(i)
		pos[i] = w.pos[at]
		copy(rows[i*width:(i+1)*width], w.rows[at*width:])
	}
	w.rows, w.pos, w.start = rows, pos, 0
}

// Clone returns an independent copy.
func (w *QueryWindow) Clone() *QueryWindow {
	c := *w
	c.rows, c.pos = slices.Clone(w.rows), slices.Clone(w.pos)
	return &c
}

// QueryStats accumulates mean and covariance of the queries of one layer
// before RoPE, per query head. Rows of one head must be added in order of
// position; the result does not depend on how they are divided into calls, nor
// on the instruction set: second moments are summed in float32 over tiles of 64
// rows (in the order of kernels.MatMul) and in float64 over tiles. Different
// heads may be added concurrently.
type QueryStats struct {
	cpu        kernels.CPU
	dim        int
	covariance bool
	lengths    bool
	skip       int
	heads      []headStats
}

// headStats holds sums over the rows seen, relative to the first of them,
// which keeps the covariance free of cancellation when the mean is large.
type headStats struct {
	n      int
	origin []float32 // [D] first row
	sum    []float64 // [D] Σ (q - origin)
	length []float64 // [D/2] Σ of the lengths of the pairs of channels f and D/2+f; nil if not requested
	outer  []float64 // [D][D] Σ (q - origin)(q - origin)ᵀ over whole tiles, at and below the diagonal
	tile   []float32 // [D][statsTile] rows of the tile in progress, transposed
	filled int       // rows in tile
	gram   []float32 // [D][D] scratch
}

// statsTile is the number of rows whose second moments are summed in float32.
const statsTile = 64

// NewQueryStats returns empty statistics. Rows at positions below skip are
// ignored; covariance asks for second moments, 12·D² bytes per head. cpu is the
// instruction set to use.
func NewQueryStats(heads, headDim, skip int, covariance bool, cpu kernels.CPU) *QueryStats {
	s := &QueryStats{cpu: cpu, dim: headDim, covariance: covariance, skip: skip, heads: make([]headStats, heads)}
	for q := range s.heads {
		h := &s.heads[q]
		h.origin, h.sum = make([]float32, headDim), make([]float64, headDim)
		if covariance {
			h.outer, h.gram = make([]float64, headDim*headDim), make([]float32, headDim*headDim)
			h.tile = make([]float32, headDim*statsTile)
		}
	}
	return s
}

// KeepChannelNorms enables [QueryStats.ChannelNorms]. Call it before the first row is
// added; only an even head dimension has lengths. It returns s.
func (s *QueryStats) KeepChannelNorms() *QueryStats {
	s.lengths = true
	for q := range s.heads {
		s.heads[q].length = make([]float64, s.dim/2)
	}
	return s
}

// Add adds n consecutive rows of query head q; the first is at position
// pos. Row i is x[i*stride : i*stride+D].
func (s *QueryStats) Add(q, pos int, x []float32, n, stride int) {
	h := &s.heads[q]
	for i := min(max(s.skip-pos, 0), n); i < n; i++ {
		row := x[i*stride : i*stride+s.dim]
		if h.n == 0 {
			copy(h.origin, row)
		}
		h.n++
		for f := range h.length {
			a, b := float64(row[f]), float64(row[s.dim/2+f])
			h.length[f] += math.Sqrt(float64(a*a) + float64(b*b))
		}
		if h.outer == nil {
			for a, v := range row {
				h.sum[a] += float64(v - h.origin[a])
			}
			continue
		}
		for a, v := range row {
			d := v - h.origin[a]
			h.sum[a] += float64(d)
			h.tile[a*statsTile+h.filled] = d
		}
		if h.filled++; h.filled == statsTile {
			h.addTile(s.cpu, h.outer)
			h.filled = 0
		}
	}
}

// addTile adds the second moments of the tile to dst, at and below the diagonal.
// Columns from filled on are taken as zero.
func (h *headStats) addTile(cpu kernels.CPU, dst []float64) {
	D := len(h.sum)
	for a := range D {
		clear(h.tile[a*statsTile+h.filled : (a+1)*statsTile])
	}
	w := kernels.F32Matrix(h.tile, D, statsTile)
	const rows = 16
	for from := 0; from < D; from += rows {
		to := min(from+rows, D)
		cpu.MatMul(h.gram[from*D:], D, h.tile[from*statsTile:], statsTile, to-from, &w, 0, to)
		for a := from; a < to; a++ {
			d := dst[a*D : a*D+a+1]
			for b, v := range h.gram[a*D : a*D+a+1] {
				d[b] += float64(v)
			}
		}
	}
}

// Count returns the number of rows that head q's moments cover.
func (s *QueryStats) Count(q int) int { return s.heads[q].n }

// Mean writes the mean query of head q to dst, [D]; zero without rows.
func (s *QueryStats) Mean(q int, dst []float64) {
	h := &s.heads[q]
	for a := range dst[:s.dim] {
		dst[a] = 0
		if h.n > 0 {
			dst[a] = float64(h.origin[a]) + h.sum[a]/float64(h.n)
		}
	}
}

// ChannelNorms writes the mean lengths of the pairs of channels f and D/2+f of head q's
// queries, which a rotation leaves unchanged, to dst, [D/2]; zero without rows.
func (s *QueryStats) ChannelNorms(q int, dst []float64) {
	h := &s.heads[q]
	for f := range dst[:s.dim/2] {
		dst[f] = 0
		if h.n > 0 {
			dst[f] = h.length[f] / float64(h.n)
		}
	}
}

// Cov writes the biased covariance of head q to dst, [D][D]. Calls for the same
// head must not run concurrently.
func (s *QueryStats) Cov(q int, dst []float64) error {
	h := &s.heads[q]
	if !s.covariance {
		return fmt.Errorf("query statistics of head %d: no second moments were collected", q)
	}
	D := s.dim
	if h.n == 0 {
		clear(dst[:D*D])
		return nil
	}
	copy(dst, h.outer)
	h.addTile(s.cpu, dst[:D*D])
	N := float64(h.n)
	for a := range D {
		ma := h.sum[a] / N
		for b := range a + 1 {
			v := dst[a*D+b]/N - float64(ma*(h.sum[b]/N))
			dst[a*D+b], dst[b*D+a] = v, v
		}
	}
	return nil
}

// Reset forgets all rows.
func (s *QueryStats) Reset() {
	for q := range s.heads {
		h := &s.heads[q]
		h.n, h.filled = 0, 0
		clear(h.sum)
		clear(h.length)
		clear(h.outer)
	}
}

// Clone returns an independent copy.
func (s *QueryStats) Clone() *QueryStats {
	c := *s
	c.heads = make([]headStats, len(s.heads))
	for q, h := range s.heads {
		c.heads[q] = headStats{
			n: h.n, origin: slices.Clone(h.origin), sum: slices.Clone(h.sum), length: slices.Clone(h.length), outer: slices.Clone(h.outer),
			tile: slices.Clone(h.tile), filled: h.filled, gram: slices.Clone(h.gram),
		}
	}
	return &c
}
