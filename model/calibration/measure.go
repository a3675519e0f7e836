package calibration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// Prompt returns the two parts of a prompt: the one that is measured, with the
// context, and the one after it. Special tokens are written as text.
type Prompt func(context, question, answerPrefix string) (head, tail chat.Prompt)

// Options say how importance is measured. The zero value measures 64 greedy
// tokens per answer.
type Options struct {
	// Prompt frames context and question; required. Package dialog provides some.
	Prompt Prompt

	// MaxSteps is the number of tokens generated per question, 64 if 0.
	MaxSteps int

	// Sampling chooses them; its MaxTokens is not used. Each question starts
	// from the same seed.
	Sampling model.Sampling

	// IncludeQuestion also counts the question's last row as a step. A question
	// whose answer ends at once is always measured that way, as there is
	// nothing else to measure.
	IncludeQuestion bool

	// Session configures the sessions; it must have no Compression.
	Session model.SessionOptions
}

// Pair is the measurement of one question. Its slices are valid only during
// the call that receives it.
type Pair struct {
	Index    int // counted from 0 over all questions of all texts
	Text     int // index into the texts
	Question int // index into the text's questions

	Tokens int // of the context
	Steps  int // decoding steps that counted

	// FromQuestion says that the question's last row was one of them.
	FromQuestion bool

	// Passes is the number of passes of question and answer over a cache in
	// a measurement of output errors; 0 otherwise.
	Passes int

	// Scores holds the scores that each metric gives the context's entries,
	// [metric][L][K][T], the same for all questions of a text. Layers with a
	// sliding window are nil; in a measurement of output errors Scores itself is
	// nil.
	Scores [][][][]float32

	measurement *model.Measurement
}

// Importance returns the pair's oracle importance [L][K][T] under a
// normalisation, in memory that later calls for this pair do not touch.
func (p *Pair) Importance(norm string) ([][][]float32, error) {
	return p.measurement.Importance(norm)
}

// Pairs returns the number of questions in texts.
func Pairs(texts []Text) int {
	n := 0
	for _, t := range texts {
		n += len(t.Questions)
	}
	return n
}

// Measure measures the pairs from number from on, in order, and passes each
// one to each. Every context is prefilled once with the full cache, observed
// by all metrics. An error from each ends the work and is returned.
func Measure(ctx context.Context, m *model.Model, texts []Text, metrics []lukv.Metric, o Options, from int, each func(*Pair) error) error {
	return eachText(ctx, m, texts, o, from, each, func(w *work) error { return w.run(metrics, max(0, from-w.first)) })
}

// eachText calls run, in order, for the texts that have pairs from number from on.
func eachText(ctx context.Context, m *model.Model, texts []Text, o Options, from int, each func(*Pair) error, run func(*work) error) error {
	if o.Prompt == nil {
		return errors.New("measure: the options have no prompt")
	}
	tok, err := m.Tokenizer()
	if err != nil {
		return fmt.Errorf("measure: %w", err)
	}
	first := 0 // number of the text's first pair
	for i := range texts {
		t := &texts[i]
		err := t.validate()
		if err == nil && first+len(t.Questions) > from {
			err = run(&work{ctx: ctx, m: m, tok: tok, o: o, text: t, index: i, first: first, each: each})
		}
		if err != nil {
			return fmt.Errorf("measure: text %d: %w", i+1, err)
		}
		first += len(t.Questions)
	}
	return nil
}

// work is the measurement of one text.
type work struct {
	ctx   context.Context
	m     *model.Model
	tok   *tokenizer.Tokenizer
	o     Options
	text  *Text
	index int
	first int
	each  func(*Pair) error
}

// run measures the questions from number from on.
func (w *work) run(metrics []lukv.Metric, from int) error {
	head, _ := w.o.Prompt(w.text.Context, w.text.Questions[0].Question, w.text.Questions[0].AnswerPrefix)
	ob, err := w.m.Observe(w.ctx, head.Encode(w.tok), w.o.Session, metrics...)
	if err != nil {
		return err
	}
	defer ob.Close()
	scores := make([][][][]float32, len(metrics))
	for i, metric := range metrics {
		if scores[i], err = w.scores(ob, metric); err != nil {
			return fmt.Errorf("metric %s: %w", lukv.MetricConfigOf(metric).Name, err)
		}
	}
	me, err := ob.Measure(w.ctx)
	if err != nil {
		return err
	}
	for q := from; q < len(w.text.Questions); q++ {
		steps, fromQuestion, err := w.question(me, w.text.Questions[q])
		if err != nil {
			return fmt.Errorf("question %d: %w", q+1, err)
		}
		if err := w.each(&Pair{
			Index: w.first + q, Text: w.index, Question: q, Tokens: ob.Tokens(), Steps: steps,
			FromQuestion: fromQuestion, Scores: scores, measurement: me,
		}); err != nil {
			return fmt.Errorf("question %d: %w", q+1, err)
		}
	}
	return nil
}

func (w *work) scores(ob *model.Observation, metric lukv.Metric) ([][][]float32, error) {
	c := w.m.Config()
	out := make([][][]float32, c.Layers)
	for at := range out {
		if !c.Ragged(at) {
			continue
		}
		s, err := ob.Scores(w.ctx, metric, at, 0)
		if err != nil {
			return nil, err
		}
		out[at] = s
	}
	return out, nil
}

// question answers one question. It returns the number of steps that counted
// and whether the question's last row was one.
func (w *work) question(me *model.Measurement, q Question) (int, bool, error) {
	_, tail := w.o.Prompt(w.text.Context, q.Question, q.AnswerPrefix)
	tokens := tail.Encode(w.tok)
	o := model.MeasureOptions{MaxTokens: w.o.MaxSteps, Sampling: w.o.Sampling, IncludeQuestion: w.o.IncludeQuestion}
	_, steps, err := me.Question(w.ctx, tokens, o, lukv.NormNone)
	if err == nil && steps == 0 {
		o.IncludeQuestion = true
		_, steps, err = me.Question(w.ctx, tokens, o, lukv.NormNone)
	}
	return steps, o.IncludeQuestion, err
}

// hash identifies everything that the measured importance and scores depend on
// besides the model and the metric: prompts, answers, precision, cache.
func hash(m *model.Model, texts []Text, o *Options) (string, error) {
	settings, err := json.Marshal(struct {
		Sampling        model.Sampling
		IncludeQuestion bool
		Precision       model.Precision
		CacheType       string
		MaxTokens       int
	}{o.Sampling, o.IncludeQuestion, m.Precision(), o.Session.CacheType.String(), o.Session.MaxTokens})
	if err != nil {
		return "", err
	}
	parts := []string{string(settings)}
	for _, t := range texts {
		for i, q := range t.Questions {
			head, tail := o.Prompt(t.Context, q.Question, q.AnswerPrefix)
			if i == 0 {
				parts = append(parts, head.Text)
			}
			parts = append(parts, tail.Text)
		}
	}
	return lukv.CalibrationHash(parts...), nil
}
