package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testmem"
	"github.com/lukv/lukv/tensor"
)

// TestAttentionRows computes the first n tokens of a chunk, for every n, so that
// tiles of every number of rows occur, and compares them with the portable result
// of the whole chunk. NaN and infinities are among the keys and values of the last
// quarter, which earlier tokens may not see. Results end flush against an unreadable page.
func TestAttentionRows(t *testing.T) {
	checks := 0
	for i, s := range []attentionShape{
		{dim: 16, page: 16, group: 1, n: 130, end: 1},
		{dim: 80, page: 64, group: 1, n: 100, end: 250},
		{dim: 16, page: 64, group: 3, n: 40, end: 0, window: 70},
		{dim: 48, page: 48, group: 5, n: 26, end: 500, window: 20, base: 480},
		{dim: 32, page: 32, group: 7, n: 19, end: 200, window: 101, base: 96},
		{dim: 64, page: 64, group: 4, n: 33, end: 40},
		{dim: 144, page: 32, group: 8, n: 13, end: 309},
	} {
		for _, k := range []struct {
			typ    tensor.Type
			inBF16 bool
		}{{[]tensor.Type{tensor.BF16, tensor.F16, tensor.F32}[i%3], false}, {tensor.BF16, true}} {
			checks += checkAttentionRows(t, i, s, k.typ, k.inBF16)
		}
	}
	if len(Variants()) > 1 {
		require.NotZero(t, checks)
	}
}

// attentionVariants are the instruction sets without one that differs only in products.
func attentionVariants() []CPU {
	return slices.DeleteFunc(Variants(), func(c CPU) bool { return c.DotProd })
}

func checkAttentionRows(t *testing.T, i int, s attentionShape, typ tensor.Type, inBF16 bool) (checks int) {
	o := attentionOp(typ, s, inBF16, 0)
	data := make([]mem, len(o.operands))
	r := rand.New(rand.NewPCG(7, uint64(i)))
	seen := s.end + s.n*3/4 - s.base
	for i, a := range o.operands {
		data[i] = newMem(a.n * a.elem.Bytes(1))
		if a.name != "k" && a.name != "v" {
			fillRandom(r, data[i], a, plain)
			continue
		}
		fillRandom(r, data[i], a, special)
		a.n = min(a.n, seen*s.dim)
		fillRandom(r, data[i], a, plain)
	}
	o.ways[0].run(CPU{}, data)
	stride := s.group*s.dim + 3
	for _, c := range attentionVariants()[1:] {
		var scratch AttentionScratch
		for n := 1; n <= s.n; n++ {
			if testing.Short() && n > 8 && n < s.n && n%5 != 0 {
				continue
			}
			out := testmem.New(t, 4*(n*stride-3), testmem.End, 0)
			stats := testmem.New(t, 8*n*s.group, testmem.End, 0)
			for i := range out.Bytes {
				out.Bytes[i] = byte(0xC0 + i%4) // as fillRandom leaves it
			}
			c.Attention(&AttentionArgs{
				Out: mem(out.Bytes).f32(), Q: data[2].f32(), Stride: stride,
				N: n, Group: s.group, End: s.end, Window: s.window, Scale: AttentionScale(s.dim),
				KV: cacheView(typ, data[3], data[4], s.dim, s.page, s.base), Stats: view[Softmax](stats.Bytes), BF16: inBF16,
			}, &scratch)
			where := fmt.Sprintf("%v (in bf16: %v) %+v on %v, %d tokens", typ, inBF16, s, c, n)
			require.Empty(t, diff(tensor.F32, data[0][:len(out.Bytes)], out.Bytes), "%s: results", where)
			require.Empty(t, diff(tensor.F32, data[1][:len(stats.Bytes)], stats.Bytes), "%s: statistics", where)
			require.NoError(t, out.Check(), where)
			require.NoError(t, stats.Check(), where)
			checks++
		}
	}
	return checks
}

func TestAttentionScratchIsBounded(t *testing.T) {
	const dim, group, n = 256, 8, 40
	kv := benchCache(tensor.BF16, 1, dim, 256)[0]
	q := make([]float32, n*group*dim)
	for _, c := range attentionVariants() {
		var s AttentionScratch
		c.Attention(&AttentionArgs{Out: make([]float32, len(q)), Q: q, Stride: group * dim, N: n, Group: group, End: 1,
			Scale: AttentionScale(dim), KV: kv}, &s)
		bytes := 4*(cap(s.q)+cap(s.p)+cap(s.acc)+cap(s.out)+cap(s.k)+cap(s.v)+cap(s.half)+cap(s.tiny)) +
			int(unsafe.Sizeof(0))*(cap(s.from)+cap(s.to)+cap(s.lo)+cap(s.hi)) + int(unsafe.Sizeof(Softmax{}))*(cap(s.part)+cap(s.all))
		assert.LessOrEqual(t, bytes, 512<<10, "%v", c)

		rows := make([]float32, 16*dim)
		c.Attention(&AttentionArgs{Out: make([]float32, len(q)), Q: q, Stride: group * dim, N: n, Group: group, End: 1, Window: 1,
			Scale: AttentionScale(dim), KV: storedView(CPU{}, [2]tensor.Type{tensor.Q4_0, tensor.Q4_0}, slices.Repeat(rows, 3), slices.Repeat(rows, 3), dim, 16, 0)}, &s)
		assert.LessOrEqual(t, s.ints.bytes(), 128<<10, "%v", c)
	}
}

