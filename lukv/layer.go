package lukv

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/lukv/lukv/internal/detmath"
	"github.com/lukv/lukv/kernels"
)

// Layer is one attention layer as a metric sees it. The compressing code
// fills it from a cache; only the fields that the metric's Needs names have to
// be set. Functions may be called from several goroutines at once for different
// heads when Parallel is set.
type Layer struct {
	Index   int   // layer number, for errors
	T       int   // entries per head where Lens is nil
	Lens    []int // [K] entries of each head where they differ; nil: T each
	Heads   int   // H
	KVHeads int   // K
	HeadDim int   // D

	// Keys returns rows [lo,hi) of KV head h, [hi-lo][D], after RoPE as cached.
	// It may fill dst (capacity at least (hi-lo)*D) and return it, or return a
	// view of the cache; the caller must not write to it, nor use it after
	// passing the same dst again. Values likewise.
	Keys   func(h, lo, hi int, dst []float32) []float32
	Values func(h, lo, hi int, dst []float32) []float32

	// Output returns the part of rows [lo,hi) of the output projection that
	// reads query head q: [hi-lo][D], row m the weights of output m of
	// OutputDim. It may fill dst and return it, like Keys.
	Output    func(q, lo, hi int, dst []float32) []float32
	OutputDim int

	// Positions returns the ascending positions of KV head h, [T]. nil: slot
	// equals position, as in prefill.
	Positions func(h int) []int32

	Queries *QueryWindow // last rows of the queries after RoPE
	Stats   *QueryStats  // moments of the queries before RoPE
	Sums    *ColumnSums  // accumulated attention per slot

	// Hidden are the hidden states that went into the layer.
	Hidden *HiddenStates

	Repeats *RepeatScores // attention paid by a repetition of the context

	// Accelerator scores the entries in place; nil: they are scored from the
	// fields above. With it, snapkv needs neither Keys nor Queries.
	Accelerator Accelerator

	NextPosition int // position of the next token

	// InvFreq holds the effective RoPE frequencies, [D/2], scaling included.
	// RopeScale is the factor on cosine and sine (yarn's attention factor);
	// 0 means 1.
	InvFreq   []float64
	RopeScale float64

	// ScoreScale is the factor of products of query and key, 0 for 1/√D. If ScoreCap is
	// above 0, a score s so scaled becomes ScoreCap·tanh(s/ScoreCap).
	ScoreScale float64
	ScoreCap   float64

	// Share is the uniform budget n of a head where it is known, 0 otherwise.
	// Budgets holds each head's own budget where those are known beforehand;
	// nil: Share each. Only metrics whose scores depend on the budget use
	// them (block-wise KeyDiff, a shrinking window).
	Share   int
	Budgets []int

	// Ratio is the fraction of entries to remove where it is known, before
	// rounding to Share; 0 otherwise.
	Ratio float64

	// GuaranteedBudget is the number of entries that the allocator guarantees every
	// head by score, whatever the other heads get.
	GuaranteedBudget int

	// CPU is the instruction set for the heavy products; results do not depend
	// on it. The zero value is portable Go.
	CPU kernels.CPU

	// Scratch is memory that the metric works in; nil: the Go heap.
	Scratch *Scratch

	wanted []bool // [K] heads whose scores are wanted; nil: all

	// Parallel runs fn(0) … fn(n-1), in any order and on any number of
	// goroutines. nil: one after another. Results never depend on it.
	Parallel func(n int, fn func(i int))
}

// slotTile slots are read from the cache at a time: 128 KiB of keys at D = 128.
const slotTile = 256

// Len returns the number of entries of KV head h.
func (l *Layer) Len(h int) int {
	if h < len(l.Lens) {
		return l.Lens[h]
	}
	return l.T
}

// longest returns the largest number of entries of any head.
func (l *Layer) longest() int {
	T := 0
	for h := range l.KVHeads {
		T = max(T, l.Len(h))
	}
	return T
}

// Group returns G, the query heads per KV head.
func (l *Layer) Group() int { return l.Heads / l.KVHeads }

// budget returns the entries head h may keep, 0 if not known.
func (l *Layer) budget(h int) int {
	if l.Budgets != nil {
		return l.Budgets[h]
	}
	return l.Share
}

// keep is the fraction of entries that may stay, where Share is known.
func (l *Layer) keep() float64 {
	if l.Ratio > 0 {
		return 1 - l.Ratio
	}
	return float64(l.Share) / float64(max(1, l.longest()))
}

