package bench

import (
	"fmt"
	"slices"
	"time"

	"github.com/lukv/lukv/model"
)

// Drawing is what choosing a token from the logits costs.
type Drawing struct {
	Settings string  `json:"settings"`
	Seconds  float64 `json:"seconds"` // a token, the median
	Share    float64 `json:"share"`   // of a decoding step in which every session draws, one after the other
}

// draws is the number of tokens that are drawn to measure it.
const draws = 15

// drawing measures how long sessions that stand behind a step take to draw: greedily, and
// with the settings of the checkpoint, or of many where it has none.
func (c *course) drawing(sessions []*model.Session, step time.Duration) ([]Drawing, error) {
	own, name := c.m.DefaultSampling(), "own settings"
	if own.Temperature == 0 {
		own, name = model.Sampling{Temperature: 0.6, TopP: 0.9}, "temperature 0.6 and top-p 0.9"
	}
	var out []Drawing
	for _, o := range []model.Sampling{{}, own} {
		d := Drawing{Settings: "greedy"}
		if o.Temperature > 0 {
			d.Settings = name
		}
		sampler, err := c.m.NewSampler(o, 0)
		if err != nil {
			return nil, fmt.Errorf("draw a token: %w", err)
		}
		var times []float64
		for i := range draws {
			logits := sessions[i%len(sessions)].Logits()
			begin := time.Now()
			id, err := sampler.Next(logits, nil)
			if err != nil {
				return nil, fmt.Errorf("draw a token: %w", err)
			}
			sampler.Accept(id)
			times = append(times, time.Since(begin).Seconds())
		}
		slices.Sort(times)
		d.Seconds = times[len(times)/2]
		all := d.Seconds * float64(len(sessions))
		d.Share = all / (all + step.Seconds())
		out = append(out, d)
	}
	return out, nil
}
