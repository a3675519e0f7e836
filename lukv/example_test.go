package lukv_test

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/lukv"
)

// A metric ranks the entries of a layer, Keep picks those that stay.
func ExampleKeep() {
	metric, err := lukv.NewMetric(lukv.MetricConfig{Name: "knorm"})
	if err != nil {
		fmt.Println(err)
		return
	}
	keys := []float32{3, 0, 0, 1, 5, 5, 2, 0, 0, 4} // five keys of dimension 2
	scores, err := lukv.Score(context.Background(), metric, &lukv.Layer{
		T: 5, Heads: 1, KVHeads: 1, HeadDim: 2,
		Keys: func(_, lo, hi int, _ []float32) []float32 { return keys[2*lo : 2*hi] },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The two smallest keys are in slots 1 and 3; the newest is protected.
	fmt.Println(lukv.Keep(nil, scores[0], 3, lukv.Protection{Window: 1}))
	// Output: [1 3 4]
}
