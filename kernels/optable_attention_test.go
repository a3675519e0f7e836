package kernels

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// attentionShape is a call of Attention over one KV head.
type attentionShape struct {
	dim, page, group, n, end, window int
	base                             int // first slot that the cache still holds
}

func init() {
	for i, s := range []attentionShape{
		{dim: 64, page: 64, group: 4, n: 1, end: 70},
		{dim: 64, page: 16, group: 4, n: 19, end: 1},
		{dim: 64, page: 128, group: 1, n: 9, end: 250},
		{dim: 64, page: 64, group: 3, n: 5, end: 0},
		{dim: 128, page: 64, group: 8, n: 1, end: 529},
		{dim: 128, page: 256, group: 4, n: 33, end: 240},
		{dim: 96, page: 32, group: 7, n: 2, end: 300},
		{dim: 80, page: 32, group: 2, n: 4, end: 254},
		{dim: 16, page: 16, group: 5, n: 70, end: 1},
		{dim: 256, page: 32, group: 2, n: 3, end: 40},
		{dim: 32, page: 32, group: 4, n: 6, end: 500, window: 60},
		{dim: 32, page: 32, group: 1, n: 40, end: 500, window: 3, base: 480},
		{dim: 64, page: 32, group: 2, n: 50, end: 240, window: 100, base: 128},
		{dim: 80, page: 64, group: 7, n: 3, end: 250},
		{dim: 256, page: 32, group: 2, n: 10, end: 100},
		{dim: 48, page: 16, group: 3, n: 9, end: 60, window: 21, base: 32},
		{dim: 2, page: 16, group: 1, n: 3, end: 5},
		{dim: 12, page: 16, group: 2, n: 2, end: 20},
		{dim: 24, page: 48, group: 3, n: 2, end: 260},
		{dim: 64, page: 64, group: 4, n: 0, end: 3},
		{dim: 80, page: 32, group: 20, n: 1, end: 600},
		{dim: 64, page: 64, group: 3, n: 1, end: 900, window: 500, base: 384},
		{dim: 12, page: 16, group: 2, n: 1, end: 520},
		{dim: 16, page: 256, group: 100, n: 1, end: 257},
	} {
		for _, t := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
			register(attentionOp(t, s, false, 0))
		}
		register(attentionOp(tensor.BF16, s, true, 0))
		if i%4 == 1 {
			for _, k := range intKinds(s.dim) {
				register(mixedAttentionOp(k, s, 0))
			}
		}
	}
	for _, s := range []attentionShape{
		{dim: 64, page: 64, group: 4, n: 1, end: 300},
		{dim: 64, page: 16, group: 4, n: 19, end: 250},
		{dim: 256, page: 32, group: 2, n: 10, end: 100},
		{dim: 48, page: 16, group: 3, n: 9, end: 60, window: 21, base: 32},
		{dim: 12, page: 16, group: 2, n: 2, end: 20},
	} {
		register(attentionOp(tensor.F32, s, false, 1.5), attentionOp(tensor.BF16, s, false, 1.5), attentionOp(tensor.BF16, s, true, 1.5), mixedAttentionOp([2]tensor.Type{tensor.I8, tensor.I8}, s, 1.5))
	}
	for _, t := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		for _, s := range []struct{ dim, page, from, n int }{
			{64, 64, 0, 128}, {64, 256, 0, 500}, {64, 32, 5, 90}, {128, 16, 15, 2}, {16, 48, 47, 97}, {10, 16, 3, 40}, {64, 64, 3, 0},
		} {
			register(scoresOp(t, s.dim, s.page, s.from, s.n))
		}
	}
	for _, s := range []struct{ dim, page, from, n int }{{64, 64, 0, 128}, {64, 32, 5, 90}, {96, 16, 15, 2}, {32, 48, 47, 97}} {
		register(scoresOp(tensor.I8, s.dim, s.page, s.from, s.n), scoresOp(tensor.Q4_0, s.dim, s.page, s.from, s.n))
	}
}

