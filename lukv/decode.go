package lukv

import (
	"context"
	"fmt"
	"strings"

	"github.com/lukv/lukv/kernels"
)

// Decoding is a resolved [DecodeConfig]: the metric it ranks with and when it
// cuts. It is immutable and shared by all layers and sessions; the state of
// one layer of one session is a [DecodeLayer].
type Decoding struct {
	cfg    DecodeConfig
	metric Metric
	prot   *Protection // nil: the metric's own
}

// NewDecoding resolves cfg. metric is that of the prefill, which ranks unless the
// configuration names its own; it may be nil otherwise. A nil result without an error
// means that cfg asks for nothing.
func NewDecoding(cfg DecodeConfig, metric Metric) (*Decoding, error) {
	cfg, err := cfg.WithDefaults()
	if err != nil || !cfg.Enabled() {
		return nil, err
	}
	if cfg.Metric != nil {
		if metric, err = NewMetric(*cfg.Metric); err != nil {
			return nil, fmt.Errorf("decode compression: %w", err)
		}
	}
	if metric == nil {
		return nil, fmt.Errorf("decode compression: metric: found none, expected one of %s", strings.Join(Metrics(), ", "))
	}
	full := MetricConfigOf(metric)
	if n := metric.Needs(maxSlots, 0); n.Repeat.Chunk > 0 || n.Hidden > 0 || n.Window >= maxSlots {
		return nil, fmt.Errorf("decode compression: metric: found %s, which reads a whole context at once, expected one that reads a bounded number of queries", full.Name)
	}
	cfg.Metric = &full
	return &Decoding{cfg: cfg, metric: metric}, nil
}

// Config returns the configuration with all defaults written out.
func (d *Decoding) Config() DecodeConfig { return d.cfg }

// Metric returns the metric that ranks.
func (d *Decoding) Metric() Metric { return d.metric }

// Protect returns a copy of d that protects p instead of the metric's own
// protected set.
func (d *Decoding) Protect(p Protection) *Decoding {
	c := *d
	c.prot = &p
	return &c
}

// buffer is the number of query rows kept from earlier passes.
func (d *Decoding) buffer() int { return max(d.cfg.Buffer, 0) }

// DecodeNeeds lists the inputs of a [DecodeLayer].
type DecodeNeeds struct {
	Queries bool // Record takes queries after RoPE
	PreRoPE bool // Record takes queries before RoPE
	Sums    bool // every query row goes through Sums, those of the prefill too
	Prefill bool // Record and After are called for the first prefill too
	Keys    bool // After reads the layer's keys
	Values  bool // After reads the layer's values
}

// Needs lists the inputs of the layers of d.
func (d *Decoding) Needs() DecodeNeeds {
	n := d.metric.Needs(maxSlots, 0)
	return DecodeNeeds{
		Queries: n.Window > 0, PreRoPE: n.Stats, Sums: n.ColumnSums, Prefill: d.cfg.Prefill,
		Keys: n.Keys, Values: n.Values,
	}
}

// Target returns the entries per head to cut to when the newest token is at
// position p.
func (d *Decoding) Target(p int) int {
	if d.cfg.TargetSize > 0 {
		return d.cfg.TargetSize
	}
	return max(1, int(float64(p+1)*(1-d.cfg.Ratio)))
}

// DecodeBudgets spreads target entries per head over the heads of a layer:
// lens holds their current lengths, the result their budgets. It may use
// the scores. A nil function gives every head target.
type DecodeBudgets func(l *Layer, lens []int, target int, s Scores, p Protection) ([]int, error)

// DecodeLayer is the decode-time state of one attention layer in one session:
// step counter, buffered queries, accumulated attention. It belongs to one
// goroutine at a time. In steady state its methods allocate only what the metric
// does: nothing for one made of the layer's reductions and sums, such as tova, h2o,
// streaming_llm, knorm and keydiff.
type DecodeLayer struct {
	d                   *Decoding
	heads, kvHeads, dim int
	needs               Needs
	passes              int          // since the last cut
	post, pre           *QueryWindow // nil if not needed
	sums                *ColumnSums  // nil if not needed
	recorded            int          // rows of the current pass
	before              decodeState  // see Begin

	stats   *QueryStats // scratch
	kept    [][]int32   // scratch handed out by After
	lens    []int       // scratch
	scratch *Scratch    // for layers that have none
}

// NewLayer returns the empty state of one layer.
func (d *Decoding) NewLayer(heads, kvHeads, headDim int) *DecodeLayer {
	n := d.metric.Needs(maxSlots, 0)
	s := &DecodeLayer{
		d: d, heads: heads, kvHeads: kvHeads, dim: headDim, needs: n,
		kept: make([][]int32, kvHeads), lens: make([]int, kvHeads),
	}
	// Windows get their memory with the first row recorded.
	if n.Window > 0 {
		s.post = NewQueryWindow(heads, headDim, 0)
	}
	if n.Stats {
		s.pre = NewQueryWindow(heads, headDim, 0)
	}
	if n.ColumnSums {
		s.sums = NewColumnSums(heads, kvHeads, d.cfg.Decay)
	}
	return s
}

