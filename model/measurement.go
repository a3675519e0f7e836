package model

import (
	"context"
	"errors"
	"fmt"

	"github.com/lukv/lukv/lukv"
)

// Measurement measures the long-horizon usefulness of a context's entries (spec
// §5.1): how much the answer to a question draws on each of them. Value norms
// are computed once per context.
type Measurement struct {
	ob *Observation
	o  *lukv.Oracle
}

// MeasureOptions configure the answers that importance is measured on.
type MeasureOptions struct {
	// MaxTokens is the number of generated tokens, 64 if 0. The first comes
	// from the prefill of the question and is not a counted step.
	MaxTokens int

	// Sampling chooses the tokens; the default is greedy. Its MaxTokens is not used.
	Sampling Sampling

	// IncludeQuestion counts the question's last row as a step.
	IncludeQuestion bool
}

// Measure prepares measurements on an observed context.
func (ob *Observation) Measure(ctx context.Context) (*Measurement, error) {
	m, c := ob.s.m, ob.s.m.cfg
	o, err := lukv.NewOracle(c.Layers, c.Heads, c.KVHeads, len(ob.tokens))
	if err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	if err := m.acquire(); err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	defer m.release()
	for at := range c.Layers {
		if !c.Ragged(at) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("measure: %w", err)
		}
		if err := o.Include(at); err != nil {
			return nil, fmt.Errorf("measure: %w", err)
		}
		errs := make([]error, c.Heads)
		err := m.weights.Reading(func() error {
			m.Parallel(c.Heads, func(g int) { errs[g] = ob.valueNorms(o, at, g) })
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("measure: %w", err)
		}
		if err := firstError(append(errs, ob.s.cache.Err())); err != nil {
			return nil, fmt.Errorf("measure: %w", err)
		}
	}
	return &Measurement{ob: ob, o: o}, nil
}

// normTile is the number of values widened at a time.
const normTile = 256

// valueNorms sets ‖v_j·W_O^(g)‖ of query head g for all positions of the context.
func (ob *Observation) valueNorms(o *lukv.Oracle, at, g int) error {
	m, c := ob.s.m, ob.s.m.cfg
	gram := lukv.NewOutputGram(c.HeadDim)
	var row []float32
	for i := range c.Hidden {
		row = m.net.OutputRows(at, g, i, i+1, row)
		gram.Add(row)
	}
	h := g / (c.Heads / c.KVHeads)
	norms := make([]float32, 0, len(ob.tokens))
	var values, part []float32
	for lo := 0; lo < len(ob.tokens); lo += normTile {
		hi := min(lo+normTile, len(ob.tokens))
		values = ob.s.cache.Values(at, h, lo, hi, values)
		part = gram.Norms(part, values)
		norms = append(norms, part...)
	}
	return o.SetNorms(at, g, norms)
}

// Question answers one question (with its answer cue) on a fork of the full
// cache and returns the importance of every entry of the context, [L][K][T],
// under the given normalisation, together with the number of steps that
// counted. Layers with sliding windows are nil. The number of steps may be 0 if
// the answer ends at once; for such short answers use IncludeQuestion.
func (me *Measurement) Question(ctx context.Context, tokens []int32, o MeasureOptions, norm string) ([][][]float32, int, error) {
	steps, err := me.run(ctx, tokens, o)
	if err != nil {
		return nil, 0, fmt.Errorf("measure question: %w", err)
	}
	imp, err := me.o.Importance(norm)
	if err != nil {
		return nil, 0, fmt.Errorf("measure question: %w", err)
	}
	return imp, steps, nil
}

// Importance returns the last question's importance under another normalisation.
func (me *Measurement) Importance(norm string) ([][][]float32, error) {
	return me.o.Importance(norm)
}

func (me *Measurement) run(ctx context.Context, tokens []int32, o MeasureOptions) (int, error) {
	if len(tokens) == 0 {
		return 0, fmt.Errorf("the question is empty")
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 64
	}
	s, err := me.ob.s.Fork()
	if err != nil {
		return 0, err
	}
	defer s.Close()
	me.o.Reset()
	p := &oracleRecorder{o: me.o, t: len(me.ob.tokens), errs: make([]error, s.m.cfg.KVHeads)}
	first := -1 // position before the first counted step
	if o.IncludeQuestion {
		// Only the last row goes through a counted step.
		if last := len(tokens) - 1; last > 0 {
			if err := s.Prefill(ctx, tokens[:last]); err != nil {
				return 0, err
			}
			tokens = tokens[last:]
		}
		s.recorder, first = p, s.pos
		if err := s.Append(ctx, tokens[0]); err != nil {
			return 0, err
		}
	} else if err := s.Prefill(ctx, tokens); err != nil {
		return 0, err
	}
	if first < 0 {
		s.recorder, first = p, s.pos
	}
	o.Sampling.MaxTokens = o.MaxTokens
	for _, err := range s.Generate(ctx, o.Sampling) {
		if err != nil {
			return 0, err
		}
	}
	return s.pos - first, errors.Join(p.errs...)
}

// oracleRecorder records the oracle importance of a context while a question about it
// is answered with the full cache. It is a forward.Recorder.
type oracleRecorder struct {
	o *lukv.Oracle
	t int // tokens of the context
	// errs collects what the workers report, one per KV head.
	errs []error
}

// Record takes the attention weights of one decoding step, [Group][n], of which
// the first t belong to the context.
func (p *oracleRecorder) Record(layer, head int, weights []float32, n int) {
	group := len(weights) / n
	for g := range group {
		if err := p.o.Observe(layer, head*group+g, weights[g*n:g*n+p.t]); err != nil {
			p.errs[head] = err
		}
	}
}
