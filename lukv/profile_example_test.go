package lukv_test

import (
	"context"
	"fmt"
	"log"

	"github.com/lukv/lukv/lukv"
)

// Profile a model of one layer with two heads, then ask how many entries each
// head keeps of a context of 2000. In the first head what matters is spread
// out, in the second it is all in a few entries.
func Example_profileAndEvict() {
	ctx := context.Background()
	importance := [][][]float32{{make([]float32, 400), make([]float32, 400)}}
	scores := [][][]float32{{make([]float32, 400), make([]float32, 400)}}
	for t := range 400 {
		importance[0][0][t] = 0.01
		if t%40 == 20 {
			importance[0][1][t] = 0.2
		}
		for h := range 2 {
			scores[0][h][t] = importance[0][h][t] // a metric that ranks well
		}
	}

	id := lukv.DefaultProfileIdentity()
	id.Model = "example"
	id.Metric = lukv.MetricConfig{Name: "keydiff"}
	metric, err := lukv.NewMetric(id.Metric)
	if err != nil {
		log.Fatal(err)
	}
	id.Protection = lukv.ProfiledProtection(metric)
	builder, err := lukv.NewProfileBuilder(id, 1, 2, nil)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := builder.Add(ctx, 0, importance, scores); err != nil {
		log.Fatal(err)
	}
	profile, err := builder.Profile()
	if err != nil {
		log.Fatal(err)
	}

	policy := lukv.Policy{
		Metric: id.Metric, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Ratio: 0.8, Profile: profile,
	}
	compiled, err := policy.Compile("example", lukv.CacheShape{Layers: 1, KVHeads: 2})
	if err != nil {
		log.Fatal(err)
	}
	demand := compiled.Demand(2000)
	budgets, err := lukv.Allocate(compiled.Allocator(), demand, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(budgets[0], demand.Achieved(budgets).Ratio)

	kept := lukv.Keep(nil, []float32{0.1, 0.9, 0.3, 0.8, 0.2}, 3, lukv.Protection{Window: 1})
	fmt.Println(kept)
	// Output:
	// [725 75] 0.8
	// [1 3 4]
}