// Sums returns the layer's attention accumulator, nil if its metric needs
// none. The caller adds every query row to it, those of the prefill included.
func (s *DecodeLayer) Sums() *ColumnSums { return s.sums }

// decodeState is the part of a DecodeLayer that a pass changes.
type decodeState struct {
	passes, recorded int
	post, pre        windowState
	sums             [][]float64 // [K][T], copies
	seen             [][]int64
}

// windowState is the part of a QueryWindow that a pass changes: which rows it
// holds or, where rows may be overwritten, a copy of it.
type windowState struct {
	start, n int
	copy     *QueryWindow
}

func stateOf(w *QueryWindow, tokens int) (s windowState) {
	if w != nil {
		if s.start, s.n = w.start, w.n; tokens > 1 {
			s.copy = w.Clone()
		}
	}
	return s
}

func (s windowState) restore(w *QueryWindow) {
	switch {
	case w == nil:
	case s.copy != nil:
		*w = *s.copy
	default:
		w.start, w.n = s.start, s.n
	}
}

// Begin saves the state of the layer before a pass of n tokens, so that
// Rollback can return to it. Once its memory has grown, it allocates nothing
// for a single token.
func (s *DecodeLayer) Begin(n int) {
	if n == 1 {
		s.reserve(1)
	}
	s.before.passes, s.before.recorded = s.passes, s.recorded
	s.before.post, s.before.pre = stateOf(s.post, n), stateOf(s.pre, n)
	if s.sums == nil {
		return
	}
	if s.before.sums == nil {
		s.before.sums, s.before.seen = make([][]float64, s.kvHeads), make([][]int64, s.kvHeads)
	}
	for h := range s.kvHeads {
		s.before.sums[h] = append(s.before.sums[h][:0], s.sums.sum[h]...)
		s.before.seen[h] = append(s.before.seen[h][:0], s.sums.seen[h]...)
	}
}

// Rollback undoes everything since Begin.
func (s *DecodeLayer) Rollback() {
	s.passes, s.recorded = s.before.passes, s.before.recorded
	s.before.post.restore(s.post)
	s.before.pre.restore(s.pre)
	if s.sums == nil {
		return
	}
	for h := range s.kvHeads {
		s.sums.sum[h] = append(s.sums.sum[h][:0], s.before.sums[h]...)
		s.sums.seen[h] = append(s.sums.seen[h][:0], s.before.seen[h]...)
	}
}

// reserve makes room for n more rows of the current pass. A window has room for
// one more row than the metric reads, so that a single token overwrites none.
func (s *DecodeLayer) reserve(n int) {
	room := s.d.buffer() + s.recorded + n
	if s.post != nil {
		s.post.Reserve(min(room, s.needs.Window+1))
	}
	if s.pre != nil {
		s.pre.Reserve(room)
	}
}

// Record takes n query rows of the current pass, the first at position pos:
// row i after RoPE at post[i*stride:], before RoPE at pre[i*stride:], [H*D]
// each. Inputs that the metric does not need may be nil. Rows are copied.
func (s *DecodeLayer) Record(pos int, post, pre []float32, n, stride int) {
	s.reserve(n)
	s.recorded += n
	for i := range n {
		if s.post != nil {
			s.post.Append(pos+i, post[i*stride:])
		}
		if s.pre != nil {
			s.pre.Append(pos+i, pre[i*stride:])
		}
	}
}

// After ends a pass of n tokens whose entries are in the cache already. It
// returns the slots that each head keeps, ascending, or nil if nothing is to be
// cut; they are valid until the next call. The layer's own accumulators are
// compacted before it returns; compacting the cache is up to the caller.
// prefill reports that the pass is the first prefill, which stays as it is without
// [DecodeConfig.Prefill]; a later one is a decoding pass of many tokens. l
// describes the cache after the pass; After sets its Queries, Stats, Sums,
// Share, Budgets and, if it has none, Scratch.
func (s *DecodeLayer) After(ctx context.Context, l *Layer, n int, prefill bool, budgets DecodeBudgets) ([][]int32, error) {
	recorded := s.recorded
	s.recorded = 0
	if s.post != nil {
		s.post.Trim(s.needs.Window)
	}
	if prefill && !s.d.cfg.Prefill {
		s.forget()
		return nil, nil
	}
	target := s.d.Target(l.NextPosition - 1)
	s.passes++
	if s.passes < s.d.cfg.Interval && n < target {
		s.trim(s.d.buffer())
		return nil, nil
	}
	kept, err := s.cut(ctx, l, target, budgets)
	if err != nil {
		s.recorded = recorded
		s.passes--
		return nil, err
	}
	s.passes = 0
	s.forget()
	return kept, nil
}

