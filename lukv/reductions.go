package lukv

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/lukv/lukv/kernels"
)

// Reductions are the building blocks of metrics. Each goes over all entries of a layer, heads in
// parallel, and returns a row per KV head, [K][Len(h)], or per query head, [H][Len(h)]
// with h its KV head. Rows are in the layer's scratch, until its Next, or without one on
// the Go heap; the caller may change them. With an [Accelerator] they are computed
// there. They are called one after another, not from [Layer.EachHead].

// SquaredKeyNorms returns ‖k_t‖₂², [K][Len(h)], as sums in ascending order.
func (l *Layer) SquaredKeyNorms(ctx context.Context) ([][]float64, error) {
	if a := l.Accelerator; a != nil {
		if x, err := l.fromDevice(a.KeyNorms(ctx)); !errors.Is(err, errors.ErrUnsupported) {
			return squares(x), err
		}
	}
	return l.reduce(ctx, l.KVHeads, reduction{rows: l.Keys, head: squaredNorms})
}

// SquaredValueNorms is SquaredKeyNorms for the values.
func (l *Layer) SquaredValueNorms(ctx context.Context) ([][]float64, error) {
	if a := l.Accelerator; a != nil {
		if x, err := l.fromDevice(a.ValueNorms(ctx)); !errors.Is(err, errors.ErrUnsupported) {
			return squares(x), err
		}
	}
	return l.reduce(ctx, l.KVHeads, reduction{rows: l.Values, head: squaredNorms})
}

// OutputNorms returns ‖v_t·W_O‖₁, [K][Len(h)]: the sum of the absolute values of what a
// value adds to the outputs, averaged over the query heads of the group. Products are
// float32 in the order of kernels.MatMul, sums float64 in ascending order. Time
// T·H·D·OutputDim.
func (l *Layer) OutputNorms(ctx context.Context) ([][]float64, error) {
	if a := l.Accelerator; a != nil {
		if x, err := l.fromDevice(a.OutputNorms(ctx)); !errors.Is(err, errors.ErrUnsupported) {
			return x, err
		}
	}
	return l.reduce(ctx, l.KVHeads, reduction{head: outputNorms})
}

// MeanCosines returns the cosine of every key with the mean of its head's unit keys,
// [K][Len(h)]. Sums are float64 in ascending order.
func (l *Layer) MeanCosines(ctx context.Context) ([][]float64, error) {
	if a := l.Accelerator; a != nil {
		if x, err := l.fromDevice(a.MeanCosines(ctx)); !errors.Is(err, errors.ErrUnsupported) {
			return x, err
		}
	}
	return l.reduce(ctx, l.KVHeads, reduction{head: meanCosines})
}

// QuadraticForms returns k·linear[q] + kᵀ·form[q]·k for every query head q and key k of
// its KV head, [H][Len(h)]: linear is [H][D], form is [H][D][D], symmetric, or nil for 0.
// Products are those of kernels.MatMul and kernels.Dot.
func (l *Layer) QuadraticForms(ctx context.Context, linear, form []float32) ([][]float64, error) {
	if a := l.Accelerator; a != nil {
		if x, err := l.fromDevice(a.QuadraticForms(ctx, linear, form)); !errors.Is(err, errors.ErrUnsupported) {
			return x, err
		}
	}
	return l.reduce(ctx, l.Heads, reduction{head: quadraticForms, linear: linear, form: form})
}

// keyDistances returns the squared distance of every key, its rotation undone, from the
// mean over its head, [K][Len(h)]. Sums are float64 in ascending order.
func (l *Layer) keyDistances(ctx context.Context) ([][]float64, error) {
	if a := l.Accelerator; a != nil {
		if x, err := l.fromDevice(a.KeyDistances(ctx, l.InvFreq)); !errors.Is(err, errors.ErrUnsupported) {
			square := l.keyScale() * l.keyScale()
			for _, row := range x {
				for t := range row {
					row[t] /= square
				}
			}
			return x, err
		}
	}
	return l.reduce(ctx, l.KVHeads, reduction{head: keyDistances})
}

