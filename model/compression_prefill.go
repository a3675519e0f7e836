package model

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/internal/forward"
)

// collect returns a watcher that keeps what metrics with the given needs and
// uniform budget look at in layer at of a prefill that ends before position end, or
// nil if they look at nothing that passes by. A window of hostWindow queries is kept
// on the host wherever the metrics score; nothing is kept on the device unless device
// is set. last, which may be nil, is the watcher of an earlier layer for the same
// metric that is no longer needed: the new one reuses its memory. The queries of a
// window are in scratch, if there is one.
func (r *run) collect(s *Session, at, end int, needs lukv.Needs, share int, metrics []lukv.Metric, hostWindow int, device bool, last *forward.Watcher, scratch *lukv.Scratch) (*forward.Watcher, error) {
	c := r.m.cfg
	w := new(forward.Watcher)
	if last == nil || r.m.net.Device != nil {
		last = new(forward.Watcher)
	}
	w.Reuse(last)
	if device {
		var err error
		if w.Device, err = r.DeviceWatch(at, end, &needs, share, metrics); err != nil {
			return nil, err
		}
	}
	needs.Window = max(needs.Window, hostWindow)
	w.Tail = end - needs.Window
	if needs.Stats {
		if w.Stats = last.Stats; w.Stats != nil {
			w.Stats.Reset()
		} else {
			w.Stats = lukv.NewQueryStats(c.Heads, c.HeadDim, needs.StatsSkip, needs.Covariance, r.m.net.CPU)
			if needs.ChannelNorms {
				w.Stats.KeepChannelNorms()
			}
		}
	}
	if needs.Window > 0 {
		if w.Window = last.Window; w.Window != nil && w.Window.Cap() == needs.Window {
			w.Window.Trim(0)
		} else {
			w.Window = scratch.QueryWindow(c.Heads, c.HeadDim, needs.Window)
		}
	}
	if needs.Hidden > 0 {
		n := needs.Hidden * c.Hidden
		if w.Hidden = last.Hidden; w.Hidden == nil || len(w.Hidden.Rows) != n {
			w.Hidden = &lukv.HiddenStates{Dim: c.Hidden, Rows: make([]float32, n)}
		}
		w.Hidden.From = end - needs.Hidden
	}
	if needs.ColumnSums {
		if w.Sums = last.Sums; w.Sums == nil {
			w.Sums = lukv.NewColumnSums(c.Heads, c.KVHeads, 1)
			w.Sums.Reserve(end)
		}
		for h := range c.KVHeads {
			w.Sums.Truncate(h, 0)
		}
	}
	if w.Stats == nil && w.Window == nil && w.Sums == nil && w.Hidden == nil && w.Device == nil {
		return nil, nil
	}
	return w, nil
}

// withRepeats returns a watcher, a new one if it is nil, with a repetition's scores of the
// layer.
func withRepeats(w *forward.Watcher, repeats *lukv.RepeatScores) *forward.Watcher {
	if w == nil {
		w = new(forward.Watcher)
	}
	w.Repeats = repeats
	return w
}

// layerCompressor compresses a span of tokens at the end of a session's cache, layer by
// layer: as its prefill completes each layer, or as a span that was prefilled
// earlier passes by again (see Session.Compress).
//
// Metrics see all entries of a head, so that the attention is the model's own; only
// the span's entries take part in what follows. Slots are those of the span.
type layerCompressor struct {
	c          *compression
	s          *Session
	start      int  // position of the span's first token
	T          int  // tokens of the span
	decideOnly bool // nothing is evicted
	partial    bool // heads hold more than the span, or not all of it
	demand     lukv.Demand
	budgets    [][]int       // [L][K], if they are known beforehand
	scores     []lukv.Scores // [L], if they are needed later
	r          *run          // computes the layers
	w          *forward.Watcher
	last       *forward.Watcher // of the previous layer, for its memory
	scratch    *lukv.Scratch    // of the metric, nil: the Go heap
	positions  []int32          // of heads that hold the span and nothing else
	slots      [][]int32        // [K] that a layer keeps, if nobody asks for them later
	lens       [][]int          // [L][K] entries left in layers that were cut once
	rank       func(context.Context, lukv.Metric, *lukv.Layer) (lukv.Scores, error)
	notes      []string
	weigher    lukv.LayerWeigher // nil if the allocator looks only at scores
	tokens     []int32           // of the span, to repeat
	repetition *repetition       // nil if the metric asks for none
	sweep      *lossSweep        // nil unless the loss is to be measured
	charged    int64             // bytes in Model.memory, for hidden states
	kept       [][][]int32       // [L][K] slots that stay, as far as decided
	trace      *tracer           // nil unless asked for
	err        error
}