// positions returns the positions of head h, nil where slot equals position.
func (l *Layer) positions(h int) []int32 {
	if l.Positions == nil {
		return nil
	}
	return l.Positions(h)
}

// positionOf returns the position of slot t of a head with the given positions. Fetch a
// head's positions only once: they are copied out of the cache.
func positionOf(pos []int32, t int) int {
	if pos == nil {
		return t
	}
	return int(pos[t])
}

// visible returns how many of the first T slots a query at position p sees.
func visible(pos []int32, T, p int) int {
	if pos == nil {
		return min(max(p+1, 0), T)
	}
	return sort.Search(T, func(t int) bool { return int(pos[t]) > p })
}

// check reports inputs that are missing or contradictory for a metric with needs n.
func (l *Layer) check(name string, n Needs) error {
	err := l.checkShape()
	if err == nil {
		err = l.checkInputs(n)
	}
	for h := 0; h < l.KVHeads && err == nil; h++ {
		err = l.checkHead(h, n)
	}
	if err != nil {
		return fmt.Errorf("score layer %d with %s: %w", l.Index, name, err)
	}
	return nil
}

func (l *Layer) checkShape() error {
	switch {
	case l.KVHeads < 1 || l.Heads < l.KVHeads || l.Heads%l.KVHeads != 0:
		return fmt.Errorf("found %d query heads and %d kv heads, expected a multiple", l.Heads, l.KVHeads)
	case l.HeadDim < 1:
		return fmt.Errorf("found head dimension %d, expected at least 1", l.HeadDim)
	case l.Lens != nil && len(l.Lens) != l.KVHeads:
		return fmt.Errorf("found %d lengths, expected one for each of %d kv heads", len(l.Lens), l.KVHeads)
	case l.Budgets != nil && len(l.Budgets) != l.KVHeads:
		return fmt.Errorf("found %d budgets, expected one for each of %d kv heads", len(l.Budgets), l.KVHeads)
	}
	return nil
}

// checkInputs checks the fields that n names.
func (l *Layer) checkInputs(n Needs) error {
	if n.Stats {
		if err := l.checkStats(n); err != nil {
			return err
		}
	}
	switch {
	case n.Keys && l.Keys == nil:
		return errors.New("keys are missing")
	case n.Values && l.Values == nil:
		return errors.New("values are missing")
	case n.Output && (l.Output == nil || l.OutputDim < 1):
		return errors.New("the output projection is missing")
	case n.Window > 0 && (l.Queries == nil || l.Queries.Len() == 0):
		return errors.New("the last queries are missing")
	case n.Window > 0 && (l.Queries.heads != l.Heads || l.Queries.dim != l.HeadDim):
		return fmt.Errorf("found queries of %d heads × %d, expected %d × %d", l.Queries.heads, l.Queries.dim, l.Heads, l.HeadDim)
	case n.Repeat.Chunk > 0 && (l.Repeats == nil || len(l.Repeats.best) != l.KVHeads):
		return errors.New("the scores of a repetition of the context are missing")
	case n.Hidden > 0 && (l.Hidden == nil || l.Hidden.Dim < 1 || l.Hidden.Len() == 0):
		return errors.New("the hidden states are missing")
	case n.ColumnSums && l.Sums == nil:
		return errors.New("accumulated attention is missing")
	case n.ColumnSums && len(l.Sums.sum) != l.KVHeads:
		return fmt.Errorf("found accumulated attention of %d kv heads, expected %d", len(l.Sums.sum), l.KVHeads)
	}
	return nil
}

func (l *Layer) checkStats(n Needs) error {
	switch {
	case l.Stats == nil:
		return errors.New("query statistics are missing")
	case len(l.Stats.heads) != l.Heads || l.Stats.dim != l.HeadDim:
		return fmt.Errorf("found query statistics of %d heads × %d, expected %d × %d", len(l.Stats.heads), l.Stats.dim, l.Heads, l.HeadDim)
	case n.Covariance && !l.Stats.covariance:
		return errors.New("query statistics have no second moments")
	case n.ChannelNorms && !l.Stats.lengths:
		return errors.New("query statistics have no lengths")
	case 2*len(l.InvFreq) != l.HeadDim:
		return fmt.Errorf("found %d rope frequencies, expected half of head dimension %d", len(l.InvFreq), l.HeadDim)
	}
	return nil
}

