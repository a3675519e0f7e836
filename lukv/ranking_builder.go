package lukv

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/lukv/lukv/internal/detmath"
)

// RankingBuilder fits the rankings of the metric learned: ridge regression, in closed
// form and head by head, of the logarithm of its target's scores (spec 3.18). Its sums
// take (2D+2)² doubles a KV head. Texts are added in a fixed order; the state can be saved
// after any of them and the work resumed with the same result. It belongs to one goroutine.
type RankingBuilder struct {
	id                       ProfileIdentity
	metric                   learned
	layers, kvHeads, headDim int

	texts int
	sums  map[int][]rankingSums // of the layers added, [K]
}

// NewRankingBuilder returns an empty builder for the metric learned that the metric of the
// identity is or contains. It is an error if there is none. layers, kvHeads and headDim are
// those of the model.
func NewRankingBuilder(id ProfileIdentity, layers, kvHeads, headDim int) (*RankingBuilder, error) {
	m, err := NewMetric(id.Metric)
	if err != nil {
		return nil, fmt.Errorf("fit a ranking: %w", err)
	}
	l, ok := learnedWithin(m)
	if !ok {
		return nil, fmt.Errorf("fit a ranking: found metric %s, expected learned", metrics.nameOf(m))
	}
	if layers < 1 || kvHeads < 1 || headDim < 1 {
		return nil, fmt.Errorf("fit a ranking: found %d layers of %d KV heads of dimension %d, expected at least 1 of each", layers, kvHeads, headDim)
	}
	return &RankingBuilder{id: id, metric: l, layers: layers, kvHeads: kvHeads, headDim: headDim, sums: map[int][]rankingSums{}}, nil
}

// Texts returns the number of texts added.
func (b *RankingBuilder) Texts() int { return b.texts }

// EndText ends a text, all of whose layers have been scored.
func (b *RankingBuilder) EndText() { b.texts++ }

// Observer returns a metric that gives the scores of the target and, each time it scores
// a layer of a full cache, adds its entries to the builder. Score the layers of texts one
// after another, in a fixed order to get the same bits.
func (b *RankingBuilder) Observer() Metric { return rankingObserver{b.metric.Target.Metric, b} }

type rankingObserver struct {
	Metric // the target

	b *RankingBuilder
}

func (o rankingObserver) Needs(T, n int) Needs {
	needs := o.Metric.Needs(T, n)
	needs.Keys, needs.Values = true, true
	return needs
}

func (o rankingObserver) Score(ctx context.Context, l *Layer) (Scores, error) {
	b := o.b
	if l.Index >= b.layers || l.KVHeads != b.kvHeads || l.HeadDim != b.headDim {
		return nil, fmt.Errorf("fit layer %d: found %d KV heads of dimension %d, expected one of %d layers of %d of %d", l.Index, l.KVHeads, l.HeadDim, b.layers, b.kvHeads, b.headDim)
	}
	if 2*len(l.InvFreq) != l.HeadDim {
		return nil, fmt.Errorf("fit layer %d: found %d rope frequencies, expected half of head dimension %d", l.Index, len(l.InvFreq), l.HeadDim)
	}
	s, err := o.Metric.Score(ctx, l)
	if err != nil {
		return nil, err
	}
	heads := b.sums[l.Index]
	if heads == nil {
		heads = b.newSums()
		b.sums[l.Index] = heads
	}
	return s, l.EachHead(ctx, func(h int, ws *Workspace) error { return b.add(ctx, l, h, ws, s[h], &heads[h]) })
}

// add adds the entries of head h with the target's scores y.
func (b *RankingBuilder) add(ctx context.Context, l *Layer, h int, ws *Workspace, y []float32, sums *rankingSums) error {
	D, pos := l.HeadDim, l.positions(h)
	values, features := ws.Float32s(slotTile*D), ws.Float64s(2*D+2)
	return l.EachKeys(ctx, h, func(lo, hi int, keys []float32) {
		rows := l.Values(h, lo, hi, values[:(hi-lo)*D])
		for t := lo; t < hi; t++ {
			key, v := features[:D], rows[(t-lo)*D:(t-lo+1)*D]
			l.Unrotate(key, keys[(t-lo)*D:(t-lo+1)*D], positionOf(pos, t))
			features[2*D] = 0
			for i, k := range key {
				features[D+i] = float64(v[i])
				features[2*D] += float64(k * k)
			}
			features[2*D+1] = sumSquares(v)
			sums.add(features, detmath.Log(max(float64(y[t]), b.metric.Floor)))
		}
	})
}

