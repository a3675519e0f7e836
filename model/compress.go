package model

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/internal/forward"
)

// Compress compresses the entries of a span of tokens that the session holds: a
// document after a system prompt, the older turns of a chat. Entries outside the
// span stay. The policy's ratio or budget applies to the span's tokens, including
// those evicted before; its sinks are the first positions of the sequence, its
// window is the end of the span. Metrics look at everything that a head holds up to
// the end of the span; allocators divide the span's entries. A policy that compresses
// while decoding or renumbers positions belongs in SessionOptions.
//
// A compressed span is bit-identical whether its own prefill compressed it
// (SessionOptions.Compression, [Session.PrefillCompressed]) or Compress does so
// later, so a session can be prefilled once and forked, and each fork compressed in
// its own way. What a metric needs from queries that have passed by is computed
// again: the last w tokens of the span for a metric with a window of w queries, the
// whole span for statistics of all queries and for accumulated attention, nothing
// for metrics that look at keys and values. This is exact if nothing before the span
// was evicted after the span was fed; otherwise the queries are those that the
// present cache gives. [Model.Observe] instead keeps what passes by.
//
// ErrNotObserved says that it cannot be computed again, or that a metric looks at the
// queries of all entries while the span is only some of them. On an error, or when ctx is
// done, nothing is evicted, unless the system or a device has no memory for the survivors
// in pages that forks share: heads cut before that stay cut. Position, tokens and logits
// stay. Apart from one layer, memory is needed only for such survivors.
func (s *Session) Compress(ctx context.Context, span Span, policy *lukv.Policy) error {
	if err := s.compress(ctx, span, policy); err != nil {
		return fmt.Errorf("compress %v: %w", span, err)
	}
	return nil
}

func (s *Session) compress(ctx context.Context, span Span, policy *lukv.Policy) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := s.m.acquire(); err != nil {
		return err
	}
	defer s.m.release()
	if span.From < 0 || span.To < span.From || span.To > s.pos {
		return fmt.Errorf("expected a span of the %d tokens that the session has", s.pos)
	}
	comp, err := s.spanCompression(policy)
	if err != nil || !comp.touches(span.From, span.To-span.From) {
		return err
	}
	ctx, cancel := s.cancellable(ctx)
	defer cancel(nil)
	kept, trace, err := s.choose(ctx, span, comp)
	if err != nil {
		if closed := s.closing(); closed != nil && errors.Is(err, context.Canceled) {
			return closed
		}
		return err
	}
	defer trace.release()
	if err := s.keepOf(span, kept); err != nil {
		return err
	}
	s.compressedBy(comp)
	trace.report(s)
	return nil
}

// choose returns the slots of a span that a policy keeps, [L][K], nil for a layer that
// stays as it is, and the trace of the choice, which the caller releases. It works on
// a fork, whose layers it gives up one by one.
func (s *Session) choose(ctx context.Context, span Span, comp *compression) ([][][]int32, *tracer, error) {
	f, err := s.fork()
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	f.comp, f.notes = comp, nil
	job := comp.begin(f, span.From, s.tokens[span.From:span.To])
	job.decideOnly, job.partial = true, job.partial || s.lacking(Span{To: span.To}) != nil
	defer job.release()
	if err := job.prepare(); err != nil {
		return nil, nil, err
	}
	first, err := f.rewindForReplay(job)
	if err != nil {
		return nil, nil, err
	}
	r, err := s.m.runs.get(min(max(span.To-first, 1), s.opts.ChunkTokens), 1, s.page())
	if err != nil {
		return nil, nil, err
	}
	defer s.m.runs.put(r)
	err = s.m.weights.Reading(func() error {
		defer r.WatchContext(ctx)()
		if err := f.replay(ctx, r, job, first, s); err != nil {
			return err
		}
		if comp.plan.Allocator().BudgetsKnown() == lukv.KnownAtEnd { // it may look at layers again
			if err := f.restoreLayers(s, span); err != nil {
				return err
			}
		}
		return job.finish(ctx)
	})
	if err != nil {
		return nil, nil, err
	}
	s.stats.ScoreTime, s.stats.EvictTime, s.stats.ContextTokens = f.stats.ScoreTime, f.stats.EvictTime, f.stats.ContextTokens
	s.notes = slices.Concat(s.notes, f.notes)
	trace := job.trace
	job.trace = nil
	return job.kept, trace, nil
}

