package main

import (
	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/lukv"
)

// comparison describes a table of methods under metrics, ratio by ratio, and of
// what one of the methods gains over others, item by item.
type comparison struct {
	what    string // for progress and errors
	metrics []string
	ratios  []float64
	methods []string
	of      string   // the method whose gains are taken
	over    []string // the others; fullCache is one
}

// fullCache is the method that keeps everything.
const fullCache = "full"

// compare answers items under everything in c, with the policies that policy makes.
func (r *run) compare(c comparison, items []eval.Item, policy func(metric, method string) (lukv.Policy, error)) (Comparison, []eval.Answer, error) {
	methods := []eval.Method{{Name: fullCache}}
	for _, metric := range c.metrics {
		for _, method := range c.methods {
			p, err := policy(metric, method)
			if err != nil {
				return Comparison{}, nil, err
			}
			for _, ratio := range c.ratios {
				at := p
				at.Ratio = ratio
				methods = append(methods, eval.Method{Name: methodName(metric, ratio, method), Policy: &at})
			}
		}
	}
	answers, err := r.evaluate(c.what, items, methods)
	if err != nil {
		return Comparison{}, nil, err
	}
	rows := averages(answers)
	out := Comparison{Items: rows[fullCache].N, Full: scoreOf(rows[fullCache]), Cells: cells(rows, c.metrics, c.ratios, c.methods)}
	for _, metric := range c.metrics {
		for _, ratio := range c.ratios {
			for _, over := range c.over {
				name := over
				if over != fullCache {
					name = methodName(metric, ratio, over)
				}
				out.Gains = append(out.Gains, gain(answers, metric, ratio, methodName(metric, ratio, c.of), over, name))
			}
		}
	}
	return out, answers, nil
}

// gain is the paired difference of two methods in a row of a table; name is the name
// in the answers of the method that the table calls over.
func gain(answers []eval.Answer, metric string, ratio float64, of, over, name string) Gain {
	d := eval.Compare(answers, of, name)
	return Gain{Metric: metric, Ratio: ratio, Over: over, Diff: d.Diff, Low: d.Low, High: d.High}
}

// allocatorOf is the policy of a metric and an allocator without a profile, except
// for the calibrated query centres that a metric may read.
func (r *run) allocatorOf(metric string, a lukv.AllocatorConfig) (lukv.Policy, error) {
	p := lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: a}
	if p.UsesProfile() {
		var err error
		if p.Profile, err = r.embedded(metric, true); err != nil {
			return p, err
		}
	}
	return p, nil
}

// profiled is the policy of the lukv allocator with a profile.
func profiled(p *lukv.Profile) lukv.Policy {
	return lukv.Policy{Metric: p.Identity.Metric, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Profile: p}
}