// intKinds returns types of keys and values, integers among them, for heads of dim elements.
func intKinds(dim int) [][2]tensor.Type {
	kinds := [][2]tensor.Type{{tensor.I8, tensor.I8}, {tensor.BF16, tensor.I8}}
	if dim%intGroup == 0 {
		kinds = append(kinds, [][2]tensor.Type{{tensor.I8, tensor.Q4_0}, {tensor.Q4_0, tensor.Q4_0}}...)
	}
	return kinds
}

// storedView returns a KV head of the given types with the keys and values, [entries][dim], in
// k and v, whole pages from slot base on.
func storedView(c CPU, kind [2]tensor.Type, k, v []float32, dim, page, base int) KV {
	l := PageLayout{Type: kind[0], Values: kind[1], HeadDim: dim, PageEntries: page}
	kv := KV{Type: kind[0], Values: kind[1], HeadDim: dim, PageEntries: page, Base: base}
	for ; len(k) > 0; k, v = k[page*dim:], v[page*dim:] {
		m := newMem(l.Bytes())
		p := Page{K: unsafe.Pointer(&m[0]), V: unsafe.Pointer(&m[l.ValuesAt()])}
		for e := range page {
			storeEntry(c, l, p, e, k[e*dim:(e+1)*dim], v[e*dim:(e+1)*dim])
		}
		kv.Pages = append(kv.Pages, p)
	}
	return kv
}

func storeEntry(c CPU, l PageLayout, p Page, e int, k, v []float32) {
	keys, values := l.KeyRows(), l.ValueRows()
	keys.Store(c, p.K, e, k)
	values.Store(c, p.V, e, v)
}

// mixedAttentionOp is attentionOp over keys and values of the given types, rounded from f32.
func mixedAttentionOp(kind [2]tensor.Type, s attentionShape, limit float32) op {
	o := attentionOpOf(tensor.F32, s, false, limit, func(c CPU, b []mem) KV {
		return storedView(c, kind, b[3].f32(), b[4].f32(), s.dim, s.page, s.base)
	})
	o.name = fmt.Sprintf("AttentionInts/%v-%v/%+v", kind[0], kind[1], s)
	if limit > 0 {
		o.name += fmt.Sprintf(",cap%g", limit)
	}
	return o
}

// cacheView returns the KV head whose keys and values are in k and v, whole pages from slot base on.
func cacheView(t tensor.Type, k, v mem, dim, page, base int) KV {
	kv := KV{Type: t, HeadDim: dim, PageEntries: page, Base: base}
	for bytes := page * dim * t.Bytes(1); len(k) > 0; k, v = k[bytes:], v[bytes:] {
		kv.Pages = append(kv.Pages, Page{K: unsafe.Pointer(unsafe.SliceData(k)), V: unsafe.Pointer(unsafe.SliceData(v))})
	}
	return kv
}

func attentionOp(t tensor.Type, s attentionShape, inBF16 bool, limit float32) op {
	return attentionOpOf(t, s, inBF16, limit, func(_ CPU, b []mem) KV { return cacheView(t, b[3], b[4], s.dim, s.page, s.base) })
}

