package forward

import (
	"context"
	"errors"
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
)

// Metrics on a device. What passes by while a layer is computed (moments of the
// queries and the attention that a window of queries pays) stays on the device;
// the same run computes scores there from it and from the pages.

// DeviceWatch is what a watcher keeps on the device for one layer and sequence.
type DeviceWatch struct {
	moments    kernels.Moments // of the queries from position skip on; nil: not wanted
	covariance bool
	skip       int
	windows    []windowSums
}

// windowSums is the attention that a window of the prompt's last queries, those from
// position from on, pays to every entry.
type windowSums struct {
	size, from int
	sums       kernels.ColumnSums
}

// Free releases what is kept on the device. The watch may be nil.
func (w *DeviceWatch) Free() {
	if w == nil {
		return
	}
	if w.moments != nil {
		w.moments.Free()
	}
	for _, x := range w.windows {
		x.sums.Free()
	}
	w.moments, w.windows = nil, nil
}

// rowsFrom returns the rows of a span that are at position from or later.
func (p *passRows) rowsFrom(g *Span, from int) (first, n int) {
	skip := min(g.N, max(0, from-int(p.pos[g.row])))
	return g.row + skip, g.N - skip
}

// recordMoments adds a span's queries to its moments.
func (d *deviceRun) recordMoments(g *Span) {
	if w := g.Watch.OnDevice(); w != nil && w.moments != nil {
		if first, n := d.rowsFrom(g, w.skip); n > 0 {
			d.e.(kernels.StatisticsEncoder).Moments(w.moments, d.act(actQ), first, n)
		}
	}
}

// recordSums adds the attention of a span to the sums of its windows.
func (d *deviceRun) recordSums(at, seq int, g *Span) {
	if w := g.Watch.OnDevice(); w != nil {
		for _, x := range w.windows {
			if first, n := d.rowsFrom(g, x.from); n > 0 {
				d.e.(kernels.StatisticsEncoder).ColumnSums(x.sums, d.a, at, seq, d.act(actQ), first, n)
			}
		}
	}
}

// sumsRows reports whether recordSums has anything to do.
func (d *deviceRun) sumsRows(g *Span) bool {
	if w := g.Watch.OnDevice(); w != nil {
		for _, x := range w.windows {
			if _, n := d.rowsFrom(g, x.from); n > 0 {
				return true
			}
		}
	}
	return false
}

// OnDevice returns what the watcher keeps on the device. The watcher may be nil.
func (w *Watcher) OnDevice() *DeviceWatch {
	if w == nil {
		return nil
	}
	return w.Device
}

// reducer returns the pass's attention on a device if it has the layer and reduces, nil
// otherwise.
func (p *Pass) reducer(at int) kernels.Reducer {
	if p.dev == nil || at >= len(p.dev.acc.layers) {
		return nil
	}
	a, _ := p.dev.a.(kernels.Reducer)
	return a
}

// DeviceWatch makes what collects on the device what metrics need from a layer during
// the prefill of T tokens, and removes from needs what the host then need not collect.
// share is the uniform budget that metrics look at. It returns nil if the device
// collects nothing.
func (p *Pass) DeviceWatch(at, T int, needs *lukv.Needs, share int, metrics []lukv.Metric) (*DeviceWatch, error) {
	a := p.reducer(at)
	if a == nil {
		return nil, nil
	}
	w := &DeviceWatch{skip: needs.StatsSkip, covariance: needs.Covariance}
	if needs.Stats && !needs.ChannelNorms { // devices do not sum lengths
		var err error
		if w.moments, err = a.Moments(needs.Covariance); err != nil {
			return nil, fmt.Errorf("memory for query statistics: %w", err)
		}
		needs.Stats = false
	}
	window := 0 // for the host
	for _, m := range metrics {
		size := windowOnDevice(m, T, share)
		if n := m.Needs(T, share).Window; size == 0 || m.Needs(T, 1).Window != n {
			window = max(window, n) // also for a window that a small budget shrinks later
		}
		if size == 0 || w.window(size) != nil {
			continue
		}
		sums, err := a.ColumnSums(T)
		if err != nil {
			w.Free()
			return nil, fmt.Errorf("memory for the attention of %d queries: %w", size, err)
		}
		w.windows = append(w.windows, windowSums{size: size, from: T - size, sums: sums})
	}
	needs.Window = window
	if w.moments == nil && w.windows == nil {
		return nil, nil
	}
	return w, nil
}

func (w *DeviceWatch) window(size int) kernels.ColumnSums {
	for _, x := range w.windows {
		if x.size == size {
			return x.sums
		}
	}
	return nil
}

// windowOnDevice returns the number of queries whose attention a metric looks at
// on a device, 0 for none. A window that depends on the budget is not known when
// the context is read for several budgets, so nobody takes it from the device.
func windowOnDevice(m lukv.Metric, T, share int) int {
	needs := m.Needs(T, share)
	if !needs.WindowMeans || needs.Window >= T || needs.Window != m.Needs(T, 0).Window {
		return 0
	}
	return needs.Window
}

