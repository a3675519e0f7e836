package eval

import (
	"math"
	"math/rand/v2"
	"slices"
)

// How an interval was made.
const (
	// IntervalBootstrap resamples items within their tasks.
	IntervalBootstrap = "bootstrap"

	// IntervalWilson is Wilson's score interval, which is valid where there are
	// too few items to resample.
	IntervalWilson = "wilson"

	// IntervalPooled resamples all items together: for differences where tasks
	// have too few items to be resampled on their own.
	IntervalPooled = "pooled bootstrap"
)

const (
	// resamples is the number of bootstrap resamples.
	resamples = 1000

	// fewItems is the number of items in a task below which resampling
	// understates the uncertainty: a single item always gives itself.
	fewItems = 10

	// fewPooled is the least number of items, over all tasks, at which
	// differences are resampled together.
	fewPooled = 20
)

// interval returns the 95 % interval of the mean of group means and how it was
// made. Scores lie between 0 and 1.
func interval(groups [][]float64) (low, high float64, how string) {
	if fewest(groups) >= fewItems {
		low, high = bootstrap(groups)
		return low, high, IntervalBootstrap
	}
	// The mean of G means, each of n items, varies no more than a mean of
	// G²/Σ(1/n) items.
	mean, inverse := 0.0, 0.0
	for _, g := range groups {
		mean += sum(g) / float64(len(g))
		inverse += 1 / float64(len(g))
	}
	G := float64(len(groups))
	low, high = wilson(mean/G, G*G/inverse)
	return low, high, IntervalWilson
}

func fewest(groups [][]float64) int {
	n := len(groups[0])
	for _, g := range groups {
		n = min(n, len(g))
	}
	return n
}

func sum(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s
}

// wilson is Wilson's 95 % score interval for a proportion p of n trials. For
// scores between 0 and 1 with mean p it is conservative: none vary more.
func wilson(p, n float64) (low, high float64) {
	const z = 1.959963984540054
	centre := (p + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	low, high = max(0, centre-half), min(1, centre+half)
	if p == 0 { // exactly, not up to rounding
		low = 0
	}
	if p == 1 {
		high = 1
	}
	return low, high
}

// bootstrap returns the 95 % interval of the mean of group means, resampling
// within each group, with a fixed seed.
func bootstrap(groups [][]float64) (low, high float64) {
	rng := rand.New(rand.NewPCG(42, 0))
	means := make([]float64, resamples)
	for i := range means {
		for _, g := range groups {
			sum := 0.0
			for range g {
				sum += g[rng.IntN(len(g))]
			}
			means[i] += sum / float64(len(g))
		}
		means[i] /= float64(len(groups))
	}
	return middle(means)
}

// pooled returns the 95 % interval of the mean of group means, resampling all
// items together, each with its weight.
func pooled(groups [][]float64) (low, high float64) {
	var all []float64
	for _, g := range groups {
		for _, x := range g {
			all = append(all, x/float64(len(g)*len(groups)))
		}
	}
	rng := rand.New(rand.NewPCG(42, 0))
	sums := make([]float64, resamples)
	for i := range sums {
		for range all {
			sums[i] += all[rng.IntN(len(all))]
		}
	}
	return middle(sums)
}

// middle returns the bounds of the middle 95 % of resamples.
func middle(x []float64) (low, high float64) {
	slices.Sort(x)
	return x[resamples*25/1000], x[resamples*975/1000-1]
}

// Difference is a paired difference of scores, each task counting once.
type Difference struct {
	Diff  float64 `json:"difference"`
	N     int     `json:"n"` // items that both methods answered
	Tasks int     `json:"tasks"`

	// Interval says how the 95 % interval was made; "" where there are too few
	// items for one, and then Low and High are 0.
	Interval string  `json:"interval"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
}

// Compare returns the mean score difference between methods a and b over the
// items that both answered; items that failed under either do not count.
func Compare(answers []Answer, a, b string) Difference {
	type key struct {
		task string
		item int
	}
	scores := map[key]float64{}
	for _, x := range answers {
		if x.Method == b && x.Error == "" {
			scores[key{x.Task, x.Item}] = x.Score
		}
	}
	var tasks []string
	byTask := map[string][]float64{}
	for _, x := range answers {
		if x.Method != a || x.Error != "" {
			continue
		}
		if s, ok := scores[key{x.Task, x.Item}]; ok {
			if byTask[x.Task] == nil {
				tasks = append(tasks, x.Task)
			}
			byTask[x.Task] = append(byTask[x.Task], x.Score-s)
		}
	}
	var groups [][]float64
	d := Difference{Tasks: len(tasks)}
	for _, t := range tasks {
		g := byTask[t]
		groups = append(groups, g)
		d.N += len(g)
		d.Diff += sum(g) / float64(len(g))
	}
	if d.N == 0 {
		return d
	}
	d.Diff /= float64(len(tasks))
	d.Low, d.High, d.Interval = unboundedInterval(groups)
	return d
}

// unboundedInterval is interval for values that do not lie between 0 and 1: there is
// none, "", where there are too few.
func unboundedInterval(groups [][]float64) (low, high float64, how string) {
	n := 0
	for _, g := range groups {
		n += len(g)
	}
	switch {
	case fewest(groups) >= fewItems:
		low, high = bootstrap(groups)
		return low, high, IntervalBootstrap
	case n >= fewPooled:
		low, high = pooled(groups)
		return low, high, IntervalPooled
	}
	return 0, 0, ""
}
