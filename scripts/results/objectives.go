package main

import (
	"fmt"

	"github.com/lukv/lukv/lukv"
)

const (
	published = "lukv"                  // the published objective
	plain     = "output error"          // all layers weighted equally
	byEffect  = "output error × effect" // layers weighted by the effect of cutting each
)

var (
	objectiveMetrics = []string{"snapkv", "keydiff", "expected_attention", "key_distance"}
	objectiveMethods = []string{"adakv", "pyramidkv", published, plain, byEffect}

	// objectiveOver are the methods that the last method is compared with, item by item.
	objectiveOver = []string{"adakv", "pyramidkv", published, plain, fullCache}
)

// objectives compares profiles under both objectives on the embedded samples.
func (r *run) objectives() error {
	o, answers, err := r.compare(comparison{
		what: "objectives", metrics: objectiveMetrics, ratios: ratios, methods: objectiveMethods, of: byEffect, over: objectiveOver,
	}, r.o.Test, r.objectivePolicy)
	if err != nil {
		return err
	}
	o.Tasks = tasks(answers, objectiveMetrics, taskRatio, objectiveMethods)
	r.f.Objectives = o
	return nil
}

// objectivePolicy is the policy of an allocator, or of lukv with the profile named
// by the method.
func (r *run) objectivePolicy(metric, method string) (lukv.Policy, error) {
	if method != published && method != plain && method != byEffect {
		return r.allocatorOf(metric, lukv.AllocatorConfig{Name: method})
	}
	p, err := r.embedded(metric, method != published)
	if err == nil && method == plain {
		p, err = p.Reweighted(lukv.DefaultWeights(lukv.WeightsNone))
	}
	if err != nil {
		return lukv.Policy{}, err
	}
	return profiled(p), nil
}

// embedded returns a metric's profile that was made beforehand.
func (r *run) embedded(metric string, outputErrors bool) (*lukv.Profile, error) {
	p, err := r.o.Profiles(metric, outputErrors)
	if err == nil && p == nil {
		err = fmt.Errorf("found no profile of %s", metric)
	}
	return p, err
}
