package lukv

import (
	"context"
	"fmt"
	"math"

	"github.com/lukv/lukv/kernels"
)

// leverage scores an entry by the statistical leverage of its key, with the rotation
// undone, among the keys of its head: how much the others lack the direction in which
// it points. The scores use the whole matrix; the paper first projects it to fewer
// dimensions.
//
// Chari and Van Durme, "Compactor", 2025, https://arxiv.org/abs/2507.08143; spec 3.14.
type leverage struct {
	Ridge float64 `json:"ridge"` // added to the diagonal of the Gram matrix
}

func (m leverage) Validate() error { return within("ridge", m.Ridge, 1e-6, 1e6) }

func (leverage) Needs(T, n int) Needs { return Needs{Keys: true} }

func (leverage) Protection(T, n int) Protection { return Protection{} }

// Signed says that scores may be negative.
func (leverage) Signed() bool { return true }

func (m leverage) Score(ctx context.Context, l *Layer) (Scores, error) {
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	x, err := m.layer(ctx, l, ws, Protection{})
	if err != nil {
		return nil, err
	}
	standardize(x)
	return toScores(x, l, Protection{}), nil
}

// layer returns the leverage of the entries of every head that prot does not
// protect, in memory from ws.
func (m leverage) layer(ctx context.Context, l *Layer, ws *Workspace, prot Protection) ([][]float64, error) {
	if 2*len(l.InvFreq) != l.HeadDim {
		return nil, fmt.Errorf("score layer %d by leverage: found %d rope frequencies, expected half of head dimension %d", l.Index, len(l.InvFreq), l.HeadDim)
	}
	x := unprotected(l, ws, prot)
	return x, l.EachHead(ctx, func(h int, ws *Workspace) error {
		lo, hi := prot.Split(l.Len(h))
		return m.head(ctx, l, h, lo, hi, ws, x[h])
	})
}

// unprotected returns room for one value per entry that prot does not protect,
// [K][hi-lo].
func unprotected(l *Layer, ws *Workspace, prot Protection) [][]float64 {
	x := make([][]float64, l.KVHeads)
	for h := range x {
		lo, hi := prot.Split(l.Len(h))
		x[h] = ws.zeros(hi - lo)
	}
	return x
}

// head computes (k-k̄)ᵀ(Σ(k-k̄)(k-k̄)ᵀ + ridge·1)⁻¹(k-k̄) for the keys k of slots
// [lo,hi) of KV head h, into out. Gram matrix and products are float32 in the order of
// kernels.MatMul over tiles, the factorisation float64.
func (m leverage) head(ctx context.Context, l *Layer, h, lo, hi int, ws *Workspace, out []float64) error {
	D, n, pos := l.HeadDim, hi-lo, l.positions(h)
	if n == 0 {
		return nil
	}
	stats := ws.momentsOf(D, l.CPU)
	plain, tile := ws.Float64s(D), ws.Float32s(slotTile*D)
	unrotated := func(from, to int, keys []float32) []float32 {
		for t := from; t < to; t++ {
			l.Unrotate(plain, keys[(t-from)*D:(t-from+1)*D], positionOf(pos, t))
			for i, v := range plain {
				tile[(t-from)*D+i] = float32(v)
			}
		}
		return tile[:(to-from)*D]
	}
	err := l.eachTile(ctx, l.Keys, h, lo, hi, func(from, to int, keys []float32) {
		stats.Add(0, from, unrotated(from, to, keys), to-from, D)
	})
	if err != nil {
		return err
	}
	mean, gram := ws.Float64s(D), ws.Float64s(D*D)
	stats.Mean(0, mean)
	if err := stats.Cov(0, gram); err != nil {
		return err
	}
	for i := range gram {
		gram[i] *= float64(n)
	}
	for i := range D {
		gram[i*D+i] += m.Ridge
	}
	inverse := inverseFactor(gram, D, m.Ridge)
	w := kernels.F32Matrix(inverse, D, D)
	image := ws.Float32s(slotTile * D)
	return l.eachTile(ctx, l.Keys, h, lo, hi, func(from, to int, keys []float32) {
		x := unrotated(from, to, keys)
		for i, v := range x {
			x[i] = float32(float64(v) - mean[i%D])
		}
		l.CPU.MatMul(image, D, x, D, to-from, &w, 0, D)
		for t := from; t < to; t++ {
			out[t-lo] = min(1, sumSquares(image[(t-from)*D:(t-from+1)*D]))
		}
	})
}

// inverseFactor returns the inverse of the lower Cholesky factor of a, [D][D],
// whose eigenvalues, and so the pivots, are at least least, up to rounding. a
// is overwritten.
func inverseFactor(a []float64, D int, least float64) []float32 {
	for j := range D {
		d := a[j*D+j]
		for k := range j {
			d -= float64(a[j*D+k] * a[j*D+k])
		}
		d = math.Sqrt(max(d, least))
		a[j*D+j] = d
		for i := j + 1; i < D; i++ {
			v := a[i*D+j]
			for k := range j {
				v -= float64(a[i*D+k] * a[j*D+k])
			}
			a[i*D+j] = v / d
		}
	}
	out, column := make([]float32, D*D), make([]float64, D)
	for j := range D {
		for i := j; i < D; i++ {
			v := 0.0
			if i == j {
				v = 1
			}
			for k := j; k < i; k++ {
				v -= float64(a[i*D+k] * column[k])
			}
			column[i] = v / a[i*D+i]
			out[i*D+j] = float32(column[i])
		}
	}
	return out
}

// standardize shifts and scales all of x together to mean 0 and (unbiased) deviation
// 1.
func standardize(x [][]float64) {
	var n, mean, squares float64
	for _, row := range x {
		for _, v := range row {
			mean += v
		}
		n += float64(len(row))
	}
	mean /= max(1, n)
	for _, row := range x {
		for _, v := range row {
			squares += float64((v - mean) * (v - mean))
		}
	}
	deviation := max(math.Sqrt(squares/max(1, n-1)), 1e-6)
	for _, row := range x {
		for i, v := range row {
			row[i] = (v - mean) / deviation
		}
	}
}

// toScores lays out the scores of unprotected entries, with +Inf for the others.
func toScores(x [][]float64, l *Layer, prot Protection) Scores {
	s := l.NewScores()
	for h, row := range x {
		lo, hi := prot.Split(len(s[h]))
		for t := range s[h] {
			if s[h][t] = float32(math.Inf(1)); t >= lo && t < hi {
				s[h][t] = float32(row[t-lo])
			}
		}
	}
	return s
}
