package results

import (
	"fmt"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/lukv"
)

const (
	published = "lukv"                  // the published objective
	plain     = "output error"          // all layers weighing the same
	byEffect  = "output error × effect" // layers weighted by the effect of cutting each
)

var (
	objectiveMetrics = []string{"snapkv", "keydiff", "expected_attention", "key_distance"}
	objectiveMethods = []string{"adakv", "pyramidkv", published, plain, byEffect}
)

// objectives compares profiles under both objectives on the embedded samples.
func (r *run) objectives() error {
	methods := []eval.Method{{Name: "full"}}
	for _, metric := range objectiveMetrics {
		for _, method := range objectiveMethods {
			p, err := r.objectiveProfile(metric, method)
			if err != nil {
				return err
			}
			for _, ratio := range ratios {
				policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: method}, Ratio: ratio}
				if p != nil {
					policy.Allocator.Name, policy.Profile = "lukv", p
				}
				methods = append(methods, eval.Method{Name: methodName(metric, ratio, method), Policy: policy})
			}
		}
	}
	answers, err := r.evaluate("objectives", r.o.Test, methods)
	if err != nil {
		return err
	}
	rows := averages(answers)
	o := Objectives{Items: rows["full"].N, Full: scoreOf(rows["full"]), Cells: cells(rows, objectiveMetrics, objectiveMethods)}
	for _, metric := range objectiveMetrics {
		for _, ratio := range ratios {
			for _, over := range objectiveOver {
				name := over
				if over != "full" {
					name = methodName(metric, ratio, over)
				}
				d := eval.Compare(answers, methodName(metric, ratio, byEffect), name)
				o.Gains = append(o.Gains, Gain{Metric: metric, Ratio: ratio, Over: over, Diff: d.Diff, Low: d.Low, High: d.High})
			}
		}
	}
	o.Tasks = tasks(answers, objectiveMetrics, objectiveMethods)
	r.f.Objectives = o
	return nil
}

// objectiveOver is what the last method is held against, item by item.
var objectiveOver = []string{"adakv", "pyramidkv", published, plain, "full"}

// objectiveProfile returns the profile of a method, nil if it has none.
func (r *run) objectiveProfile(metric, method string) (*lukv.Profile, error) {
	if method != published && method != plain && method != byEffect {
		return nil, nil
	}
	p, err := r.o.Profiles(metric, method != published)
	if err == nil && p == nil {
		err = fmt.Errorf("found no profile of %s under %s", metric, method)
	}
	if err != nil || method != plain {
		return p, err
	}
	return p.Reweighted(lukv.DefaultWeights(lukv.WeightsNone))
}
