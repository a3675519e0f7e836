// Package evidence says what policies lost where this project measured them on a model that
// others made.
package evidence

import (
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/lukv"
)

// What the table holds: see docs/experiments.md.
const measuredOn = "SmolLM2 135M, text after 1,024 tokens"

var (
	ratios     = [...]float64{0.5, 0.8, 0.9}
	allocators = [...]string{"uniform", "pyramidkv", "adakv", "lukv"}
)

// Of names the evidence for a policy that removes a ratio of a cache: what its metric and
// allocator, in their default configurations, lost at the measured ratios around it. For
// others it says that there is none; "" if nothing is removed.
func Of(p *lukv.Policy, ratio float64) string {
	if !p.Enabled() || !(ratio > 0) {
		return ""
	}
	name, allocator, row := find(p)
	if row == nil {
		return fmt.Sprintf("what %s with %s budgets loses is not among what was measured for every metric on a model that others made", name, allocator)
	}
	at := slices.Index(allocators[:], allocator)
	loss := func(i int) string {
		return fmt.Sprintf("%.3f nats a token at %.0f %% removed", row[i][at], 100*ratios[i])
	}
	text := ""
	switch i, exact := nearest(ratio); {
	case exact:
		text = loss(i)
	case i == 0:
		text = loss(0) + " (less was not measured)"
	case i == len(ratios):
		text = loss(i-1) + " (more was not measured)"
	default:
		text = loss(i-1) + " and " + loss(i)
	}
	return fmt.Sprintf("%s with %s budgets lost %s, on %s; models of other sizes were not measured", name, allocator, text, measuredOn)
}

// nearest returns the index of a measured ratio within a point of ratio, or the place where
// it would be.
func nearest(ratio float64) (i int, exact bool) {
	for i, r := range ratios {
		if math.Abs(r-ratio) < 0.01 {
			return i, true
		}
	}
	i, _ = slices.BinarySearch(ratios[:], ratio)
	return i, false
}

// find returns the names of a policy's metric and allocator and what the metric lost, nil if
// they were not measured as they are.
func find(p *lukv.Policy) (name, allocator string, row *[len(ratios)][len(allocators)]float64) {
	m, a := p.Methods()
	name, allocator = m.Name, a.Name
	known, ok := table[name]
	if !ok || !slices.Contains(allocators[:], allocator) || !defaults(p, name, allocator) {
		return name, allocator, nil
	}
	return name, allocator, &known
}

// defaults reports whether neither metric nor allocator has parameters of its own, and the
// profile is of the published objective, as measured.
func defaults(p *lukv.Policy, name, allocator string) bool {
	same := func(config lukv.MetricConfig) string {
		config.Name = name
		m, err := lukv.NewMetric(config)
		if err != nil {
			return err.Error()
		}
		return lukv.MetricConfigOf(m).String()
	}
	if same(p.Metric) != same(lukv.MetricConfig{Name: name}) || p.Profile != nil && p.Profile.Identity.Objective != lukv.ObjectiveUtility {
		return false
	}
	given, err := lukv.NewAllocator(p.Allocator, p.Profile)
	plain, err2 := lukv.NewAllocator(lukv.AllocatorConfig{Name: allocator}, p.Profile)
	if err != nil || err2 != nil { // the allocator lukv without its profile, of a stored policy
		return p.Allocator.Params == ""
	}
	return lukv.AllocatorConfigOf(given).String() == lukv.AllocatorConfigOf(plain).String()
}
