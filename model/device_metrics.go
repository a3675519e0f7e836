package model

import (
	"context"
	"errors"
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
)

// Metrics on a device. What passes by while a layer is computed (moments of the
// queries and the attention that a window of queries pays) stays on the device;
// the same run computes scores there from it and from the pages.

// deviceWatch is what a watcher keeps on the device for one layer and session.
type deviceWatch struct {
	moments    kernels.DeviceMoments // of the queries from position skip on; nil: not wanted
	covariance bool
	skip       int
	windows    []windowSums
}

// windowSums is the attention that a window of the prompt's last queries, those from
// position from on, pays to every entry.
type windowSums struct {
	size, from int
	sums       kernels.DeviceSums
}

func (w *deviceWatch) free() {
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
func (p *pass) rowsFrom(g *span, from int) (first, n int) {
	skip := min(g.n, max(0, from-int(p.pos[g.row])))
	return g.row + skip, g.n - skip
}

// recordMoments adds a span's queries to its moments.
func (d *deviceRun) recordMoments(g *span) {
	if w := g.watch.onDevice(); w != nil && w.moments != nil {
		if first, n := d.rowsFrom(g, w.skip); n > 0 {
			d.p.(kernels.MetricPass).Moments(w.moments, first, n)
		}
	}
}

// recordSums adds the attention of a span to the sums of its windows.
func (d *deviceRun) recordSums(at, seq int, g *span) {
	if w := g.watch.onDevice(); w != nil {
		for _, x := range w.windows {
			if first, n := d.rowsFrom(g, x.from); n > 0 {
				d.p.(kernels.MetricPass).ColumnSums(x.sums, at, seq, first, n)
			}
		}
	}
}

// sumsRows reports whether recordSums has anything to do.
func (d *deviceRun) sumsRows(g *span) bool {
	if w := g.watch.onDevice(); w != nil {
		for _, x := range w.windows {
			if _, n := d.rowsFrom(g, x.from); n > 0 {
				return true
			}
		}
	}
	return false
}

// onDevice returns what the watcher keeps on the device. The watcher may be nil.
func (w *watcher) onDevice() *deviceWatch {
	if w == nil {
		return nil
	}
	return w.device
}

// metricPass returns the run's pass on a device if it has the layer and can compute
// metrics, and nil otherwise.
func (r *run) metricPass(at int) kernels.MetricPass {
	if r == nil || r.dev == nil || at >= len(r.dev.acc.layers) {
		return nil
	}
	mp, _ := r.dev.p.(kernels.MetricPass)
	return mp
}

// deviceWatch makes what collects on the device what metrics need from a layer during
// the prefill of T tokens, and removes from needs what the host then need not collect.
// share is the uniform budget that metrics look at. It returns nil if the device
// collects nothing.
func (r *run) deviceWatch(at, T int, needs *lukv.Needs, share int, metrics []lukv.Metric) (*deviceWatch, error) {
	mp := r.metricPass(at)
	if mp == nil {
		return nil, nil
	}
	w := &deviceWatch{skip: needs.StatsSkip, covariance: needs.Covariance}
	if needs.Stats && !needs.ChannelNorms { // devices do not sum lengths
		var err error
		if w.moments, err = mp.NewMoments(needs.Covariance); err != nil {
			return nil, fmt.Errorf("memory for query statistics: %w", err)
		}
		needs.Stats = false
	}
	window := 0 // for the host
	for _, m := range metrics {
		size := windowOnDevice(mp, m, T, share)
		if n := m.Needs(T, share).Window; size == 0 || m.Needs(T, 1).Window != n {
			window = max(window, n) // also for a window that a small budget shrinks later
		}
		if size == 0 || w.window(size) != nil {
			continue
		}
		sums, err := mp.NewSums(T)
		if err != nil {
			w.free()
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

func (w *deviceWatch) window(size int) kernels.DeviceSums {
	for _, x := range w.windows {
		if x.size == size {
			return x.sums
		}
	}
	return nil
}

// windowOnDevice returns the number of queries whose attention a metric looks at
// on a device, 0 for none. A window that depends on the budget is not known when
// an observation collects, so no session takes it from the device.
func windowOnDevice(p kernels.MetricPass, m lukv.Metric, T, share int) int {
	needs := m.Needs(T, share)
	if _, ok := p.(reducer); !ok || !needs.WindowMeans || needs.Window >= T || needs.Window != m.Needs(T, 0).Window {
		return 0
	}
	return needs.Window
}

// score ranks the entries of a layer of s, on the device if it can. w is the watcher
// of the layer in this run, or nil; a nil run has no device.
func (r *run) score(ctx context.Context, s *Session, w *watcher, metric lukv.Metric, l *lukv.Layer) (lukv.Scores, error) {
	mp := r.metricPass(l.Index)
	if mp == nil {
		return lukv.Score(ctx, metric, l)
	}
	device := w.onDevice()
	if metric.Needs(l.T, l.Share).Stats && device != nil && device.moments != nil {
		if w.stats == nil {
			var err error
			if w.stats, err = r.m.readMoments(ctx, mp, device); err != nil {
				return nil, err
			}
		}
		l.Stats = w.stats
	}
	on := &layerReductions{p: mp, layer: l.Index}
	if size := windowOnDevice(mp, metric, l.T, l.Share); size > 0 && device != nil {
		on.sums, on.window = device.window(size), size
	}
	if !metric.Needs(l.T, l.Share).WindowMeans || on.sums != nil {
		l.Accelerator = on
		for head := range r.m.cfg.KVHeads {
			mp.SetHead(l.Index, 0, head, s.cache.Table(l.Index, head), s.cache.Len(l.Index, head), s.cache.Base(l.Index, head))
		}
		if err := s.cache.Err(); err != nil {
			return nil, err
		}
	}
	return lukv.Score(ctx, metric, l)
}

// readMoments copies a layer's query statistics to the host.
func (m *Model) readMoments(ctx context.Context, mp kernels.MetricPass, w *deviceWatch) (*lukv.QueryStats, error) {
	c := m.cfg
	stats := lukv.NewQueryStats(c.Heads, c.HeadDim, w.skip, w.covariance, m.cpu)
	mean := make([]float64, c.HeadDim)
	var cov []float64
	if w.covariance {
		cov = make([]float64, c.HeadDim*c.HeadDim)
	}
	for q := range c.Heads {
		n, err := mp.ReadMoments(ctx, w.moments, q, mean, cov)
		if err != nil {
			return nil, fmt.Errorf("read query statistics: %w", err)
		}
		stats.SetMoments(q, n, mean, cov)
	}
	return stats, nil
}

// layerReductions is the lukv.Accelerator of one layer.
type layerReductions struct {
	p      kernels.MetricPass
	layer  int
	window int                // rows that sums cover
	sums   kernels.DeviceSums // nil: none
}

// reducer is a pass that also reads back the attention of a window and quadratic forms,
// a row per query head. form is [H][D][D], upper triangles with zeros below, or nil.
type reducer interface {
	ReadColumnSums(ctx context.Context, s kernels.DeviceSums, layer, seq int) ([][]float32, error)
	QuadraticForm(ctx context.Context, layer, seq int, linear, form []float32) ([][]float32, error)
}

func (s *layerReductions) KeyNorms(ctx context.Context) ([][]float32, error) {
	return s.p.KeyNorms(ctx, s.layer, 0)
}

func (s *layerReductions) ValueNorms(ctx context.Context) ([][]float32, error) {
	return s.p.ValueNorms(ctx, s.layer, 0)
}

func (s *layerReductions) OutputNorms(context.Context) ([][]float32, error) {
	return nil, errors.ErrUnsupported
}

func (s *layerReductions) MeanCosines(ctx context.Context) ([][]float32, error) {
	x, err := s.p.AnchorScores(ctx, s.layer, 0)
	for _, row := range x {
		for t, v := range row {
			row[t] = -v
		}
	}
	return x, err
}

func (s *layerReductions) QuadraticForms(ctx context.Context, linear, form []float32) ([][]float32, error) {
	p, ok := s.p.(reducer)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	if form == nil {
		return p.QuadraticForm(ctx, s.layer, 0, linear, nil)
	}
	D := len(form) / len(linear)
	upper := make([]float32, len(form))
	for at := 0; at < len(form); at += D * D {
		for i := range D {
			upper[at+i*D+i] = form[at+i*D+i]
			for j := i + 1; j < D; j++ {
				upper[at+i*D+j] = form[at+i*D+j] + form[at+j*D+i]
			}
		}
	}
	return p.QuadraticForm(ctx, s.layer, 0, linear, upper)
}

func (s *layerReductions) WindowMeans(ctx context.Context, w int) ([][]float32, error) {
	p, ok := s.p.(reducer)
	if !ok || s.sums == nil || w != s.window {
		return nil, errors.ErrUnsupported
	}
	x, err := p.ReadColumnSums(ctx, s.sums, s.layer, 0)
	for _, row := range x {
		for t, v := range row {
			row[t] = v / float32(w)
		}
	}
	return x, err
}
