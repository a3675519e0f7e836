package model

import (
	"context"
	"fmt"
	"time"

	"github.com/lukv/lukv/lukv"
)

// collect returns a watcher that keeps what metrics with the given needs and
// uniform budget look at in layer at of a prefill of T tokens, nil if nothing
// that passes by. The queries of a window of hostWindow are kept on the host
// wherever the metrics score.
func (r *run) collect(s *Session, at, T int, needs lukv.Needs, share int, metrics []lukv.Metric, hostWindow int) (*watcher, error) {
	c := r.m.cfg
	w := &watcher{s: s}
	var err error
	if w.device, err = r.deviceWatch(at, T, &needs, share, metrics); err != nil {
		return nil, err
	}
	needs.Window = max(needs.Window, hostWindow)
	w.tail = T - needs.Window
	if needs.Stats {
		w.stats = lukv.NewQueryStats(c.Heads, c.HeadDim, needs.StatsSkip, needs.Covariance, r.m.cpu)
	}
	if needs.Window > 0 {
		w.window = lukv.NewQueryWindow(c.Heads, c.HeadDim, needs.Window)
	}
	if needs.ColumnSums {
		w.sums = lukv.NewColumnSums(c.Heads, c.KVHeads, 1)
	}
	if w.stats == nil && w.window == nil && w.sums == nil && w.device == nil {
		return nil, nil
	}
	return w, nil
}

// prefillJob compresses the layers of one prefill as they are done.
type prefillJob struct {
	c          *compression
	s          *Session
	T          int
	demand     lukv.Demand
	budgets    [][]int       // [L][K], where they are known beforehand
	scores     []lukv.Scores // [L], where they are needed at the end
	r          *run          // that computes the layers
	w          *watcher
	rank       func(context.Context, lukv.Metric, *lukv.Layer) (lukv.Scores, error)
	notes      []string
	weigher    lukv.LayerWeigher // nil if the allocator looks at scores alone
	tokens     []int32           // of the prompt, to repeat
	repetition *repetition       // nil if the metric asks for none
	kept       [][][]int32       // [L][K] slots of the prompt that a cascade has left so far
	err        error
}

func (c *compression) begin(s *Session, tokens []int32) *prefillJob {
	T := len(tokens)
	j := &prefillJob{c: c, s: s, T: T, tokens: tokens, demand: c.plan.Demand(T)}
	j.rank = func(ctx context.Context, metric lukv.Metric, l *lukv.Layer) (lukv.Scores, error) {
		return j.r.score(ctx, s, j.w, metric, l)
	}
	switch c.plan.Allocator().Knows() {
	case lukv.KnownBefore:
		j.budgets, j.err = lukv.Allocate(c.plan.Allocator(), j.demand, nil)
	case lukv.KnownSoFar, lukv.KnownAtEnd:
		j.scores = make([]lukv.Scores, c.m.cfg.Layers)
	}
	if w, ok := c.plan.Allocator().(lukv.LayerWeigher); ok {
		j.demand.Weights = make([]float64, c.m.cfg.Layers)
		j.weigher = w
	}
	return j
}

// release frees what the job holds outside the Go heap.
func (j *prefillJob) release() {
	j.freeLayer()
	j.repetition.close()
}

func (j *prefillJob) freeLayer() {
	j.w.onDevice().free()
	j.w = nil
}

// watch returns the watcher of a layer's pass.
func (j *prefillJob) watch(r *run, at int) (*watcher, error) {
	j.freeLayer()
	j.r = r
	if at == 0 {
		var err error
		text := j.c.plan.Metric().Needs(j.T, j.demand.Share()).Repeat
		if j.repetition, err = j.s.m.newRepetition(text, j.tokens); err != nil {
			return nil, err
		}
	}
	if !j.demand.Takes(at) {
		return nil, nil
	}
	c, metric, share := j.c, j.c.plan.Metric(), j.demand.Share()
	var err error
	window := 0
	if j.weigher != nil {
		window = j.weigher.Needs(j.T, share).Window
	}
	if j.w, err = r.collect(j.s, at, j.T, metric.Needs(j.T, share), share, []lukv.Metric{metric}, window); err != nil {
		return nil, err
	}
	if c.decode != nil {
		if j.w == nil {
			j.w = &watcher{s: j.s}
		}
		j.w.decode, j.w.record, j.w.prefill = c.decode, c.plan.Decoding().Needs(), true
	}
	return j.w, nil
}

