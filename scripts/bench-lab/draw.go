package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lukv/lukv/internal/bench"
	"github.com/lukv/lukv/model"
)

// Drawing is the cost of choosing a token from the logits.
type Drawing struct {
	Settings string  `json:"settings"`
	Seconds  float64 `json:"seconds"` // per token, median
	Share    float64 `json:"share"`   // of a decoding step in which every session draws, one after the other
}

// draws is the number of tokens drawn for a measurement.
const draws = 15

// draw measures how long sessions take to sample a token after a decoding step: greedily,
// and with the checkpoint's settings or, without any, those that two model families
// recommend.
func (s *settings) draw(ctx context.Context, name string) (any, error) {
	source, random, err := s.source(name)
	if err != nil {
		return nil, err
	}
	defer source.Release()
	m, err := source.Open(ctx, s.options()...)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	sessions, err := s.sessions(m)
	if err != nil {
		return nil, err
	}
	defer closeAll(sessions)
	var steps []float64
	for range s.reps + 1 {
		took, err := decode(ctx, m, sessions, 1)
		if err != nil {
			return nil, err
		}
		steps = append(steps, took.Seconds())
	}
	list, err := drawing(m, sessions, bench.Median(steps[1:]), random)
	if err != nil {
		return nil, fmt.Errorf("draw a token: %w", err)
	}
	return map[string]any{"model": name, "batch": s.batch, "threads": m.Threads(), "step_seconds": bench.Median(steps[1:]), "drawing": list}, nil
}

// drawing measures sampling after a step of the given seconds. The logits of random
// weights are spread like those of a trained model.
func drawing(m *model.Model, sessions []*model.Session, step float64, random bool) ([]Drawing, error) {
	settings := map[string]model.Sampling{}
	if own := m.DefaultSampling(); own.Temperature > 0 {
		settings["own settings"] = own
	} else {
		settings["temperature 0.7, top-k 20, top-p 0.8"] = model.Sampling{Temperature: 0.7, TopK: 20, TopP: 0.8, RepetitionPenalty: 1.05}
		settings["temperature 0.6, top-p 0.9"] = model.Sampling{Temperature: 0.6, TopP: 0.9}
	}
	out := []Drawing{{Settings: "greedy"}}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		out = append(out, Drawing{Settings: name})
	}
	for i := range out {
		d := &out[i]
		sampler, err := m.NewSampler(settings[d.Settings], 0)
		if err != nil {
			return nil, err
		}
		var times []float64
		for i := range draws {
			logits := sessions[i%len(sessions)].Logits()
			if random {
				logits = trained(logits)
			}
			begin := time.Now()
			id, err := sampler.Next(logits, nil)
			if err != nil {
				return nil, err
			}
			sampler.Accept(id)
			times = append(times, time.Since(begin).Seconds())
		}
		slices.Sort(times)
		d.Seconds = times[len(times)/2]
		all := d.Seconds * float64(len(sessions))
		d.Share = all / (all + step)
	}
	return out, nil
}

// trained spreads the logits of random weights, which are nearly equal, like those of a
// trained model: a standard deviation of 2.5 and a dozen tokens far above the others. The
// cost of top-p depends on that.
func trained(logits []float32) []float32 {
	var sum, squares float64
	for _, v := range logits {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	n := float64(len(logits))
	mean := sum / n
	scale := 2.5 / math.Sqrt(max(squares/n-mean*mean, 1e-12))
	out := make([]float32, len(logits))
	for i, v := range logits {
		out[i] = float32((float64(v) - mean) * scale)
	}
	for i := range min(12, len(out)) {
		out[i*len(out)/12] = 16 + float32(i)
	}
	return out
}