// attentionOpOf has keys and values of type t in operands 3 and 4, which head turns into a KV
// head.
func attentionOpOf(t tensor.Type, s attentionShape, inBF16 bool, limit float32, head func(c CPU, b []mem) KV) op {
	gap := 3 // between the rows of two tokens
	stride := s.group*s.dim + gap
	entries := (max(s.end+s.n-1, 1) - s.base + s.page - 1) / s.page * s.page
	args := func(kv KV, b []mem, from, to int) AttentionArgs {
		return AttentionArgs{
			Out: b[0].f32()[from*stride:], Q: b[2].f32()[from*stride:], Stride: stride,
			N: to - from, Group: s.group, End: s.end + from, Window: s.window,
			Scale: AttentionScale(s.dim), Cap: limit,
			KV:    kv,
			Stats: view[Softmax](b[1])[from*s.group:],
			BF16:  inBF16,
		}
	}
	attend := func(c CPU, kv KV, b []mem, from, to int, sc *AttentionScratch) {
		a := args(kv, b, from, to)
		c.Attention(&a, sc)
	}
	name := "Attention"
	if inBF16 {
		name = "AttentionBF16"
	}
	if limit > 0 {
		name += fmt.Sprintf("Cap%g", limit)
	}
	o := op{
		name: fmt.Sprintf("%s/%v/%+v", name, t, s),
		operands: []operand{
			{"out", tensor.F32, max(0, s.n*stride-gap), out},
			{"stats", tensor.F32, 2 * s.n * s.group, out},
			{"q", tensor.F32, max(0, s.n*stride-gap), in},
			{"k", t, entries * s.dim, in},
			{"v", t, entries * s.dim, in},
		},
		ways: []way{{"whole", func(c CPU, b []mem) {
			var sc AttentionScratch
			attend(c, head(c, b), b, 0, s.n, &sc)
		}}},
	}
	for _, parts := range []int{1, 2, 5} {
		if s.n == 1 {
			o.ways = append(o.ways, way{fmt.Sprintf("blocks in %d parts, the last first", parts), func(c CPU, b []mem) {
				a := args(head(c, b), b, 0, 1)
				n := a.Blocks()
				blocks := AttentionBlocks{make([]float32, n*s.group*s.dim), make([]Softmax, n*s.group)}
				for i := range blocks.Values {
					blocks.Values[i] = float32(math.NaN()) // left over
				}
				for p := parts - 1; p >= 0; p-- {
					var sc AttentionScratch
					c.AttentionBlocks(&a, p*n/parts, (p+1)*n/parts, &blocks, &sc)
				}
				var sc AttentionScratch
				c.MergeAttention(&a, &blocks, &sc)
			}})
		}
	}
	for _, chunk := range []int{1, 5} {
		if chunk < s.n {
			o.ways = append(o.ways, way{fmt.Sprintf("%d tokens at a time", chunk), func(c CPU, b []mem) {
				var sc AttentionScratch
				kv := head(c, b)
				for i := 0; i < s.n; i += chunk {
					attend(c, kv, b, i, min(i+chunk, s.n), &sc)
				}
			}})
		}
	}
	return o
}

func scoresOp(t tensor.Type, dim, page, from, n int) op {
	entries := (from + n + page - 1) / page * page
	st := Softmax{Max: 1.5, Sum: 3}
	elem := t
	if isInt(t) {
		elem = tensor.F32 // rounded when stored
	}
	compute := func(c CPU, b []mem, lo, hi int) {
		var kv KV
		if isInt(t) {
			kv = storedView(c, [2]tensor.Type{t, t}, b[3].f32(), b[3].f32(), dim, page, 0)
		} else {
			kv = cacheView(t, b[3], b[3], dim, page, 0)
		}
		c.AttentionScores(b[0].f32()[lo:hi], b[2].f32(), &kv, from+lo, 0.7)
		c.AttentionWeights(b[1].f32()[lo:hi], b[2].f32(), &kv, from+lo, 0.7, 0, st)
	}
	o := op{
		name: fmt.Sprintf("AttentionScores/%v/dim%d,page%d,from%d,n%d", t, dim, page, from, n),
		operands: []operand{
			{"scores", tensor.F32, n, out},
			{"weights", tensor.F32, n, out},
			{"q", tensor.F32, dim, in},
			{"k", elem, entries * dim, in},
		},
		ways: []way{{"whole", func(c CPU, b []mem) { compute(c, b, 0, n) }}},
	}
	if n > 1 {
		o.ways = append(o.ways, way{"in two parts", func(c CPU, b []mem) {
			compute(c, b, 0, n/3)
			compute(c, b, n/3, n)
		}})
	}
	return o
}
