package bench

import (
	"math"
	"slices"
)

// Median returns the median of x, 0 if x is empty.
func Median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(x))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// exactLimit is the number of observations up to which the distribution of the
// rank sum is enumerated.
const exactLimit = 60

// MannWhitney returns the two-sided p-value of the Mann-Whitney U test: the
// probability that samples of these sizes from a single distribution differ in ranks
// at least as much as a and b do. Ties count as mean ranks. Up to 60 observations the
// value is exact, even with ties; beyond that it is a normal approximation with
// continuity and tie corrections. It is 1 if one side is empty.
func MannWhitney(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 1
	}
	ranks := doubledRanks(a, b)
	sum := 0
	for _, r := range ranks[:len(a)] {
		sum += r
	}
	// The doubled rank sum has the mean n1(n+1).
	n := len(ranks)
	distance := abs(sum - len(a)*(n+1))
	if n <= exactLimit {
		return exactTail(ranks, len(a), distance)
	}
	return normalTail(ranks, len(a), distance)
}

// normalTail is exactTail in the normal approximation.
func normalTail(ranks []int, k, distance int) float64 {
	ties := 0.0
	counts := map[int]float64{}
	for _, r := range ranks {
		counts[r]++
	}
	for _, c := range counts {
		ties += c*c*c - c
	}
	n1, n2, total := float64(k), float64(len(ranks)-k), float64(len(ranks))
	variance := n1 * n2 / 12 * (total + 1 - ties/(total*(total-1)))
	if variance == 0 {
		return 1
	}
	z := max(0, float64(distance)/2-0.5) / math.Sqrt(variance)
	return min(1, math.Erfc(z/math.Sqrt2))
}

// doubledRanks returns twice the mean rank of each element of a and then b, so that
// the mean ranks of ties are integers.
func doubledRanks(a, b []float64) []int {
	all := slices.Concat(a, b)
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		switch {
		case all[i] < all[j]:
			return -1
		case all[i] > all[j]:
			return 1
		}
		return 0
	})
	ranks := make([]int, len(all))
	for lo := 0; lo < len(order); {
		hi := lo + 1
		for hi < len(order) && all[order[hi]] == all[order[lo]] {
			hi++
		}
		for _, i := range order[lo:hi] {
			ranks[i] = lo + 1 + hi // 2 · mean of lo+1 … hi
		}
		lo = hi
	}
	return ranks
}

// exactTail returns the fraction of all choices of k ranks whose sum is at least
// distance away from the mean.
func exactTail(ranks []int, k, distance int) float64 {
	total := 0
	for _, r := range ranks {
		total += r
	}
	// ways[j][s]: choices of j ranks with the sum s.
	ways := make([][]float64, k+1)
	for j := range ways {
		ways[j] = make([]float64, total+1)
	}
	ways[0][0] = 1
	for _, r := range ranks {
		for j := k; j > 0; j-- {
			for s := total; s >= r; s-- {
				ways[j][s] += ways[j-1][s-r]
			}
		}
	}
	mean := k * (len(ranks) + 1)
	far, all := 0.0, 0.0
	for s, w := range ways[k] {
		all += w
		if abs(s-mean) >= distance {
			far += w
		}
	}
	return far / all
}

func abs(x int) int { return max(x, -x) }
