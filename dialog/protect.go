package dialog

import (
	"context"
	"errors"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// LeastFront is from how many tokens on what a template writes before a context by itself,
// such as a system prompt of its own, stays uncompressed. Less, such as the header of a
// message, is the beginning of the context, as in published evaluations.
const LeastFront = 16

// Protected returns how many of the tokens of a context stay uncompressed when a policy
// compresses it: the prefix that they share with front, the tokens of what comes before
// its text, encoded on its own. It returns 0 if the policy needs all of them because it
// compresses while decoding, renumbers positions, or looks at the queries of everything.
func Protected(m *model.Model, p *lukv.Policy, front, tokens []int32) int {
	n := common(front, tokens)
	if p == nil || n == len(tokens) {
		return 0
	}
	_, err := m.CacheEstimate(model.SessionOptions{Compression: p}, model.Lengths{Before: n, Context: len(tokens) - n})
	if err != nil || p.Decode.Enabled() {
		return 0
	}
	return n
}

// ReadContext returns a new session that has read a context. The policy of o
// compresses all of it except the first protected tokens. The caller closes it.
func ReadContext(ctx context.Context, m *model.Model, o model.SessionOptions, tokens []int32, protected int) (*model.Session, error) {
	policy := o.Compression
	if protected > 0 {
		o = o.WithoutCompression()
	}
	s, err := m.NewSession(o)
	if err != nil {
		return nil, err
	}
	if err = s.Prefill(ctx, tokens[:protected]); err == nil {
		if protected > 0 && policy != nil {
			err = s.PrefillCompressed(ctx, tokens[protected:], policy)
		} else {
			err = s.Prefill(ctx, tokens[protected:])
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// ReadContextWithin is ReadContext for a ratio that is chosen: the largest that loses at
// most the share maxLoss of the context's facts, see [model.Session.CompressWithin]. The
// ratio and the budgets of the policy of o are ignored. The whole context is in the cache
// until the choice is made.
func ReadContextWithin(ctx context.Context, m *model.Model, o model.SessionOptions, tokens []int32, protected int, maxLoss float64) (*model.Session, model.Loss, error) {
	policy := o.Compression
	o = o.WithoutCompression()
	o.ProbeLoss = new(model.LossOptions)
	s, err := m.NewSession(o)
	if err != nil {
		return nil, model.Loss{}, err
	}
	var loss model.Loss
	if err = s.Prefill(ctx, tokens); err == nil {
		loss, _, err = s.CompressWithin(ctx, model.Span{From: protected, To: len(tokens)}, policy, maxLoss, model.LossOptions{})
	}
	if err != nil {
		s.Close()
		return nil, model.Loss{}, err
	}
	return s, loss, nil
}

// ReadContextExact is ReadContext for answers that are the whole cache's to the bit: the
// session keeps the whole context, and a copy that the policy of o compresses drafts, see
// [model.Session.DraftCompressed] for drafts. A policy that cannot do so is an error before
// anything is read.
func ReadContextExact(ctx context.Context, m *model.Model, o model.SessionOptions, tokens []int32, protected, drafts int) (*model.Session, error) {
	policy := o.Compression
	s, err := m.NewSession(o.WithoutCompression())
	if err != nil {
		return nil, err
	}
	if err = s.DraftCompressed(ctx, model.Span{}, policy, drafts); err == nil {
		if err = s.Prefill(ctx, tokens); err == nil {
			err = s.DraftCompressed(ctx, model.Span{From: protected, To: len(tokens)}, policy, drafts)
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Loss measures what a session with model.SessionOptions.ProbeLoss has lost of the context
// that it has read, except the first protected tokens. Where the policy left the context
// whole, that is nothing. Nothing is measured where decoding compresses what was read.
func Loss(ctx context.Context, s *model.Session, protected int) (model.Loss, error) {
	p := s.LossProbe()
	if p == nil {
		var err error
		p, err = s.ProbeLoss(ctx, model.Span{From: protected, To: s.Len()}, model.LossOptions{Sweep: true})
		if errors.Is(err, model.ErrNotObserved) {
			return model.Loss{}, nil
		}
		if err != nil {
			return model.Loss{}, err
		}
	}
	return p.Measure(ctx, s)
}

// common returns the length of the longest common prefix of a and b.
func common[T comparable](a, b []T) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
