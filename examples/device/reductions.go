package device

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/kernels"
)

var (
	_ kernels.StatisticsEncoder = (*encoder)(nil)
	_ kernels.Reducer           = (*attention)(nil)
)

// wide returns a row of a page.
func (a *attention) wide(r kernels.PageRows, page kernels.Page, entry int) []float64 {
	x, y := make([]float32, a.HeadDim), make([]float64, a.HeadDim)
	r.Load(a.d.cpu, r.Of(page), entry, x)
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// each computes f of every entry of a layer of a sequence, in a row per KV head, or per
// query head.
func (a *attention) each(layer, seq int, queries bool, f func(q int, key, value []float64) float64) ([][]float32, error) {
	if layer < 0 || layer >= len(a.Windows) || seq < 0 || seq >= a.Sequences {
		return nil, fmt.Errorf("reduce layer %d, sequence %d: there are %d and %d", layer, seq, len(a.Windows), a.Sequences)
	}
	group := 1
	if queries {
		group = a.Heads / a.KVHeads
	}
	out := make([][]float32, a.KVHeads*group)
	for q := range out {
		h := a.head(layer, seq, q/group)
		out[q] = make([]float32, h.entries)
		for t := range h.entries {
			page, e := h.p.at(h.p.d.held(h.pages[t/h.p.l.PageEntries]).data), t%h.p.l.PageEntries
			out[q][t] = float32(f(q, a.wide(h.p.l.KeyRows(), page, e), a.wide(h.p.l.ValueRows(), page, e)))
		}
	}
	return out, nil
}

func dot(x, y []float64) (s float64) {
	for i, v := range x {
		s += float64(v * y[i])
	}
	return s
}

func (a *attention) KeyNorms(_ context.Context, layer, seq int) ([][]float32, error) {
	return a.each(layer, seq, false, func(_ int, key, _ []float64) float64 { return math.Sqrt(dot(key, key)) })
}

func (a *attention) ValueNorms(_ context.Context, layer, seq int) ([][]float32, error) {
	return a.each(layer, seq, false, func(_ int, _, value []float64) float64 { return math.Sqrt(dot(value, value)) })
}

func (a *attention) MeanCosines(_ context.Context, layer, seq int) ([][]float32, error) {
	// The length of the mean does not matter to the cosine, so the sum will do.
	sums := make([][]float64, a.KVHeads)
	for h := range sums {
		sums[h] = make([]float64, a.HeadDim)
	}
	_, err := a.each(layer, seq, false, func(h int, key, _ []float64) float64 {
		for i, length := 0, math.Sqrt(dot(key, key)); i < len(key) && length > 0; i++ {
			sums[h][i] += key[i] / length
		}
		return 0
	})
	if err != nil {
		return nil, err
	}
	return a.each(layer, seq, false, func(h int, key, _ []float64) float64 {
		return dot(key, sums[h]) / max(math.Sqrt(dot(key, key))*math.Sqrt(dot(sums[h], sums[h])), math.SmallestNonzeroFloat64)
	})
}

func (a *attention) OutputNorms(_ context.Context, layer, seq int, projection kernels.DeviceMatrix, norm int) ([][]float32, error) {
	w, ok := projection.(*matrix)
	if !ok || w.gone || w.Cols != a.Heads*a.HeadDim || norm != 1 && norm != 2 {
		return nil, fmt.Errorf("output norms: found norm %d, expected 1 or 2 and a projection of %d columns", norm, a.Heads*a.HeadDim)
	}
	wide := make([]float32, w.Rows*w.Cols)
	a.d.cpu.Widen(wide, w.Data, w.Type)
	return a.each(layer, seq, true, func(q int, _, value []float64) float64 {
		sum := 0.0
		for row := range slices.Chunk(wide, w.Cols) {
			y := 0.0
			for i, x := range row[q*a.HeadDim : (q+1)*a.HeadDim] {
				y += float64(float64(x) * value[i])
			}
			if norm == 1 {
				sum += math.Abs(y)
			} else {
				sum += float64(y * y)
			}
		}
		if norm == 2 {
			sum = math.Sqrt(sum)
		}
		return sum
	})
}

func (a *attention) QuadraticForm(_ context.Context, layer, seq int, linear, form []float32) ([][]float32, error) {
	d := a.HeadDim
	if len(linear) != a.Heads*d || form != nil && len(form) != a.Heads*d*d {
		return nil, fmt.Errorf("quadratic form: found %d and %d coefficients", len(linear), len(form))
	}
	return a.each(layer, seq, true, func(q int, key, _ []float64) float64 {
		sum := 0.0
		for i, x := range key {
			sum += float64(x * float64(linear[q*d+i]))
			for j := i; form != nil && j < d; j++ {
				sum += float64(x * float64(form[(q*d+i)*d+j]) * key[j])
			}
		}
		return sum
	})
}

// unrotated calls f for the entries of a layer of a sequence with keys whose rotation is undone.
func (a *attention) unrotated(layer, seq int, frequencies []float64, f func(h int, key, value []float64) float64) ([][]float32, error) {
	half := a.HeadDim / 2
	if 2*len(frequencies) != a.HeadDim {
		return nil, fmt.Errorf("undo rotations: found %d frequencies, expected half of %d", len(frequencies), a.HeadDim)
	}
	before, t := -1, 0
	return a.each(layer, seq, false, func(h int, key, value []float64) float64 {
		if h != before {
			before, t = h, 0
		}
		c := a.head(layer, seq, h)
		position := int32(binary.LittleEndian.Uint32(c.p.position(a.d.held(c.pages[t/c.p.l.PageEntries]).data, t%c.p.l.PageEntries)))
		for i, by := range frequencies {
			sin, cos := math.Sincos(float64(position) * by)
			x, y := key[i], key[half+i]
			key[i], key[half+i] = float64(x*cos)+float64(y*sin), float64(y*cos)-float64(x*sin)
		}
		t++
		return f(h, key, value)
	})
}

func (a *attention) KeyDistances(_ context.Context, layer, seq int, frequencies []float64) ([][]float32, error) {
	means := make([][]float64, a.KVHeads)
	for h := range means {
		means[h] = make([]float64, a.HeadDim)
	}
	_, err := a.unrotated(layer, seq, frequencies, func(h int, key, _ []float64) float64 {
		for i, x := range key {
			means[h][i] += x / float64(a.head(layer, seq, h).entries)
		}
		return 0
	})
	if err != nil {
		return nil, err
	}
	return a.unrotated(layer, seq, frequencies, func(h int, key, _ []float64) float64 {
		for i := range key {
			key[i] -= means[h][i]
		}
		return dot(key, key)
	})
}

func (a *attention) LinearForms(_ context.Context, layer, seq int, keys, values []float32, frequencies []float64) ([][]float32, error) {
	d := a.HeadDim
	if len(keys) != a.KVHeads*d || len(values) != a.KVHeads*d {
		return nil, fmt.Errorf("linear forms: found %d and %d coefficients, expected %d", len(keys), len(values), a.KVHeads*d)
	}
	return a.unrotated(layer, seq, frequencies, func(h int, key, value []float64) float64 {
		sum := 0.0
		for i := range key {
			sum += float64(key[i]*float64(keys[h*d+i])) + float64(value[i]*float64(values[h*d+i]))
		}
		return sum
	})
}

// moments are sums of queries and of their products, in the order of rows.
type moments struct {
	thing
	heads, dim, n int
	sum, products []float64 // [Heads][HeadDim], [Heads][HeadDim][HeadDim]
	origin        []float64 // [Heads][HeadDim]: the first row, which sums are relative to
}

func (a *attention) Moments(covariance bool) (kernels.Moments, error) {
	m := &moments{thing: a.d.thing(), heads: a.Heads, dim: a.HeadDim, sum: make([]float64, a.Heads*a.HeadDim), origin: make([]float64, a.Heads*a.HeadDim)}
	if covariance {
		m.products = make([]float64, a.Heads*a.HeadDim*a.HeadDim)
	}
	a.kept = append(a.kept, &m.thing)
	return m, nil
}

func (e *encoder) Moments(of kernels.Moments, q kernels.Rows, first, n int) {
	m, ok := of.(*moments)
	if !e.check("moments", ok && !m.gone, "the statistics are not of this device, or were freed") {
		return
	}
	x := e.rows("moments", q, -1, m.heads*m.dim)
	e.check("moments", first >= 0 && n >= 0 && n <= x.n-first, "found rows [%d, %d+%d) of %d", first, first, n, x.n)
	e.op("moments", func() {
		for i := first; i < first+n; i++ {
			m.add(x.row(i))
		}
	})
}

func (m *moments) add(row []float32) {
	if m.n++; m.n == 1 {
		for i, x := range row {
			m.origin[i] = float64(x)
		}
	}
	for i, x := range row {
		v := float64(x) - m.origin[i]
		m.sum[i] += v
		for j := 0; m.products != nil && j < m.dim; j++ {
			k := i/m.dim*m.dim + j
			m.products[i*m.dim+j] += float64(v * (float64(row[k]) - m.origin[k]))
		}
	}
}

func (a *attention) ReadMoments(_ context.Context, of kernels.Moments, head int, mean, cov []float64) (int, error) {
	m, ok := of.(*moments)
	if !ok || m.gone || head < 0 || head >= a.Heads || cov != nil && m.products == nil {
		return 0, fmt.Errorf("read moments of head %d of %d: there are none", head, a.Heads)
	}
	N, at := float64(max(m.n, 1)), head*m.dim
	for i := range m.dim {
		mean[i] = m.origin[at+i] + m.sum[at+i]/N
		for j := 0; cov != nil && j < m.dim; j++ {
			cov[i*m.dim+j] = m.products[(at+i)*m.dim+j]/N - float64(m.sum[at+i]/N*(m.sum[at+j]/N))
		}
	}
	return m.n, nil
}

type columnSums struct {
	thing
	a    *attention
	sums [][]float64 // [Heads][entries]
}

func (a *attention) ColumnSums(entries int) (kernels.ColumnSums, error) {
	s := &columnSums{thing: a.d.thing(), a: a}
	a.kept = append(a.kept, &s.thing)
	for range a.Heads {
		s.sums = append(s.sums, make([]float64, entries))
	}
	return s, nil
}

func (e *encoder) ColumnSums(of kernels.ColumnSums, at kernels.Attention, layer, seq int, q kernels.Rows, first, n int) {
	const op = "column sums"
	a, s := e.attention(op, at, layer), (*columnSums)(nil)
	if a != nil {
		s, _ = of.(*columnSums)
		e.check(op, s != nil && !s.gone && s.a == a && a.Windows[layer] == 0 && seq >= 0 && seq < a.Sequences, "sums of layer %d, sequence %d that do not fit", layer, seq)
	}
	x := e.rows(op, q, -1, -1)
	e.check(op, first >= 0 && n >= 0 && n <= x.n-first, "found rows [%d, %d+%d) of %d", first, first, n, x.n)
	e.op(op, func() {
		for h := range a.Heads {
			c := a.head(layer, seq, h/(a.Heads/a.KVHeads))
			for i := first; i < first+n; i++ {
				sees := c.entries + i - a.spans[seq].Row + 1
				kv, p := c.kv(sees), make([]float32, c.base+sees)
				e.d.cpu.AttentionWeights(p[c.base:], x.row(i)[h*a.HeadDim:(h+1)*a.HeadDim], &kv, c.base, a.Scale, a.Cap, a.stats[i*a.Heads+h])
				for t, v := range p[c.base:] {
					s.sums[h][t] += float64(v)
				}
			}
		}
	})
}

func (a *attention) ReadColumnSums(_ context.Context, of kernels.ColumnSums, layer, seq int) ([][]float32, error) {
	s, ok := of.(*columnSums)
	if !ok || s.gone || s.a != a {
		return nil, fmt.Errorf("read column sums: they are not of this attention, or were freed")
	}
	out, err := a.each(layer, seq, true, func(int, []float64, []float64) float64 { return 0 })
	for q := range out {
		if len(out[q]) > len(s.sums[q]) {
			return nil, fmt.Errorf("read column sums: found %d entries, the sums are for %d", len(out[q]), len(s.sums[q]))
		}
		for t := range out[q] {
			out[q][t] = float32(s.sums[q][t])
		}
	}
	return out, err
}