// begin returns the job of compressing the given tokens at position start.
func (c *compression) begin(s *Session, start int, tokens []int32) *layerCompressor {
	j := &layerCompressor{
		c: c, s: s, start: start, T: len(tokens), tokens: tokens, partial: start > 0,
		demand: c.demand(start, len(tokens)), kept: make([][][]int32, c.m.cfg.Layers),
		lens: make([][]int, c.m.cfg.Layers), scratch: new(lukv.Scratch),
	}
	j.rank = func(ctx context.Context, metric lukv.Metric, l *lukv.Layer) (lukv.Scores, error) {
		if j.partial { // a device scores whole heads
			return lukv.Score(ctx, metric, l)
		}
		return j.r.score(ctx, s, j.w, metric, l)
	}
	switch c.plan.Allocator().BudgetsKnown() {
	case lukv.KnownBefore:
		j.budgets, j.err = c.m.plans.divide(c.plan, start, j.T, j.demand)
	case lukv.KnownSoFar, lukv.KnownAtEnd:
		j.scores = make([]lukv.Scores, c.m.cfg.Layers)
	}
	if w, ok := c.plan.Allocator().(lukv.LayerWeigher); ok {
		j.demand.Weights = make([]float64, c.m.cfg.Layers)
		j.weigher = w
	}
	if j.err == nil {
		j.trace, j.err = newTracer(j)
	}
	j.scratch.Scores = j.scores == nil && j.trace == nil // otherwise they outlive their layer
	return j
}

// end returns the position after the span.
func (j *layerCompressor) end() int { return j.start + j.T }

// before returns how many entries each head of a layer holds before the span, [K],
// nil if the span is at the start.
func (j *layerCompressor) before(at int) []int {
	if j.start == 0 {
		return nil
	}
	n := make([]int, j.s.m.cfg.KVHeads)
	for h := range n {
		n[h], _ = slices.BinarySearch(j.s.cache.Positions(at, h, nil), int32(j.start))
	}
	return n
}

// most returns the largest of the numbers, 0 if there are none.
func most(n []int) int {
	x := 0
	for _, v := range n {
		x = max(x, v)
	}
	return x
}

// needs returns what must be observed in a layer: what the metric needs, given the
// uniform share of a head, and the window of queries that the allocator looks at.
func (j *layerCompressor) needs(at int) (needs lukv.Needs, share, window int, err error) {
	front := most(j.before(at))
	T := front + j.T
	share = front + j.demand.Share()
	if j.weigher != nil {
		window = j.weigher.Needs(T, share).Window
	}
	needs = j.c.plan.Metric().Needs(T, share)
	needs.Hidden = min(needs.Hidden, j.T)
	if j.partial && needs.Window >= T {
		err = wantsWhole(j.c.plan.Metric())
	}
	return needs, share, window, err
}

// release frees what the job holds outside the Go heap.
func (j *layerCompressor) release() {
	j.freeLayer()
	j.repetition.close()
	j.sweep.close()
	j.trace.release()
	if j.charged > 0 {
		j.s.m.memory.Give(j.charged)
		j.charged = 0
	}
	if j.scratch != nil {
		j.scratch.Close()
	}
}

func (j *layerCompressor) done() { j.trace.report(j.s) }

func (j *layerCompressor) freeLayer() {
	j.w.OnDevice().Free()
	if j.w != nil {
		j.last, j.w = j.w, nil
	}
}

// prepare makes the repetition that the metric asks for and takes the memory for hidden
// states.
func (j *layerCompressor) prepare() (err error) {
	needs := j.c.plan.Metric().Needs(j.T, j.demand.Share())
	if j.repetition, err = j.s.m.newRepetition(needs.Repeat, j.start, j.tokens); err != nil {
		return err
	}
	if n := j.s.m.hiddenBytes(needs, j.T); n > 0 && j.s.m.memory != nil {
		if err := j.s.m.memory.Take(n); err != nil {
			return fmt.Errorf("memory for hidden states: %w", err)
		}
		j.charged = n
	}
	return nil
}

