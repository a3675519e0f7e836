package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// estimatedLoss is how many of a document's facts, which the full cache can repeat, the
// compressed one cannot: see model.Loss.
type estimatedLoss struct {
	Measured bool     `json:"measured"`
	Facts    int      `json:"facts"`
	Lost     *int     `json:"lost,omitempty"` // absent, like the rest, if it could not be measured
	Share    *float64 `json:"share,omitempty"`
	Upper    *float64 `json:"upper,omitempty"`        // one-sided 95 % bound on it
	Answers  *float64 `json:"answers_lost,omitempty"` // by the profile's calibration; absent: not measured
}

func newEstimatedLoss(l model.Loss) *estimatedLoss {
	out := &estimatedLoss{Measured: l.Measured(), Facts: l.Facts}
	if out.Measured {
		share := l.Share()
		out.Lost, out.Share, out.Upper, out.Answers = &l.Lost, &share, &l.Upper, l.Answers
	}
	return out
}

// lossFields are the fields of kv_compression that are about the loss.
var lossFields = []string{"max_loss", "measure_loss"}

// lossRequest is what an upload asks about the loss of its compression.
type lossRequest struct {
	bound   float64 // the ratio is chosen, if chooses
	chooses bool
	measure bool
}

func (l lossRequest) asked() bool { return l.chooses || l.measure }

// lossRequest reads the fields of kv_compression about the loss.
func lossRequestOf(f *fields) (l lossRequest) {
	o := f.object("kv_compression")
	if o == nil {
		return l
	}
	l.chooses, l.measure = o.has("max_loss"), o.boolean("measure_loss")
	l.bound = o.number("max_loss", 0, 0, 1)
	for _, other := range []string{"ratio", "budget_tokens", "budget_bytes", "decode"} {
		if l.chooses && o.has(other) {
			o.fail("max_loss", "cannot be combined with %s", other)
		}
	}
	if !l.chooses && l.measure && !o.has("ratio") && !o.has("budget_tokens") && !o.has("budget_bytes") {
		o.fail("measure_loss", "nothing to measure, expected a ratio, a budget or max_loss")
	}
	f.adopt(o)
	return l
}

// unchosenRatio stands for a ratio that has still to be chosen.
const unchosenRatio = 0.5

// lossMeasurement measures on a copy of a document's full cache, while the request that
// read it still holds the room for it.
type lossMeasurement struct {
	ask    lossRequest
	span   model.Span
	policy *lukv.Policy

	read chan struct{} // closed when whole is there

	mu    sync.Mutex
	whole *model.Session
	over  bool
	loss  model.Loss
	ratio float64 // chosen
	err   error

	copyErr error
}

// errNotMeasured says that a request ended before it measured anything.
var errNotMeasured = errors.New("the loss was not measured")

// chooseCompression measures what the compression of a document loses, or chooses its ratio by that, and
// returns the loss and the policy to use. The document is read with the full cache for
// this, once; watch, if not nil, gets the stream of that.
func (s *Server) chooseCompression(r *http.Request, v *served, q engine.Request, policy *lukv.Policy, ask lossRequest, watch func(*engine.Stream)) (model.Loss, *lukv.Policy, error) {
	w := &lossMeasurement{ask: ask, span: model.Span{From: q.Protected, To: q.Context}, policy: policy, read: make(chan struct{}), err: errNotMeasured}
	q.Policy, q.Protected, q.PromptOnly, q.ProbeLoss = nil, 0, false, true
	if policy.CacheType != "" {
		q.Policy = &lukv.Policy{CacheType: policy.CacheType}
	} else {
		q.Context = 0
	}
	q.Sampling = model.Sampling{MaxTokens: 1}
	q.Inspect = w.copy
	q.Mask = func(ctx context.Context, _ int, _ []int32) ([]uint64, error) {
		w.run(ctx)
		return nil, io.EOF
	}
	stream, err := s.submit(contextOf(r), v, q)
	if err != nil {
		err = asError(err, v.e.MaxTokens())
	} else {
		if watch != nil {
			watch(stream)
		}
		err = readAll(stream, v)
	}
	w.end()
	if err != nil {
		return model.Loss{}, nil, err
	}
	if err := v.e.Forget(s.salted(contextOf(r), q)); err != nil {
		s.o.Log.Warn("the full cache of a document is still there", "error", err)
	}
	switch {
	case errors.Is(w.err, errNotMeasured), errors.Is(w.err, kvcache.ErrFull):
		return model.Loss{}, nil, fmt.Errorf("measure the loss: %w", w.err)
	case w.err != nil: // the policy does not fit the model or the span
		return model.Loss{}, nil, invalid("kv_compression", "%v", w.err)
	}
	v.metrics.loss(w.loss)
	chosen := *policy
	if ask.chooses {
		chosen.Ratio = w.ratio
	}
	return w.loss, &chosen, nil
}

// copy takes a copy of the session that read the document.
func (w *lossMeasurement) copy(s *model.Session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer close(w.read)
	w.whole, w.copyErr = s.Fork()
}

// run measures, beside the computation of other requests.
func (w *lossMeasurement) run(ctx context.Context) {
	select { // the first mask is asked for while the prompt is being read
	case <-w.read:
	case <-ctx.Done():
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = w.copyErr; w.over || w.err != nil {
		return
	}
	turn, err := turns.Begin(ctx)
	if err != nil {
		w.err = err
		return
	}
	defer turn.End()
	ctx = turn.Use(ctx)
	if w.ask.chooses {
		w.loss, w.ratio, w.err = w.whole.CompressWithin(ctx, w.span, w.policy, w.ask.bound, model.LossOptions{})
		return
	}
	probe, err := w.whole.ProbeLoss(ctx, w.span, model.LossOptions{})
	if err == nil {
		once := *w.policy
		once.Decode = lukv.DecodeConfig{}
		if err = w.whole.Compress(ctx, w.span, &once); err == nil {
			w.loss, err = probe.Measure(ctx, w.whole)
		}
	}
	w.err = err
}

// end frees the copy. Nothing is measured afterwards.
func (w *lossMeasurement) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.whole != nil {
		w.whole.Close()
	}
}

// loss counts a loss that was measured, or could not be.
func (m *metrics) loss(l model.Loss) {
	if !l.Measured() {
		m.unmeasured.Add(1)
		return
	}
	m.lost.observeShare(l.Share())
}
