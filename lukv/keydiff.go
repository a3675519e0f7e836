package lukv

import (
	"context"
	"fmt"
	"math"
)

// keyDiff keeps the keys that differ most from the mean direction of their head:
// similar keys are redundant. It reads no queries, so the ranking does not depend on a
// question.
//
// Park et al., "KeyDiff", 2025, https://arxiv.org/abs/2504.15364; spec 3.2.
type keyDiff struct {
	// Block makes it cut back to the budget after every Block entries; 0 scores
	// all entries at once.
	Block int `json:"block"`
}

func (m keyDiff) Validate() error { return within("block", m.Block, 0, maxSlots) }

// Signed says that scores may be negative.
func (keyDiff) Signed() bool { return true }

func (m keyDiff) Needs(T, n int) Needs { return Needs{Keys: true, Budgets: m.Block > 0} }

func (keyDiff) Protection(T, n int) Protection { return Protection{} }

func (m keyDiff) Score(ctx context.Context, l *Layer) (Scores, error) {
	if m.Block > 0 && l.Share <= 0 && l.Budgets == nil {
		return nil, fmt.Errorf("score layer %d with keydiff: budgets must be known beforehand to score in blocks", l.Index)
	}
	s := l.NewScores()
	if m.Block == 0 {
		return s, m.atOnce(ctx, l, s)
	}
	for h := range s {
		if l.budget(h) >= l.Len(h) { // the head keeps everything
			if err := m.atOnce(ctx, l, s); err != nil {
				return nil, err
			}
			break
		}
	}
	return s, l.EachHead(ctx, func(h int, _ *Workspace) error {
		if n := l.budget(h); n < l.Len(h) {
			return m.blockwise(ctx, l, h, max(n, 1), s[h])
		}
		return nil
	})
}

// atOnce scores all entries together.
func (m keyDiff) atOnce(ctx context.Context, l *Layer, s Scores) error {
	cosines, err := l.MeanCosines(ctx)
	if err != nil {
		return err
	}
	for h, row := range s {
		for t := range row {
			row[t] = float32(-cosines[h][t])
		}
	}
	return nil
}

// blockwise keeps n entries while the text arrives in blocks: after each
// block, survivors and block are scored together and cut back to n. Entries
// dropped along the way get -Inf, so that the n best scores are the final
// survivors.
func (m keyDiff) blockwise(ctx context.Context, l *Layer, h, n int, out []float32) error {
	T, D := l.Len(h), l.HeadDim
	// keys[i] is the key of slot slots[i]; both hold survivors and one block.
	block := min(m.Block, T-n)
	most := n + block
	keys := make([]float32, 0, most*D)
	slots := make([]int32, 0, most)
	scores := make([]float32, most)
	for t := range out {
		out[t] = float32(math.Inf(-1))
	}
	read := func(lo, hi int) {
		buf := make([]float32, (hi-lo)*D)
		keys = append(keys, l.Keys(h, lo, hi, buf)[:(hi-lo)*D]...)
		for t := lo; t < hi; t++ {
			slots = append(slots, int32(t))
		}
	}
	score := func() []float32 {
		a := anchor{mean: make([]float64, D)}
		for i := range slots {
			a.add(keys[i*D : (i+1)*D])
		}
		a.finish()
		for i := range slots {
			scores[i] = float32(-a.cosine(keys[i*D : (i+1)*D]))
		}
		return scores[:len(slots)]
	}
	read(0, n)
	kept := make([]int32, 0, n)
	for lo := n; lo < T; lo += block {
		if err := ctx.Err(); err != nil {
			return err
		}
		read(lo, min(lo+block, T))
		kept = Keep(kept, score(), n, Protection{})
		for i, j := range kept {
			slots[i], scores[i] = slots[j], scores[j]
			copy(keys[i*D:(i+1)*D], keys[int(j)*D:])
		}
		slots, keys = slots[:n], keys[:n*D]
	}
	for i, t := range slots {
		out[t] = scores[i]
	}
	return nil
}

// anchor is the mean of the unit vectors of a head's keys.
type anchor struct {
	mean []float64 // [D]
	n    int
	norm float64
}

func (a *anchor) add(k []float32) {
	inv := 1 / max(math.Sqrt(sumSquares(k)), 1e-12)
	for i, v := range k {
		a.mean[i] += float64(float64(v) * inv)
	}
	a.n++
}

func (a *anchor) finish() {
	var s float64
	for i := range a.mean {
		a.mean[i] /= float64(a.n)
		s += float64(a.mean[i] * a.mean[i])
	}
	a.norm = max(math.Sqrt(s), 1e-8)
}

// cosine returns cos(k, anchor).
func (a *anchor) cosine(k []float32) float64 {
	norm := max(math.Sqrt(sumSquares(k)), 1e-8)
	return dotWide(k, a.mean) / float64(norm*a.norm)
}
