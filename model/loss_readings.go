package model

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/model/sampling"
)

// A session with SessionOptions.ProbeLoss keeps ln p of every token of a prefill given the
// tokens before it. A prefill that compresses has them only at the passages of its sweep.

// keepsReadings reports whether the prompt's first readings are kept.
func (f *prefillState) keepsReadings() bool { return f.s.opts.ProbeLoss != nil && f.sweep == nil }

// emits reports whether logits of all tokens of the prompt are wanted.
func (f *prefillState) emits() bool { return f.each != nil || f.keepsReadings() }

// startReadings makes room for the first readings of the prompt.
func (f *prefillState) startReadings() {
	s := f.s
	if !f.keepsReadings() {
		return
	}
	s.readings = s.readings[:min(len(s.readings), s.pos)]
	for len(s.readings) < f.end() {
		s.readings = append(s.readings, noReading)
	}
	if s.hasLogits && f.skip == 0 {
		s.readings[s.pos] = sampling.LogProb(s.logits, f.tokens[0])
	}
}

// read keeps the readings that the logits after tokens first to first+n-1 give.
func (f *prefillState) read(first, n int, logits []float32) {
	if !f.keepsReadings() {
		return
	}
	s, vocab := f.s, f.s.m.cfg.Vocab
	s.m.Parallel(min(n, len(f.tokens)-1-first), func(i int) {
		s.readings[f.start+first+i+1] = sampling.LogProb(logits[i*vocab:(i+1)*vocab], f.tokens[first+i+1])
	})
}

// trimReadings forgets the readings of tokens that the session does not have.
func (s *Session) trimReadings() { s.readings = s.readings[:min(len(s.readings), s.pos)] }

// readingsOf returns ln p of the tokens of a span at first reading, [To-From]; those of the
// first lossLead need not be known. Unless the session kept them, it computes the span once
// more.
func (s *Session) readingsOf(ctx context.Context, span Span) ([]float64, error) {
	if span.To-span.From < lossShortest {
		return make([]float64, span.To-span.From), nil
	}
	if len(s.readings) >= span.To && !slices.ContainsFunc(s.readings[span.From+1:span.To], math.IsNaN) {
		return s.readings[span.From:span.To], nil
	}
	f, err := s.probing(span.To, s.opts.MaxTokens)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(span.From); err != nil {
		return nil, fmt.Errorf("%w: first readings were not kept and cannot be computed again: %w", ErrNotObserved, err)
	}
	f.opts.ProbeLoss = new(LossOptions)
	if err := f.Prefill(ctx, s.tokens[span.From:span.To]); err != nil {
		return nil, err
	}
	return f.readings[span.From:span.To], nil
}
