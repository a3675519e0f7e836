package main

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/calibration"
)

var (
	weightMethods = []string{lukv.WeightsCut, lukv.WeightsSpan}

	// perHeadSets are sets of metrics, one of which each head gets.
	perHeadSets = [][]string{{"snapkv", "keydiff", "expected_attention"}, {"snapkv", "key_distance"}}
)

// weightQuestions is how many questions of each text the profiles are made from:
// spans take many passes.
const weightQuestions = 2

// perHead is the method that gives every head a metric of its own.
const perHead = "per head"

// setName is a table's name for such a set of metrics.
func setName(set []string) string { return strings.Join(set, " / ") }

// weights compares the two ways of measuring a layer's effect, and one metric
// per head with single metrics, on a part of the embedded samples.
func (r *run) weights() error {
	items, _, err := eval.Subset(r.o.Test, 0, partItems, partSeed)
	if err != nil {
		return err
	}
	methods := []eval.Method{{Name: fullCache}}
	add := func(name, method string, metric lukv.MetricConfig, kind string) error {
		p, err := r.calibrated(name+", "+method, metric, kind)
		if err != nil {
			return err
		}
		for _, ratio := range ratios {
			policy := profiled(p)
			policy.Ratio = ratio
			methods = append(methods, eval.Method{Name: methodName(name, ratio, method), Policy: &policy})
		}
		return nil
	}
	for _, metric := range objectiveMetrics {
		for _, kind := range weightMethods {
			if err := add(metric, kind, lukv.MetricConfig{Name: metric}, kind); err != nil {
				return err
			}
		}
	}
	var sets []string
	for _, set := range perHeadSets {
		params, err := json.Marshal(struct {
			Metrics []string `json:"metrics"`
		}{set})
		if err != nil {
			return err
		}
		sets = append(sets, setName(set))
		if err := add(setName(set), perHead, lukv.MetricConfig{Name: "per_head", Params: string(params)}, lukv.WeightsCut); err != nil {
			return err
		}
	}
	answers, err := r.evaluate("weights", items, methods)
	if err != nil {
		return err
	}
	rows := averages(answers)
	full := rows[fullCache]
	r.f.Weights = Comparison{Items: full.N, Full: scoreOf(full), Cells: cells(rows, objectiveMetrics, ratios, weightMethods)}
	r.f.PerHead = Comparison{Items: full.N, Full: scoreOf(full), Cells: cells(rows, sets, ratios, []string{perHead})}
	for _, ratio := range ratios {
		for _, metric := range objectiveMetrics {
			cut := methodName(metric, ratio, lukv.WeightsCut)
			r.f.Weights.Gains = append(r.f.Weights.Gains, gain(answers, metric, ratio, cut, lukv.WeightsSpan, methodName(metric, ratio, lukv.WeightsSpan)))
			for _, set := range sets {
				r.f.PerHead.Gains = append(r.f.PerHead.Gains, gain(answers, set, ratio, methodName(set, ratio, perHead), metric, cut))
			}
		}
	}
	return nil
}

// calibrated makes a profile of output errors from a part of the questions.
func (r *run) calibrated(what string, metric lukv.MetricConfig, weights string) (*lukv.Profile, error) {
	texts := slices.Clone(r.o.Texts)
	for i := range texts {
		texts[i].Questions = texts[i].Questions[:min(len(texts[i].Questions), weightQuestions)]
	}
	return calibration.Profile(r.ctx, r.m, texts, calibration.ProfileOptions{
		Options:   calibration.Options{Prompt: r.o.Prompt, Session: r.o.Eval.Session},
		Metric:    metric,
		Objective: lukv.ObjectiveOutputError,
		Weights:   lukv.DefaultWeights(weights),
		Progress:  func(p calibration.Progress) { r.o.Progress("profile, "+what, p.Done, p.Total) },
	})
}
