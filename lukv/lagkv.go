package lukv

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/internal/detmath"
)

// lagKV scores an entry by how unevenly its key and value, channel by channel, lie in
// the range of the partition that follows. It reads no attention.
//
// Liang et al., "LagKV", 2025, https://arxiv.org/abs/2504.04704; spec 3.13.
type lagKV struct {
	Sinks int `json:"sinks"` // first entries, always kept and in no partition
	Lag   int `json:"lag"`   // entries per partition; that many at the end are always kept

	// Cross lets entries of different partitions compete by score; without it
	// every partition is ranked on its own and keeps about the same share.
	Cross bool `json:"cross"`
}

func (m lagKV) Validate() error {
	return firstOf(within("sinks", m.Sinks, 0, maxSlots), within("lag", m.Lag, 1, maxSlots))
}

func (lagKV) Needs(T, n int) Needs { return Needs{Keys: true, Values: true} }

func (m lagKV) Protection(T, n int) Protection {
	return Protection{Sinks: min(m.Sinks, T), Window: min(m.Lag, T), Recent: true}
}

func (m lagKV) Score(ctx context.Context, l *Layer) (Scores, error) {
	s := l.NewScores()
	return s, l.EachHead(ctx, func(h int, ws *Workspace) error { return m.head(ctx, l, h, ws, s[h]) })
}

// head scores partitions that are followed by another from 0 to 1, and the
// entries after those higher, the newer the higher. With fewer than two
// partitions the newest entries are the best.
func (m lagKV) head(ctx context.Context, l *Layer, h int, ws *Workspace, out []float32) error {
	T := len(out)
	lo, hi := m.Protection(T, 0).Split(T)
	parts := max(0, (T-lo)/m.Lag-1)
	end := lo + parts*m.Lag
	scores := ws.zeros(end - lo)
	for _, rows := range []rowReader{l.Keys, l.Values} {
		if err := m.addSpreads(ctx, l, ws, rows, h, lo, scores); err != nil {
			return err
		}
	}
	var ranks ranking
	for from := 0; from < len(scores); from += m.Lag {
		part := scores[from : from+m.Lag]
		if !m.Cross {
			ranks.replace(part)
		}
		for i, v := range part {
			out[lo+from+i] = float32(v)
		}
	}
	for t := range out {
		switch {
		case t < lo || t >= hi:
			out[t] = float32(math.Inf(1))
		case t >= end:
			out[t] = 1 + float32(t-end+1)/float32(T)
		}
	}
	return nil
}

// addSpreads adds to scores, for the entries from slot lo on, half the
// softmax, over each partition, of the spread of its rows within the range of
// the next one.
func (m lagKV) addSpreads(ctx context.Context, l *Layer, ws *Workspace, rows rowReader, h, lo int, scores []float64) error {
	if len(scores) == 0 {
		return nil
	}
	D := l.HeadDim
	part, next := ws.Float32s(m.Lag*D), ws.Float32s(m.Lag*D)
	low, high := make([]float32, D), make([]float32, D)
	spread := make([]float64, m.Lag)
	for from := 0; from < len(scores); from += m.Lag {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := lo + from
		x, reference := rows(h, at, at+m.Lag, part), rows(h, at+m.Lag, at+2*m.Lag, next)
		if len(x) < len(part) || len(reference) < len(next) {
			return fmt.Errorf("read slots [%d,%d) of layer %d, kv head %d: found too few values, expected %d", at, at+2*m.Lag, l.Index, h, 2*m.Lag*D)
		}
		copy(low, reference[:D])
		copy(high, reference[:D])
		for i, v := range reference[:m.Lag*D] {
			low[i%D], high[i%D] = min(low[i%D], v), max(high[i%D], v)
		}
		for i := range spread {
			spread[i] = spreadIn(x[i*D:(i+1)*D], low, high)
		}
		addSoftmaxOf(scores[from:from+m.Lag], spread, 0.5)
	}
	return nil
}

// spreadIn returns the (unbiased) standard deviation over the channels of a
// row, each scaled by its range [low, high]; a channel with an empty range
// counts as 0.
func spreadIn(row, low, high []float32) float64 {
	var sum, squares float64
	for i, v := range row {
		if d := float64(high[i]) - float64(low[i]); d > 0 {
			x := (float64(v) - float64(low[i])) / d
			sum += x
			squares += float64(x * x)
		}
	}
	n := float64(len(row))
	if n < 2 {
		return 0
	}
	return math.Sqrt(max(0, squares-float64(sum*sum)/n) / (n - 1))
}

// addSoftmaxOf adds weight times the softmax of x to dst; x is overwritten.
func addSoftmaxOf(dst, x []float64, weight float64) {
	top, sum := slices.Max(x), 0.0
	for i, v := range x {
		x[i] = detmath.Exp(v - top)
		sum += x[i]
	}
	for i, v := range x {
		dst[i] += float64(weight * v / sum)
	}
}

// ranking holds memory for ranking scores.
type ranking struct {
	order  []int
	ranked []float64
}

// replace replaces each score by the fraction of scores that rank below it;
// among equals the lower position ranks first.
func (r *ranking) replace(x []float64) {
	r.order, r.ranked = resize(r.order, len(x)), resize(r.ranked, len(x))
	order, ranked := r.order, r.ranked
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(x[b], x[a]) })
	for place, i := range order {
		ranked[i] = float64(len(x)-1-place) / float64(len(x))
	}
	copy(x, ranked)
}
