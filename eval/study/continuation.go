package study

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/sampling"
)

// ContinuationOptions say what [Continuation] measures.
type ContinuationOptions struct {
	Texts   [][]int32 // tokens, at least Prefix + Tokens of each
	Start   []int32   // tokens before every prefix, such as a beginning-of-text token
	Prefix  int       // tokens that are compressed
	Tokens  int       // tokens after them, that are predicted
	Windows int       // maximum number of such pieces of a text, from its beginning
	Session model.SessionOptions

	Shapes []Shape
	Ratios []float64

	State    *State                      // may be nil
	Progress func(from, done, total int) // may be nil; from: done by an earlier run
}

// Shape is a policy without a ratio: a line of the figure.
type Shape struct {
	Name   string
	Policy lukv.Policy
}

// continuationBlock is the number of tokens that count as one sample, as
// neighbours are alike.
const continuationBlock = 32

// Continuation measures how much harder the rest of a text becomes to predict once
// the cache of the text before it is compressed: the mean of -ln p over tokens,
// less that with the full cache. The rest itself is not compressed.
func Continuation(ctx context.Context, m *model.Model, o ContinuationOptions) ([]report.Figure, error) {
	metrics, err := shapeMetrics(o.Shapes)
	if err != nil {
		return nil, err
	}
	var pieces [][]int32
	for i, text := range o.Texts {
		for w := range o.Windows {
			if from := w * (o.Prefix + o.Tokens); from+o.Prefix+o.Tokens <= len(text) {
				pieces = append(pieces, text[from:from+o.Prefix+o.Tokens])
			} else if w == 0 {
				return nil, fmt.Errorf("text %d has %d tokens, expected at least %d", i+1, len(text), o.Prefix+o.Tokens)
			}
		}
	}
	full := make([]float64, 0, len(pieces)*o.Tokens)
	extra := make([][][]float64, len(o.Shapes)) // [shape][ratio][token]
	for i := range extra {
		extra[i] = make([][]float64, len(o.Ratios))
	}
	inputs := []any{o.Texts, o.Start, o.Prefix, o.Tokens, o.Windows, o.Ratios}
	for i := range o.Shapes {
		in, err := inputOf(&o.Shapes[i].Policy)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, in)
	}
	if err := o.State.begin(inputs...); err != nil {
		return nil, err
	}
	c := continuation{ContinuationOptions: &o, m: m, total: len(pieces) * (1 + len(o.Shapes)*len(o.Ratios))}
	for i, piece := range pieces {
		p := &continuedPiece{number: i, head: slices.Concat(o.Start, piece[:o.Prefix]), rest: piece[o.Prefix:]}
		if err := c.recall(p); err != nil {
			return nil, err
		}
		for _, metric := range metrics { // each observes a prefill of its own
			if err := c.measure(ctx, p, metric); err != nil {
				return nil, err
			}
		}
		full = append(full, p.full...)
		for s := range extra {
			for k := range extra[s] {
				for t, loss := range p.losses[s][k] {
					extra[s][k] = append(extra[s][k], loss-p.full[t])
				}
			}
		}
	}
	return []report.Figure{continuationFigure(&o, full, extra)}, nil
}

// continuation is a measurement in progress.
type continuation struct {
	*ContinuationOptions
	m                 *model.Model
	from, done, total int // number of predictions of the rest of a piece
}

// continuedPiece is a piece of text and the losses of its rest, -ln p for every token;
// nil if not known yet.
type continuedPiece struct {
	number     int
	head, rest []int32
	full       []float64     // with the full cache
	losses     [][][]float64 // [shape][ratio]
}

// part names the losses of a shape at a ratio, or those of the full cache if shape is
// negative.
func (p *continuedPiece) part(shape, ratio int) string {
	if shape < 0 {
		return fmt.Sprintf("piece %d, full", p.number)
	}
	return fmt.Sprintf("piece %d, shape %d, ratio %d", p.number, shape, ratio)
}