// checkHead checks that everything covers the entries of head h.
func (l *Layer) checkHead(h int, n Needs) error {
	T := l.Len(h)
	if T < 0 {
		return fmt.Errorf("kv head %d has %d entries", h, T)
	}
	if pos := l.positions(h); l.Positions != nil && len(pos) != T {
		return fmt.Errorf("kv head %d has %d positions for %d entries", h, len(pos), T)
	}
	if n.Repeat.Chunk > 0 && len(l.Repeats.best[h]) != T {
		return fmt.Errorf("kv head %d has the scores of a repetition for %d of %d entries", h, len(l.Repeats.best[h]), T)
	}
	if n.ColumnSums && len(l.Sums.sum[h]) != T {
		return fmt.Errorf("kv head %d has accumulated attention for %d of %d entries", h, len(l.Sums.sum[h]), T)
	}
	return nil
}

// EachHead runs fn for every KV head whose scores are wanted, with memory that it may
// use until it returns, and returns the error of the lowest head that fails.
func (l *Layer) EachHead(ctx context.Context, fn func(h int, ws *Workspace) error) error {
	errs := make([]error, l.KVHeads)
	l.parallel(func(h int) { errs[h] = l.oneHead(ctx, h, fn) })
	return firstOf(errs...)
}

// oneHead runs fn for KV head h, if its scores are wanted.
func (l *Layer) oneHead(ctx context.Context, h int, fn func(h int, ws *Workspace) error) error {
	if l.wanted != nil && !l.wanted[h] {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	return fn(h, ws)
}

// parallel runs fn for every KV head.
func (l *Layer) parallel(fn func(h int)) {
	if l.Parallel != nil {
		l.Parallel(l.KVHeads, fn)
		return
	}
	for h := range l.KVHeads {
		fn(h)
	}
}

// rowReader is Layer.Keys or Layer.Values.
type rowReader func(h, lo, hi int, dst []float32) []float32

// eachTile calls fn with the rows [from,to) of head h within [lo,hi), tile by tile.
func (l *Layer) eachTile(ctx context.Context, rows rowReader, h, lo, hi int, fn func(from, to int, x []float32)) error {
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	tile := ws.Float32s(min(slotTile, hi-lo) * l.HeadDim)
	for from := lo; from < hi; from += slotTile {
		if err := ctx.Err(); err != nil {
			return err
		}
		to := min(from+slotTile, hi)
		x := rows(h, from, to, tile[:(to-from)*l.HeadDim])
		if len(x) < (to-from)*l.HeadDim {
			return fmt.Errorf("read slots [%d,%d) of layer %d, kv head %d: found %d values, expected %d", from, to, l.Index, h, len(x), (to-from)*l.HeadDim)
		}
		fn(from, to, x)
	}
	return nil
}

// EachKeys calls fn with the keys of head h, [hi-lo][D], tile by tile in
// slot order. fn must not keep or change them.
func (l *Layer) EachKeys(ctx context.Context, h int, fn func(lo, hi int, keys []float32)) error {
	return l.eachTile(ctx, l.Keys, h, 0, l.Len(h), fn)
}

// EachValues is EachKeys for the values.
func (l *Layer) EachValues(ctx context.Context, h int, fn func(lo, hi int, values []float32)) error {
	return l.eachTile(ctx, l.Values, h, 0, l.Len(h), fn)
}

// Unrotate writes a key that was cached at position p, with its rotation undone, to
// dst, [D]. It reads InvFreq and RopeScale.
func (l *Layer) Unrotate(dst []float64, key []float32, p int) {
	scale := l.keyScale()
	half := len(l.InvFreq)
	for i, f := range l.InvFreq {
		sin, cos := detmath.SinCos(float64(p) * f)
		a, b := float64(key[i])/scale, float64(key[half+i])/scale
		dst[i] = float64(a*cos) + float64(b*sin)
		dst[half+i] = float64(b*cos) - float64(a*sin)
	}
}

// keyScale is the factor that rotation has put on keys.
func (l *Layer) keyScale() float64 {
	if l.RopeScale == 0 {
		return 1
	}
	return l.RopeScale
}

// Attend writes the causal softmax of some queries of one query head over the entries
// of the KV head h that it reads to probs, [len(positions)][Len(h)]: query i is
// queries[i*D:], after RoPE, at positions[i]. Entries that it cannot see get 0.
func (l *Layer) Attend(ctx context.Context, h int, queries []float32, positions []int, probs []float32) error {
	D := l.HeadDim
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	row := func(i int) []float32 { return queries[i*D : (i+1)*D] }
	return l.attend(ctx, h, len(positions), l.Len(h), row, func(i int) int { return positions[i] }, probs, &ws.attend)
}

// windowRows rows of a window are computed together, of several query heads where one has
// fewer: the keys are then read once for them.
const windowRows = 16

// WindowAttention calls fn for every query head g of the group of KV head h
// with the causal softmax of the last w queries, [w][Len(h)], oldest first; fn
// must not keep it. w is at most the number of queries that the layer has.
func (l *Layer) WindowAttention(ctx context.Context, h, w int, fn func(g int, probs []float32)) error {
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	T, G, first := l.Len(h), l.Group(), l.Queries.Len()-w
	together := min(G, max(1, windowRows/max(1, w)))
	p := ws.Float32s(together * w * T)
	for from := 0; from < G; from += together {
		n := min(together, G-from)
		row := func(i int) []float32 { return l.Queries.Row(first+i%w, h*G+from+i/w) }
		pos := func(i int) int { return l.Queries.Position(first + i%w) }
		if err := l.attend(ctx, h, n*w, T, row, pos, p, &ws.attend); err != nil {
			return err
		}
		for g := range n {
			fn(from+g, p[g*w*T:(g+1)*w*T])
		}
	}
	return nil
}

// attendScratch is memory that attend reuses.
type attendScratch struct {
	seen    []int     // slots that each row sees
	queries []float32 // [rows][D]
}

// attend writes the causal softmax of some query rows over the T cached slots
// of KV head h to p, [rows][T]: row(i) is the query, [D], at position pos(i).
// Slots that a row cannot see get 0. Logits are float32 in the order of
// kernels.MatMul, exponentials float32 (kernels.Exp), their sum float64 in
// ascending slot order, the result rounded to float32.
func (l *Layer) attend(ctx context.Context, h, rows, T int, row func(i int) []float32, pos func(i int) int, p []float32, sc *attendScratch) error {
	kpos := l.positions(h)
	D := l.HeadDim
	sc.seen = slices.Grow(sc.seen[:0], rows)[:rows]
	sc.queries = slices.Grow(sc.queries[:0], rows*D)[:rows*D]
	seen, most := sc.seen, 0
	for i := range rows {
		seen[i] = visible(kpos, T, pos(i))
		most = max(most, seen[i])
		copy(sc.queries[i*D:(i+1)*D], row(i))
	}
	err := l.eachTile(ctx, l.Keys, h, 0, most, func(lo, hi int, keys []float32) {
		w := kernels.F32Matrix(keys, hi-lo, D)
		l.CPU.MatMul(p[lo:], T, sc.queries, D, rows, &w, 0, hi-lo)
	})
	if err != nil {
		return err
	}
	for i := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		l.softmax(p[i*T : i*T+seen[i]])
		clear(p[i*T+seen[i] : (i+1)*T])
	}
	return nil
}

