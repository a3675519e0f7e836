package main

import (
	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/lukv"
)

// The large tables use a part of the items, drawn as lukv eval --limit does.
const (
	metricItems = 4 // per task, where all metrics are tried
	partItems   = 8
	partSeed    = 42
)

var (
	metricMethods = []string{"uniform", "adakv", "pyramidkv", "headkv", published, byEffect}
	metricOver    = []string{"uniform", "adakv", "pyramidkv", "headkv", published, fullCache}
)

// everyMetric tries all metrics under the allocators and both objectives, on a part
// of the embedded samples.
func (r *run) everyMetric() error {
	items, _, err := eval.Subset(r.o.Test, 0, metricItems, partSeed)
	if err != nil {
		return err
	}
	headkv, err := r.o.HeadKV(r.ctx, r.m)
	if err != nil {
		return err
	}
	r.f.Metrics, _, err = r.compare(comparison{
		what: "metrics", metrics: lukv.Metrics(), ratios: ratios, methods: metricMethods, of: byEffect, over: metricOver,
	}, items, func(metric, method string) (lukv.Policy, error) {
		if method == "headkv" {
			return r.allocatorOf(metric, headkv)
		}
		return r.objectivePolicy(metric, method)
	})
	return err
}
