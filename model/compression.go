package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/internal/forward"
)

// compression is the policy of one session, resolved against its model, and
// its state. A nil compression does nothing; methods that sessions without a
// policy call allow nil.
type compression struct {
	m      *Model
	plan   *lukv.Compiled      // shared by forks
	decode []*lukv.DecodeLayer // nil unless the cache is compressed while decoding
	watch  forward.Watcher     // of decode passes
	kept   [][][]int32         // [L] slots that a pass leaves in each head, nil: all
	at     int                 // index in kept of the layer to cut next
	head   int                 // the same for its heads
	views  []decodeView        // [L] nil before the first pass
	memory *lukv.Scratch       // of metrics while decoding
	held   []int32             // scratch of reportEvicted
	gone   []Eviction          // likewise

	renumber bool // StreamingLLM's rerotate: positions become slots after the cut
}

// newCompression resolves a policy for sessions with the given options.
func newCompression(m *Model, o SessionOptions) (*compression, error) {
	if o.Compression == nil {
		return nil, nil
	}
	if err := checkCacheType(o.Compression, &o); err != nil {
		return nil, fmt.Errorf("compression: %w", err)
	}
	c := m.cfg
	shape := lukv.CacheShape{Layers: c.Layers, KVHeads: c.KVHeads, BytesPerEntry: m.entryBytes(&o)}
	for at := range c.Layers {
		if !c.Ragged(at) {
			if shape.Excluded == nil {
				shape.Excluded = make([]bool, c.Layers)
			}
			shape.Excluded[at] = true
		}
	}
	id := "" // only profiles are checked against it
	if o.Compression.Profile != nil {
		id = m.identity()
	}
	plan, err := m.plans.compile(o.Compression, id, shape)
	if err != nil {
		return nil, fmt.Errorf("compression: %w", err)
	}
	comp := &compression{m: m, plan: plan, memory: &lukv.Scratch{Scores: true, Heap: true}}
	if plan.Rerotates() {
		if plan.Policy().Allocator.Name != "uniform" || shape.Excluded != nil || m.net.Dynamic() {
			return nil, errors.New("compression: renumbering positions works with the uniform allocator, without sliding windows and without dynamic rope scaling only")
		}
		comp.renumber = true
	}
	comp.reset()
	return comp, nil
}

// Policy returns the policy that the session's cache is compressed under, with every
// parameter written out, or nil if it is not compressed. If spans were compressed in
// different ways it is the policy of the last one; for a loaded session it is that of
// its file. Both include the compression while decoding that is in effect here.
func (s *Session) Policy() *lukv.Policy {
	if s.comp == nil {
		return s.saved
	}
	p := s.comp.plan.Policy()
	if s.saved == nil {
		return &p
	}
	saved := *s.saved
	saved.Decode = p.Decode
	return &saved
}

// Notes returns what a user should know about how context was compressed, span by
// span: budgets close to nothing, protected entries that do not fit, a pyramid
// without slope, uninformative scores. A loaded session has none of these. Notes also
// says why lookup decoding is off if it was asked for.
func (s *Session) Notes() []string {
	if s.opts.Lookup {
		if why := s.lookupOff(); why != "" {
			return append(slices.Clone(s.notes), why)
		}
	}
	return s.notes
}

// reset forgets the decode state.
func (c *compression) reset() {
	if c == nil {
		return
	}
	c.keepAll()
	if c.plan.Decoding() == nil {
		return
	}
	cfg := c.m.cfg
	c.decode = make([]*lukv.DecodeLayer, cfg.Layers)
	for at := range c.decode {
		if cfg.Ragged(at) {
			c.decode[at] = c.plan.Decoding().NewLayer(cfg.Heads, cfg.KVHeads, cfg.HeadDim)
		}
	}
}

func (c *compression) clone() *compression {
	if c == nil {
		return nil
	}
	d := &compression{m: c.m, plan: c.plan, renumber: c.renumber, memory: &lukv.Scratch{Scores: true, Heap: true}}
	if c.decode != nil {
		d.decode = make([]*lukv.DecodeLayer, len(c.decode))
		for i, l := range c.decode {
			if l != nil {
				d.decode[i] = l.Clone()
			}
		}
	}
	return d
}

// prefillEnabled reports whether a context of T tokens is to be compressed. A
// ratio of 0, or a budget of at least the length, means no compression (P2).
func (c *compression) prefillEnabled(T int) bool { return c.touches(0, T) }

// touches is prefillEnabled for a span of T tokens from position start on.
func (c *compression) touches(start, T int) bool {
	if c == nil {
		return false
	}
	d := c.demand(start, T)
	return !d.NoOp()
}