func (j *layerCompressor) embed(r *run) error {
	if err := j.sweep.embed(r); err != nil {
		return err
	}
	return j.repetition.embed(r)
}

// aside returns the tokens that pass through the layers beside the prompt.
func (j *layerCompressor) aside() int { return j.sweep.rows() + j.repetition.rows() }

// watch returns the watcher for a layer's pass.
func (j *layerCompressor) watch(r *run, at int) (*forward.Watcher, error) {
	if j.err != nil {
		return nil, j.err
	}
	j.freeLayer()
	j.r = r
	if !j.demand.Includes(at) {
		return nil, nil
	}
	c, metric := j.c, j.c.plan.Metric()
	needs, share, window, err := j.needs(at)
	if err != nil {
		return nil, err
	}
	if j.w, err = r.collect(j.s, at, j.end(), needs, share, []lukv.Metric{metric}, window, !j.partial, j.last, j.scratch); err != nil {
		return nil, err
	}
	if c.decode != nil {
		if j.w == nil {
			j.w = new(forward.Watcher)
		}
		j.w.Decode, j.w.Record, j.w.Prefill = c.decode, c.plan.Decoding().Needs(), true
	}
	return j.w, nil
}

// layerDone runs the next passage of the sweep, or the next rows of the repetition, through a layer
// whose attention is complete; when none is left, it scores the layer and cuts it, if its budgets can be known.
func (j *layerCompressor) layerDone(ctx context.Context, at, limit int) (rows int, more bool, err error) {
	if j.err != nil {
		return 0, false, j.err
	}
	if rows, err := j.sweep.piece(ctx, j.r, j.s, at); rows > 0 || err != nil {
		return rows, true, err
	}
	repeats, rows, more, err := j.repetition.piece(ctx, j.r, j.s, at, limit)
	if err != nil || more || !j.demand.Includes(at) {
		return rows, more, err
	}
	return rows, false, j.compress(ctx, at, repeats)
}

// compress scores a complete layer and cuts it if its budgets can be known.
func (j *layerCompressor) compress(ctx context.Context, at int, repeats *lukv.RepeatScores) error {
	start := time.Now()
	if repeats != nil {
		j.w = withRepeats(j.w, repeats)
	}
	view := j.view(at)
	before := j.before(at)
	scores, budgets, err := j.score(ctx, view, before)
	if err == nil && budgets != nil {
		scores, err = j.c.plan.Refine(ctx, j.demand, withoutPrefix(view, before), scores, budgets)
	}
	j.s.stats.ScoreTime += time.Since(start)
	if err != nil {
		return err
	}
	if j.scores == nil {
		return j.cut(at, budgets, scores)
	}
	j.scores[at] = scores
	if j.weigher != nil {
		if j.demand.Weights[at], err = lukv.Weigh(ctx, j.weigher, view); err != nil {
			return err
		}
	}
	if j.c.plan.Allocator().BudgetsKnown() == lukv.KnownSoFar {
		return j.cascade(at)
	}
	return nil
}

// view returns a layer as the metric sees it.
func (j *layerCompressor) view(at int) *lukv.Layer {
	l := j.s.layerView(at, j.end())
	if l.Scratch = j.scratch; j.scratch != nil {
		j.scratch.Next()
	}
	if !j.partial { // slots are positions, in every head
		if j.positions == nil {
			j.positions = make([]int32, j.T)
			for t := range j.positions {
				j.positions[t] = int32(t)
			}
		}
		l.Positions = func(int) []int32 { return j.positions }
	}
	return l
}

// score ranks the span's entries in a layer and returns its budgets, nil if they
// depend on the scores of other layers. before counts the entries before the span.
func (j *layerCompressor) score(ctx context.Context, l *lukv.Layer, before []int) (lukv.Scores, []int, error) {
	if w := j.w; w != nil {
		w.FillLayer(l)
	}
	l.Share, l.Ratio = j.demand.Share(), j.demand.Target()
	if j.budgets != nil {
		l.Budgets = slices.Clone(j.budgets[l.Index])
	}
	if before != nil { // all of which stay
		l.Share, l.Ratio = l.Share+most(before), 0
		if l.Budgets != nil {
			l.Budgets = slices.Clone(l.Budgets)
			for h, n := range before {
				l.Budgets[h] += n
			}
		}
	}
	scores, err := j.rank(ctx, j.c.plan.Metric(), l)
	if err == nil {
		err = j.s.cache.Err()
	}
	if err == nil && before != nil {
		scores = slices.Clone(scores)
		for h, n := range before {
			scores[h] = scores[h][n:]
		}
	}
	if err != nil || j.scores != nil {
		return scores, nil, err
	}
	if j.budgets != nil {
		return scores, slices.Clone(j.budgets[l.Index]), nil
	}
	budgets, err := j.c.plan.LayerBudgets(j.demand, l.Index, scores)
	return scores, budgets, err
}