// cut scores the layer and selects, if it holds more than the target.
func (s *DecodeLayer) cut(ctx context.Context, l *Layer, target int, budgets DecodeBudgets) ([][]int32, error) {
	if l.KVHeads != s.kvHeads {
		return nil, fmt.Errorf("compress layer %d while decoding: found %d kv heads, expected %d", l.Index, l.KVHeads, s.kvHeads)
	}
	lens, longest, total := s.lens, 0, 0
	for h := range lens {
		lens[h] = l.Len(h)
		longest = max(longest, lens[h])
		total += lens[h]
	}
	if longest <= target || budgets != nil && total <= target*l.KVHeads {
		return nil, nil
	}
	l.Queries, l.Stats, l.Sums = s.post, s.statistics(l.CPU), s.sums
	l.Share, l.Budgets = target, nil
	if l.Scratch == nil {
		if s.scratch == nil {
			s.scratch = &Scratch{Scores: true, Heap: true}
		}
		l.Scratch = s.scratch
	}
	l.Scratch.Next()
	scores, err := Score(ctx, s.d.metric, l)
	if err != nil {
		return nil, fmt.Errorf("compress while decoding: %w", err)
	}
	p := s.d.metric.Protection(longest, target)
	if s.post != nil { // there may be fewer queries than the metric looks at
		p.Window = min(p.Window, s.post.Len())
	}
	if s.d.prot != nil {
		p = *s.d.prot
	}
	var b []int // nil: target each
	if budgets != nil {
		if b, err = budgets(l, lens, target, scores, p); err != nil {
			return nil, fmt.Errorf("compress layer %d while decoding: %w", l.Index, err)
		}
		if len(b) != l.KVHeads {
			return nil, fmt.Errorf("compress layer %d while decoding: found %d budgets, expected one for each of %d kv heads", l.Index, len(b), l.KVHeads)
		}
	}
	if _, ok := s.d.metric.(Refiner); ok {
		n := b
		if n == nil {
			n = make([]int, l.KVHeads)
			for h := range n {
				n[h] = target
			}
		}
		if scores, err = Refine(ctx, s.d.metric, l, scores, n); err != nil {
			return nil, fmt.Errorf("compress while decoding: %w", err)
		}
	}
	for h := range s.kept {
		n := target
		if b != nil {
			n = max(b[h], 1)
		}
		s.kept[h] = Keep(s.kept[h], scores[h], n, p)
		if s.sums != nil {
			s.sums.Compact(h, s.kept[h])
		}
	}
	return s.kept, nil
}

// statistics computes the query moments of the buffered rows.
func (s *DecodeLayer) statistics(cpu kernels.CPU) *QueryStats {
	if !s.needs.Stats {
		return nil
	}
	if s.stats == nil {
		s.stats = NewQueryStats(s.heads, s.dim, s.needs.StatsSkip, s.needs.Covariance, cpu)
		if s.needs.ChannelNorms {
			s.stats.KeepChannelNorms()
		}
	}
	s.stats.Reset()
	for q := range s.heads {
		for i := range s.pre.Len() {
			s.stats.Add(q, s.pre.Position(i), s.pre.Row(i, q), 1, s.dim)
		}
	}
	return s.stats
}

func (s *DecodeLayer) forget() { s.trim(0) }

func (s *DecodeLayer) trim(n int) {
	if s.post != nil {
		s.post.Trim(n)
	}
	if s.pre != nil {
		s.pre.Trim(n)
	}
}

// Rewind adapts the state to a cache that was truncated to the given lengths
// and to the next position pos.
func (s *DecodeLayer) Rewind(lens []int, pos int) {
	if s.post != nil {
		s.post.DropFrom(pos)
	}
	if s.pre != nil {
		s.pre.DropFrom(pos)
	}
	if s.sums != nil {
		for h, n := range lens {
			s.sums.Truncate(h, n)
		}
	}
}

// Clone returns an independent copy, for a forked session.
func (s *DecodeLayer) Clone() *DecodeLayer {
	c := *s
	c.kept, c.lens, c.stats = make([][]int32, s.kvHeads), make([]int, s.kvHeads), nil
	c.scratch, c.before = nil, decodeState{}
	if s.post != nil {
		c.post = s.post.Clone()
	}
	if s.pre != nil {
		c.pre = s.pre.Clone()
	}
	if s.sums != nil {
		c.sums = s.sums.Clone()
	}
	return &c
}
