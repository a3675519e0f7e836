package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/model/sampling"
	"github.com/lukv/lukv/tokenizer"
)

// tokenizerPlain encodes a text without special tokens around it.
var tokenizerPlain = tokenizer.EncodeOptions{}

// LossProbe is what the full cache repeats of a span, to measure compressed caches of the
// same tokens against. It holds 4 bytes per token and no cache, does not change, and may
// be used by several goroutines.
type LossProbe struct {
	m        *Model
	tokens   []int32 // up to the end of the span
	span     Span
	limit    int // of positions
	frame    []int32
	passages []passage
	facts    []fact
}

// passage is a run of tokens that is begun again: those at positions from to to-1.
type passage struct {
	from, to int
	recalled []bool    // [to-from] by the full cache, and new at first reading
	full     []float64 // [to-from] ln p under the full cache where recalled
}

// fact is a run of recalled tokens, with the passages that have it.
type fact struct {
	from, to int
	in       []int
}

// ProbeLoss finds the facts of a span that the session holds whole: runs of tokens that
// surprised the model at first reading and that it repeats when their passage is begun
// again at the end of the span. First readings are those that the session kept
// (SessionOptions.ProbeLoss); otherwise the span is read once more, into a fork. The
// session stays as it is. Passages that do not fit MaxTokens are left out.
//
// The passages take about 330 rows (Sweep: 660) in passes of eight, each on a fork of its
// own. ErrNotObserved says that the span lacks entries or cannot be read once more.
func (s *Session) ProbeLoss(ctx context.Context, span Span, o LossOptions) (*LossProbe, error) {
	var p *LossProbe
	err := s.calling(ctx, func(ctx context.Context) (err error) {
		p, err = s.probeLoss(ctx, span, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("probe the loss of %v: %w", span, err)
	}
	return p, nil
}

// calling runs fn as a call on the session that Close cancels.
func (s *Session) calling(ctx context.Context, fn func(ctx context.Context) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := s.m.acquire(); err != nil {
		return err
	}
	defer s.m.release()
	if err := s.ready(); err != nil {
		return err
	}
	ctx, cancel := s.cancellable(ctx)
	defer cancel(nil)
	err := fn(ctx)
	if closed := s.closing(); closed != nil && errors.Is(err, context.Canceled) {
		return closed
	}
	return err
}

func (s *Session) probeLoss(ctx context.Context, span Span, o LossOptions) (*LossProbe, error) {
	o, err := o.withDefaults(s.m)
	if err != nil {
		return nil, err
	}
	if err := s.holdsWhole(span); err != nil {
		return nil, err
	}
	readings, err := s.readingsOf(ctx, span)
	if err != nil {
		return nil, err
	}
	p := newLossProbe(s, s.tokens[:span.To], span, o)
	if o.Sweep {
		p.take(passagesByPosition(span.To - span.From))
	} else {
		p.take(passagesBySurprise(readings, o))
	}
	answers := newRecall(p)
	if err := p.feed(ctx, s, answers.row); err != nil {
		return nil, err
	}
	p.settle(answers, func(t int) float64 { return readings[t-span.From] }, o)
	return p, nil
}

// holdsWhole returns an error unless the ragged layers hold a span whole.
func (s *Session) holdsWhole(span Span) error {
	switch {
	case span.From < 0 || span.To < span.From || span.To > s.pos:
		return fmt.Errorf("expected a span of the %d tokens that the session has", s.pos)
	case s.renumbered:
		return errors.New("the session's positions were renumbered")
	}
	return s.lacking(span)
}

// newLossProbe returns a probe without passages for a span of tokens.
func newLossProbe(s *Session, tokens []int32, span Span, o LossOptions) *LossProbe {
	return &LossProbe{m: s.m, tokens: slices.Clone(tokens), span: span, limit: s.opts.MaxTokens, frame: slices.Clone(o.Frame)}
}

// take adds the passages that fit the session.
func (p *LossProbe) take(ranges []passageRange) {
	for _, r := range ranges {
		n := r.to - r.from
		if p.span.To+len(p.frame)+n-1 > p.limit {
			continue
		}
		p.passages = append(p.passages, passage{from: p.span.From + r.from, to: p.span.From + r.to, recalled: make([]bool, n), full: make([]float64, n)})
	}
}

// tail returns the tokens that are fed to begin a passage again, without its last.
func (p *LossProbe) tail(c *passage) []int32 {
	return slices.Concat(p.frame, p.tokens[c.from:c.to-1])
}

// rows returns the number of tokens of all tails.
func (p *LossProbe) rows() int {
	n := 0
	for i := range p.passages {
		n += len(p.frame) + p.passages[i].to - p.passages[i].from - 1
	}
	return n
}

// counts reports whether the row of a tail counts, and the token of the passage that it
// predicts.
func (p *LossProbe) counts(c *passage, row int) (at int, ok bool) {
	at = row - len(p.frame) + 1
	return at, at >= lossRead && at < c.to-c.from
}

// lossBatch is the number of passages that share a pass over the weights.
const lossBatch = 8

// feed feeds every tail to a fork of s of its own at the end of the span and hands out the
// logits of the rows that count: those of passage i that predict its token at.
func (p *LossProbe) feed(ctx context.Context, s *Session, row func(i, at int, logits []float32)) error {
	for first := 0; first < len(p.passages); first += lossBatch {
		if err := p.feedSome(ctx, s, first, min(first+lossBatch, len(p.passages)), row); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (p *LossProbe) feedSome(ctx context.Context, s *Session, first, last int, row func(i, at int, logits []float32)) (err error) {
	var parts []Part
	defer func() {
		for _, part := range parts {
			err = errors.Join(err, part.Session.Close())
		}
	}()
	for i := first; i < last; i++ {
		f, err := s.probing(p.span.To, p.limit)
		if err != nil {
			return err
		}
		parts = append(parts, Part{Session: f})
		c := &p.passages[i]
		tail := p.tail(c)
		pre, err := f.StartPrefill(tail, func(n int, logits []float32) error {
			if at, ok := p.counts(c, n); ok {
				row(i, at, logits)
			}
			return nil
		})
		if err != nil {
			return err
		}
		parts[len(parts)-1].Prefill, parts[len(parts)-1].N = pre, len(tail)
	}
	return p.m.Pass(ctx, parts)
}

// probing returns a fork of the session, whose call this is, that ends at position end and
// whose callbacks and compression are gone.
func (s *Session) probing(end, limit int) (*Session, error) {
	f, err := s.fork(ForkMaxTokens(limit), ForkMaxCacheBytes(0))
	if err != nil {
		return nil, err
	}
	f.comp, f.opts.Compression = nil, nil
	f.opts.Progress, f.opts.Trace, f.opts.TraceEvicted = nil, nil, nil
	f.opts.Lookup, f.opts.ProbeLoss, f.readings = false, nil, nil
	if f.pending = nil; !f.renumbered {
		err = f.Truncate(end)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// recall is what a cache says in the rows of all passages that count.
type recall struct {
	p     *LossProbe
	right [][]bool    // [passages][to-from] the token is the most likely one
	logp  [][]float64 // its ln p
}

func newRecall(p *LossProbe) *recall {
	r := &recall{p: p, right: make([][]bool, len(p.passages)), logp: make([][]float64, len(p.passages))}
	for i, c := range p.passages {
		r.right[i], r.logp[i] = make([]bool, c.to-c.from), make([]float64, c.to-c.from)
	}
	return r
}

func (r *recall) row(i, at int, logits []float32) {
	t := r.p.tokens[r.p.passages[i].from+at]
	r.right[i][at], r.logp[i][at] = mostLikely(logits) == t, sampling.LogProb(logits, t)
}

// mostLikely returns the token with the largest logit, the lowest among equals.
func mostLikely(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// settle makes the facts of what the full cache says; reading returns ln p of the token at
// a position at first reading, where a row that counts predicts it.
func (p *LossProbe) settle(full *recall, reading func(t int) float64, o LossOptions) {
	index := map[passageRange]int{}
	for i := range p.passages {
		c := &p.passages[i]
		for at := range c.recalled {
			if full.right[i][at] && isNew(reading(c.from+at), o) {
				c.recalled[at], c.full[at] = true, full.logp[i][at]
			}
		}
		for from := 0; from < len(c.recalled); from++ {
			to := from
			for to < len(c.recalled) && c.recalled[to] {
				to++
			}
			if to == from {
				continue
			}
			r := passageRange{c.from + from, c.from + to}
			k, known := index[r]
			if !known {
				k = len(p.facts)
				index[r], p.facts = k, append(p.facts, fact{from: r.from, to: r.to})
			}
			p.facts[k].in = append(p.facts[k].in, i)
			from = to
		}
	}
	slices.SortFunc(p.facts, func(a, b fact) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return a.to - b.to
	})
}

// Measure measures the loss of a session that read the tokens up to the end of the probe's
// span and was then compressed. The session stays as it is. A session whose positions were
// renumbered must end with the span.
func (p *LossProbe) Measure(ctx context.Context, c *Session) (Loss, error) {
	var l Loss
	err := c.calling(ctx, func(ctx context.Context) (err error) {
		l, err = p.measure(ctx, c)
		return err
	})
	if err != nil {
		return Loss{}, fmt.Errorf("measure the loss of %v: %w", p.span, err)
	}
	return l, nil
}

func (p *LossProbe) measure(ctx context.Context, c *Session) (Loss, error) {
	switch {
	case c.m != p.m:
		return Loss{}, errors.New("the session belongs to another model")
	case len(c.tokens) < p.span.To || !slices.Equal(c.tokens[:p.span.To], p.tokens):
		return Loss{}, errors.New("the session holds other tokens")
	case c.renumbered && len(c.tokens) > p.span.To:
		return Loss{}, errors.New("the session's positions were renumbered")
	}
	answers := newRecall(p)
	if err := p.feed(ctx, c, answers.row); err != nil {
		return Loss{}, err
	}
	l := p.loss(answers)
	l.expect(c.Policy())
	return l, nil
}

// loss counts the facts that a cache with these answers lost.
func (p *LossProbe) loss(answers *recall) Loss {
	l := Loss{Facts: len(p.facts), Rows: p.rows(), Ranges: make([]LostRange, 0, len(p.facts))}
	for _, f := range p.facts {
		r := LostRange{From: f.from, To: f.to}
		for _, i := range f.in {
			first := p.passages[i].from
			r.Lost = r.Lost || slices.Contains(answers.right[i][f.from-first:f.to-first], false)
		}
		if r.Lost {
			l.Lost++
		}
		l.Ranges = append(l.Ranges, r)
	}
	rows := 0
	for i, c := range p.passages {
		for at, yes := range c.recalled {
			if yes {
				rows++
				l.Nats += c.full[at] - answers.logp[i][at]
			}
		}
	}
	if rows > 0 {
		l.Nats /= float64(rows)
	}
	l.Upper = wilson(l.Lost, l.Facts)
	return l
}

// noReading is the first reading of a token of which none was kept.
var noReading = math.NaN()
