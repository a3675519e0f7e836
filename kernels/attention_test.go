package kernels

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lukv/lukv/tensor"
)

func TestAttentionDoesNotAllocate(t *testing.T) {
	const dim, n = 64, 700
	kv := benchCache(tensor.F16, 1, dim, 768)[0]
	q, out, scores := make([]float32, 8*dim), make([]float32, 8*dim), make([]float32, n)
	for _, c := range Variants() {
		var s AttentionScratch
		round := func() {
			a := AttentionArgs{Out: out, Q: q, Stride: 4 * dim, N: 2, Group: 4, End: n, Scale: AttentionScale(dim), KV: kv}
			c.Attention(&a, &s)
			c.AttentionWeights(scores[:n-5], q[:dim], &kv, 5, a.Scale, Softmax{Sum: 1})
		}
		round()
		assert.Zero(t, testing.AllocsPerRun(3, round), "%v", c)
	}
}
