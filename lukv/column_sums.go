package lukv

import (
	"context"
	"fmt"
	"slices"
)

// ColumnSums accumulates the attention that every cached slot of one layer has
// received, summed over the query heads of its group: the column sums of the
// attention matrix, without the matrix. Rows must come in order of position;
// how they are divided into calls does not matter. Different KV heads may be
// added to concurrently.
type ColumnSums struct {
	group int
	// decay multiplies all sums of a head before each row; 1 in the original.
	decay float64
	sum   [][]float64 // [K][T]
	seen  [][]int64   // [K][T] rows that could see the slot

	scratch []sumsScratch // [K]
}

type sumsScratch struct {
	probs  []float32 // [G][T] attention of one row
	attend attendScratch
}

// NewColumnSums returns sums that cover no slots yet. decay is the factor
// applied per query row, 1 for none.
func NewColumnSums(heads, kvHeads int, decay float64) *ColumnSums {
	return &ColumnSums{
		group: heads / kvHeads, decay: decay,
		sum: make([][]float64, kvHeads), seen: make([][]int64, kvHeads), scratch: make([]sumsScratch, kvHeads),
	}
}

// Len returns the number of slots of head h.
func (c *ColumnSums) Len(h int) int { return len(c.sum[h]) }

// Grow makes head h cover n slots; new ones have received nothing yet.
func (c *ColumnSums) Grow(h, n int) {
	for len(c.sum[h]) < n {
		c.sum[h] = append(c.sum[h], 0)
		c.seen[h] = append(c.seen[h], 0)
	}
}

// Reserve makes room for n slots of every head.
func (c *ColumnSums) Reserve(n int) {
	for h := range c.sum {
		c.sum[h] = slices.Grow(c.sum[h], max(0, n-len(c.sum[h])))
		c.seen[h] = slices.Grow(c.seen[h], max(0, n-len(c.seen[h])))
	}
}

// AddRow adds the attention of one query row over the first n slots of head h:
// probs is [G][n], the query heads of the group one after another.
func (c *ColumnSums) AddRow(h int, probs []float32, n int) {
	c.Grow(h, n)
	if c.decay != 1 {
		for t := range c.sum[h] {
			c.sum[h][t] *= c.decay
		}
	}
	sum, seen := c.sum[h][:n], c.seen[h][:n]
	for t := range seen {
		seen[t]++
	}
	for g := range c.group {
		for t, p := range probs[g*n : (g+1)*n] {
			sum[t] += float64(p)
		}
	}
}

// attendRows query rows are computed together, so that a tile of keys is read
// once for all of them; it bounds the scratch to attendRows*G*T float32.
const attendRows = 4

// Attend computes the causal attention of n query rows over the cache of KV
// head h and adds it. Row i is q[i*stride:], [H*D], after RoPE, at position
// pos+i. The layer's keys must already include those rows' own entries.
func (c *ColumnSums) Attend(ctx context.Context, l *Layer, h, pos int, q []float32, n, stride int) error {
	T, G, D := l.Len(h), l.Group(), l.HeadDim
	if G != c.group || h >= len(c.sum) {
		return fmt.Errorf("accumulate attention of layer %d: found groups of %d query heads and kv head %d, expected %d and below %d", l.Index, G, h, c.group, len(c.sum))
	}
	kpos := l.positions(h)
	// A decode step reuses its scratch; that of a prefill would be too large to
	// keep for every layer.
	var p []float32
	sc := &c.scratch[h].attend
	if n == 1 {
		if cap(c.scratch[h].probs) < G*T {
			c.scratch[h].probs = make([]float32, G*(T+T/4+64))
		}
		p = c.scratch[h].probs[:G*T]
	} else {
		p = make([]float32, min(attendRows, n)*G*T)
	}
	for i := 0; i < n; i += attendRows {
		m := min(attendRows, n-i)
		row := func(r int) []float32 {
			at := (i+r/G)*stride + (h*G+r%G)*D
			return q[at : at+D]
		}
		if err := l.attend(ctx, h, m*G, T, row, func(r int) int { return pos + i + r/G }, p, sc); err != nil {
			return err
		}
		for r := range m {
			n := visible(kpos, T, pos+i+r)
			for g := 1; g < G; g++ {
				copy(p[r*G*T+g*n:], p[(r*G+g)*T:(r*G+g)*T+n])
			}
			c.AddRow(h, p[r*G*T:r*G*T+G*n], n)
		}
	}
	return nil
}

// Mean returns the accumulated attention of slot t of head h, averaged over
// the group.
func (c *ColumnSums) Mean(h, t int) float64 { return c.sum[h][t] / float64(c.group) }

// Seen returns how many query rows could see slot t of head h.
func (c *ColumnSums) Seen(h, t int) int64 { return c.seen[h][t] }

// Compact keeps only the given slots of head h, ascending, as the cache does.
func (c *ColumnSums) Compact(h int, kept []int32) {
	for i, t := range kept {
		c.sum[h][i], c.seen[h][i] = c.sum[h][t], c.seen[h][t]
	}
	c.Truncate(h, len(kept))
	if cap(c.scratch[h].probs) > 4*c.group*(len(kept)+64) {
		c.scratch[h].probs = nil
	}
}

// Truncate forgets the slots of head h from n on. What their queries gave to
// earlier slots stays.
func (c *ColumnSums) Truncate(h, n int) {
	if n < len(c.sum[h]) {
		c.sum[h], c.seen[h] = c.sum[h][:n], c.seen[h][:n]
	}
}

// Clone returns an independent copy.
func (c *ColumnSums) Clone() *ColumnSums {
	d := &ColumnSums{group: c.group, decay: c.decay, sum: make([][]float64, len(c.sum)), seen: make([][]int64, len(c.seen)), scratch: make([]sumsScratch, len(c.sum))}
	for h := range c.sum {
		d.sum[h], d.seen[h] = slices.Clone(c.sum[h]), slices.Clone(c.seen[h])
	}
	return d
}
