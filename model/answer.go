package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/sampling"
)

// Answer is the full cache's answer to a question about an observed context, with
// what its steps attended to. The steps are the rows that predict the answer's
// tokens; the first is the question's last row. Answers from one observation may be
// measured concurrently; each belongs to one goroutine.
type Answer struct {
	ob      *Observation
	s       *Session            // holds context, question and answer
	tail    []int32             // question and answer, without the answer's last token
	tokens  []int32             // of the answer
	queries []*lukv.QueryWindow // [L] of the steps; nil in layers with a sliding window

	logits [][]float32 // [steps][Vocab]
	sums   []float64   // LogSumExp of each

	context int
	passes  int
}

// Answer answers a question (with its answer cue) on a fork of the full cache, in
// up to o.MaxTokens tokens (64 if 0), including one that ends the sequence. It then
// runs question and answer over the full cache once more to see what the steps
// attend to. The result, which the caller closes, holds 4·L·H·D bytes of queries
// and 4·Vocab bytes of logits per step. o.IncludeQuestion has no effect.
func (ob *Observation) Answer(ctx context.Context, question []int32, o MeasureOptions) (*Answer, error) {
	a := &Answer{ob: ob, context: len(ob.tokens)}
	if err := a.run(ctx, question, o); err != nil {
		return nil, errors.Join(fmt.Errorf("answer: %w", err), a.Close())
	}
	return a, nil
}

// fork returns a fork of the full cache. Answers may call it concurrently.
func (ob *Observation) fork() (*Session, error) {
	ob.forking.Lock()
	defer ob.forking.Unlock()
	return ob.s.Fork()
}

func (a *Answer) run(ctx context.Context, question []int32, o MeasureOptions) error {
	if len(question) == 0 {
		return errors.New("the question is empty")
	}
	answer, err := a.generate(ctx, question, o)
	if err != nil || len(answer) == 0 {
		return err
	}
	a.tokens = answer
	a.tail = slices.Concat(question, answer[:len(answer)-1])
	if a.s, err = a.ob.fork(); err != nil {
		return err
	}
	c := a.s.m.cfg
	a.queries = make([]*lukv.QueryWindow, c.Layers)
	for at := range c.Layers {
		if c.Ragged(at) {
			a.queries[at] = lukv.NewQueryWindow(c.Heads, c.HeadDim, len(answer))
		}
	}
	a.s.answer = a.queries
	defer func() { a.s.answer = nil }()
	first := len(question) - 1
	return a.pass(ctx, a.s, func(i int, logits []float32) error {
		if i >= first {
			a.logits = append(a.logits, slices.Clone(logits))
			a.sums = append(a.sums, sampling.LogSumExp(logits))
		}
		return nil
	})
}

// generate returns the answer's tokens.
func (a *Answer) generate(ctx context.Context, question []int32, o MeasureOptions) ([]int32, error) {
	s, err := a.ob.fork()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := s.Prefill(ctx, question); err != nil {
		return nil, err
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 64
	}
	o.Sampling.MaxTokens, o.Sampling.YieldEnd = o.MaxTokens, true
	var answer []int32
	for t, err := range s.Generate(ctx, o.Sampling) {
		if err != nil {
			return nil, err
		}
		answer = append(answer, t.ID)
	}
	return answer, nil
}

// pass feeds question and answer to a session that holds the context.
func (a *Answer) pass(ctx context.Context, s *Session, each func(i int, logits []float32) error) error {
	a.passes++
	return s.PrefillEach(ctx, a.tail, each)
}

// Steps returns the number of tokens in the answer.
func (a *Answer) Steps() int { return len(a.logits) }

// Tokens returns the answer, including a token that ends the sequence. It must not
// be changed.
func (a *Answer) Tokens() []int32 { return a.tokens }

// Passes returns how many times question and answer have been run over a cache so
// far.
func (a *Answer) Passes() int { return a.passes }

// Close frees the cache. Closing twice is fine.
func (a *Answer) Close() error {
	if a.s == nil {
		return nil
	}
	return a.s.Close()
}

// OutputErrors returns the errors of KV head h in a layer without a sliding
// window for given orders of the context's entries, [len(orders)][len(counts)];
// see [lukv.HeadAttention.OutputErrors]. The attention is computed once.
func (a *Answer) OutputErrors(ctx context.Context, layer, h int, orders [][]int32, counts []int) ([][]float64, error) {
	out, err := a.outputErrors(ctx, layer, h, orders, counts)
	if err != nil {
		return nil, fmt.Errorf("output errors of layer %d, KV head %d: %w", layer, h, err)
	}
	return out, nil
}

