package calibration

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// mapAnswerTokens bounds an answer that is judged for a loss map.
const mapAnswerTokens = 32

// mapRatios are the cuts of a loss map, each with uniform budgets and with the profile's.
var mapRatios = []float64{0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95}

// ErrNoLossMap reports that a loss map could not be measured on the texts: they have too
// few facts that the model can repeat, or too few questions that it answers right.
var ErrNoLossMap = errors.New("loss map not measured")

// LossMap measures what a share of facts lost means for answers (spec 10): each text is
// read with the full cache and cut by the profile's metric at seven ratios, with uniform
// budgets and with the profile's; every cut is asked for the facts and for the greedy
// answers to those questions that name their Answers and that the full cache gets right.
// Texts with fewer than 8 facts do not count. progress, if not nil, is told the number of
// cuts done.
func LossMap(ctx context.Context, m *model.Model, texts []Text, p *lukv.Profile, o Options, progress func(done, total int)) (*lukv.LossMap, error) {
	cuts := mapCuts(p)
	var points []lukv.LossPoint
	err := eachText(ctx, m, texts, o, 0, nil, func(w *work) error {
		done := w.index * len(cuts)
		return w.mapLoss(cuts, func(point lukv.LossPoint) {
			points = append(points, point)
			if done++; progress != nil {
				progress(done, len(texts)*len(cuts))
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("loss map: %w", err)
	}
	out, err := lukv.NewLossMap(points)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLossMap, err)
	}
	return out, nil
}

// mapCuts returns the policies that a loss map is measured with.
func mapCuts(p *lukv.Profile) []lukv.Policy {
	var out []lukv.Policy
	for _, allocator := range []string{"uniform", "lukv"} {
		for _, ratio := range mapRatios {
			c := lukv.Policy{Metric: p.Identity.Metric, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: ratio, Profile: p}
			protection := p.Identity.Protection
			c.Protection = &protection
			out = append(out, c)
		}
	}
	return out
}

// mapLoss measures what the cuts of a text lose, if it has enough facts.
func (w *work) mapLoss(cuts []lukv.Policy, each func(lukv.LossPoint)) error {
	o := w.o.Session
	o.Compression, o.ProbeLoss = nil, new(model.LossOptions)
	s, err := w.m.NewSession(o)
	if err != nil {
		return err
	}
	defer s.Close()
	head, _ := w.o.Prompt(w.text.Context, w.text.Questions[0].Question, w.text.Questions[0].AnswerPrefix)
	tokens := head.Encode(w.tok)
	if err := s.Prefill(w.ctx, tokens); err != nil {
		return err
	}
	span := model.Span{To: len(tokens)}
	probe, err := s.ProbeLoss(w.ctx, span, model.LossOptions{})
	if err != nil {
		return err
	}
	asked, err := w.right(s, w.text.Questions)
	if err != nil || len(asked) == 0 {
		return err
	}
	for i := range cuts {
		point, measured, err := w.mapCut(s, span, probe, &cuts[i], asked)
		if err != nil || !measured {
			return err
		}
		each(point)
	}
	return nil
}

// mapCut measures one cut, on a fork.
func (w *work) mapCut(s *model.Session, span model.Span, probe *model.LossProbe, cut *lukv.Policy, asked []Question) (point lukv.LossPoint, measured bool, err error) {
	f, err := s.Fork()
	if err != nil {
		return point, false, err
	}
	defer f.Close()
	if err := f.Compress(w.ctx, span, cut); err != nil {
		return point, false, err
	}
	loss, err := probe.Measure(w.ctx, f)
	if err != nil || !loss.Measured() {
		return point, false, err
	}
	still, err := w.right(f, asked)
	return lukv.LossPoint{Facts: loss.Share(), Answers: len(asked), Lost: len(asked) - len(still)}, true, err
}

// right returns the questions with known answers that a session answers right.
func (w *work) right(s *model.Session, questions []Question) ([]Question, error) {
	var out []Question
	for _, q := range questions {
		if len(q.Answers) == 0 {
			continue
		}
		ok, err := w.answers(s, q)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, q)
		}
	}
	return out, nil
}

// answers reports whether a fork of the session answers a question right.
func (w *work) answers(s *model.Session, q Question) (bool, error) {
	f, err := s.Fork()
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, tail := w.o.Prompt(w.text.Context, q.Question, q.AnswerPrefix)
	if err := f.Prefill(w.ctx, tail.Encode(w.tok)); err != nil {
		return false, err
	}
	var ids []int32
	for t, err := range f.Generate(w.ctx, model.Sampling{MaxTokens: mapAnswerTokens}) {
		if err != nil {
			return false, err
		}
		ids = append(ids, t.ID)
		if q.answeredBy(w.tok, ids) {
			return true, nil
		}
	}
	return false, nil
}

// answeredBy reports whether an answer has all that a right one says, without regard to
// case.
func (q *Question) answeredBy(tok *tokenizer.Tokenizer, ids []int32) bool {
	text := strings.ToLower(tok.Decode(ids, true))
	for _, a := range q.Answers {
		if !strings.Contains(text, strings.ToLower(a)) {
			return false
		}
	}
	return true
}
