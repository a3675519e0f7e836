package lukv

import (
	"context"
	"fmt"
	"math"
)

// triAttention scores an entry by the attention that the centre of the unrotated
// queries would pay to it from future distances, plus its key's length weighted by how
// far queries stray from their centre. It is meant for compressing while decoding.
//
// Mao et al., "TriAttention", 2026; spec 3.17.
type triAttention struct {
	// Future is the number of future distances 1, 2, 4, … that are averaged.
	Future int `json:"future"`
	Sinks  int `json:"sinks"` // first entries, always kept and in no centre

	// Centers holds the centres of the queries, [L][H], from calibration. Without
	// them those of a profile are used, and without one those of the queries seen
	// so far.
	Centers [][]QueryCenter `json:"centers"`

	profiled [][]QueryCenter // of a profile
}

func (m triAttention) Validate() error {
	if err := firstOf(within("future", m.Future, 1, 24), within("sinks", m.Sinks, 0, maxSlots)); err != nil {
		return err
	}
	if err := checkCenters(m.Centers); err != nil {
		return fmt.Errorf("centers: %w", err)
	}
	return nil
}

// centers returns the calibrated centres, nil if there are none.
func (m triAttention) centers() [][]QueryCenter {
	if len(m.Centers) > 0 {
		return m.Centers
	}
	return m.profiled
}

func (m triAttention) Needs(T, n int) Needs {
	if m.centers() != nil {
		return Needs{Keys: true}
	}
	return Needs{Keys: true, Stats: true, ChannelNorms: true, StatsSkip: m.Sinks}
}

func (m triAttention) Protection(T, n int) Protection { return Protection{Sinks: min(m.Sinks, T)} }

// Signed says that scores may be negative.
func (triAttention) Signed() bool { return true }

func (m triAttention) Score(ctx context.Context, l *Layer) (Scores, error) {
	D := l.HeadDim
	if 2*len(l.InvFreq) != D {
		return nil, fmt.Errorf("score layer %d with triattention: found %d rope frequencies, expected half of head dimension %d", l.Index, len(l.InvFreq), D)
	}
	if c := m.centers(); c != nil && (l.Index >= len(c) || len(c[0]) != l.Heads || len(c[0][0].Mean) != D) {
		return nil, fmt.Errorf("score layer %d with triattention: found centers of %d layers of %d query heads × %d, expected more layers of %d × %d",
			l.Index, len(c), len(c[0]), len(c[0][0].Mean), l.Heads, D)
	}
	rot := m.rotation(l)
	s := l.NewScores()
	return s, l.EachHead(ctx, func(h int, ws *Workspace) error { return m.head(ctx, l, h, rot, ws, s[h]) })
}

// rotation returns the mean rotation to the positions 0, 1, 3, 7, … after the
// next one: the distances 1, 2, 4, … from the newest query.
func (m triAttention) rotation(l *Layer) rotation {
	half := len(l.InvFreq)
	r := rotation{make([]float64, half), make([]float64, half)}
	for i := range m.Future {
		one := meanRotation(l.InvFreq, l.NextPosition-1+1<<i, 1, l.RopeScale)
		for f := range half {
			r.cos[f] += one.cos[f] / float64(m.Future)
			r.sin[f] += one.sin[f] / float64(m.Future)
		}
	}
	return r
}

// center returns the mean of the unrotated queries of head q, [D], and by how
// much the mean lengths of their pairs exceed the lengths of the mean's pairs,
// [D/2].
func (m triAttention) center(l *Layer, q int) (mean, excess []float64) {
	D := l.HeadDim
	mean, excess = make([]float64, D), make([]float64, D/2)
	if c := m.centers(); c != nil {
		for a, v := range c[l.Index][q].Mean {
			mean[a] = float64(v)
		}
		for f, v := range c[l.Index][q].ChannelNorms {
			excess[f] = float64(v)
		}
	} else {
		l.Stats.Mean(q, mean)
		l.Stats.ChannelNorms(q, excess)
	}
	for f, length := range excess {
		a, b := mean[f], mean[D/2+f]
		excess[f] = max(0, length-math.Sqrt(float64(a*a)+float64(b*b)))
	}
	return mean, excess
}

// head scores with every query head of the group, gives each mean 0 and
// deviation 1, and takes the largest.
func (m triAttention) head(ctx context.Context, l *Layer, h int, rot rotation, ws *Workspace, out []float32) error {
	T, D, G := len(out), l.HeadDim, l.Group()
	first := visible(l.positions(h), T, m.Sinks-1) // sinks are positions of the text
	scale := l.keyScale()
	means, excesses := make([][]float64, G), make([][]float64, G)
	scores := make([][]float64, G)
	for g := range G {
		means[g], excesses[g] = m.center(l, h*G+g)
		rot.apply(means[g])
	}
	lengths := make([]float64, D/2)
	for g := range scores {
		scores[g] = ws.Float64s(T - first)
	}
	err := l.eachTile(ctx, l.Keys, h, first, T, func(from, to int, keys []float32) {
		for t := from; t < to; t++ {
			key := keys[(t-from)*D : (t-from+1)*D]
			for f := range lengths { // a rotation leaves them as they are
				a, b := float64(key[f]), float64(key[D/2+f])
				lengths[f] = math.Sqrt(float64(a*a) + float64(b*b))
			}
			for g := range scores {
				v := dotWide(key, means[g])
				for f, n := range lengths {
					v += float64(float64(excesses[g][f]*n) * scale)
				}
				scores[g][t-first] = v
			}
		}
	})
	if err != nil {
		return err
	}
	for t := range first {
		out[t] = float32(math.Inf(1))
	}
	for g := range scores {
		standardize(scores[g : g+1])
		for i, v := range scores[g] {
			if g == 0 || float32(v) > out[first+i] {
				out[first+i] = float32(v)
			}
		}
	}
	return nil
}
