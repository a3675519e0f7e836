package lukv

import (
	"fmt"
	"math"
	"slices"
)

// QueryCenter describes the unrotated queries of a head, as calibration found
// them: their mean, [D], and the mean lengths of their pairs of channels f and
// D/2+f, [D/2].
type QueryCenter struct {
	Mean         []float32 `json:"mean"`
	ChannelNorms []float32 `json:"lengths"`
}

// CenterBuilder measures the centres of a model's queries: means over the tokens of
// all texts, except the first ones, which the statistics leave out. The zero value
// is empty.
type CenterBuilder struct {
	layers map[int][]centerSums
}

// centerSums holds sums over the queries of a head.
type centerSums struct {
	n             int
	mean, lengths []float64
}

// Add adds the statistics of a layer of one text, which must have lengths (see
// [Needs]). Add texts in a fixed order to get the same bits.
func (b *CenterBuilder) Add(layer int, s *QueryStats) {
	if b.layers == nil {
		b.layers = map[int][]centerSums{}
	}
	heads := b.layers[layer]
	if heads == nil {
		heads = make([]centerSums, len(s.heads))
		b.layers[layer] = heads
	}
	mean, lengths := make([]float64, s.dim), make([]float64, s.dim/2)
	for q := range heads {
		h, n := &heads[q], s.Count(q)
		if h.mean == nil {
			h.mean, h.lengths = make([]float64, s.dim), make([]float64, s.dim/2)
		}
		s.Mean(q, mean)
		s.ChannelNorms(q, lengths)
		h.n += n
		for a, v := range mean {
			h.mean[a] += float64(v * float64(n))
		}
		for f, v := range lengths {
			h.lengths[f] += float64(v * float64(n))
		}
	}
}

// Centers returns the centres, [L][H], zeros where no query was added.
func (b *CenterBuilder) Centers(layers, heads, headDim int) [][]QueryCenter {
	out := make([][]QueryCenter, layers)
	for l := range out {
		out[l] = make([]QueryCenter, heads)
		for q := range out[l] {
			c := QueryCenter{make([]float32, headDim), make([]float32, headDim/2)}
			if sums := b.layers[l]; sums != nil && sums[q].n > 0 {
				for a, v := range sums[q].mean {
					c.Mean[a] = float32(v / float64(sums[q].n))
				}
				for f, v := range sums[q].lengths {
					c.ChannelNorms[f] = float32(v / float64(sums[q].n))
				}
			}
			out[l][q] = c
		}
	}
	return out
}

// checkCenters reports centres that do not have the same number of heads, of the
// same even dimension, in every layer, or numbers that queries cannot have.
func checkCenters(centers [][]QueryCenter) error {
	finite := func(v float32) bool { return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) }
	for at, layer := range centers {
		if len(layer) == 0 || len(layer) != len(centers[0]) {
			return fmt.Errorf("layer %d: found %d query heads, expected %d, at least one", at, len(layer), len(centers[0]))
		}
		for q, c := range layer {
			if d := len(centers[0][0].Mean); d == 0 || d%2 != 0 || len(c.Mean) != d || 2*len(c.ChannelNorms) != d {
				return fmt.Errorf("layer %d, query head %d: found a mean of %d channels and %d lengths, expected an even number, the same for all, and half as many", at, q, len(c.Mean), len(c.ChannelNorms))
			}
			if slices.ContainsFunc(c.Mean, func(v float32) bool { return !finite(v) }) || slices.ContainsFunc(c.ChannelNorms, func(v float32) bool { return !finite(v) || v < 0 }) {
				return fmt.Errorf("layer %d, query head %d: found a number that is not finite or a length below 0", at, q)
			}
		}
	}
	return nil
}

// Concentration returns the length of the mean query divided by the mean length,
// over all pairs of channels, heads and layers: 1 if all queries of every head are
// the same, near 0 if they have no real centre.
func Concentration(centers [][]QueryCenter) float64 {
	var center, length float64
	for _, layer := range centers {
		for _, c := range layer {
			for f, n := range c.ChannelNorms {
				a, b := float64(c.Mean[f]), float64(c.Mean[len(c.ChannelNorms)+f])
				center += math.Sqrt(float64(a*a) + float64(b*b))
				length += float64(n)
			}
		}
	}
	if length == 0 {
		return 0
	}
	return center / length
}