// demand returns what the policy asks of a span of T tokens from position start on. Sinks
// are the first positions of a sequence, not of the span.
func (c *compression) demand(start, T int) lukv.Demand {
	d := c.plan.Demand(T)
	sinks := d.Protection.Sinks
	if start > 0 { // a metric names no more of them than it is asked about
		sinks = max(sinks, c.plan.Demand(start+T).Protection.Sinks)
	}
	d.Protection.Sinks = max(0, sinks-start)
	return d
}

// watchDecode returns the watcher for a pass over all layers, nil if there is nothing
// to watch. prefill says that the pass is the first prefill.
func (c *compression) watchDecode(s *Session, prefill bool) *forward.Watcher {
	var recorder forward.Recorder
	if !prefill && s.recorder != nil {
		recorder = s.recorder
	}
	if c == nil || c.decode == nil {
		if recorder == nil && s.answer == nil {
			return nil
		}
		return &forward.Watcher{Recorder: recorder, Answer: s.answer}
	}
	w := &c.watch
	w.Decode, w.Record, w.Prefill, w.Recorder = c.decode, c.plan.Decoding().Needs(), prefill, recorder
	return w
}

// rewind takes the decode state back to position pos, like the cache.
func (c *compression) rewind(s *Session, pos int) {
	if c == nil || c.decode == nil {
		return
	}
	lens := make([]int, c.m.cfg.KVHeads)
	for at, l := range c.decode {
		if l != nil {
			for h := range lens {
				lens[h] = s.cache.Len(at, h)
			}
			l.Rewind(lens, pos)
		}
	}
}

// beforePass remembers the decode state before a pass of n tokens, so that rollback
// can restore it if the pass fails.
func (c *compression) beforePass(n int) {
	if c == nil {
		return
	}
	for _, l := range c.decode {
		if l != nil {
			l.Begin(n)
		}
	}
}

func (c *compression) rollback() {
	if c == nil {
		return
	}
	c.keepAll()
	for _, l := range c.decode {
		if l != nil {
			l.Rollback()
		}
	}
}

// afterPass decides, if a cut while decoding is due, what a pass of n tokens that ends
// before position next leaves in the cache. The cache stays as it is until
// [compression.cut].
func (c *compression) afterPass(ctx context.Context, s *Session, n, next int, prefill bool) error {
	if c == nil || c.decode == nil {
		return nil
	}
	c.keepAll()
	for at, l := range c.decode {
		if l == nil {
			c.kept = append(c.kept, nil)
			continue
		}
		kept, err := l.After(ctx, c.decodeView(s, at, next), n, prefill, c.plan.DecodeBudgets())
		if err == nil {
			err = s.cache.Err()
		}
		if err != nil {
			return fmt.Errorf("layer %d: %w", at, err)
		}
		c.kept = append(c.kept, kept)
	}
	return nil
}

// report tells the session's callback what cut is about to evict. The callback may
// panic: cut still follows.
func (c *compression) report(s *Session) {
	if c == nil || s.opts.TraceEvicted == nil {
		return
	}
	for at, kept := range c.kept {
		for h, entries := range kept {
			c.reportEvicted(s, at, h, entries)
		}
	}
}

// cut evicts what afterPass decided, resuming where it last failed: cutting pages that
// forks share needs memory, and if there is none now, the rest is cut before the
// session's next call.
func (c *compression) cut(s *Session) error {
	if c == nil {
		return nil
	}
	for ; c.at < len(c.kept); c.at, c.head = c.at+1, 0 {
		for ; c.head < len(c.kept[c.at]); c.head++ {
			if err := s.cache.Keep(c.at, c.head, c.kept[c.at][c.head]); err != nil {
				return fmt.Errorf("compress layer %d while decoding: %w", c.at, err)
			}
		}
		if c.kept[c.at] != nil {
			s.stats.Cuts++
		}
	}
	c.keepAll()
	return nil
}

// keepAll forgets what is to be evicted.
func (c *compression) keepAll() { c.kept, c.at, c.head = c.kept[:0], 0, 0 }

// cut reports and evicts what the session's compression while decoding decided. It
// cannot fail: see [compression.cut].
func (s *Session) cut() {
	defer func() { _ = s.comp.cut(s) }()
	s.comp.report(s)
}

// decodeView is what metrics see of a layer while decoding, made once so that a pass of
// one token allocates nothing.
type decodeView struct {
	layer *lukv.Layer
	lens  []int

	mu        sync.Mutex // metrics ask for positions in parallel
	positions [][]int32  // [KVHeads]
	known     []bool     // which of them are up to date in this pass
}