// recall takes from the state what an earlier run measured of a piece.
func (c *continuation) recall(p *continuedPiece) error {
	take := func(shape, ratio int, loss *[]float64) error {
		part := p.part(shape, ratio)
		have, err := c.State.take(part, loss)
		if have && len(*loss) != len(p.rest) {
			err = fmt.Errorf("unfinished work: %s: %d values, expected %d (remove it to begin anew)", part, len(*loss), len(p.rest))
		}
		if have {
			c.from, c.done = c.from+1, c.done+1
		}
		return err
	}
	if err := take(-1, 0, &p.full); err != nil {
		return err
	}
	p.losses = make([][][]float64, len(c.Shapes))
	for i := range p.losses {
		p.losses[i] = make([][]float64, len(c.Ratios))
		for k := range p.losses[i] {
			if err := take(i, k, &p.losses[i][k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure measures what a piece still lacks for the shapes of one metric.
func (c *continuation) measure(ctx context.Context, p *continuedPiece, metric lukv.Metric) error {
	var shapes []int
	for i, s := range c.Shapes {
		if lukv.MetricConfigOf(metric).String() == metricOf(s.Policy).String() &&
			slices.ContainsFunc(p.losses[i], func(loss []float64) bool { return loss == nil }) {
			shapes = append(shapes, i)
		}
	}
	if len(shapes) == 0 && p.full != nil {
		return nil
	}
	c.progress()
	ob, err := c.m.Observe(ctx, p.head, c.Session, metric)
	if err != nil {
		return err
	}
	defer ob.Close()
	keep := func(part string, loss []float64) error {
		c.done++
		return c.State.put(part, loss)
	}
	if p.full == nil {
		if p.full, err = predicted(ctx, ob.Session(), p.rest); err != nil {
			return err
		}
		if err := keep(p.part(-1, 0), p.full); err != nil {
			return err
		}
	}
	for _, i := range shapes {
		for k, ratio := range c.Ratios {
			if p.losses[i][k] != nil {
				continue
			}
			c.progress()
			if p.losses[i][k], err = compressed(ctx, ob, c.Shapes[i].Policy, ratio, p.rest); err != nil {
				return fmt.Errorf("%s, %g removed: %w", c.Shapes[i].Name, ratio, err)
			}
			if err := keep(p.part(i, k), p.losses[i][k]); err != nil {
				return err
			}
		}
	}
	return c.State.save()
}

func (c *continuation) progress() {
	if c.Progress != nil {
		c.Progress(c.from, c.done, c.total)
	}
}

// metricOf is a policy's metric with all its parameters.
func metricOf(p lukv.Policy) lukv.MetricConfig {
	if metric, err := lukv.NewMetric(p.Metric); err == nil {
		return lukv.MetricConfigOf(metric)
	}
	return p.Metric
}

// shapeMetrics returns the metrics of policies, each once.
func shapeMetrics(shapes []Shape) ([]lukv.Metric, error) {
	var out []lukv.Metric
	for _, s := range shapes {
		metric, err := lukv.NewMetric(s.Policy.Metric)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(out, func(m lukv.Metric) bool {
			return lukv.MetricConfigOf(m).String() == lukv.MetricConfigOf(metric).String()
		}) {
			out = append(out, metric)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no policies")
	}
	return out, nil
}

// compressed predicts the rest of a text after a compressed context.
func compressed(ctx context.Context, ob *model.Observation, policy lukv.Policy, ratio float64, rest []int32) ([]float64, error) {
	policy.Ratio = ratio
	s, err := ob.Compress(ctx, &policy)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return predicted(ctx, s, rest)
}

// predicted returns -ln p of the tokens that follow the contents of a session. The
// first needs the logits of the context, which a compressed session has like any
// other.
func predicted(ctx context.Context, s *model.Session, rest []int32) ([]float64, error) {
	f, err := s.Fork()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := []float64{-sampling.LogProb(f.Logits(), rest[0])}
	err = f.PrefillEach(ctx, rest[:len(rest)-1], func(i int, logits []float32) error {
		out = append(out, -sampling.LogProb(logits, rest[i+1]))
		return nil
	})
	return out, err
}

// continuationFigure plots the loss against the ratio.
func continuationFigure(o *ContinuationOptions, full []float64, extra [][][]float64) report.Figure {
	n := len(full)
	mean, _ := blockMean(full)
	f := report.Figure{ID: "continuation", Title: "Loss of the text after a compressed context", X: "fraction removed", Y: "more nats per token than the full cache",
		Subtitle: fmt.Sprintf("%d tokens in %d pieces after contexts of %d; the full cache: %.4f nats, perplexity %.2f", n, n/o.Tokens, o.Prefix, mean, math.Exp(mean))}
	note := "Mean of -ln p, paired token by token. Bounds are 95 % from means of " + strconv.Itoa(continuationBlock) + " tokens; up to four lines have them as bands, the data have all."
	for i, s := range o.Shapes {
		l := report.Line{Name: s.Name}
		for k, ratio := range o.Ratios {
			mean, half := blockMean(extra[i][k])
			l.X, l.Y, l.Low, l.High = append(l.X, ratio), append(l.Y, mean), append(l.Low, mean-half), append(l.High, mean+half)
		}
		f.Lines = append(f.Lines, l)
	}
	f.Note = note
	return f
}

// blockMean is a mean with half the width of its 95 % interval, from the spread of
// block means; there is no interval with fewer than two blocks.
func blockMean(x []float64) (mean, half float64) {
	var blocks []float64
	for b := range slices.Chunk(x, continuationBlock) {
		sum := 0.0
		for _, v := range b {
			sum += v
		}
		mean += sum / float64(len(x))
		if len(b) == continuationBlock {
			blocks = append(blocks, sum/continuationBlock)
		}
	}
	if len(blocks) < 2 {
		return mean, 0
	}
	center, spread := 0.0, 0.0
	for _, b := range blocks {
		center += b / float64(len(blocks))
	}
	for _, b := range blocks {
		spread += (b - center) * (b - center)
	}
	return mean, 1.96 * math.Sqrt(spread/float64(len(blocks)-1)/float64(len(blocks)))
}
