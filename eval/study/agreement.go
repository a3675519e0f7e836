package study

import (
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
)

// Agreement returns figures of how closely profiles of one model agree on each
// head's ratio, for instance profiles made from two corpora.
func Agreement(names []string, profiles []*lukv.Profile) ([]report.Figure, error) {
	far := report.Figure{ID: "profile-distance", Title: "Distance of profiles", Subtitle: "mean over heads of the difference of local ratios", X: "global ratio", Y: "mean |difference|",
		Note: "0 is the same budget in every head. Profiles that agree can be made from either text."}
	alike := report.Figure{ID: "profile-correlation", Title: "Correlation of profiles", Subtitle: "Spearman, over heads", X: "global ratio", Y: "rank correlation",
		Note: "1 is the same order of heads, from the one that is spared most to the one that is spared least."}
	for i, p := range profiles {
		for k := i + 1; k < len(profiles); k++ {
			q := profiles[k]
			if p.Identity.Model != q.Identity.Model || p.Layers() != q.Layers() || p.KVHeads() != q.KVHeads() || len(shared(p, q)) == 0 {
				return nil, fmt.Errorf("profiles %s and %s are of other models: %w", names[i], names[k], lukv.ErrProfileMismatch)
			}
			name := names[i] + " and " + names[k]
			distance, correlation := report.Line{Name: name}, report.Line{Name: name}
			layers := shared(p, q)
			for _, r := range localGrid {
				a, b := heads(p, r, layers), heads(q, r, layers)
				sum := 0.0
				for h := range a {
					sum += math.Abs(a[h] - b[h])
				}
				distance.X, distance.Y = append(distance.X, r), append(distance.Y, sum/float64(len(a)))
				correlation.X, correlation.Y = append(correlation.X, r), append(correlation.Y, spearman(a, b))
			}
			far.Lines, alike.Lines = append(far.Lines, distance), append(alike.Lines, correlation)
		}
	}
	return []report.Figure{far, alike}, nil
}

// shared returns the layers that both of two profiles of one shape compress. Layers
// with sliding windows keep everything in every profile, which is not agreement.
func shared(p, q *lukv.Profile) []int {
	var out []int
	for l := range p.Layers() {
		if !slices.Contains(p.Excluded, l) && !slices.Contains(q.Excluded, l) {
			out = append(out, l)
		}
	}
	return out
}

// heads returns the local ratios of all heads of some layers.
func heads(p *lukv.Profile, ratio float64, layers []int) []float64 {
	var out []float64
	rows := p.Row(ratio, true)
	for _, l := range layers {
		out = append(out, rows[l]...)
	}
	return out
}

// spearman is the correlation of ranks; 1 if neither has any order.
func spearman(a, b []float64) float64 {
	x, y := ranks(a), ranks(b)
	mean := float64(len(a)-1) / 2
	var xy, xx, yy float64
	for i := range x {
		xy += (x[i] - mean) * (y[i] - mean)
		xx += (x[i] - mean) * (x[i] - mean)
		yy += (y[i] - mean) * (y[i] - mean)
	}
	if xx == 0 && yy == 0 {
		return 1
	}
	if xx == 0 || yy == 0 {
		return 0
	}
	return xy / math.Sqrt(xx*yy)
}

// ranks are places in ascending order; equal values share the mean of their places.
func ranks(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case x[a] < x[b]:
			return -1
		case x[a] > x[b]:
			return 1
		}
		return 0
	})
	out := make([]float64, len(x))
	for i := 0; i < len(order); {
		k := i
		for k < len(order) && x[order[k]] == x[order[i]] {
			k++
		}
		for _, at := range order[i:k] {
			out[at] = float64(i+k-1) / 2
		}
		i = k
	}
	return out
}