func (v *decodeView) positionsOf(c *kvcache.Cache, h int) []int32 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.known[h] {
		v.positions[h], v.known[h] = c.Positions(v.layer.Index, h, v.positions[h]), true
	}
	return v.positions[h]
}

// decodeView is layerView for a decoding pass. The result is valid until the
// next call for the layer.
func (c *compression) decodeView(s *Session, at, next int) *lukv.Layer {
	if c.views == nil {
		c.views = make([]decodeView, s.m.cfg.Layers)
	}
	v := &c.views[at]
	if v.layer == nil {
		heads := s.m.cfg.KVHeads
		v.layer = s.layerView(at, next)
		v.lens, v.positions, v.known = make([]int, heads), make([][]int32, heads), make([]bool, heads)
		v.layer.Positions = func(h int) []int32 { return v.positionsOf(s.cache, h) }
	}
	clear(v.known)
	l := v.layer
	l.NextPosition, l.GuaranteedBudget, l.Ratio = next, 0, 0
	l.Scratch = c.memory
	if r := s.m.net.Rope(at); r.Dynamic() {
		l.InvFreq = r.InvFreq(next)
	}
	s.lengths(l, v.lens)
	return l
}

// layerView describes a layer of the cache to the metrics; next is the position
// of the next token.
func (s *Session) layerView(at, next int) *lukv.Layer {
	m, cfg := s.m, s.m.cfg
	l := &lukv.Layer{
		Index: at, Heads: cfg.Heads, KVHeads: cfg.KVHeads, HeadDim: cfg.HeadDim,
		Keys: func(h, lo, hi int, dst []float32) []float32 { return s.cache.Keys(at, h, lo, hi, dst) },
		Values: func(h, lo, hi int, dst []float32) []float32 {
			return s.cache.Values(at, h, lo, hi, dst)
		},
		Output:       func(q, lo, hi int, dst []float32) []float32 { return m.net.OutputRows(at, q, lo, hi, dst) },
		OutputDim:    cfg.Hidden,
		Positions:    func(h int) []int32 { return s.cache.Positions(at, h, nil) },
		NextPosition: next,
		InvFreq:      m.net.Rope(at).InvFreq(next), RopeScale: m.net.Rope(at).AttentionFactor(),
		ScoreCap: m.net.Plan[at].ScoreCap,
		CPU:      m.net.CPU, Parallel: m.Parallel,
	}
	if p := &m.net.Plan[at]; p.ScoreScale != 1/math.Sqrt(float64(cfg.HeadDim)) {
		l.ScoreScale = p.ScoreScale
	}
	s.lengths(l, make([]int, cfg.KVHeads))
	return l
}

// lengths sets the lengths of a layer's heads, using the memory of lens if they
// differ.
func (s *Session) lengths(l *lukv.Layer, lens []int) {
	l.T, l.Lens = 0, nil
	for h := range lens {
		lens[h] = s.cache.Len(l.Index, h)
		l.T = max(l.T, lens[h])
		if lens[h] != lens[0] {
			l.Lens = lens
		}
	}
}

// spanCompression resolves a policy that compresses a span of the session.
func (s *Session) spanCompression(policy *lukv.Policy) (*compression, error) {
	o := s.opts
	o.Compression = policy
	comp, err := newCompression(s.m, o)
	switch {
	case err != nil:
		return nil, err
	case comp == nil:
		return nil, errors.New("found no policy")
	case s.renumbered:
		return nil, errors.New("the session's positions were renumbered")
	}
	return comp, comp.spans()
}

// spans returns an error if the policy can compress only the beginning of a session.
func (c *compression) spans() error {
	switch {
	case c.plan.Decoding() != nil:
		return errors.New("found a policy that compresses while decoding, expected that in the session's options")
	case c.renumber:
		return errors.New("found a policy that renumbers positions, expected that in the session's options")
	}
	return nil
}

// compressedBy records the policy under which part of the session was compressed.
func (s *Session) compressedBy(comp *compression) {
	p := comp.plan.Policy()
	s.saved = &p
}

// wantsWhole returns the error for a metric that cannot rank part of what heads hold.
func wantsWhole(metric lukv.Metric) error {
	return fmt.Errorf("%w: %s looks at the queries of all entries, expected a whole context of which nothing was evicted",
		ErrNotObserved, lukv.MetricConfigOf(metric).Name)
}

// ready returns an error if the session, whose call this is, cannot compute. It also
// makes the cuts that the last pass left to do.
func (s *Session) ready() error {
	if err := s.idle(); err != nil {
		return err
	}
	return s.comp.cut(s)
}
