package eval

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
)

// Subset draws items per task, without replacement, and keeps their order:
// round(fraction·n), but at least one, of a task's n items, and at most limit
// of those. 0 for fraction or limit means all. Equal seeds draw equal items,
// whatever other tasks there are, and a larger draw contains any smaller one.
// places are the indices of the drawn items in items, ascending.
func Subset(items []Item, fraction float64, limit int, seed uint64) (drawn []Item, places []int, err error) {
	if !(fraction >= 0 && fraction <= 1) || limit < 0 {
		return nil, nil, fmt.Errorf("subset: fraction %v and limit %d, expected 0 to 1 and 0 or more", fraction, limit)
	}
	byTask := map[string][]int{}
	for i, it := range items {
		byTask[it.Task] = append(byTask[it.Task], i)
	}
	for task, at := range byTask {
		n := len(at)
		if fraction > 0 {
			n = max(1, int(math.Round(fraction*float64(n))))
		}
		if limit > 0 {
			n = min(n, limit)
		}
		h := fnv.New64a()
		h.Write([]byte(task))
		rng := rand.New(rand.NewPCG(seed, h.Sum64()))
		// The first n steps of a Fisher-Yates shuffle.
		for i := range n {
			j := i + rng.IntN(len(at)-i)
			at[i], at[j] = at[j], at[i]
		}
		places = append(places, at[:n]...)
	}
	slices.Sort(places)
	drawn = make([]Item, len(places))
	for i, at := range places {
		drawn[i] = items[at]
	}
	return drawn, places, nil
}
