package lukv

import (
	"cmp"
	"slices"
)

// Retrieved is the retrieval-and-reasoning score of a query head in one probe (Fu et
// al., "HeadKV", 2024; spec 4.4): of every step's attention, a row of probs,
// [steps][n], the largest k entries are taken, where k = to-from is the number of
// entries of the fact being asked for; those that lie in the fact, [from, to), add
// their attention divided by k. Among equals the lower entry counts as larger.
func Retrieved(probs []float32, n, from, to int) float64 {
	k := to - from
	order := make([]int32, n)
	sum := 0.0
	for row := range slices.Chunk(probs, n) {
		for i := range order {
			order[i] = int32(i)
		}
		slices.SortFunc(order, func(i, j int32) int {
			return cmp.Or(cmp.Compare(row[j], row[i]), cmp.Compare(i, j))
		})
		for _, i := range order[:k] {
			if int(i) >= from && int(i) < to {
				sum += float64(row[i])
			}
		}
	}
	return sum / float64(k)
}
