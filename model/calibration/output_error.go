package calibration

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// measureOutputErrors measures the pairs that b lacks, prefilling each text once
// with the full cache and measuring several pairs of a text at the same time, and
// adds them to b in order. each is called after every pair added; an error from it
// ends the work and is returned.
//
// Besides a prefill of each text and, for each question, an answer and a pass
// over it, the effects of layers take one such pass for each of the builder's
// states. A pass runs question and answer over the cached context.
func measureOutputErrors(ctx context.Context, m *model.Model, texts []Text, b *lukv.OutputErrorBuilder, d *lukv.CalibrationData, o Options, each func(*Pair) error) error {
	metrics := make([]lukv.Metric, len(b.Metrics()))
	for i, metric := range b.Metrics() {
		metrics[i] = lukv.WithCalibration(metric, d)
	}
	return eachText(ctx, m, texts, o, b.Pairs(), each, func(w *work) error {
		e := errorWork{work: *w, b: b, metrics: metrics}
		return e.run()
	})
}

// errorWork is the measurement of the output errors of one text.
type errorWork struct {
	work
	b       *lukv.OutputErrorBuilder
	metrics []lukv.Metric // those of b, with what was measured for them

	ob     *model.Observation
	counts []int
	orders [][][][]int32 // [L][K][metric] of the context's entries; nil: layer takes no part
	kept   [][][][]int32 // [state][L][K] slots that stay, nil: the whole layer
}

// run measures the questions that the builder lacks.
func (w *errorWork) run() error {
	question := &w.text.Questions[0]
	head, _ := w.o.Prompt(w.text.Context, question.Question, question.AnswerPrefix)
	var err error
	if w.ob, err = w.m.Observe(w.ctx, head.Encode(w.tok), w.o.Session, w.metrics...); err != nil {
		return err
	}
	defer w.ob.Close()
	if err := w.rank(); err != nil {
		return err
	}
	type result struct {
		pair   *Pair
		errors *lukv.AnswerErrors
		err    error
	}
	from := max(0, w.b.Pairs()-w.first)
	results := make([]chan result, len(w.text.Questions)-from)
	for i := range results {
		results[i] = make(chan result, 1)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	var next atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for range min(w.workers(), len(results)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(results); i = int(next.Add(1)) - 1 {
				p, e, err := w.pair(ctx, from+i)
				results[i] <- result{p, e, err}
			}
		})
	}
	for i, c := range results {
		r := <-c
		if r.err == nil {
			r.err = w.b.Add(r.pair.Index, r.errors)
		}
		if r.err == nil {
			r.err = w.each(r.pair)
		}
		if r.err != nil {
			return fmt.Errorf("question %d: %w", from+i+1, r.err)
		}
	}
	return nil
}

// workers returns the number of pairs measured at the same time. A device
// has one queue for all.
func (w *errorWork) workers() int {
	if w.m.Device() != nil {
		return 1
	}
	return w.m.Threads()
}

// rank orders the context's entries by each metric and works out what each state
// keeps.
func (w *errorWork) rank() error {
	c, prot, T := w.m.Config(), w.b.Identity().Protection, w.ob.Tokens()
	var first [][][]float32 // scores of the first metric
	w.orders = make([][][][]int32, c.Layers)
	for at := range w.orders {
		if c.Ragged(at) {
			w.orders[at] = make([][][]int32, c.KVHeads)
		}
	}
	for _, metric := range w.metrics {
		scores, err := w.scores(w.ob, metric)
		if err != nil {
			return fmt.Errorf("metric %s: %w", lukv.MetricConfigOf(metric).Name, err)
		}
		if first == nil {
			first = scores
		}
		for at, layer := range scores {
			for h, row := range layer {
				w.orders[at][h] = append(w.orders[at][h], lukv.Order(row, prot))
			}
		}
	}
	w.counts = w.b.Counts(T)
	type cut struct{ layer, keep int }
	cuts := map[cut][][]int32{} // few compared with the states, which share them
	for _, state := range w.b.States(T) {
		kept := make([][][]int32, c.Layers)
		for at, n := range state {
			if n == T {
				continue
			}
			rows, ok := cuts[cut{at, n}]
			if !ok {
				for _, row := range first[at] {
					rows = append(rows, lukv.Keep(nil, row, n, prot))
				}
				cuts[cut{at, n}] = rows
			}
			kept[at] = rows
		}
		w.kept = append(w.kept, kept)
	}
	return nil
}

// pair measures a question.
func (w *errorWork) pair(ctx context.Context, q int) (*Pair, *lukv.AnswerErrors, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	question := w.text.Questions[q]
	_, tail := w.o.Prompt(w.text.Context, question.Question, question.AnswerPrefix)
	a, err := w.ob.Answer(ctx, tail.Encode(w.tok), model.MeasureOptions{MaxTokens: w.o.MaxSteps, Sampling: w.o.Sampling})
	if err != nil {
		return nil, nil, err
	}
	defer a.Close()
	e := &lukv.AnswerErrors{Tokens: w.ob.Tokens(), Steps: a.Steps()}
	p := &Pair{Index: w.first + q, Text: w.index, Question: q, Tokens: e.Tokens, Steps: e.Steps}
	if e.Steps == 0 {
		return p, e, nil
	}
	c := w.m.Config()
	e.Errors = make([][][]float64, len(w.metrics))
	for i := range e.Errors {
		e.Errors[i] = make([][]float64, c.Layers*c.KVHeads)
	}
	for at, layer := range w.orders {
		for h, orders := range layer {
			rows, err := a.OutputErrors(ctx, at, h, orders, w.counts)
			if err != nil {
				return nil, nil, err
			}
			for i, row := range rows {
				e.Errors[i][at*c.KVHeads+h] = row
			}
		}
	}
	for _, kept := range w.kept {
		d, err := a.Divergence(ctx, kept)
		if err != nil {
			return nil, nil, err
		}
		e.Divergence = append(e.Divergence, d)
	}
	p.Passes = a.Passes()
	return p, e, nil
}

// profileOfErrors makes a profile of output errors.
func profileOfErrors(ctx context.Context, m *model.Model, texts []Text, o *ProfileOptions, id lukv.ProfileIdentity, excluded []int, d *lukv.CalibrationData) (*lukv.Profile, error) {
	c := m.Config()
	b, err := lukv.NewOutputErrorBuilder(id, c.Layers, c.KVHeads, excluded)
	if err != nil {
		return nil, err
	}
	return makeProfile(ctx, o, b, Pairs(texts), func(p *maker) error {
		return measureOutputErrors(ctx, m, texts, b, d, o.Options, func(pair *Pair) error { return p.done(pair, nil) })
	})
}