func TestAttentionTokens(t *testing.T) {
	for group, want := range map[int]int{1: 96, 2: 48, 3: 32, 4: 24, 5: 18, 7: 12, 8: 12, 16: 6, 64: 1, 97: 1, 1000: 1} {
		assert.Equal(t, want, AttentionTokens(group), "group of %d", group)
	}
}

func TestAttentionDoesNotAllocate(t *testing.T) {
	const dim, n = 64, 700
	rows := make([]float32, 768*dim)
	for i := range rows {
		rows[i] = float32(i%11) - 5
	}
	for _, kv := range []KV{
		benchCache(tensor.F16, 1, dim, 768)[0],
		storedView(CPU{}, [2]tensor.Type{tensor.I8, tensor.I8}, rows, rows, dim, 64, 0),
		storedView(CPU{}, [2]tensor.Type{tensor.Q4_0, tensor.Q4_0}, rows, rows, dim, 64, 0),
	} {
		testDoesNotAllocate(t, kv, n)
	}
}

func testDoesNotAllocate(t *testing.T, kv KV, n int) {
	const dim = 64
	q, out, scores := make([]float32, 8*dim), make([]float32, 8*dim), make([]float32, n)
	for _, c := range attentionVariants() {
		var s AttentionScratch
		round := func() {
			a := AttentionArgs{Out: out, Q: q, Stride: 4 * dim, N: 2, Group: 4, End: n, Scale: AttentionScale(dim), KV: kv}
			c.Attention(&a, &s)
			c.AttentionWeights(scores[:n-5], q[:dim], &kv, 5, a.Scale, 0, Softmax{Sum: 1})
		}
		round()
		assert.Zero(t, testing.AllocsPerRun(3, round), "%v, %v", kv.Type, c)
	}
}

// TestAttentionRowsOfIntegers computes the first n tokens of a chunk, for every n, over integers,
// and compares them with the portable result of the whole chunk. Entries that only later tokens
// see are not finite.
func TestAttentionRowsOfIntegers(t *testing.T) {
	for _, s := range []attentionShape{
		{dim: 32, page: 16, group: 1, n: 60, end: 230},
		{dim: 32, page: 32, group: 7, n: 12, end: 250, window: 101, base: 96},
		{dim: 96, page: 64, group: 3, n: 20, end: 500},
	} {
		for _, kind := range intKinds(s.dim) {
			r := rand.New(rand.NewPCG(7, uint64(s.dim)))
			entries := (s.end + s.n - s.base + s.page - 1) / s.page * s.page
			k, v := make([]float32, entries*s.dim), make([]float32, entries*s.dim)
			for i := range k {
				k[i], v[i] = float32(r.NormFloat64()), float32(r.NormFloat64())
			}
			for i := (s.end + s.n*3/4 - s.base) * s.dim; i < len(k); i += 5 {
				k[i], v[i] = float32(math.NaN()), float32(math.Inf(1))
			}
			q := make([]float32, s.n*s.group*s.dim)
			for i := range q {
				q[i] = float32(r.NormFloat64())
			}
			kv := storedView(CPU{}, kind, k, v, s.dim, s.page, s.base)
			run := func(c CPU, n int) []float32 {
				out := make([]float32, n*s.group*s.dim)
				var scratch AttentionScratch
				c.Attention(&AttentionArgs{Out: out, Q: q, Stride: s.group * s.dim, N: n, Group: s.group, End: s.end,
					Window: s.window, Scale: AttentionScale(s.dim), KV: kv}, &scratch)
				return out
			}
			want := run(CPU{}, s.n)
			for _, c := range attentionVariants()[1:] {
				for n := 1; n <= s.n; n++ {
					got := run(c, n)
					require.Empty(t, diff(tensor.F32, memOf(want[:len(got)]), memOf(got)), "%v %+v on %v, %d tokens", kind, s, c, n)
				}
			}
		}
	}
}

func memOf(x []float32) mem {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
