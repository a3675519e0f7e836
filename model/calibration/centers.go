package calibration

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// measureCenters returns the centres of the model's queries on the texts, [L][H],
// prefilling each text once; nil for a metric that reads none.
func measureCenters(ctx context.Context, m *model.Model, texts []Text, metric lukv.Metric, o Options) ([][]lukv.QueryCenter, error) {
	if !lukv.NeedsCenters(metric) {
		return nil, nil
	}
	var b lukv.CenterBuilder
	err := eachText(ctx, m, texts, o, 0, nil, func(w *work) error {
		head, _ := w.o.Prompt(w.text.Context, w.text.Questions[0].Question, w.text.Questions[0].AnswerPrefix)
		ob, err := w.m.Observe(w.ctx, head.Encode(w.tok), w.o.Session, metric)
		if err != nil {
			return err
		}
		defer ob.Close()
		for at := range m.Config().Layers {
			if s := ob.QueryStats(at); s != nil {
				b.Add(at, s)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("centres of queries: %w", err)
	}
	c := m.Config()
	return b.Centers(c.Layers, c.Heads, c.HeadDim), nil
}