// WindowMeans returns, for every query head, the mean attention that the queries of a
// window pay to each entry, [H][Len(h)]. The window holds the newest WindowRows(h, w)
// queries. Probabilities are those of [Layer.Attend], sums float64 in ascending order.
func (l *Layer) WindowMeans(ctx context.Context, w int) ([][]float64, error) {
	if a := l.Accelerator; a != nil && l.outlasts(w) {
		if x, err := l.fromDevice(a.WindowMeans(ctx, w)); !errors.Is(err, errors.ErrUnsupported) {
			return x, err
		}
	}
	if l.Queries == nil || l.Queries.Len() == 0 {
		return nil, fmt.Errorf("attention of a window in layer %d: the last queries are missing", l.Index)
	}
	return l.reduce(ctx, l.Heads, reduction{head: windowMeans, window: w})
}

// WindowRows returns how many queries the window of head h holds if w are asked for: no
// more than the layer has, and fewer than the head has entries, so that some remain
// outside, but at least 1.
func (l *Layer) WindowRows(h, w int) int {
	w = max(1, min(w, l.Len(h)-1))
	if l.Queries != nil {
		w = min(w, l.Queries.Len())
	}
	return w
}

// outlasts reports whether every head has more entries than a window of w ≥ 1.
func (l *Layer) outlasts(w int) bool {
	for h := range l.KVHeads {
		if w < 1 || l.Len(h) <= w {
			return false
		}
	}
	return true
}

// fromDevice copies the rows of an accelerator to the scratch.
func (l *Layer) fromDevice(x [][]float32, err error) ([][]float64, error) {
	if err != nil {
		return nil, err
	}
	rows := l.newRows(len(x))
	for i, row := range x {
		if len(row) < len(rows[i]) {
			return nil, fmt.Errorf("reduce layer %d on the device: found a row of %d entries, expected %d", l.Index, len(row), len(rows[i]))
		}
		for t := range rows[i] {
			rows[i][t] = float64(row[t])
		}
	}
	return rows, nil
}

func squares(x [][]float64) [][]float64 {
	for _, row := range x {
		for t, v := range row {
			row[t] = v * v
		}
	}
	return x
}

// newRows returns n rows of 0s, one for every KV head or for every query head.
func (l *Layer) newRows(n int) [][]float64 {
	s := l.Scratch
	if s == nil {
		s = &Scratch{Heap: true}
	}
	heads := max(1, n/l.KVHeads)
	return s.rows.take(!s.Heap, n, func(i int) int { return l.scored(i / heads) })
}

// reduction is one reduction in progress. It is kept in the scratch, with the function
// that workers run, so that none is made for every layer.
type reduction struct {
	rows   rowReader // of squaredNorms
	window int       // of windowMeans

	linear, form []float32 // of quadraticForms

	head func(r *reduction, ws *Workspace, h int) error
	ctx  context.Context // of the call in progress
	l    *Layer          // likewise
	out  [][]float64
	errs []error
	run  func(h int)
}

