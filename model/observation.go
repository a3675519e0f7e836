package model

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/internal/forward"
)

// Observation is a context that was prefilled with the full cache while metrics
// observed it. Any number of compressed sessions can be derived from it, and
// profiles measured on it. It belongs to one goroutine at a time.
//
// A session derived by Compress equals, bit for bit, one that was prefilled
// under the same policy; only its peak was higher.
type Observation struct {
	s       *Session
	r       *run // computed it and scores on its device, nil without one
	tokens  []int32
	needs   lukv.Needs
	layers  []*forward.Watcher // nil if nothing had to be kept, or a window makes it pointless
	metrics []lukv.Metric
	scored  map[scoreKey]lukv.Scores

	charged int64 // bytes in Model.memory for what it keeps besides the session

	running    *run       // of the prefill
	forking    sync.Mutex // for answers that are measured at the same time
	grams      grams
	repetition *repetition // nil if no metric asks for one
}

// scoreKey identifies scores that do not depend on budgets: the metric with all
// its parameters, and what it needs, since a window may shrink with the budget.
type scoreKey struct {
	metric lukv.Metric
	layer  int
	needs  lukv.Needs

	refined bool
}

// Observe prefills tokens into a new session with the full cache and keeps what
// the given metrics need, per layer: w·H·D floats for a window of queries, H·D²
// doubles for query statistics, T times the model's width in floats for hidden
// states, and K·T numbers each for accumulated attention and for the scores of
// each metric. All this counts as memory of the sessions (WithMaxMemory).
// o.Compression must be nil; a context that does not fit is refused before any
// work.
func (m *Model) Observe(ctx context.Context, tokens []int32, o SessionOptions, metrics ...lukv.Metric) (*Observation, error) {
	if o.Compression != nil {
		return nil, fmt.Errorf("observe: the session options carry a compression; derive compressed sessions instead")
	}
	needs, err := needsTogether(len(tokens), metrics)
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	ob := &Observation{tokens: slices.Clone(tokens), needs: needs, layers: make([]*forward.Watcher, m.cfg.Layers), metrics: metrics, scored: map[scoreKey]lukv.Scores{}}
	s, err := m.NewSession(o)
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	ob.s = s
	done := false
	defer func() {
		if !done { // an error, or a callback panicked
			ob.Close()
		}
	}()
	if err := s.observe(ctx, ob); err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	done = true
	return ob, nil
}

// ObserveTogether returns an error if the metrics cannot look at one prefill of T
// tokens together; see [Model.Observe].
func ObserveTogether(T int, metrics ...lukv.Metric) error {
	_, err := needsTogether(T, metrics)
	return err
}

// needsTogether returns what metrics together need from a prefill of T tokens.
func needsTogether(T int, metrics []lukv.Metric) (lukv.Needs, error) {
	var all lukv.Needs
	for _, metric := range metrics {
		var err error
		if all, err = all.Union(metric.Needs(T, 0)); err != nil {
			return all, err
		}
	}
	return all, nil
}

// watched returns the memory, at most, that the host needs for what an observation
// keeps besides the cache: queries, their moments, sums of attention, and a table of
// scores for each metric.
func (ob *Observation) watched() int64 {
	c, n := ob.s.m.cfg, ob.needs
	T, H, D := int64(len(ob.tokens)), int64(c.Heads), int64(c.HeadDim)
	layer := 4*int64(n.Window)*H*D + ob.s.m.hiddenBytes(n, len(ob.tokens))
	if n.Stats {
		layer += 12 * H * D
	}
	if n.ChannelNorms {
		layer += 4 * H * D
	}
	if n.Covariance {
		layer += H * (12*D*D + 4*64*D) // sums, scratch and a tile of rows
	}
	entries := 4 * int64(len(ob.metrics)) // bytes per entry
	if n.ColumnSums {
		entries += 16
	}
	if n.Repeat.Chunk > 0 {
		entries += 4
	}
	return int64(c.Layers) * (layer + entries*T*int64(c.KVHeads))
}

func (s *Session) observe(ctx context.Context, ob *Observation) error {
	if len(ob.tokens) == 0 {
		return fmt.Errorf("no tokens")
	}
	if err := s.accepts(ob.tokens); err != nil {
		return err
	}
	if err := s.checkMemory(len(ob.tokens), nil); err != nil {
		return err
	}
	if err := s.takeTokens(len(ob.tokens)); err != nil {
		return err
	}
	if s.m.memory != nil {
		n := ob.watched()
		if err := s.m.memory.Take(n); err != nil {
			return err
		}
		ob.charged = n
	}
	if err := s.m.acquire(); err != nil {
		return err
	}
	defer s.m.release()
	f := prefillState{s: s, tokens: ob.tokens, job: ob, keep: s.m.net.Device != nil}
	defer f.release()
	if err := f.begin(); err != nil {
		return err
	}
	err := context.Cause(ctx)
	for err == nil && !f.complete { // a metric's repetition comes on top
		err = f.units(ctx, len(ob.tokens))
	}
	if f.keep {
		ob.r = f.r
	}
	return err
}

func (ob *Observation) prepare() (err error) {
	ob.repetition, err = ob.s.m.newRepetition(ob.needs.Repeat, 0, ob.tokens)
	return err
}

func (ob *Observation) embed(r *run) error { return ob.repetition.embed(r) }

func (ob *Observation) aside() int { return ob.repetition.rows() }