// rewindForReplay removes from a fork the entries after the span and those from position first
// on, the first of the tokens that must pass by again for the job's metric.
func (s *Session) rewindForReplay(j *layerCompressor) (first int, err error) {
	metric := j.c.plan.Metric()
	first = j.end()
	repeats := false
	for at := range s.m.cfg.Layers {
		if !j.demand.Includes(at) {
			continue
		}
		needs, _, window, err := j.needs(at)
		if err != nil {
			return 0, err
		}
		if needs.Stats || needs.ColumnSums {
			window = j.T
		}
		first = min(first, j.end()-min(max(needs.Window, needs.Hidden, window), j.T))
		repeats = repeats || needs.Repeat.Chunk > 0
	}
	if first == j.end() && !repeats { // windows may have moved on
		return first, s.dropFrom(j.end())
	}
	if err := s.cache.Truncate(int32(first)); err != nil {
		return 0, fmt.Errorf("%w: %s looks at what tokens %d to %d ask for, which cannot be computed again: %w",
			ErrNotObserved, lukv.MetricConfigOf(metric).Name, first, j.end(), err)
	}
	s.pos = first
	return first, nil
}

// replay runs the tokens from position first on through s, a fork of the session
// of, for a job, and gives up each layer when it is done.
func (s *Session) replay(ctx context.Context, r *run, j *layerCompressor, first int, of *Session) error {
	tokens := j.tokens[first-j.start:]
	var x *forward.Stream
	if len(tokens) > 0 {
		var err error
		if x, err = r.newStream(tokens); err != nil {
			return err
		}
		defer x.Close()
	}
	if err := j.embed(r); err != nil {
		return err
	}
	defer r.Release()
	for at := range s.m.cfg.Layers {
		w, err := j.watch(r, at)
		if err != nil {
			return fmt.Errorf("layer %d: %w", at, err)
		}
		for from := 0; from < len(tokens); {
			n := min(s.opts.ChunkTokens, len(tokens)-from)
			r.reset()
			r.add(s, from, n, j.end(), w)
			if err := r.ForwardLayer(ctx, at, x, from); err != nil {
				return err
			}
			from += n
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if len(tokens) > 0 && j.demand.Includes(at) {
			if err := s.dropEvicted(at, j.w, of); err != nil {
				return err
			}
		}
		if err := wholeLayerDone(ctx, j, at); err != nil {
			return err
		}
		for h := range s.m.cfg.KVHeads {
			if err := s.cache.Keep(at, h, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropEvicted removes from a layer that tokens have passed through again what the
// forked session has evicted there.
func (s *Session) dropEvicted(at int, w *forward.Watcher, of *Session) error {
	for h := range s.m.cfg.KVHeads {
		positions, held := s.cache.Positions(at, h, nil), of.cache.Positions(at, h, nil)
		stay := make([]int32, 0, len(positions))
		for i, p := range positions {
			if _, ok := slices.BinarySearch(held, p); ok {
				stay = append(stay, int32(i))
			}
		}
		if len(stay) == len(positions) {
			continue
		}
		if err := s.cache.Keep(at, h, stay); err != nil {
			return err
		}
		if w != nil && w.Sums != nil {
			w.Sums.Compact(h, stay)
		}
	}
	return nil
}

// restoreLayers gives a fork that gave up its layers those of from again, up to the end
// of a span.
func (s *Session) restoreLayers(from *Session, span Span) error {
	cache, err := from.cache.Fork()
	if err != nil {
		return err
	}
	old := s.cache
	s.cache = cache
	if err := old.Close(); err != nil {
		return err
	}
	return s.dropFrom(span.To)
}

// keepOf evicts all entries of a span except those in the given slots of it, [L][K]; a
// nil layer stays as it is.
func (s *Session) keepOf(span Span, kept [][][]int32) error {
	for at, layer := range kept {
		for h, slots := range layer {
			positions := s.cache.Positions(at, h, nil)
			from, _ := slices.BinarySearch(positions, int32(span.From))
			to, _ := slices.BinarySearch(positions, int32(span.To))
			row := shifted(slots, from)
			for i := to; i < len(positions); i++ {
				row = append(row, int32(i))
			}
			if err := s.cache.Keep(at, h, row); err != nil {
				return fmt.Errorf("layer %d, kv head %d: %w", at, h, err)
			}
			if sums := s.comp.sums(at); sums != nil {
				sums.Compact(h, row)
			}
		}
	}
	return nil
}
