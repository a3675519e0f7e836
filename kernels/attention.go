package kernels

import (
	"math"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

const (
	// BlockEntries is the number of logical slots after which the online softmax
	// starts a new partial sum; blocks end at absolute multiples of it.
	BlockEntries = 256
)

// Softmax holds the softmax statistics of one query and head, in units of base 2:
// Max is the largest scaled score, Sum the sum of exp2(score - Max).
type Softmax struct {
	Max, Sum float32
}

// AttentionScratch is the working memory of one attention call at a time, at most
// 512 KiB, and 128 KiB more for integers. The zero value is ready to use; it grows to fit the largest call and does
// not shrink. It may be used by one goroutine at a time.
type AttentionScratch struct {
	rows int

	// Rows are attentionStride elements apart. Kernels may keep queries and weights in
	// bf16 at the start of their rows; see attentionKernels.
	q   []float32 // [rows][HeadDim] queries
	p   []float32 // [rows][BlockEntries] scores of a block, then weights
	acc []float32 // [rows][HeadDim] weighted values of a block
	out []float32 // [rows][HeadDim] weighted values of the earlier blocks

	from, to  []int     // [rows] slots that a row sees
	lo, hi    []int     // [rows] those in the block, counted from its start
	part, all []Softmax // [rows] of the block, of the earlier blocks

	// Panels: what many rows read repeatedly, widened or in pairs of bf16.
	k []float32 // [HeadDim][panelColumns] keys
	v []float32 // [panelSlots][panelColumns] a part of the values' columns

	ints intScratch // for keys and values that are integers

	half []float32 // the values of a pair of slots, only one of which is seen
	tiny []uint32  // [1] kernels report here
	hint []uintptr // [5] see queryRows.hint
}

// attentionStride is the distance between rows in the scratch (the assembly knows
// it, too). It has room for a block of weights or the longest head, and is not a
// power of two, so that rows do not share cache sets.
const attentionStride = 272

// maxHeadDim is the longest head that the assembly handles.
const maxHeadDim = 256

func (s *AttentionScratch) grow(rows, headDim int) {
	if s.rows >= rows && cap(s.acc) >= headDim {
		return
	}
	s.rows = max(s.rows, rows)
	n := max(s.rows*attentionStride, headDim)
	s.q, s.p, s.acc, s.out = make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
	s.from, s.to, s.lo, s.hi = make([]int, s.rows), make([]int, s.rows), make([]int, s.rows), make([]int, s.rows)
	s.part, s.all = make([]Softmax, s.rows), make([]Softmax, s.rows)
	s.half, s.tiny, s.hint = make([]float32, maxHeadDim), make([]uint32, 1), make([]uintptr, 5)
}

// AttentionArgs describes the attention of n consecutive tokens of one sequence
// over one KV head, for the group of query heads that read it.
type AttentionArgs struct {
	Out, Q   []float32 // token i, head g of the group: [i*Stride + g*HeadDim : … + HeadDim]
	Stride   int       // row distance between tokens
	N, Group int       // tokens; query heads of the group
	End      int       // logical slots that token 0 sees: [0, End); token i sees [0, End+i)
	Window   int       // if positive, a token sees only the last Window of these slots
	Scale    float32   // factor of the scores, log2 e included
	Cap      float32   // if positive, what SoftCap limits scaled scores to, log2 e included
	KV       KV
	Stats    []Softmax // [N*Group] or nil: receives the softmax statistics

	// BF16 rounds queries and weights to bf16 and computes with bf16 products, as the
	// package comment defines. Keys and values must then be BF16.
	BF16 bool
}

var minusInf = float32(math.Inf(-1))

// AttentionScale returns the Scale for a head dimension: log2(e)/√HeadDim.
func AttentionScale(headDim int) float32 {
	return float32(log2e / math.Sqrt(float64(headDim)))
}

// attentionRows is the most rows, each a query head of a token, that share a pass
// over the cache.
const attentionRows = 96

// AttentionTokens returns the number of tokens, at least 1, that one call of Attention
// should have in prefill if group query heads read a KV head: fewer mean more passes
// over the cache, and the padding of rows to whole tiles of 6 is wasted work. It
// affects only speed.
func AttentionTokens(group int) int {
	best, cost := 1, 0.0
	for n := 1; n*group <= attentionRows; n++ {
		// Reading keys and values takes about the time of 6 rows.
		rows := n * group
		if c := float64((rows+5)/6*6+6) / float64(rows); n == 1 || c <= cost {
			best, cost = n, c
		}
	}
	return best
}

func (a *AttentionArgs) slots(i int) (lo, hi int) {
	hi = a.End + i
	if a.Window > 0 {
		lo = max(0, hi-a.Window)
	}
	return lo, hi
}

// Attention computes causal softmax attention of the queries over the cache as
// the package comment defines it. A token that sees no slot gets zeros. No token
// may see a slot before KV.Base.
func (c CPU) Attention(a *AttentionArgs, s *AttentionScratch) {
	a.check()
	if raceEnabled {
		a.race()
	}
	if c.attentionAsm(a, s) {
		return
	}
	attentionPortable(a, s)
}

func (a *AttentionArgs) check() {
	if lo, _ := a.slots(0); a.N > 0 && lo < a.KV.Base {
		panic("kernels: Attention over slots that the cache no longer holds")
	}
	if t := a.KV.valueType(); a.BF16 && (a.KV.Type != tensor.BF16 || t != tensor.BF16) {
		panic("kernels: Attention in bf16 over a cache of types " + a.KV.Type.String() + " and " + t.String())
	}
}

// AttentionBlocks holds what the blocks of one KV head contribute to the attention of one
// token, so that several goroutines can share a head: values [blocks][Group][HeadDim] and
// statistics [blocks][Group]. Block 0 holds the first slot that the token sees.
type AttentionBlocks struct {
	Values []float32
	Stats  []Softmax
}

// block returns the values and statistics of the block that contains a slot.
func (b *AttentionBlocks) block(a *AttentionArgs, slot int) ([]float32, []Softmax) {
	first, _ := a.slots(0)
	i := (slot/BlockEntries - first/BlockEntries) * a.Group
	return b.Values[i*a.KV.HeadDim:][:a.Group*a.KV.HeadDim], b.Stats[i:][:a.Group]
}

// Blocks returns how many blocks of the cache token 0 sees.
func (a *AttentionArgs) Blocks() int {
	lo, hi := a.slots(0)
	if lo >= hi {
		return 0
	}
	return (hi-1)/BlockEntries - lo/BlockEntries + 1
}

// AttentionBlocks computes the blocks from, …, to-1 of those that the only token of a (N
// is 1) sees. This is the part of [CPU.Attention] that reads the cache; Out and Stats are
// left to [CPU.MergeAttention]. Calls for other blocks may run concurrently, each with its
// own scratch.
func (c CPU) AttentionBlocks(a *AttentionArgs, from, to int, b *AttentionBlocks, s *AttentionScratch) {
	a.check()
	lo, hi := a.slots(0)
	first := lo / BlockEntries
	lo, hi = max(lo, (first+from)*BlockEntries), min(hi, (first+to)*BlockEntries)
	if raceEnabled {
		raceRead(a.Q[:a.Group*a.KV.HeadDim])
		a.raceValues(lo, hi)
	}
	if c.blocksAsm(a, lo, hi, b, s) {
		return
	}
	d := a.KV.HeadDim
	s.grow(1, d)
	for at := lo; at < hi; {
		end := min(hi, (at/BlockEntries+1)*BlockEntries)
		values, stats := b.block(a, at)
		for g := range a.Group {
			q := a.query(g*d, s)
			stats[g] = blockPortable(values[g*d:][:d], s.p[:end-at], &q, a, at)
		}
		at = end
	}
}

// MergeAttention sets Out and Stats from all blocks, bit for bit as [CPU.Attention] does.
// It overwrites the values of the blocks.
func (c CPU) MergeAttention(a *AttentionArgs, b *AttentionBlocks, s *AttentionScratch) {
	d := a.KV.HeadDim
	lo, hi := a.slots(0)
	if raceEnabled {
		raceWrite(b.Values[:a.Blocks()*a.Group*d])
		raceWrite(a.Out[:a.Group*d])
	}
	if c.mergeAsm(a, b, s) {
		return
	}
	for g := range a.Group {
		out, all := a.Out[g*d:][:d], Softmax{Max: minusInf}
		clear(out)
		for at := lo; at < hi; at = (at/BlockEntries + 1) * BlockEntries {
			values, stats := b.block(a, at)
			all = mergePortable(out, values[g*d:][:d], all, stats[g])
		}
		finishPortable(out, all.Sum)
		a.KV.rotateBack(CPU{}, out)
		if a.Stats != nil {
			a.Stats[g] = all
		}
	}
}

// race tells the race detector what assembly writes and reads, except for the keys.
func (a *AttentionArgs) race() {
	for i := range a.N {
		row := a.Group * a.KV.HeadDim
		raceRead(a.Q[i*a.Stride : i*a.Stride+row])
		raceWrite(a.Out[i*a.Stride : i*a.Stride+row])
	}
	lo, _ := a.slots(0)
	_, hi := a.slots(a.N - 1)
	a.raceValues(lo, hi)
	raceWrite(a.Stats)
}

// raceValues tells the race detector that the values of the slots [lo, hi) are read.
func (a *AttentionArgs) raceValues(lo, hi int) {
	for lo < hi {
		n := min(hi-lo, a.KV.PageEntries-(lo-a.KV.Base)%a.KV.PageEntries)
		raceRead(unsafe.Slice((*byte)(a.KV.value(lo)), cellBytes(a.KV.valueType(), n*a.KV.HeadDim)))
		lo += n
	}
}

func attentionPortable(a *AttentionArgs, s *AttentionScratch) {
	d := a.KV.HeadDim
	s.grow(1, d)
	for i := range a.N {
		lo, hi := a.slots(i)
		for g := range a.Group {
			off := i*a.Stride + g*d
			q := a.query(off, s)
			st := attendPortable(a.Out[off:off+d], &q, a, lo, hi, s)
			if a.Stats != nil {
				a.Stats[i*a.Group+g] = st
			}
		}
	}
}

// query returns the query at an offset of Q, rounded as its products need it.
func (a *AttentionArgs) query(off int, s *AttentionScratch) query {
	q := a.Q[off:][:a.KV.HeadDim]
	switch {
	case isInt(a.KV.Type):
		return CPU{}.intQuery(s.ints.query(len(q)), q, a.KV.Type, a.Scale)
	case !a.BF16:
		return query{x: q, factor: a.Scale}
	}
	rounded := s.q[:len(q)]
	for j, x := range q {
		rounded[j] = bf16(roundBF16(x))
	}
	return query{x: rounded, factor: a.Scale}
}

// attendPortable computes attention of one query over the logical slots [lo, hi).
func attendPortable(out []float32, q *query, a *AttentionArgs, lo, hi int, s *AttentionScratch) Softmax {
	all := Softmax{Max: minusInf}
	clear(out)
	for at := lo; at < hi; {
		end := min(hi, (at/BlockEntries+1)*BlockEntries)
		acc := s.acc[:len(out)]
		b := blockPortable(acc, s.p[:end-at], q, a, at)
		all = mergePortable(out, acc, all, b)
		at = end
	}
	finishPortable(out, all.Sum)
	a.KV.rotateBack(CPU{}, out)
	return all
}

// minWeight is the exponent below which attention in bf16 treats a weight as zero: it is
// negligible beside the largest weight, and products with it could be subnormal.
const minWeight = -60

// blockPortable sets acc to the weighted sum of the values of the logical slots
// from … from+len(p)-1, which lie in one block, with weights relative to the block's
// own maximum. p is scratch.
func blockPortable(acc, p []float32, q *query, a *AttentionArgs, from int) Softmax {
	switch {
	case isInt(a.KV.Type):
		scoresIntPortable(p, q, &a.KV, from)
	case a.BF16:
		scoresBF16Portable(p, q.x, &a.KV, from, q.factor)
	default:
		scoresPortable(p, q.x, &a.KV, from, q.factor)
	}
	if a.Cap > 0 {
		CPU{}.SoftCap(p, a.Cap)
	}
	m := minusInf
	for _, t := range p {
		if t > m {
			m = t
		}
	}
	m += 0 // which of two zeros came first must not show
	var sum [lanes]float32
	for j, t := range p {
		w := Exp2(t - m)
		if a.BF16 {
			if t-m < minWeight {
				w = 0
			}
			w = bf16(roundBF16(w))
		}
		p[j] = w
		sum[(from+j)%lanes] += w
	}
	clear(acc)
	switch {
	case isInt(a.KV.valueType()):
		valuesIntPortable(acc, p, &a.KV, from)
	case a.BF16:
		valuesBF16Portable(acc, p, &a.KV, from)
	default:
		valuesPortable(acc, p, &a.KV, from)
	}
	return Softmax{Max: m, Sum: sumLanes(&sum)}
}

// mergePortable adds block b, with values acc, to the earlier blocks a, with values out.
func mergePortable(out, acc []float32, a, b Softmax) Softmax {
	m := max(a.Max, b.Max)
	ra, rb := Exp2(a.Max-m), Exp2(b.Max-m)
	for i := range out {
		out[i] = float32(out[i]*ra) + float32(acc[i]*rb)
	}
	return Softmax{Max: m, Sum: float32(a.Sum*ra) + float32(b.Sum*rb)}
}

// finishPortable divides by the denominator; adding zero removes negative zeros.
func finishPortable(out []float32, sum float32) {
	if sum == 0 {
		return
	}
	for i := range out {
		out[i] = out[i]/sum + 0
	}
}

// scoresPortable sets p[j] to the scaled score of q with logical slot from+j.
func scoresPortable(p, q []float32, kv *KV, from int, scale float32) {
	var buf [TileEntries]float32
	for j := 0; j < len(p); {
		// The entries of one tile, side by side.
		k, e := kv.key(from+j), (from+j)%TileEntries
		t := [TileEntries]float32{}
		n := min(TileEntries-e, len(p)-j)
		for d, x := range q {
			row := load16(&buf, k, kv.Type, d*TileEntries)
			for i := e; i < e+n; i++ {
				t[i] = fma32(x, row[i], t[i])
			}
		}
		for i := range n {
			p[j+i] = t[e+i] * scale
		}
		j += n
	}
}

// valuesPortable adds the values of the logical slots from, from+1, …, weighted by p, to acc.
func valuesPortable(acc, p []float32, kv *KV, from int) {
	var buf [16]float32
	for j, w := range p {
		v := kv.value(from + j)
		d := 0
		for ; d+16 <= len(acc); d += 16 {
			row, a := load16(&buf, v, kv.valueType(), d), (*[16]float32)(acc[d:])
			for i, x := range row {
				a[i] = fma32(w, x, a[i])
			}
		}
		for ; d < len(acc); d++ {
			acc[d] = fma32(w, load(v, kv.valueType(), d), acc[d])
		}
	}
}

// scoresBF16Portable is scoresPortable with bf16 products. q holds bf16 values.
func scoresBF16Portable(p, q []float32, kv *KV, from int, scale float32) {
	var odd, even [TileEntries]float32
	for j := 0; j < len(p); {
		k, e := kv.key(from+j), (from+j)%TileEntries
		t := [TileEntries]float32{}
		n := min(TileEntries-e, len(p)-j)
		for d := 0; d < len(q); d += 2 {
			if d+1 < len(q) {
				row := load16(&odd, k, kv.Type, (d+1)*TileEntries)
				for i := e; i < e+n; i++ {
					t[i] = fmaFlush(q[d+1], row[i], t[i])
				}
			}
			row := load16(&even, k, kv.Type, d*TileEntries)
			for i := e; i < e+n; i++ {
				t[i] = fmaFlush(q[d], row[i], t[i])
			}
		}
		for i := range n {
			p[j+i] = t[e+i] * scale
		}
		j += n
	}
}

// valuesBF16Portable is valuesPortable with bf16 products. p holds bf16 values.
func valuesBF16Portable(acc, p []float32, kv *KV, from int) {
	add := func(slot int) {
		w, v := p[slot-from], kv.value(slot)
		for d := range acc {
			acc[d] = fmaFlush(w, load(v, kv.valueType(), d), acc[d])
		}
	}
	for slot, end := from, from+len(p); slot < end; slot++ {
		if slot%2 == 0 && slot+1 < end {
			add(slot + 1)
			add(slot)
			slot++
		} else {
			add(slot)
		}
	}
}

// AttentionWeights sets dst[j] to the attention probability of query q [HeadDim]
// on logical slot from+j, exp2(score - st.Max)/st.Sum, given the statistics that
// Attention computed for this query with the same scale and limit, which is
// AttentionArgs.Cap.
func (c CPU) AttentionWeights(dst, q []float32, kv *KV, from int, scale, limit float32, st Softmax) {
	c.AttentionScores(dst, q, kv, from, scale)
	if limit > 0 {
		c.SoftCap(dst, limit)
	}
	c.softmaxWeights(dst, st)
}

func softmaxWeightsPortable(dst []float32, st Softmax) {
	for j, t := range dst {
		dst[j] = Exp2(t-st.Max) / st.Sum
	}
}

// AttentionScores sets dst[j] to the scaled score (base 2) of q with logical slot from+j.
func (c CPU) AttentionScores(dst, q []float32, kv *KV, from int, scale float32) {
	if isInt(kv.Type) {
		c.scoresIntOf(dst, q, kv, from, scale)
		return
	}
	c.attentionScores(dst, q, kv, from, scale)
}