// layerDone scores a layer whose attention is complete and cuts it, if its
// budgets can be known.
func (j *prefillJob) layerDone(ctx context.Context, at int) error {
	if j.err != nil {
		return j.err
	}
	repeats, err := j.repetition.layer(ctx, j.r, j.s, at)
	if err != nil || !j.demand.Takes(at) {
		return err
	}
	start := time.Now()
	view := j.s.layerView(at, j.T)
	if repeats != nil {
		j.w = j.w.with(j.s, repeats)
	}
	scores, budgets, err := j.score(ctx, view)
	if err == nil && budgets != nil {
		scores, err = j.c.plan.Refine(ctx, j.demand, view, scores, budgets)
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
	if j.c.plan.Allocator().Knows() == lukv.KnownSoFar {
		return j.cascade(at)
	}
	return nil
}

// score ranks a layer and gives its budgets, nil if they are known at the end only.
func (j *prefillJob) score(ctx context.Context, l *lukv.Layer) (lukv.Scores, []int, error) {
	if w := j.w; w != nil {
		w.lend(l)
	}
	l.Share, l.Ratio = j.demand.Share(), j.demand.Target()
	if j.budgets != nil {
		l.Budgets = j.budgets[l.Index]
	}
	scores, err := j.rank(ctx, j.c.plan.Metric(), l)
	if err == nil {
		err = j.s.cache.Err()
	}
	if err != nil || j.scores != nil {
		return scores, nil, err
	}
	if j.budgets != nil {
		return scores, j.budgets[l.Index], nil
	}
	budgets, err := j.c.plan.LayerBudgets(j.demand, l.Index, scores)
	return scores, budgets, err
}

// cut evicts what a layer's heads may not keep.
func (j *prefillJob) cut(at int, budgets []int, scores lukv.Scores) error {
	start := time.Now()
	defer func() { j.s.stats.EvictTime += time.Since(start) }()
	j.noteScores(at, scores)
	errs := make([]error, len(budgets))
	kept := make([][]int32, len(budgets))
	j.s.m.parallel(len(budgets), func(h int) {
		kept[h] = lukv.Keep(nil, scores[h], budgets[h], j.demand.Protection)
		errs[h] = j.s.cache.Keep(at, h, kept[h])
	})
	if err := firstError(errs); err != nil {
		return fmt.Errorf("compress layer %d: %w", at, err)
	}
	if j.c.decode != nil && j.c.decode[at].Sums() != nil {
		for h := range kept {
			j.c.decode[at].Sums().Compact(h, kept[h])
		}
	}
	return nil
}

// noteScores notes scores that say nothing.
func (j *prefillJob) noteScores(at int, scores lukv.Scores) {
	if n := scores.NaNs(); n > 0 {
		j.notes = append(j.notes, fmt.Sprintf("layer %d: the metric gave %d scores that are not numbers", at, n))
	}
	if scores.Degenerate() {
		j.notes = append(j.notes, fmt.Sprintf("layer %d: the metric gave every entry of a head the same score", at))
	}
}

// cascade cuts the layers up to at to the budgets that they have by now.
func (j *prefillJob) cascade(at int) error {
	budgets, err := lukv.Allocate(j.c.plan.Allocator(), j.demand, j.scores)
	if err != nil {
		return err
	}
	if j.kept == nil {
		j.kept = make([][][]int32, len(j.scores))
	}
	for l := range at + 1 {
		if !j.demand.Takes(l) {
			continue
		}
		if err := j.cutFurther(l, budgets[l]); err != nil {
			return err
		}
	}
	return nil
}

// cutFurther cuts a layer that may have been cut before: among the entries left,
// by the scores that it had.
func (j *prefillJob) cutFurther(at int, budgets []int) error {
	if j.kept[at] == nil {
		j.kept[at] = make([][]int32, len(budgets))
		j.noteScores(at, j.scores[at])
	}
	for h, scores := range j.scores[at] {
		before, n := j.kept[at][h], budgets[h]
		if before != nil && n >= len(before) {
			continue
		}
		kept := lukv.Keep(nil, scores, n, j.demand.Protection)
		slots := kept
		if before != nil { // slots of the prompt to slots of the cache: both ascend
			slots = make([]int32, 0, len(kept))
			for i, next := 0, 0; next < len(kept); i++ {
				if before[i] == kept[next] {
					slots = append(slots, int32(i))
					next++
				}
			}
		}
		if err := j.s.cache.Keep(at, h, slots); err != nil {
			return fmt.Errorf("compress layer %d: %w", at, err)
		}
		if j.c.decode != nil && j.c.decode[at].Sums() != nil {
			j.c.decode[at].Sums().Compact(h, slots)
		}
		j.kept[at][h] = kept
	}
	return nil
}

// finish cuts all layers where budgets needed all scores, and ends the pass
// for the compression while decoding.
func (j *prefillJob) finish(ctx context.Context) error {
	if j.scores != nil && j.kept == nil {
		budgets, err := lukv.Allocate(j.c.plan.Allocator(), j.demand, j.scores)
		if err != nil {
			return err
		}
		for at := range budgets {
			if !j.demand.Takes(at) {
				continue
			}
			scores, err := j.c.plan.Refine(ctx, j.demand, j.s.layerView(at, j.T), j.scores[at], budgets[at])
			if err == nil {
				err = j.cut(at, budgets[at], scores)
			}
			if err != nil {
				return err
			}
		}
	}
	j.s.stats.ContextTokens = j.T
	lens := make([][]int, j.c.m.cfg.Layers)
	for at := range lens {
		for h := range j.c.m.cfg.KVHeads {
			lens[at] = append(lens[at], j.s.cache.Len(at, h))
		}
	}
	j.s.notes = append(j.c.plan.Notes(j.demand, lens), j.notes...)
	for _, note := range j.s.notes {
		j.c.m.log.Warn("compression", "note", note)
	}
	return nil
}

// renumber gives the entries that are left the positions 0, 1, …, rotating
// their keys accordingly, and returns the position behind them, where the
// sequence continues (spec §3.8, option rerotate). next is what it was.
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
			if err := lukv.Rerotate(keys[:n*c.HeadDim], pos, s.m.rope.invFreq(next)); err != nil {
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