func (a *Answer) outputErrors(ctx context.Context, layer, h int, orders [][]int32, counts []int) ([][]float64, error) {
	m := a.ob.s.m
	if layer < 0 || layer >= m.cfg.Layers || h < 0 || h >= m.cfg.KVHeads || a.Steps() == 0 || a.queries[layer] == nil {
		return nil, errors.New("there is nothing to measure")
	}
	if err := m.acquire(); err != nil {
		return nil, err
	}
	defer m.release()
	gram, err := a.ob.gram(layer, h)
	if err != nil {
		return nil, err
	}
	view := a.s.layerView(layer, a.s.pos)
	view.Parallel = nil
	head := lukv.HeadAttention{Context: a.context, HeadDim: m.cfg.HeadDim, Gram: gram}
	err = view.EachValues(ctx, h, func(_, _ int, values []float32) { head.Values = append(head.Values, values...) })
	if err != nil {
		return nil, err
	}
	if head.Probs, err = a.attention(ctx, view, h); err != nil {
		return nil, err
	}
	out := make([][]float64, len(orders))
	for i, order := range orders {
		if out[i], err = head.OutputErrors(order, counts); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// attention returns the attention weights of the query heads of KV head h, [G] of
// [steps][entries].
func (a *Answer) attention(ctx context.Context, view *lukv.Layer, h int) ([][]float32, error) {
	steps, window := a.Steps(), a.queries[view.Index]
	queries, positions := make([]float32, 0, steps*view.HeadDim), make([]int, steps)
	var out [][]float32
	for g := range view.Group() {
		queries = queries[:0]
		for i := range steps {
			queries = append(queries, window.Row(i, h*view.Group()+g)...)
			positions[i] = window.Position(i)
		}
		probs := make([]float32, steps*view.Len(h))
		if err := view.Attend(ctx, h, queries, positions, probs); err != nil {
			return nil, err
		}
		out = append(out, probs)
	}
	return out, a.s.cache.Err()
}

// Retrieved returns how strongly the query heads of KV head h, in a layer without
// a sliding window, read positions [from, to) of the context while answering, [G];
// see [lukv.Retrieved].
func (a *Answer) Retrieved(ctx context.Context, layer, h, from, to int) ([]float64, error) {
	fail := func(err error) ([]float64, error) {
		return nil, fmt.Errorf("attention of layer %d, KV head %d: %w", layer, h, err)
	}
	m := a.ob.s.m
	switch {
	case layer < 0 || layer >= m.cfg.Layers || h < 0 || h >= m.cfg.KVHeads || a.Steps() == 0 || a.queries[layer] == nil:
		return fail(errors.New("there is nothing to measure"))
	case from < 0 || to <= from || to > a.context:
		return fail(fmt.Errorf("positions %d to %d of %d", from, to, a.context))
	}
	if err := m.acquire(); err != nil {
		return fail(err)
	}
	defer m.release()
	view := a.s.layerView(layer, a.s.pos)
	view.Parallel = nil
	probs, err := a.attention(ctx, view, h)
	if err != nil {
		return fail(err)
	}
	out := make([]float64, len(probs))
	for g, p := range probs {
		out[g] = lukv.Retrieved(p, len(p)/a.Steps(), from, to)
	}
	return out, nil
}

// Divergence returns how far the next-token distributions of the steps move when
// the context keeps only the given slots: kept[l][h], ascending, nil for a layer
// that stays whole. It is the Kullback-Leibler divergence from the full cache in
// nats, summed over the steps, and takes one pass of question and answer over a
// fork of the cache.
func (a *Answer) Divergence(ctx context.Context, kept [][][]int32) (float64, error) {
	sum, err := a.divergence(ctx, kept)
	if err != nil {
		return 0, fmt.Errorf("divergence: %w", err)
	}
	return sum, nil
}

func (a *Answer) divergence(ctx context.Context, kept [][][]int32) (float64, error) {
	s, err := a.ob.fork()
	if err != nil {
		return 0, err
	}
	defer s.Close()
	for at, layer := range kept {
		for h, slots := range layer {
			if err := s.cache.Keep(at, h, slots); err != nil {
				return 0, fmt.Errorf("cut layer %d: %w", at, err)
			}
		}
	}
	first, sum := len(a.tail)-a.Steps(), 0.0
	err = a.pass(ctx, s, func(i int, logits []float32) error {
		if i >= first {
			sum += sampling.DivergenceGiven(a.logits[i-first], logits, a.sums[i-first])
		}
		return nil
	})
	if err == nil && (math.IsNaN(sum) || math.IsInf(sum, 0)) {
		err = fmt.Errorf("found %v, expected a number", sum)
	}
	return sum, err
}

// grams holds the Gram matrices of the parts of the output projection that read
// each group of query heads, made on first use: 4·(G·D)² bytes per KV head.
type grams struct {
	mu sync.Mutex
	of map[[2]int]*lukv.OutputGram
}

// gram returns the matrix of a KV head.
func (ob *Observation) gram(layer, h int) (*lukv.OutputGram, error) {
	m := ob.s.m
	ob.grams.mu.Lock()
	defer ob.grams.mu.Unlock()
	key := [2]int{layer, h}
	if gram := ob.grams.of[key]; gram != nil {
		return gram, nil
	}
	D, group := m.cfg.HeadDim, m.cfg.Heads/m.cfg.KVHeads
	gram := lukv.NewOutputGram(group * D)
	err := m.weights.Reading(func() error {
		row, part := make([]float32, 0, group*D), []float32(nil)
		for i := range m.cfg.Hidden {
			row = row[:0]
			for g := range group {
				part = m.net.OutputRows(layer, h*group+g, i, i+1, part)
				row = append(row, part...)
			}
			gram.Add(row)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if ob.grams.of == nil {
		ob.grams.of = map[[2]int]*lukv.OutputGram{}
	}
	ob.grams.of[key] = gram
	return gram, nil
}
