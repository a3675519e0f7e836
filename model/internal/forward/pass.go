package model

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/tensor"
)

// logitRows is the number of rows whose logits can be computed at once.
func (r *run) logitRows() int {
	if r.host == nil {
		return r.dev.logitRows
	}
	return min(r.cap, hostLogits)
}

// hostLogits bounds the logits of a prefill that are computed at once: one row
// at a time would read the head's weights once per row; all rows at once would
// need rows×Vocab floats.
const hostLogits = 64

// forward runs all layers over the run's rows, whose tokens are given. logits says
// that those of all rows will be wanted. done, if not nil, is told how many layers
// have just been completed. If ctx is done, or on another error, the caches hold
// garbage that the caller removes.
func (r *run) forward(ctx context.Context, tokens []int32, logits bool, done func(layers int)) error {
	first := 0
	if r.dev != nil {
		r.m.embedTokens(r.dev.embeddings(), tokens)
		if err := r.dev.forward(ctx, logits && r.host == nil); err != nil {
			return err
		}
		first = len(r.dev.acc.layers)
		if done != nil {
			done(first)
		}
		if r.host == nil {
			return nil
		}
	}
	h := r.host
	h.useOwn()
	if r.dev == nil {
		r.m.embedTokens(h.x, tokens)
	} else if err := r.dev.result(ctx, h.x); err != nil {
		return err
	}
	h.rotations()
	for at := first; at < r.m.cfg.Layers; at++ {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := r.hostLayer(ctx, at); err != nil {
			return err
		}
		if done != nil {
			done(1)
		}
	}
	return nil
}

// hostLayer runs one layer over the residual stream in host.x.
func (r *run) hostLayer(ctx context.Context, at int) error {
	for i := range r.spans {
		if await := r.spans[i].s.await; await != nil {
			if err := await(at); err != nil {
				return err
			}
		}
	}
	r.host.at = at
	if err := forwardLayer(r.host, at, &r.m.layers[at]); err != nil {
		return err
	}
	return r.interrupted(ctx)
}

// logits computes the logits of rows first … first+n-1 of the last call of forward
// into dst, [n][Vocab].
func (r *run) logits(ctx context.Context, dst []float32, first, n int) error {
	if r.host == nil {
		return r.dev.logits(ctx, dst, first, n)
	}
	h := r.m.cfg.Hidden
	r.host.project(dst, r.host.x[first*h:(first+n)*h], n)
	return r.interrupted(ctx)
}

func (r *run) newStream(tokens []int32) (*stream, error) {
	st := &stream{tokens: tokens}
	if r.host != nil {
		if err := st.takeRows(r.m); err != nil {
			return nil, fmt.Errorf("memory for the hidden states of %d tokens: %w", len(tokens), err)
		}
	}
	if r.dev == nil {
		r.m.embedTokens(st.x, tokens)
		return st, nil
	}
	rows, err := r.dev.acc.dev.Buffer(tensor.F32, len(tokens), r.m.cfg.Hidden)
	if err != nil {
		st.close()
		return nil, fmt.Errorf("memory for the hidden states of %d tokens: %w", len(tokens), err)
	}
	st.rows = rows
	return st, nil
}

// forwardLayer runs layer at over the run's rows, which are those of st from
// first on. Errors are as for forward.
func (r *run) forwardLayer(ctx context.Context, at int, st *stream, first int) error {
	if r.dev != nil && at < len(r.dev.acc.layers) {
		return r.dev.forwardLayer(ctx, at, st, first)
	}
	r.host.x = st.hostRows(r.m, first, r.rows)
	r.host.rotations()
	return r.hostLayer(ctx, at)
}

// streamLogits computes the logits of rows first … first+n-1 of st.
func (r *run) streamLogits(ctx context.Context, dst []float32, st *stream, first, n int) error {
	if r.host == nil {
		return r.dev.streamLogits(ctx, dst, st, first, n)
	}
	r.host.project(dst, st.hostRows(r.m, first, n), n)
	return r.interrupted(ctx)
}
