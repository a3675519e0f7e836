package forward

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/tensor"
)

// Pass is a pass with the backends that it needs: a device for the first layers, the
// processor for the others. It can be used again and again, by one goroutine at a time.
type Pass struct {
	passRows
	host *hostRun   // nil if the device has all layers
	dev  *deviceRun // nil without a device
}

// Shape says what a run is for. On a device a pass is bound to one layout of
// cache pages; on the processor only rows matter, and the rest is zero.
type Shape struct {
	Rows, Seqs int // at most
	Page       kernels.PageLayout
}

// NewPass allocates a run. The caller closes it.
func NewPass(net *Network, s Shape) (*Pass, error) {
	r := &Pass{passRows: passRows{
		net: net, pool: net.Pool, cap: s.Rows,
		spans: make([]Span, 0, max(1, s.Seqs)), pos: make([]int32, s.Rows),
		watch: make([]watchScratch, net.Pool.Threads()),
	}}
	if net.Device != nil {
		var err error
		if r.dev, err = newDeviceRun(&r.passRows, s); err != nil {
			return nil, err
		}
	}
	if net.Device == nil || !net.Device.whole() {
		r.host = newHostRun(&r.passRows)
	}
	return r, nil
}

// Close frees what the run has on a device.
func (r *Pass) Close() {
	if r.dev != nil {
		r.dev.close()
	}
}

// Release gives up the memory of a stream that the last rows came from.
func (r *Pass) Release() {
	if r.host != nil {
		r.host.x = nil
	}
}

// Residual returns the residual stream of the run's rows after the last layer, [rows][Hidden],
// valid until the next pass.
func (r *Pass) Residual(ctx context.Context) ([]float32, error) {
	if r.host != nil {
		return r.host.x, nil
	}
	x := make([]float32, r.rows*r.net.Config.Hidden)
	return x, r.dev.result(ctx, x)
}

// LogitRows is the number of rows whose logits can be computed at once.
func (r *Pass) LogitRows() int {
	if r.host == nil {
		return r.dev.logitRows
	}
	return min(r.cap, hostLogits)
}

// hostLogits bounds the logits of a prefill that are computed at once: one row
// at a time would read the head's weights once per row; all rows at once would
// need rows×Vocab floats.
const hostLogits = 64

// Forward runs all layers over the run's rows, whose tokens are given. logits says
// that those of all rows will be wanted. done, if not nil, is told how many layers
// have just been completed. If ctx is done, or on another error, the caches hold
// garbage that the caller removes.
func (r *Pass) Forward(ctx context.Context, tokens []int32, logits bool, done func(layers int)) error {
	first := 0
	if r.dev != nil {
		r.net.embedTokens(r.dev.embeddings(), tokens)
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
		r.net.embedTokens(h.x, tokens)
	} else if err := r.dev.result(ctx, h.x); err != nil {
		return err
	}
	h.rotations()
	for at := first; at < r.net.Config.Layers; at++ {
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
func (r *Pass) hostLayer(ctx context.Context, at int) error {
	for i := range r.spans {
		if await := r.spans[i].Await; await != nil {
			if err := await(at); err != nil {
				return err
			}
		}
	}
	r.host.at = at
	if err := forwardLayer(r.host, at, &r.net.layers[at]); err != nil {
		return err
	}
	return r.interrupted(ctx)
}

// Logits computes the logits of rows first … first+n-1 of the last call of Forward
// into dst, [n][Vocab].
func (r *Pass) Logits(ctx context.Context, dst []float32, first, n int) error {
	if r.host == nil {
		return r.dev.logits(ctx, dst, first, n)
	}
	h := r.net.Config.Hidden
	r.host.project(dst, r.host.x[first*h:(first+n)*h], n)
	return r.interrupted(ctx)
}

// NewStream allocates the hidden states of tokens, which begin as their embeddings. What is in
// host memory is charged to the account, if there is one. The caller closes the stream.
func (r *Pass) NewStream(tokens []int32, account *kvcache.Account) (*Stream, error) {
	st := &Stream{tokens: tokens}
	if r.host != nil {
		if err := st.takeRows(r.net, account); err != nil {
			return nil, fmt.Errorf("memory for the hidden states of %d tokens: %w", len(tokens), err)
		}
	}
	if r.dev == nil {
		r.net.embedTokens(st.x, tokens)
		return st, nil
	}
	rows, err := r.dev.acc.dev.Buffer(tensor.F32, len(tokens), r.net.Config.Hidden)
	if err != nil {
		st.Close()
		return nil, fmt.Errorf("memory for the hidden states of %d tokens: %w", len(tokens), err)
	}
	st.rows = rows
	return st, nil
}

// ForwardLayer runs layer at over the run's rows, which are those of st from
// first on. Errors are as for Forward.
func (r *Pass) ForwardLayer(ctx context.Context, at int, st *Stream, first int) error {
	if r.dev != nil && at < len(r.dev.acc.layers) {
		return r.dev.forwardLayer(ctx, at, st, first)
	}
	r.host.x = st.hostRows(r.net, first, r.rows)
	r.host.rotations()
	return r.hostLayer(ctx, at)
}

// StreamLogits computes the logits of rows first … first+n-1 of st.
func (r *Pass) StreamLogits(ctx context.Context, dst []float32, st *Stream, first, n int) error {
	if r.host == nil {
		return r.dev.streamLogits(ctx, dst, st, first, n)
	}
	r.host.project(dst, st.hostRows(r.net, first, n), n)
	return r.interrupted(ctx)
}
