package calibration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// measureData measures what the metric reads from a profile: nothing for most.
func measureData(ctx context.Context, m *model.Model, texts []Text, metric lukv.Metric, id lukv.ProfileIdentity, o *ProfileOptions) (lukv.CalibrationData, error) {
	var d lukv.CalibrationData
	var err error
	if lukv.NeedsCenters(metric) {
		if d.QueryCenters, err = measureCenters(ctx, m, texts, metric, o.Options); err != nil {
			return d, fmt.Errorf("centres of queries: %w", err)
		}
	}
	if lukv.NeedsRankings(metric) {
		if d.Rankings, err = fitRankings(ctx, m, texts, id, o); err != nil {
			return d, err
		}
	}
	return d, nil
}

// measureCenters returns the centres of the model's queries on the texts, [L][H],
// prefilling each text once.
func measureCenters(ctx context.Context, m *model.Model, texts []Text, metric lukv.Metric, o Options) ([][]lukv.QueryCenter, error) {
	var b lukv.CenterBuilder
	err := eachText(ctx, m, texts, o, 0, nil, func(w *work) error {
		return w.observe(metric, func(ob *model.Observation) error {
			for at := range m.Config().Layers {
				if s := ob.QueryStats(at); s != nil {
					b.Add(at, s)
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	c := m.Config()
	return b.Centers(c.Layers, c.Heads, c.HeadDim), nil
}

// fitRankings returns the rankings of the metric learned, [L][K], fitted on the texts,
// each of which is prefilled once and scored by the metric's target. It goes on from the
// state file of an earlier run, if there is one.
func fitRankings(ctx context.Context, m *model.Model, texts []Text, id lukv.ProfileIdentity, o *ProfileOptions) ([][]lukv.Ranking, error) {
	c := m.Config()
	b, err := lukv.NewRankingBuilder(id, c.Layers, c.KVHeads, c.HeadDim)
	if err != nil {
		return nil, err
	}
	state := FitState(o.State)
	if state != "" {
		if err := b.LoadState(state); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if b.Texts() > len(texts) {
		return nil, fmt.Errorf("fit a ranking: state of %d texts, expected at most %d", b.Texts(), len(texts))
	}
	fitted := func() {
		if o.Fitted != nil {
			o.Fitted(b.Texts(), len(texts))
		}
	}
	fitted()
	observer, saved := b.Observer(), time.Now()
	err = eachText(ctx, m, texts, o.Options, Pairs(texts[:b.Texts()]), nil, func(w *work) error {
		err := w.observe(observer, func(ob *model.Observation) error {
			_, err := w.scores(ob, observer)
			return err
		})
		if err != nil {
			return err
		}
		b.EndText()
		if state != "" && (time.Since(saved) > saveEvery || b.Texts() == len(texts)) {
			if err := b.SaveState(state); err != nil {
				return err
			}
			saved = time.Now()
		}
		fitted()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("fit a ranking: %w", err)
	}
	r, err := b.Rankings()
	if err != nil && state != "" { // longer texts or another ridge begin anew
		err = errors.Join(err, os.Remove(state))
	}
	return r, err
}

// observe prefills the text, observed by a metric, for fn.
func (w *work) observe(metric lukv.Metric, fn func(*model.Observation) error) error {
	head, _ := w.o.Prompt(w.text.Context, w.text.Questions[0].Question, w.text.Questions[0].AnswerPrefix)
	ob, err := w.m.Observe(w.ctx, head.Encode(w.tok), w.o.Session, metric)
	if err != nil {
		return err
	}
	defer ob.Close()
	return fn(ob)
}
