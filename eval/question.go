package eval

import (
	"context"
	"math"
	"time"

	"github.com/lukv/lukv/model"
)

// Questions are decoded together, so that one pass over the weights gives a token of
// each. They are collected until there are maxQuestions or their caches take
// maxQuestionBytes or, where memory is limited, as much as their context's full cache.
const (
	maxQuestions     = 32
	maxQuestionBytes = 1 << 30
)

// question is a question waiting for its answer.
type question struct {
	answer  Answer
	session *model.Session // a fork of the method's session, ending with the question; nil: answered
	ids     []int32        // the answer so far; the last one has not been fed
	limit   int            // of ids
}

// ask puts a question to a fork of s, which holds the compressed context; s is
// nil if the answer is already known. Once enough questions are waiting, it
// answers them.
func (r *runner) ask(ctx context.Context, s *model.Session, a Answer) error {
	q := &question{answer: a, limit: r.answerTokens(a.Item)}
	if s != nil {
		start := time.Now()
		err := r.start(ctx, s, q)
		if doesNotFit(err) && len(r.asked) > 0 { // it may fit once these are gone
			if err := r.answerAll(ctx); err != nil {
				return err
			}
			start = time.Now()
			err = r.start(ctx, s, q)
		}
		if doesNotFit(err) {
			q.fail(err)
		} else if err != nil {
			q.close()
			return err
		}
		took := time.Since(start)
		q.answer.Time += took
		q.answer.FirstTokenMS = q.answer.PrefillMS + q.answer.EvictMS + milliseconds(took)
	}
	r.asked = append(r.asked, q)
	var bytes int64
	for _, q := range r.asked {
		bytes += q.answer.CacheBytes
	}
	most := int64(maxQuestionBytes)
	if r.o.Memory > 0 {
		most = min(most, a.FullBytes)
	}
	if len(r.asked) < maxQuestions && bytes < most {
		return nil
	}
	return r.answerAll(ctx)
}

// start prefills a question and chooses the first token of its answer.
func (r *runner) start(ctx context.Context, s *model.Session, q *question) (err error) {
	q.close()
	if q.session, err = s.Fork(); err != nil {
		return err
	}
	_, tail := r.parts(q.answer.Item)
	if err := q.session.Prefill(ctx, tail); err != nil {
		return err
	}
	return r.choose(q)
}

// choose appends the most likely next token, or ends the answer.
func (r *runner) choose(q *question) error {
	if q.session.Len() >= q.session.MaxTokens() {
		q.end(model.FinishLength)
		return nil
	}
	id, err := r.sampler.Next(q.session.Logits(), nil)
	if err != nil {
		return err
	}
	if r.m.Ends(id, &model.Sampling{}) {
		q.end(model.FinishStop)
		return nil
	}
	q.ids = append(q.ids, id)
	if len(q.ids) == q.limit || q.session.Len()+1 >= q.session.MaxTokens() {
		q.end(model.FinishLength)
	}
	return nil
}

func (q *question) end(why model.FinishReason) {
	q.answer.Stop = string(why)
	q.close()
}

// fail records that a question did not fit.
func (q *question) fail(err error) {
	q.answer.Error = err.Error()
	q.close()
}

func (q *question) close() {
	if q.session != nil {
		q.session.Close()
		q.session = nil
	}
}

// forget closes the waiting questions.
func (r *runner) forget() {
	for _, q := range r.asked {
		q.close()
	}
}

// answerAll decodes the answers to all waiting questions and hands them out.
func (r *runner) answerAll(ctx context.Context) error {
	for {
		var open []*question
		for _, q := range r.asked {
			if q.session != nil {
				open = append(open, q)
			}
		}
		if len(open) == 0 {
			break
		}
		if err := r.step(ctx, open); err != nil {
			return err
		}
	}
	asked := r.asked
	r.asked = nil
	for _, q := range asked {
		if err := r.give(r.scored(q)); err != nil {
			return err
		}
	}
	return nil
}

// step extends the answers to some questions by a token.
func (r *runner) step(ctx context.Context, open []*question) error {
	start := time.Now()
	sessions, tokens := make([]*model.Session, len(open)), make([]int32, len(open))
	for i, q := range open {
		sessions[i], tokens[i] = q.session, q.ids[len(q.ids)-1]
	}
	switch err := r.m.Step(ctx, sessions, tokens); {
	case err == nil:
	case !doesNotFit(err):
		return err
	case len(open) == 1:
		open[0].fail(err)
		return nil
	default: // one of them does not fit, or all of them together do not
		for _, q := range open {
			if err := r.step(ctx, []*question{q}); err != nil {
				return err
			}
		}
		return nil
	}
	for _, q := range open {
		if err := r.choose(q); err != nil {
			return err
		}
	}
	took := time.Since(start) / time.Duration(len(open))
	for _, q := range open {
		q.answer.Time += took
		q.answer.DecodeMS += milliseconds(took)
	}
	return nil
}

// scored is the answer to a question.
func (r *runner) scored(q *question) Answer {
	a := q.answer
	a.DecodeMS = math.Round(a.DecodeMS*1000) / 1000
	if a.Error != "" {
		return a
	}
	a.Prediction, a.NewTokens = r.tok.Decode(q.ids, true), len(q.ids)
	var text string
	a.Score, text = r.o.Scoring.Score(r.items[a.Item].reference(), a.Prediction)
	a.Empty = text == ""
	return a
}

// milliseconds is a duration in milliseconds, to the microsecond.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
