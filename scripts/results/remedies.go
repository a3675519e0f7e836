package main

import (
	"fmt"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
)

// Remedies for kinds of task that the calibration questions lack, compared with the
// profile of output errors as it is.
const (
	asIs          = "as it is"
	smallPower    = "γ = 0.25"
	quarterFloor  = "a quarter for certain"
	halfFloor     = "half for certain"
	quarterMixed  = "a quarter uniform"
	halfMixed     = "half uniform"
	uniformBudget = "uniform"
)

var (
	remedyMethods = []string{asIs, smallPower, quarterFloor, halfFloor, quarterMixed, halfMixed, published, uniformBudget}
	remedyOver    = remedyMethods[1:]
	remedyRatios  = []float64{0.8, 0.9}
)

// remedies tries the remedies on a part of the development items.
func (r *run) remedies() error {
	items, _, err := eval.Subset(r.o.Development, 0, partItems, partSeed)
	if err != nil {
		return err
	}
	c := comparison{what: "remedies", metrics: metrics, ratios: remedyRatios, methods: remedyMethods, of: asIs, over: remedyOver}
	out, answers, err := r.compare(c, items, r.remedy)
	if err != nil {
		return err
	}
	for _, ratio := range remedyRatios {
		for i, t := range tasks(answers, metrics, ratio, remedyMethods) {
			if ratio == remedyRatios[0] {
				out.Tasks = append(out.Tasks, Task{Task: t.Task, Items: t.Items, Full: t.Full, Scores: map[string]map[string]float64{}})
			}
			for metric, scores := range t.Scores {
				out.Tasks[i].Scores[rowName(metric, ratio)] = scores
			}
		}
	}
	r.f.Remedies = out
	return nil
}

// rowName is a metric at a ratio.
func rowName(metric string, ratio float64) string {
	return fmt.Sprintf("%s at %s", metric, percent(ratio))
}

// remedy is the policy of a metric with a remedy.
func (r *run) remedy(metric, method string) (lukv.Policy, error) {
	fail := func(err error) (lukv.Policy, error) { return lukv.Policy{}, fmt.Errorf("%s: %w", method, err) }
	switch method {
	case uniformBudget:
		return r.allocatorOf(metric, lukv.AllocatorConfig{Name: "uniform"})
	case published:
		return r.objectivePolicy(metric, published)
	}
	p, err := r.embedded(metric, true)
	if err != nil {
		return fail(err)
	}
	switch method {
	case smallPower:
		w := *p.Identity.Weights
		w.Power = 0.25
		p, err = p.Reweighted(w)
	case quarterFloor:
		p, err = floored(p, 0.25)
	case halfFloor:
		p, err = floored(p, 0.5)
	case quarterMixed:
		p, err = mixed(p, 0.25)
	case halfMixed:
		p, err = mixed(p, 0.5)
	}
	if err != nil {
		return fail(err)
	}
	return profiled(p), nil
}

// mixed is a profile whose rows are mixed with a share of the uniform budget.
func mixed(p *lukv.Profile, share float64) (*lukv.Profile, error) {
	return eachLevel(p, func(kept []float64, mean float64) {
		for u, x := range kept {
			kept[u] = (1-share)*x + share*mean
		}
	})
}

// floored is a profile under which no head keeps less than a share of what heads keep on
// average; the other heads pay for it in proportion.
func floored(p *lukv.Profile, share float64) (*lukv.Profile, error) {
	return eachLevel(p, func(kept []float64, mean float64) {
		least := share * mean
		low := make([]bool, len(kept))
		for again := true; again; {
			again = false
			left, sum := mean*float64(len(kept)), 0.0
			for u, x := range kept {
				if low[u] {
					left -= least
				} else {
					sum += x
				}
			}
			for u, x := range kept {
				switch {
				case low[u]:
				case x*left/sum < least:
					low[u], again = true, true
				}
			}
			if again {
				continue
			}
			for u, x := range kept {
				kept[u] = x * left / sum
				if low[u] {
					kept[u] = least
				}
			}
		}
	})
}

// eachLevel changes what heads keep at each level, given the level's mean. A head
// never keeps more than at the level before.
func eachLevel(p *lukv.Profile, change func(kept []float64, mean float64)) (*lukv.Profile, error) {
	n := p.Layers() * p.KVHeads()
	values := make([]float64, 0, solve.Levels*n)
	for i := range solve.Levels {
		var kept []float64
		mean := 0.0
		for _, row := range p.Level(i) {
			for _, v := range row {
				kept = append(kept, 1-v)
				mean += (1 - v) / float64(n)
			}
		}
		change(kept, mean)
		for u, x := range kept {
			v := min(max(1-x, 0), 1)
			if i > 0 {
				v = max(v, values[(i-1)*n+u])
			}
			values = append(values, v)
		}
	}
	return lukv.NewProfile(p.Identity, p.Layers(), p.KVHeads(), values, nil)
}