func (ob *Observation) watch(r *run, at int) (w *forward.Watcher, err error) {
	ob.running = r
	if ob.s.m.cfg.Ragged(at) {
		needs := ob.needs
		needs.Hidden = min(needs.Hidden, len(ob.tokens))
		ob.layers[at], err = r.collect(ob.s, at, len(ob.tokens), needs, 0, ob.metrics, needs.Window, true, nil, nil)
	}
	return ob.layers[at], err
}

func (ob *Observation) layerDone(ctx context.Context, at, limit int) (rows int, more bool, err error) {
	repeats, rows, more, err := ob.repetition.piece(ctx, ob.running, ob.s, at, limit)
	if repeats != nil {
		ob.layers[at] = withRepeats(ob.layers[at], repeats)
	}
	return rows, more, err
}

func (ob *Observation) finish(context.Context) error { return nil }
func (ob *Observation) done()                        {}
func (ob *Observation) release()                     { ob.repetition.close() }

// Session returns the session with the full cache. It belongs to the
// observation, must not be advanced or closed, and may be forked.
func (ob *Observation) Session() *Session { return ob.s }

// Tokens returns the number of tokens of the context.
func (ob *Observation) Tokens() int { return len(ob.tokens) }

// Close releases the full cache; derived sessions remain. Closing twice is fine.
func (ob *Observation) Close() error {
	for _, w := range ob.layers {
		w.OnDevice().Free()
	}
	if ob.r != nil {
		ob.s.m.runs.put(ob.r)
		ob.r = nil
	}
	if ob.charged > 0 {
		ob.s.m.memory.Give(ob.charged)
		ob.charged = 0
	}
	return ob.s.Close()
}

// QueryStats returns the statistics of a layer's queries before RoPE, which belong to
// the observation; nil if no metric asked for them, the layer has a sliding window, or
// a device has them.
func (ob *Observation) QueryStats(layer int) *lukv.QueryStats {
	if w := ob.layers[layer]; w != nil {
		return w.Stats
	}
	return nil
}

// Scores ranks a layer with one of the observed metrics. share is the uniform
// budget that metrics with budget-dependent scores look at, 0 if there is none.
// Scores are computed once per metric and layer; they must not be changed.
func (ob *Observation) Scores(ctx context.Context, metric lukv.Metric, layer, share int) (lukv.Scores, error) {
	if err := ob.s.m.acquire(); err != nil {
		return nil, err
	}
	defer ob.s.m.release()
	l := ob.layer(layer)
	l.Share = share
	s, err := ob.score(ctx, metric, l)
	if _, ok := metric.(lukv.Refiner); !ok || err != nil {
		return s, err
	}
	key, cached := scoreKey{layer: layer, needs: metric.Needs(l.T, share), refined: true}, reflect.ValueOf(metric).Comparable()
	if cached {
		key.metric = metric
		if s, ok := ob.scored[key]; ok {
			return s, nil
		}
	}
	if s, err = lukv.Refine(ctx, metric, l, s, nil); err != nil {
		return nil, err
	}
	if cached {
		ob.scored[key] = s
	}
	return s, ob.s.cache.Err()
}

func (ob *Observation) score(ctx context.Context, metric lukv.Metric, l *lukv.Layer) (lukv.Scores, error) {
	needs := metric.Needs(l.T, l.Share)
	if needs.Budgets {
		return ob.r.score(ctx, ob.s, ob.layers[l.Index], metric, l)
	}
	// A metric that cannot be compared is scored every time.
	key, cached := scoreKey{layer: l.Index, needs: needs}, reflect.ValueOf(metric).Comparable()
	if cached {
		key.metric = metric
		if s, ok := ob.scored[key]; ok {
			return s, nil
		}
	}
	s, err := ob.r.score(ctx, ob.s, ob.layers[l.Index], metric, l)
	if err == nil {
		err = ob.s.cache.Err()
	}
	if err != nil {
		return nil, err
	}
	if cached {
		ob.scored[key] = s
	}
	return s, nil
}

// layer describes a layer of the full cache to the metrics.
func (ob *Observation) layer(at int) *lukv.Layer {
	l := ob.s.layerView(at, ob.s.pos)
	if w := ob.layers[at]; w != nil {
		w.FillLayer(l)
	}
	return l
}

// Compress returns a new session that holds the context compressed under the
// policy, whose metric must be among the observed ones. The caller closes it.
func (ob *Observation) Compress(ctx context.Context, policy *lukv.Policy) (*Session, error) {
	m, opts := ob.s.m, ob.s.opts
	opts.Compression = policy
	if err := m.acquire(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	defer m.release()
	comp, err := newCompression(m, opts)
	if err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if comp != nil && comp.plan.Decoding() != nil {
		return nil, fmt.Errorf("compress: a policy that also compresses while decoding needs its own prefill")
	}
	s, err := ob.s.Fork()
	if err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	s.opts, s.comp = opts, comp
	if err := ob.compress(ctx, s); err != nil {
		s.Close()
		return nil, fmt.Errorf("compress: %w", err)
	}
	return s, nil
}

func (ob *Observation) compress(ctx context.Context, s *Session) error {
	if !s.comp.prefillEnabled(len(ob.tokens)) {
		return nil
	}
	job := s.comp.begin(s, 0, ob.tokens)
	defer job.trace.release()
	job.rank, job.scratch = ob.score, nil // the observation keeps the scores
	for at := range s.m.cfg.Layers {
		job.w = ob.layers[at]
		if err := wholeLayerDone(ctx, job, at); err != nil {
			return err
		}
	}
	if err := job.finish(ctx); err != nil {
		return err
	}
	if s.comp.renumber {
		next, err := s.renumber(s.pos)
		if err != nil {
			return err
		}
		s.pos, s.renumbered = next, true
	}
	job.done()
	return nil
}
