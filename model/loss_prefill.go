package model

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/model/internal/forward"
	"github.com/lukv/lukv/model/sampling"
)

// lossSweep accompanies a layer-by-layer prefill with the passages of a sweep: when a layer
// has the whole context, each of them passes through it and sees its full cache, and its
// entries are removed before the layer is cut. So the full cache's answers are known though
// there never was one. A nil sweep does nothing.
type lossSweep struct {
	o       LossOptions
	p       *LossProbe
	streams []*forward.Stream // of the tails
	layer   int               // in progress
	next    int               // its next tail

	reads   []sweepReads
	answers *recall
	first   [][]float64 // [passages][to-from] ln p where the context was read first
}

// sweepReads are rows of a stream of which the logits are wanted.
type sweepReads struct {
	x        *forward.Stream
	from, to int
	take     func(row int, logits []float32) // of different rows at the same time
}

// newSweep returns the sweep over a span of tokens at the session's position, nil unless
// the session's options ask for one.
func (s *Session) newSweep(tokens []int32) (*lossSweep, error) {
	if s.opts.ProbeLoss == nil {
		return nil, nil
	}
	o, err := s.opts.ProbeLoss.withDefaults(s.m)
	if err != nil {
		return nil, fmt.Errorf("measure the loss: %w", err)
	}
	all := append(append(make([]int32, 0, s.pos+len(tokens)), s.tokens...), tokens...)
	w := &lossSweep{o: o, p: newLossProbe(s, all, Span{s.pos, s.pos + len(tokens)}, o)}
	w.p.take(passagesByPosition(len(tokens)))
	return w, nil
}

// rows returns the number of tokens that pass through each layer.
func (w *lossSweep) rows() int {
	if w == nil {
		return 0
	}
	return w.p.rows()
}

// embed makes the streams, before the first layer runs.
func (w *lossSweep) embed(r *run) error {
	if w == nil {
		return nil
	}
	for i := range w.p.passages {
		x, err := r.newStream(w.p.tail(&w.p.passages[i]))
		if err != nil {
			return fmt.Errorf("measure the loss: %w", err)
		}
		w.streams = append(w.streams, x)
	}
	return nil
}

// piece runs the next passage through a layer whose cache holds the whole context; rows is
// 0 when all have passed.
func (w *lossSweep) piece(ctx context.Context, r *run, s *Session, at int) (rows int, err error) {
	if w == nil {
		return 0, nil
	}
	if w.layer != at {
		w.layer, w.next = at, 0
	}
	if w.next == len(w.streams) {
		return 0, nil
	}
	x, end := w.streams[w.next], w.p.span.To
	w.next++
	n := x.Tokens()
	for from := 0; from < n && err == nil; {
		rows := min(n-from, s.opts.ChunkTokens, r.Cap())
		r.reset()
		r.add(s, end-s.pos+from, rows, end+n, nil)
		err = r.ForwardLayer(ctx, at, x, from)
		from += rows
	}
	if cut := s.cache.Truncate(int32(end)); err == nil {
		err = cut
	}
	if err != nil {
		return 0, fmt.Errorf("measure the loss: %w", err)
	}
	return n, nil
}

// readRows returns the number of rows of which the logits are wanted.
func (w *lossSweep) readRows() int {
	if w == nil {
		return 0
	}
	n := 0
	for i := range w.p.passages {
		c := &w.p.passages[i]
		n += 2 * max(0, c.to-c.from-lossRead)
	}
	return n
}

// plan lists the rows that are read. The streams have passed through all layers, as has that
// of the span, x.
func (w *lossSweep) plan(x *forward.Stream) {
	w.answers, w.first = newRecall(w.p), make([][]float64, len(w.p.passages))
	start := w.p.span.From
	for i := range w.p.passages {
		c := &w.p.passages[i]
		w.first[i] = make([]float64, c.to-c.from)
		w.reads = append(w.reads, sweepReads{x, c.from + lossRead - 1 - start, c.to - 1 - start, func(row int, logits []float32) {
			t := start + row + 1
			w.first[i][t-c.from] = sampling.LogProb(logits, w.p.tokens[t])
		}}, sweepReads{w.streams[i], len(w.p.frame) + lossRead - 1, w.streams[i].Tokens(), func(row int, logits []float32) {
			if at, ok := w.p.counts(c, row); ok {
				w.answers.row(i, at, logits)
			}
		}})
	}
}

// read computes the logits of the next rows, at most n of them, after all layers. It returns 0 when
// all have been read.
func (w *lossSweep) read(ctx context.Context, r *run, x *forward.Stream, n int) (int, error) {
	if w == nil {
		return 0, nil
	}
	if w.answers == nil {
		w.plan(x)
	}
	for len(w.reads) > 0 && w.reads[0].from >= w.reads[0].to {
		w.reads = w.reads[1:]
	}
	if len(w.reads) == 0 {
		return 0, nil
	}
	next, vocab := &w.reads[0], r.m.cfg.Vocab
	rows := r.LogitRows()
	logits := r.room(rows, vocab)
	from, n := next.from, min(n, rows, next.to-next.from)
	if err := r.StreamLogits(ctx, logits[:n*vocab], next.x, from, n); err != nil {
		return 0, fmt.Errorf("measure the loss: %w", err)
	}
	r.m.Parallel(n, func(i int) { next.take(from+i, logits[i*vocab:(i+1)*vocab]) })
	next.from += n
	return n, nil
}

// finish returns the probe; all rows have been read.
func (w *lossSweep) finish() *LossProbe {
	if w == nil {
		return nil
	}
	readings := map[int]float64{} // by position
	for i := range w.p.passages {
		c := &w.p.passages[i]
		for t := c.from + lossRead; t < c.to; t++ {
			readings[t] = w.first[i][t-c.from]
		}
	}
	w.p.settle(w.answers, func(t int) float64 { return readings[t] }, w.o)
	return w.p
}

// close frees the streams.
func (w *lossSweep) close() {
	if w == nil {
		return
	}
	for _, x := range w.streams {
		x.Close()
	}
	w.streams = nil
}

// LossProbe returns the probe of the session's last prefill that compressed, made by its
// sweep, to measure the session's own loss with; nil without SessionOptions.ProbeLoss or
// such a prefill.
func (s *Session) LossProbe() *LossProbe {
	defer s.quiet()()
	return s.probe
}

// sweepNeed returns the bytes that a sweep adds to a layer while passing through it.
func (n *cacheCounter) sweepNeed(o *LossOptions) int64 {
	if o == nil {
		return 0
	}
	const frame = 8 // tokens before a passage, rounded up
	return n.largest((n.pages(sweepTokens+max(frame, len(o.Frame))) + 1) * int64(n.m.cfg.KVHeads))
}