// Score ranks the entries of a layer of a cache, on the device if it can. w is the watcher
// of the layer in this run, or nil.
func (p *Pass) Score(ctx context.Context, cache *kvcache.Cache, w *Watcher, metric lukv.Metric, l *lukv.Layer) (lukv.Scores, error) {
	a := p.reducer(l.Index)
	if a == nil {
		return lukv.Score(ctx, metric, l)
	}
	device := w.OnDevice()
	if metric.Needs(l.T, l.Share).Stats && device != nil && device.moments != nil {
		if w.Stats == nil {
			var err error
			if w.Stats, err = p.net.readMoments(ctx, a, device); err != nil {
				return nil, err
			}
		}
		l.Stats = w.Stats
	}
	on := &layerReductions{a: a, layer: l.Index, kvHeads: p.net.Config.KVHeads, output: p.dev.acc.layers[l.Index].out[0].w}
	if size := windowOnDevice(metric, l.T, l.Share); size > 0 && device != nil {
		on.window, on.sums = size, device.window(size)
	}
	if !metric.Needs(l.T, l.Share).WindowMeans || on.sums != nil {
		l.Accelerator = on
		for head := range p.net.Config.KVHeads {
			a.SetHead(l.Index, 0, head, cache.Table(l.Index, head), cache.Len(l.Index, head), cache.Base(l.Index, head))
		}
		if err := cache.Err(); err != nil {
			return nil, err
		}
	}
	return lukv.Score(ctx, metric, l)
}

// readMoments copies a layer's query statistics to the host.
func (net *Network) readMoments(ctx context.Context, a kernels.Reducer, w *DeviceWatch) (*lukv.QueryStats, error) {
	c := net.Config
	stats := lukv.NewQueryStats(c.Heads, c.HeadDim, w.skip, w.covariance, net.CPU)
	mean := make([]float64, c.HeadDim)
	var cov []float64
	if w.covariance {
		cov = make([]float64, c.HeadDim*c.HeadDim)
	}
	for q := range c.Heads {
		n, err := a.ReadMoments(ctx, w.moments, q, mean, cov)
		if err != nil {
			return nil, fmt.Errorf("read query statistics: %w", err)
		}
		stats.SetMoments(q, n, mean, cov)
	}
	return stats, nil
}

// layerReductions is the lukv.Accelerator of one layer.
type layerReductions struct {
	a       kernels.Reducer
	layer   int
	kvHeads int
	output  kernels.DeviceMatrix // projection of the layer

	window int // queries that sums cover, 0 for none
	sums   kernels.ColumnSums
}

func (s *layerReductions) KeyNorms(ctx context.Context) ([][]float32, error) {
	return s.a.KeyNorms(ctx, s.layer, 0)
}

func (s *layerReductions) ValueNorms(ctx context.Context) ([][]float32, error) {
	return s.a.ValueNorms(ctx, s.layer, 0)
}

// OutputNorms averages the norms over the query heads of a group.
func (s *layerReductions) OutputNorms(ctx context.Context) ([][]float32, error) {
	rows, err := s.a.OutputNorms(ctx, s.layer, 0, s.output, 1)
	if err != nil {
		return nil, err
	}
	group := len(rows) / s.kvHeads
	for h := range s.kvHeads {
		mean := rows[h*group]
		for t := range mean {
			sum := 0.0
			for _, row := range rows[h*group : (h+1)*group] {
				sum += float64(row[t])
			}
			mean[t] = float32(sum / float64(group))
		}
		rows[h] = mean
	}
	return rows[:s.kvHeads], nil
}

func (s *layerReductions) MeanCosines(ctx context.Context) ([][]float32, error) {
	return s.a.MeanCosines(ctx, s.layer, 0)
}

// QuadraticForms folds the form, [H][D][D], into upper triangles, which devices read.
func (s *layerReductions) QuadraticForms(ctx context.Context, linear, form []float32) ([][]float32, error) {
	if form == nil {
		return s.a.QuadraticForm(ctx, s.layer, 0, linear, nil)
	}
	dim := len(form) / len(linear)
	upper := make([]float32, len(form))
	for at := 0; at < len(form); at += dim * dim {
		for i := range dim {
			upper[at+i*dim+i] = form[at+i*dim+i]
			for j := i + 1; j < dim; j++ {
				upper[at+i*dim+j] = form[at+i*dim+j] + form[at+j*dim+i]
			}
		}
	}
	return s.a.QuadraticForm(ctx, s.layer, 0, linear, upper)
}

func (s *layerReductions) KeyDistances(ctx context.Context, frequencies []float64) ([][]float32, error) {
	return s.a.KeyDistances(ctx, s.layer, 0, frequencies)
}

func (s *layerReductions) LinearForms(ctx context.Context, keys, values []float32, frequencies []float64) ([][]float32, error) {
	return s.a.LinearForms(ctx, s.layer, 0, keys, values, frequencies)
}

func (s *layerReductions) WindowMeans(ctx context.Context, w int) ([][]float32, error) {
	if s.sums == nil || s.window != w {
		return nil, errors.ErrUnsupported
	}
	rows, err := s.a.ReadColumnSums(ctx, s.sums, s.layer, 0)
	for _, row := range rows {
		for t := range row {
			row[t] /= float32(w)
		}
	}
	return rows, err
}