// Rankings solves for the rankings of the model, [L][K], zeros where no layer was added. It
// is an error if a head has too few entries or its weights are not determined.
func (b *RankingBuilder) Rankings() ([][]Ranking, error) {
	headDim := b.headDim
	out := make([][]Ranking, b.layers)
	for at := range out {
		out[at] = make([]Ranking, b.kvHeads)
		for h := range out[at] {
			r := Ranking{Key: make([]float32, headDim), Value: make([]float32, headDim)}
			if heads := b.sums[at]; heads != nil {
				w, c, err := heads[h].solve(b.metric.Ridge)
				if err != nil {
					return nil, fmt.Errorf("fit the ranking of layer %d, KV head %d: %w", at, h, err)
				}
				for i := range headDim {
					r.Key[i], r.Value[i] = float32(w[i]), float32(w[headDim+i])
				}
				r.KeySquares, r.ValueSquares, r.Constant = float32(w[2*headDim]), float32(w[2*headDim+1]), float32(c)
			}
			out[at][h] = r
		}
	}
	return out, checkRankings(out)
}

// rankingSums holds sums over the entries of a head: of the features f, the target y and
// their products.
type rankingSums struct {
	n     int
	f, fy []float64 // [F]
	ff    []float64 // [F][F], the lower triangle
	y     float64
}

// newSums returns those of a layer without entries.
func (b *RankingBuilder) newSums() []rankingSums {
	heads := make([]rankingSums, b.kvHeads)
	for h := range heads {
		heads[h] = newRankingSums(2*b.headDim + 2)
	}
	return heads
}

func newRankingSums(F int) rankingSums {
	return rankingSums{f: make([]float64, F), fy: make([]float64, F), ff: make([]float64, F*F)}
}

func (s *rankingSums) add(f []float64, y float64) {
	F := len(f)
	s.n++
	s.y += y
	for i, v := range f {
		s.f[i] += v
		s.fy[i] += float64(v * y)
		row := s.ff[i*F : i*F+i+1]
		for j, x := range f[:len(row)] {
			row[j] += float64(v * x)
		}
	}
}

// least is the part of a feature's mean square that its variance must exceed for it to
// count as one that changes.
const least = 1e-12

// solve returns the weight of every feature, 0 for a constant one, and the constant term.
func (s *rankingSums) solve(ridge float64) ([]float64, float64, error) {
	F, n := len(s.f), float64(s.n)
	if s.n < 4*F {
		return nil, 0, fmt.Errorf("found %d entries, expected at least %d: give longer texts", s.n, 4*F)
	}
	mean, deviation := make([]float64, F), make([]float64, F)
	for i := range F {
		mean[i] = s.f[i] / n
		square := s.ff[i*F+i] / n
		if v := square - float64(mean[i]*mean[i]); v > least*square {
			deviation[i] = math.Sqrt(v)
		}
	}
	a, w := make([]float64, F*F), make([]float64, F)
	for i := range F {
		if deviation[i] == 0 {
			a[i*F+i] = 1
			continue
		}
		w[i] = (s.fy[i]/n - float64(mean[i]*s.y/n)) / deviation[i]
		for j := range i + 1 {
			if deviation[j] > 0 {
				a[i*F+j] = (s.ff[i*F+j]/n - float64(mean[i]*mean[j])) / (deviation[i] * deviation[j])
			}
		}
		a[i*F+i] += ridge
	}
	if err := solveCholesky(a, w); err != nil {
		return nil, 0, err
	}
	c := s.y / n
	for i := range w {
		if deviation[i] > 0 {
			w[i] /= deviation[i]
		}
		c -= float64(w[i] * mean[i])
	}
	return w, c, nil
}

// solveCholesky replaces b, [F], by the solution x of a·x = b for the positive definite
// matrix a, [F][F], of which it reads the lower triangle and overwrites it.
func solveCholesky(a, b []float64) error {
	F := len(b)
	for j := range F {
		for i := j; i < F; i++ {
			v := a[i*F+j]
			for k := range j {
				v -= float64(a[i*F+k] * a[j*F+k])
			}
			if i > j {
				a[i*F+j] = v / a[j*F+j]
				continue
			}
			if !(v > 0) || math.IsInf(v, 0) {
				return errors.New("the features are linearly dependent, expected a larger ridge")
			}
			a[j*F+j] = math.Sqrt(v)
		}
	}
	for i := range F {
		for k := range i {
			b[i] -= float64(a[i*F+k] * b[k])
		}
		b[i] /= a[i*F+i]
	}
	for i := F - 1; i >= 0; i-- {
		for k := i + 1; k < F; k++ {
			b[i] -= float64(a[k*F+i] * b[k])
		}
		b[i] /= a[i*F+i]
	}
	return nil
}