// reduce runs r over the KV heads of the layer and returns n rows.
func (l *Layer) reduce(ctx context.Context, n int, r reduction) ([][]float64, error) {
	s := l.Scratch
	if s == nil {
		s = &Scratch{Heap: true}
	}
	x := &s.reduce
	r.run, r.errs = x.run, x.errs
	*x = r
	x.ctx, x.l, x.out = ctx, l, l.newRows(n)
	x.errs = resize(x.errs, l.KVHeads)
	clear(x.errs)
	if x.run == nil {
		x.run = x.runHead
	}
	l.parallel(x.run)
	out := x.out
	x.ctx, x.l, x.out, x.rows, x.linear, x.form = nil, nil, nil, nil, nil, nil // they refer to a cache
	for _, err := range x.errs {
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *reduction) runHead(h int) {
	l := r.l
	if l.wanted != nil && !l.wanted[h] {
		return
	}
	if r.errs[h] = r.ctx.Err(); r.errs[h] != nil {
		return
	}
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	r.errs[h] = r.head(r, ws, h)
}

func squaredNorms(r *reduction, _ *Workspace, h int) error {
	l, out, D := r.l, r.out[h], r.l.HeadDim
	return l.eachTile(r.ctx, r.rows, h, 0, l.Len(h), func(lo, hi int, x []float32) {
		for t := lo; t < hi; t++ {
			out[t] = sumSquares(x[(t-lo)*D : (t-lo+1)*D])
		}
	})
}

// outputTile outputs of the projection are computed together.
const outputTile = 256

func outputNorms(r *reduction, ws *Workspace, h int) error {
	l, norms := r.l, r.out[h]
	D, G := l.HeadDim, l.Group()
	weights := ws.Float32s(min(outputTile, l.OutputDim) * D)
	product := ws.Float32s(slotTile * min(outputTile, l.OutputDim))
	for q := h * G; q < (h+1)*G; q++ {
		for from := 0; from < l.OutputDim; from += outputTile {
			to := min(from+outputTile, l.OutputDim)
			n := to - from
			rows := l.Output(q, from, to, weights[:n*D])
			if len(rows) < n*D {
				return fmt.Errorf("read the output projection of layer %d, query head %d: found %d weights, expected %d", l.Index, q, len(rows), n*D)
			}
			w := kernels.F32Matrix(rows, n, D)
			err := l.EachValues(r.ctx, h, func(lo, hi int, x []float32) {
				l.CPU.MatMul(product, n, x, D, hi-lo, &w, 0, n)
				for t := lo; t < hi; t++ {
					for _, v := range product[(t-lo)*n : (t-lo+1)*n] {
						norms[t] += math.Abs(float64(v))
					}
				}
			})
			if err != nil {
				return err
			}
		}
	}
	for t := range norms {
		norms[t] /= float64(G)
	}
	return nil
}

func meanCosines(r *reduction, ws *Workspace, h int) error {
	l, out, D := r.l, r.out[h], r.l.HeadDim
	a := anchor{mean: ws.zeros(D)}
	err := l.EachKeys(r.ctx, h, func(lo, hi int, keys []float32) {
		for t := range hi - lo {
			a.add(keys[t*D : (t+1)*D])
		}
	})
	if err != nil {
		return err
	}
	a.finish()
	return l.EachKeys(r.ctx, h, func(lo, hi int, keys []float32) {
		for t := lo; t < hi; t++ {
			out[t] = a.cosine(keys[(t-lo)*D : (t-lo+1)*D])
		}
	})
}

func keyDistances(r *reduction, ws *Workspace, h int) error {
	l, out, D := r.l, r.out[h], r.l.HeadDim
	mean, key, pos := ws.zeros(D), ws.Float64s(D), l.positions(h)
	err := l.EachKeys(r.ctx, h, func(lo, hi int, keys []float32) {
		for t := lo; t < hi; t++ {
			l.Unrotate(key, keys[(t-lo)*D:(t-lo+1)*D], positionOf(pos, t))
			for i, v := range key {
				mean[i] += v
			}
		}
	})
	if err != nil {
		return err
	}
	for i := range mean {
		mean[i] /= float64(max(1, len(out)))
	}
	return l.EachKeys(r.ctx, h, func(lo, hi int, keys []float32) {
		for t := lo; t < hi; t++ {
			l.Unrotate(key, keys[(t-lo)*D:(t-lo+1)*D], positionOf(pos, t))
			for i, v := range key {
				d := v - mean[i]
				out[t] += float64(d * d)
			}
		}
	})
}

func quadraticForms(r *reduction, ws *Workspace, h int) error {
	l, D, G := r.l, r.l.HeadDim, r.l.Group()
	var image []float32 // keys times the form, [tile][D]
	if r.form != nil {
		image = ws.Float32s(min(slotTile, l.Len(h)) * D)
	}
	for q := h * G; q < (h+1)*G; q++ {
		z, linear := r.out[q], r.linear[q*D:(q+1)*D]
		var w kernels.Matrix
		if r.form != nil {
			w = kernels.F32Matrix(r.form[q*D*D:(q+1)*D*D], D, D)
		}
		err := l.EachKeys(r.ctx, h, func(lo, hi int, keys []float32) {
			if r.form != nil {
				l.CPU.MatMul(image, D, keys, D, hi-lo, &w, 0, D)
			}
			for t := lo; t < hi; t++ {
				k := keys[(t-lo)*D : (t-lo+1)*D]
				z[t] = float64(l.CPU.Dot(k, linear))
				if r.form != nil {
					z[t] += float64(l.CPU.Dot(k, image[(t-lo)*D:(t-lo+1)*D]))
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func windowMeans(r *reduction, _ *Workspace, h int) error {
	l := r.l
	w := l.WindowRows(h, r.window)
	return l.WindowAttention(r.ctx, h, w, func(g int, p []float32) {
		columnMeans(r.out[h*l.Group()+g], p, w, l.Len(h))
	})
}

// columnMeans averages the first len(dst) columns of p, [w][T].
func columnMeans(dst []float64, p []float32, w, T int) {
	clear(dst)
	for i := range w {
		for t, v := range p[i*T : i*T+len(dst)] {
			dst[t] += float64(v)
		}
	}
	for t := range dst {
		dst[t] /= float64(w)
	}
}
