package model

import (
	"context"
	"errors"
	"fmt"

	"github.com/lukv/lukv/lukv"
)

// CompressWithin compresses a span at the largest of the ratios o.Ratios that loses at most
// the share maxLoss (0 to 1) of its facts, found by bisection: loss need not grow with the
// ratio, so a larger one may pass, too. It returns the loss and the ratio; 0 means that the
// span stays whole, because every ratio tried lost more or because the loss could not be
// measured (Loss.Measured). The policy's own ratio and budgets are ignored. The session is
// bit-identical to one after [Session.Compress] with that ratio.
//
// The session holds the span whole. Each of about four ratios is tried on a fork, whose
// survivors take memory beside the whole span until it has been measured. See
// [Session.ProbeLoss] and [Session.Compress] for errors.
func (s *Session) CompressWithin(ctx context.Context, span Span, policy *lukv.Policy, maxLoss float64, o LossOptions) (Loss, float64, error) {
	var l Loss
	var ratio float64
	err := s.calling(ctx, func(ctx context.Context) (err error) {
		l, ratio, err = s.compressWithin(ctx, span, policy, maxLoss, o)
		return err
	})
	if err != nil {
		return Loss{}, 0, fmt.Errorf("compress %v within a loss of %g: %w", span, maxLoss, err)
	}
	return l, ratio, nil
}

func (s *Session) compressWithin(ctx context.Context, span Span, policy *lukv.Policy, maxLoss float64, o LossOptions) (Loss, float64, error) {
	if !(maxLoss >= 0 && maxLoss <= 1) {
		return Loss{}, 0, fmt.Errorf("found a bound of %g, expected 0 to 1", maxLoss)
	}
	if policy == nil {
		return Loss{}, 0, errors.New("found no policy")
	}
	o, err := o.withDefaults(s.m)
	if err != nil {
		return Loss{}, 0, err
	}
	if _, err := s.spanCompression(withRatio(policy, o.Ratios[0])); err != nil { // also where nothing can be measured
		return Loss{}, 0, err
	}
	p, err := s.probeLoss(ctx, span, o)
	if err != nil {
		return Loss{}, 0, err
	}
	best := &lossCut{loss: p.lossless()}
	defer func() { best.release() }()
	if !best.loss.Measured() {
		return best.loss, 0, nil
	}
	var tried []LossTried
	for lo, hi := -1, len(o.Ratios); hi-lo > 1; {
		mid := lo + (hi-lo)/2
		c, err := s.tryRatio(ctx, span, policy, o.Ratios[mid], p)
		if err != nil {
			return Loss{}, 0, fmt.Errorf("ratio %g: %w", o.Ratios[mid], err)
		}
		tried = append(tried, LossTried{c.ratio, c.loss.Lost})
		if !c.within(maxLoss, o) {
			hi = mid
			c.release()
			continue
		}
		best.release()
		lo, best = mid, c
	}
	best.loss.Tried = tried
	return best.loss, best.ratio, best.apply(s, span)
}

// lossless returns the loss of the full cache.
func (p *LossProbe) lossless() Loss {
	l := Loss{Facts: len(p.facts), Rows: p.rows(), Upper: wilson(0, len(p.facts))}
	for _, f := range p.facts {
		l.Ranges = append(l.Ranges, LostRange{From: f.from, To: f.to})
	}
	return l
}

// lossCut is a cut of a span that was measured; without a compression it is none.
type lossCut struct {
	ratio float64
	loss  Loss
	comp  *compression
	kept  [][][]int32
	trace *tracer
	stats SessionStats
	notes []string
}

func (c *lossCut) release() { c.trace.release() }

func (c *lossCut) within(maxLoss float64, o LossOptions) bool {
	if o.Confident {
		return c.loss.Upper <= maxLoss
	}
	return c.loss.Share() <= maxLoss
}

// tryRatio cuts a fork of the session, whose call this is, at a ratio and measures it.
func (s *Session) tryRatio(ctx context.Context, span Span, policy *lukv.Policy, ratio float64, p *LossProbe) (*lossCut, error) {
	comp, err := s.spanCompression(withRatio(policy, ratio))
	if err != nil {
		return nil, err
	}
	f, err := s.fork(ForkMaxCacheBytes(0))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c := &lossCut{ratio: ratio, comp: comp}
	if comp.touches(span.From, span.To-span.From) {
		if c.kept, c.trace, err = f.choose(ctx, span, comp); err == nil {
			err = f.keepOf(span, c.kept)
		}
	}
	if err == nil {
		c.loss, err = p.measure(ctx, f)
		c.loss.expect(policy)
	}
	if err != nil {
		c.release()
		return nil, err
	}
	c.stats, c.notes = f.stats, f.notes
	return c, nil
}

// withRatio returns a policy with another budget.
func withRatio(policy *lukv.Policy, ratio float64) *lukv.Policy {
	at := *policy
	at.Ratio, at.BudgetTokens, at.BudgetBytes = ratio, 0, 0
	return &at
}

// apply makes the cut in the session that it was chosen for.
func (c *lossCut) apply(s *Session, span Span) error {
	if c.kept == nil {
		return nil
	}
	if err := s.keepOf(span, c.kept); err != nil {
		return err
	}
	s.stats.ScoreTime, s.stats.EvictTime, s.stats.ContextTokens = c.stats.ScoreTime, c.stats.EvictTime, c.stats.ContextTokens
	s.notes = c.notes
	s.compressedBy(c.comp)
	c.trace.report(s)
	return nil
}
