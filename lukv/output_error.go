package lukv

import (
	"fmt"
	"math"
	"slices"
)

// HeadAttention is the attention that the query heads of one KV head paid
// over the steps of an answer, with the full cache.
type HeadAttention struct {
	Context int       // T: entries that a cut may remove
	HeadDim int       // D
	Values  []float32 // [n][D], n >= T: those of the context, then of question and answer

	// Probs holds the attention of each query head of the group, [steps][n]; 0
	// for entries after the step's own. Not modified.
	Probs [][]float32

	// Gram is that of the part of the output projection that reads the group's
	// heads; its dimension is G·D.
	Gram *OutputGram
}

// OutputErrors returns how far the head's part of the layer's output moves when
// the context keeps only the first counts[i] entries of order, besides question
// and answer: for every i the squared distance, summed over the steps. The query
// heads of the group are summed inside the norm. order is a permutation of the
// context's entries (see [Order]); counts ascend to T, so that the last error
// is 0. Sums are float64, entries in the order given.
//
// Time steps·G·T·D, and steps·len(counts)·(G·D)².
func (a *HeadAttention) OutputErrors(order []int32, counts []int) ([]float64, error) {
	if err := a.check(order, counts); err != nil {
		return nil, fmt.Errorf("output errors: %w", err)
	}
	D, G := a.HeadDim, len(a.Probs)
	n := len(a.Values) / D
	out := make([]float64, len(counts))
	sums, mass := make([]float64, G*D), make([]float64, G)
	add := func(step, j int) {
		v := a.Values[j*D : (j+1)*D]
		for g, probs := range a.Probs {
			p := float64(probs[step*n+j])
			if p == 0 {
				continue
			}
			mass[g] += p
			dst := sums[g*D : (g+1)*D]
			for i, x := range v {
				dst[i] += float64(p * float64(x))
			}
		}
	}
	outputs := make([]float64, len(counts)*G*D) // of the group's heads, for each count
	for step := range len(a.Probs[0]) / n {
		clear(sums)
		clear(mass)
		for j := a.Context; j < n; j++ {
			add(step, j)
		}
		for i, from := 0, 0; i < len(counts); i++ {
			for _, j := range order[from:counts[i]] {
				add(step, int(j))
			}
			from = counts[i]
			dst := outputs[i*G*D:]
			for k, x := range sums {
				dst[k] = 0
				if m := mass[k/D]; m > 0 {
					dst[k] = x / m
				}
			}
		}
		full := outputs[(len(counts)-1)*G*D:]
		for i := range counts[:len(counts)-1] {
			moved := outputs[i*G*D : (i+1)*G*D]
			for k := range moved {
				moved[k] -= full[k]
			}
			out[i] += a.Gram.squaredNorm(moved)
		}
	}
	for i, v := range out {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("output errors: %v with %d entries: attention or values are not finite", v, counts[i])
		}
	}
	return out, nil
}

func (a *HeadAttention) check(order []int32, counts []int) error {
	D, G, T := a.HeadDim, len(a.Probs), a.Context
	switch {
	case D < 1 || G < 1 || a.Gram == nil || a.Gram.d != G*D:
		return fmt.Errorf("%d query heads of dimension %d, expected the output projection of all", G, D)
	case T < 1 || len(a.Values)%D != 0 || len(a.Values) < T*D:
		return fmt.Errorf("%d values of dimension %d for a context of %d entries", len(a.Values), D, T)
	case len(order) != T:
		return fmt.Errorf("an order of %d entries, expected %d", len(order), T)
	case len(counts) == 0 || counts[0] < 0 || !slices.IsSorted(counts) || counts[len(counts)-1] != T:
		return fmt.Errorf("counts %v, expected ascending to %d", counts, T)
	}
	for _, j := range order {
		if j < 0 || int(j) >= T {
			return fmt.Errorf("entry %d in the order of a context of %d", j, T)
		}
	}
	for _, p := range a.Probs {
		if n := len(a.Values) / D; len(p) != len(a.Probs[0]) || len(p)%n != 0 {
			return fmt.Errorf("%d attention weights over %d entries", len(p), n)
		}
	}
	return nil
}

// squaredNorm returns the squared norm of what x, [D], adds to the output.
func (m *OutputGram) squaredNorm(x []float64) float64 {
	sq, at := 0.0, 0
	for i, v := range x {
		row := m.g[at : at+m.d-i]
		cross := 0.0
		for j := 1; j < len(row); j++ {
			cross += float64(row[j] * x[i+j])
		}
		sq += float64(v * (float64(row[0]*v) + float64(2*cross)))
		at += m.d - i
	}
	return max(0, sq)
}

// Order returns the slots of a head from the one that stays longest to the one
// that goes first: for every b of at least the number of protected entries,
// its first b slots are those that [Keep] keeps.
func Order(scores []float32, p Protection) []int32 {
	T := len(scores)
	lo, hi := p.Split(T)
	out := make([]int32, 0, T)
	for t := range lo {
		out = append(out, int32(t))
	}
	for t := hi; t < T; t++ {
		out = append(out, int32(t))
	}
	return append(out, rankOrder(nil, scores, lo, hi)...)
}
