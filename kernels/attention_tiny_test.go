package kernels

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lukv/lukv/tensor"
)

// TestAttentionJudgesTininessAfterRounding adds, in bf16, so little of the opposite sign
// to the smallest normal number that the sum rounds back to it. A processor that flushes
// before it rounds makes it zero. The sum is that of one pair of slots, or of components,
// and each case is computed by a different kernel.
func TestAttentionJudgesTininessAfterRounding(t *testing.T) {
	const dim, page, slots = 16, 16, 48
	for _, k := range []struct {
		name          string
		n, group, end int
		pair          int // slots pair, pair+1; negative: components 0, 1 of all slots
	}{
		{"scores of few rows", 1, 4, 2, -1},
		{"scores of many rows", 1, 24, 2, -1},
		{"values of four rows", 1, 4, 2, 0},
		{"values of one row", 3, 1, 2, 2},
		{"values of six rows", 1, 24, 2, 0},
		{"values of one row from a panel", 17, 1, 2, 16},
	} {
		q, keys, values := make([]float32, k.n*k.group*dim), newMem(2*slots*dim), newMem(2*slots*dim)
		key := func(slot, d int, x float32) {
			keys.u16()[(slot/page*dim+d)*page+slot%page] = uint16(RoundTo(tensor.BF16, x))
		}
		scale := float32(1)
		if k.pair < 0 {
			scale = 0x1p100
			for i := 0; i < len(q); i += dim {
				q[i], q[i+1] = 0x1p-80, 0x1p-63
			}
			for slot := range slots {
				key(slot, 0, -0x1p-80)
				key(slot, 1, 0x1p-63)
			}
		} else {
			for i := 0; i < len(q); i += dim {
				q[i] = 1
			}
			for slot := range slots {
				key(slot, 0, -200) // the weight is zero
			}
			key(k.pair, 0, -40)
			key(k.pair+1, 0, 0)
			values.u16()[k.pair*dim] = uint16(RoundTo(tensor.BF16, -minNormal))
			values.u16()[(k.pair+1)*dim] = uint16(RoundTo(tensor.BF16, minNormal))
		}
		for _, c := range attentionVariants() {
			out, stats := make([]float32, len(q)), make([]Softmax, k.n*k.group)
			var s AttentionScratch
			c.Attention(&AttentionArgs{
				Out: out, Q: q, Stride: k.group * dim, N: k.n, Group: k.group, End: k.end, Scale: scale,
				KV: cacheView(tensor.BF16, keys, values, dim, page, 0), Stats: stats, BF16: true,
			}, &s)
			last := len(stats) - 1
			if k.pair < 0 {
				assert.EqualValues(t, 0x1p-26, stats[last].Max, "%s on %v", k.name, c)
			} else {
				assert.EqualValues(t, minNormal, out[last*dim], "%s on %v", k.name, c)
			}
		}
	}
}

// TestAttentionLeavesOutSmallWeights has scores at and below minWeight and values that
// would make the difference visible.
func TestAttentionLeavesOutSmallWeights(t *testing.T) {
	const dim, page, slots = 16, 16, 16
	keys, values := newMem(2*slots*dim), newMem(2*slots*dim)
	for slot, score := range []float32{0, minWeight, minWeight - 0.5} {
		keys.u16()[slot] = uint16(RoundTo(tensor.BF16, score))
		values.u16()[slot*dim+slot] = uint16(RoundTo(tensor.BF16, 0x1p80))
	}
	for _, group := range []int{1, 24} {
		q := make([]float32, group*dim)
		for i := 0; i < len(q); i += dim {
			q[i] = 1
		}
		for _, c := range attentionVariants() {
			out := make([]float32, len(q))
			var s AttentionScratch
			c.Attention(&AttentionArgs{
				Out: out, Q: q, Stride: len(q), N: 1, Group: group, End: 3, Scale: 1,
				KV: cacheView(tensor.BF16, keys, values, dim, page, 0), BF16: true,
			}, &s)
			assert.Equal(t, []float32{0x1p80, 0x1p20, 0, 0}, out[:4], "%d rows on %v", group, c)
		}
	}
}