// logitDivisor returns by what products of query and key are divided, √D unless the layer
// says otherwise.
func (l *Layer) logitDivisor() float64 {
	if l.ScoreScale != 0 {
		return 1 / l.ScoreScale
	}
	return math.Sqrt(float64(l.HeadDim))
}

// softmax replaces products z of query and key by attention weights.
func (l *Layer) softmax(z []float32) {
	scale := 1 / l.logitDivisor()
	if l.ScoreCap > 0 {
		for i, v := range z {
			z[i] = float32(float64(v) * scale)
		}
		l.CPU.SoftCap(z, float32(l.ScoreCap))
		scale = 1
	}
	softmax(l.CPU, z, scale)
}

// softmax replaces logits z by the softmax of scale*z.
func softmax(cpu kernels.CPU, z []float32, scale float64) {
	if len(z) == 0 {
		return
	}
	// A NaN does not win here, but makes the sum, and so the whole row, NaN.
	m := float64(float64(z[cpu.Argmax(z)]) * scale)
	for t, v := range z {
		z[t] = float32(float64(float64(v)*scale) - m)
	}
	cpu.Exp(z, z)
	var sum float64
	for _, e := range z {
		sum += float64(e)
	}
	inv := 1 / sum
	for t, v := range z {
		z[t] = float32(float64(v) * inv)
	}
}