// withoutPrefix returns a layer without the given number of first entries of each head, as
// the second step of a metric sees it, or the layer itself if first is nil.
func withoutPrefix(l *lukv.Layer, first []int) *lukv.Layer {
	if first == nil {
		return l
	}
	b := *l
	b.T, b.Lens, b.Share, b.Ratio, b.Budgets = 0, make([]int, len(first)), 0, 0, nil
	b.Sums, b.Repeats = nil, nil // they are of other slots
	for h, n := range first {
		b.Lens[h] = l.Len(h) - n
		b.T = max(b.T, b.Lens[h])
	}
	b.Keys = func(h, lo, hi int, dst []float32) []float32 { return l.Keys(h, first[h]+lo, first[h]+hi, dst) }
	b.Values = func(h, lo, hi int, dst []float32) []float32 { return l.Values(h, first[h]+lo, first[h]+hi, dst) }
	b.Positions = func(h int) []int32 { return l.Positions(h)[first[h]:] }
	return &b
}

// cut evicts the entries that a layer's heads may not keep.
func (j *layerCompressor) cut(at int, budgets []int, scores lukv.Scores) error {
	start := time.Now()
	defer func() { j.s.stats.EvictTime += time.Since(start) }()
	j.noteScores(at, scores)
	j.trace.cut(at, budgets, scores)
	kept, asked := j.slots, j.decideOnly || j.trace != nil
	if kept == nil || asked {
		kept = make([][]int32, len(budgets))
	}
	j.s.m.Parallel(len(budgets), func(h int) {
		n := min(budgets[h], len(scores[h]))
		kept[h] = lukv.Keep(slices.Grow(kept[h][:0], max(n, 1)), scores[h], n, j.demand.Protection)
	})
	j.lens[at] = make([]int, len(kept))
	for h := range kept {
		j.lens[at][h] = len(kept[h])
	}
	if asked {
		j.kept[at] = kept
	} else {
		j.slots = kept
	}
	return j.evict(at, kept)
}

// evict cuts the heads of a layer to the given slots among the span's entries that
// they hold, [K], nil for a head that stays as it is. Entries before the span stay.
func (j *layerCompressor) evict(at int, slots [][]int32) error {
	if j.decideOnly {
		return nil
	}
	before := j.before(at)
	errs := make([]error, len(slots))
	j.s.m.Parallel(len(slots), func(h int) {
		if slots[h] == nil {
			return
		}
		n := 0
		if before != nil {
			n = before[h]
		}
		kept := shifted(slots[h], n)
		if errs[h] = j.s.cache.Keep(at, h, kept); errs[h] == nil {
			if sums := j.c.sums(at); sums != nil {
				sums.Compact(h, kept)
			}
		}
	})
	if err := firstError(errs); err != nil {
		return fmt.Errorf("compress layer %d: %w", at, err)
	}
	return nil
}

// shifted returns slots 0 to n-1 and the given ones shifted by n.
func shifted(slots []int32, n int) []int32 {
	if n == 0 {
		return slots
	}
	out := make([]int32, 0, n+len(slots))
	for i := range n {
		out = append(out, int32(i))
	}
	for _, t := range slots {
		out = append(out, int32(n)+t)
	}
	return out
}

// noteScores adds notes on uninformative scores.
func (j *layerCompressor) noteScores(at int, scores lukv.Scores) {
	if n := scores.NaNs(); n > 0 {
		j.notes = append(j.notes, fmt.Sprintf("layer %d: the metric gave %d scores that are not numbers", at, n))
	}
	if scores.Degenerate() {
		j.notes = append(j.notes, fmt.Sprintf("layer %d: the metric gave every entry of a head the same score", at))
	}
}

