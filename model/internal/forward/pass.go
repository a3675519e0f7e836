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

// Shape says what a pass is for. On a device a pass is bound to one layout of
// cache pages; on the processor only rows matter, and the rest is zero.
type Shape struct {
	Rows, Seqs int // at most
	Page       kernels.PageLayout
}

// NewPass allocates a pass. The caller closes it.
func NewPass(net *Network, s Shape) (*Pass, error) {
	p := &Pass{passRows: passRows{
		net: net, pool: net.Pool, cap: s.Rows,
		spans: make([]Span, 0, max(1, s.Seqs)), pos: make([]int32, s.Rows),
		watch: make([]watchScratch, net.Pool.Threads()),
	}}
	if net.Device != nil {
		var err error
		if p.dev, err = newDeviceRun(&p.passRows, s); err != nil {
			return nil, err
		}
	}
	if net.Device == nil || !net.Device.whole() {
		p.host = newHostRun(&p.passRows)
	}
	return p, nil
}

// Close frees what the pass has on a device.
func (p *Pass) Close() {
	if p.dev != nil {
		p.dev.close()
	}
}

// Release gives up the memory of a stream that the last rows came from.
func (p *Pass) Release() {
	if p.host != nil {
		p.host.x = nil
	}
}

// Residual returns the residual stream of the pass's rows after the last layer, [rows][Hidden],
// valid until the next pass.
func (p *Pass) Residual(ctx context.Context) ([]float32, error) {
	if p.host != nil {
		return p.host.x, nil
	}
	x := make([]float32, p.rows*p.net.Config.Hidden)
	return x, p.dev.result(ctx, x)
}

// LogitRows is the number of rows whose logits can be computed at once.
func (p *Pass) LogitRows() int {
	if p.host == nil {
		return p.dev.logitRows
	}
	return min(p.cap, hostLogits)
}

// hostLogits bounds the logits of a prefill that are computed at once: one row
// at a time would read the head's weights once per row; all rows at once would
// need rows×Vocab floats.
const hostLogits = 64

// Forward runs all layers over the pass's rows, whose tokens are given. logits says
// that those of all rows will be wanted. done, if not nil, is told how many layers
// have just been completed. If ctx is done, or on another error, the caches hold
// garbage that the caller removes.
func (p *Pass) Forward(ctx context.Context, tokens []int32, logits bool, done func(layers int)) error {
	first := 0
	if p.dev != nil {
		p.net.embedTokens(p.dev.embeddings(), tokens)
		if err := p.dev.forward(ctx, logits && p.host == nil); err != nil {
			return err
		}
		first = len(p.dev.acc.layers)
		if done != nil {
			done(first)
		}
		if p.host == nil {
			return nil
		}
	}
	h := p.host
	h.useOwn()
	if p.dev == nil {
		p.net.embedTokens(h.x, tokens)
	} else if err := p.dev.result(ctx, h.x); err != nil {
		return err
	}
	h.rotations()
	for at := first; at < p.net.Config.Layers; at++ {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := p.hostLayer(ctx, at); err != nil {
			return err
		}
		if done != nil {
			done(1)
		}
	}
	return nil
}

// hostLayer runs one layer over the residual stream in host.x.
func (p *Pass) hostLayer(ctx context.Context, at int) error {
	for i := range p.spans {
		if await := p.spans[i].Await; await != nil {
			if err := await(at); err != nil {
				return err
			}
		}
	}
	p.host.at = at
	if err := forwardLayer(p.host, at, &p.net.layers[at]); err != nil {
		return err
	}
	return p.interrupted(ctx)
}

// Logits computes the logits of rows first … first+n-1 of the last call of Forward
// into dst, [n][Vocab].
func (p *Pass) Logits(ctx context.Context, dst []float32, first, n int) error {
	if p.host == nil {
		return p.dev.logits(ctx, dst, first, n)
	}
	h := p.net.Config.Hidden
	p.host.project(dst, p.host.x[first*h:(first+n)*h], n)
	return p.interrupted(ctx)
}

// NewStream allocates the hidden states of tokens, which begin as their embeddings. What is in
// host memory is charged to the account, if there is one. The caller closes the stream.
func (p *Pass) NewStream(tokens []int32, account *kvcache.Account) (*Stream, error) {
	st := &Stream{tokens: tokens}
	if p.host != nil {
		if err := st.takeRows(p.net, account); err != nil {
			return nil, fmt.Errorf("memory for the hidden states of %d tokens: %w", len(tokens), err)
		}
	}
	if p.dev == nil {
		p.net.embedTokens(st.x, tokens)
		return st, nil
	}
	rows, err := p.dev.acc.dev.Buffer(tensor.F32, len(tokens), p.net.Config.Hidden)
	if err != nil {
		st.Close()
		return nil, fmt.Errorf("memory for the hidden states of %d tokens: %w", len(tokens), err)
	}
	st.rows = rows
	return st, nil
}

// ForwardLayer runs layer at over the pass's rows, which are those of st from
// first on. Errors are as for Forward.
func (p *Pass) ForwardLayer(ctx context.Context, at int, st *Stream, first int) error {
	if p.dev != nil && at < len(p.dev.acc.layers) {
		return p.dev.forwardLayer(ctx, at, st, first)
	}
	p.host.x = st.hostRows(p.net, first, p.rows)
	p.host.rotations()
	return p.hostLayer(ctx, at)
}

// StreamLogits computes the logits of rows first … first+n-1 of st.
func (p *Pass) StreamLogits(ctx context.Context, dst []float32, st *Stream, first, n int) error {
	if p.host == nil {
		return p.dev.streamLogits(ctx, dst, st, first, n)
	}
	p.host.project(dst, st.hostRows(p.net, first, n), n)
	return p.interrupted(ctx)
}
