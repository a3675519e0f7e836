package engine

import (
	"context"
	"fmt"
	"math"

	"github.com/lukv/lukv/model"
)

// embedTogether is how many prompts of one call of Embed are submitted at a time.
const embedTogether = 32

// Embed returns the embedding of each prompt, of dims elements; 0 for all of the hidden size,
// otherwise the first ones, as models trained for that allow. Prompts are computed beside
// other requests, in their steps; r gives the fields that they have in common, such as
// Client. The bits of an embedding depend on nothing but its prompt.
func (e *Engine) Embed(ctx context.Context, r Request, prompts [][]int32, how model.Embedding, dims int) ([][]float32, error) {
	hidden := e.m.Config().Hidden
	if dims == 0 {
		dims = hidden
	}
	if dims < 1 || dims > hidden {
		return nil, fmt.Errorf("embed: found %d dimensions, expected 1 to %d", dims, hidden)
	}
	out := make([][]float32, 0, len(prompts))
	for len(out) < len(prompts) {
		next, err := e.embedSome(ctx, r, prompts[len(out):min(len(prompts), len(out)+embedTogether)], how, dims)
		if err != nil {
			return nil, err
		}
		out = append(out, next...)
	}
	return out, nil
}

// embedSome is Embed for prompts that are submitted together.
func (e *Engine) embedSome(ctx context.Context, r Request, prompts [][]int32, how model.Embedding, dims int) (out [][]float32, err error) {
	pools, streams := make([]pool, len(prompts)), make([]*Stream, 0, len(prompts))
	defer func() {
		for _, s := range streams {
			s.Close()
		}
	}()
	for i, prompt := range prompts {
		q := r
		pools[i] = pool{sum: make([]float64, e.m.Config().Hidden), how: how, last: len(prompt) - 1}
		q.Prompt, q.PromptOnly, q.Hidden = prompt, true, pools[i].add
		s, err := e.Submit(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("embed text %d: %w", i, err)
		}
		streams = append(streams, s)
	}
	for i, s := range streams {
		for _, err := range s.Events() {
			if err != nil {
				return nil, fmt.Errorf("embed text %d: %w", i, err)
			}
		}
		out = append(out, pools[i].vector(dims))
	}
	return out, nil
}

// pool makes one vector of the hidden states of a text.
type pool struct {
	how  model.Embedding
	sum  []float64
	last int // token
}

// add adds the state of token i.
func (p *pool) add(i int, state []float32) {
	if i == 0 {
		clear(p.sum)
	}
	if p.how.Pooling == model.PoolLast && i < p.last {
		return
	}
	for d, x := range state {
		p.sum[d] += float64(x)
	}
}

// vector returns the first dims elements of the embedding.
func (p *pool) vector(dims int) []float32 {
	scale := 1.0
	if p.how.Pooling == model.PoolMean {
		scale = 1 / float64(p.last+1)
	}
	if p.how.Normalize {
		square := 0.0
		for _, x := range p.sum[:dims] {
			square += x * x
		}
		if scale = 0; square > 0 {
			scale = 1 / math.Sqrt(square)
		}
	}
	out := make([]float32, dims)
	for d := range out {
		out[d] = float32(p.sum[d] * scale)
	}
	return out
}