// cascade cuts the layers up to at to the budgets that they have so far.
func (j *layerCompressor) cascade(at int) error {
	budgets, err := lukv.Allocate(j.c.plan.Allocator(), j.demand, j.scores)
	if err != nil {
		return err
	}
	for l := range at + 1 {
		if !j.demand.Includes(l) {
			continue
		}
		if err := j.cutFurther(l, budgets[l]); err != nil {
			return err
		}
	}
	return nil
}

// cutFurther cuts a layer that may have been cut before, choosing among the entries
// left by their original scores.
func (j *layerCompressor) cutFurther(at int, budgets []int) error {
	if j.kept[at] == nil {
		j.kept[at] = make([][]int32, len(budgets))
		j.noteScores(at, j.scores[at])
	}
	j.trace.cut(at, budgets, j.scores[at])
	cut := make([][]int32, len(budgets))
	for h, scores := range j.scores[at] {
		before, n := j.kept[at][h], budgets[h]
		if before != nil && n >= len(before) {
			continue
		}
		kept := lukv.Keep([]int32{}, scores, n, j.demand.Protection)
		cut[h] = kept
		if before != nil { // slots of the span to slots of what is left: both ascend
			slots := make([]int32, 0, len(kept))
			for i, next := 0, 0; next < len(kept); i++ {
				if before[i] == kept[next] {
					slots = append(slots, int32(i))
					next++
				}
			}
			cut[h] = slots
		}
		j.kept[at][h] = kept
	}
	return j.evict(at, cut)
}

// finish cuts all layers if the budgets needed all scores, and records the context's
// length and the notes.
func (j *layerCompressor) finish(ctx context.Context) error {
	if j.c.plan.Allocator().BudgetsKnown() == lukv.KnownAtEnd {
		budgets, err := lukv.Allocate(j.c.plan.Allocator(), j.demand, j.scores)
		if err != nil {
			return err
		}
		for at := range budgets {
			if !j.demand.Includes(at) {
				continue
			}
			view := withoutPrefix(j.view(at), j.before(at))
			scores, err := j.c.plan.Refine(ctx, j.demand, view, j.scores[at], budgets[at])
			if err == nil {
				err = j.cut(at, budgets[at], scores)
			}
			if err != nil {
				return err
			}
		}
	}
	j.s.stats.ContextTokens = max(j.s.stats.ContextTokens, j.end())
	for at, kept := range j.kept {
		if j.lens[at] != nil {
			continue
		}
		j.lens[at] = make([]int, j.c.m.cfg.KVHeads)
		for h := range j.lens[at] {
			if j.lens[at][h] = j.T; kept != nil {
				j.lens[at][h] = len(kept[h])
			}
		}
	}
	notes := append(j.c.plan.Notes(j.demand, j.lens), j.notes...)
	j.s.notes = append(j.s.notes, notes...)
	for _, note := range notes {
		j.c.m.log.Warn("compression", "note", note)
	}
	return nil
}

// renumber gives the remaining entries the positions 0, 1, …, rotating their
// keys accordingly, and returns the position after them, where the sequence
// continues (spec 3.8, option rerotate). next is that position before the call.
func (s *Session) renumber(next int) (int, error) {
	c := s.m.cfg
	var keys, values []float32
	n := s.cache.Len(0, 0)
	fresh := make([]int32, n)
	for i := range fresh {
		fresh[i] = int32(i)
	}
	for at := range c.Layers {
		for h := range c.KVHeads {
			pos := s.cache.Positions(at, h, nil)
			if len(pos) != n {
				return 0, fmt.Errorf("renumber positions: layer %d head %d holds %d entries, head 0 of layer 0 holds %d", at, h, len(pos), n)
			}
			keys = s.cache.Keys(at, h, 0, n, keys)
			values = s.cache.Values(at, h, 0, n, values)
			if err := lukv.Rerotate(keys[:n*c.HeadDim], pos, s.m.net.Rope(at).InvFreq(next)); err != nil {
				return 0, fmt.Errorf("renumber positions of layer %d head %d: %w", at, h, err)
			}
			if err := s.cache.Keep(at, h, nil); err != nil {
				return 0, fmt.Errorf("renumber positions of layer %d head %d: %w", at, h, err)
			}
			if err := s.cache.Append(at, h, fresh, keys, values, c.HeadDim); err != nil {
				return 0, fmt.Errorf("renumber positions of layer %d head %d: %w", at, h, err)
			}
		}
	}
	return n, nil
}
