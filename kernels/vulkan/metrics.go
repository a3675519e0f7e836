//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lukv/lukv/tensor"
)

// sequence names the heads of one sequence in a layer for the metrics: heads
// Seq·KVHeads … of the table. Longest is the largest number of entries in any of
// them when the commands run, Held how many entries of a head are not counted in the
// table because the current pass appended them.
type sequence struct {
	shape
	Table   *headTable
	Seq     int
	Longest int
	Held    int
}

func (c *commands) sequence(op string, s sequence) (blocks int) {
	c.shape(op, s.shape)
	if s.Table == nil || s.Seq < 0 || (s.Seq+1)*s.KVHeads > s.Table.n {
		c.fail(op, "sequence %d is not in the table of heads", s.Seq)
	}
	if s.Longest < 0 || s.Held < 0 {
		c.fail(op, "found %d entries of which %d are new", s.Longest, s.Held)
	}
	return (s.Longest + 255) / 256
}

func (c *commands) table(op, name string, v view, rows, ld, longest int) {
	c.floats(op, name, v, rows*ld, false)
	if ld < longest {
		c.fail(op, "%s: rows are %d elements apart, expected at least the longest head's %d entries", name, ld, longest)
	}
}

// ColumnSums adds to sums, [Heads][ld] f32, the attention that every slot receives
// from n tokens of one sequence, whose rotated queries are rows row … of q: per query
// head, token by token, so that the bits do not depend on how tokens are divided into
// calls. rows is the [N] rowInfo of the pass, and s.Table counts the entries before it;
// s.Held is not used. stats is the result of Attention without a window. Bound:
// relative error 1e-5 per token, in addition to the order of f32 sums.
func (c *commands) ColumnSums(s sequence, q rows2D, stats, rows view, row, n int, sums view, ld int) {
	const op = "attention column sums"
	if !c.ready(op) {
		return
	}
	blocks := c.sequence(op, s)
	c.rows(op, "q", q, s.Heads*s.HeadDim, tensor.F32)
	c.floats(op, "stats", stats, 2*q.N*s.Heads, false)
	c.floats(op, "rows", rows, 4*q.N, false)
	c.table(op, "sums", sums, s.Heads, ld, s.Longest)
	if row < 0 || n < 0 || row+n > q.N || rows.address()%16 != 0 {
		c.fail(op, "rows [%d, %d) of %d, described at %#x, expected a multiple of 16", row, row+n, q.N, rows.address())
	}
	if c.err != nil || n == 0 {
		return
	}
	var p push
	p.addr(q.Mem)
	p.addr(stats)
	p.addr(sums)
	p.addr(s.Table.mem.All())
	p.addr(rows)
	p.u32(q.Stride, s.Heads, s.group(), s.Seq*s.KVHeads, row, n, ld)
	p.f32(s.scale())
	p.f32(s.Cap)
	c.dispatch(op, "columns", s.constants(), &p, blocks, s.KVHeads, (s.group()+7)/8)
}

const (
	modeUnitSums = iota
	modeMean
	modeCosine
	modeKeyNorm
	modeValueNorm
)

// cosineBytes is the size of MeanCosines' work memory.
func cosineBytes(s shape, longest int) int64 {
	return int64(s.KVHeads) * int64((longest+255)/256+2) * int64(padded(s.HeadDim)) * 4
}

// MeanCosines sets out, [KVHeads][ldo] f32, to the cosine of each key with the mean of
// the head's unit keys. Bound: |error| ≤ 1e-5.
func (c *commands) MeanCosines(s sequence, work, out view, ldo int) {
	const op = "mean cosines"
	if !c.ready(op) {
		return
	}
	if work.Size() < cosineBytes(s.shape, s.Longest) || work.address()%32 != 0 {
		c.fail(op, "work: found %d bytes at %#x, expected %d at a multiple of 32", work.Size(), work.address(), cosineBytes(s.shape, s.Longest))
	}
	for _, mode := range []int{modeUnitSums, modeMean, modeCosine} {
		c.vectors(op, s, mode, work, out, ldo)
	}
}

// KeyNorms sets out, [KVHeads][ldo] f32, to the lengths of the keys. Bound: relative
// error 2e-6.
func (c *commands) KeyNorms(s sequence, out view, ldo int) {
	c.vectors("key norms", s, modeKeyNorm, view{}, out, ldo)
}

// ValueNorms is like KeyNorms, but for values.
func (c *commands) ValueNorms(s sequence, out view, ldo int) {
	c.vectors("value norms", s, modeValueNorm, view{}, out, ldo)
}

func (c *commands) vectors(op string, s sequence, mode int, work, out view, ldo int) {
	if !c.ready(op) {
		return
	}
	blocks := c.sequence(op, s)
	c.table(op, "scores", out, s.KVHeads, ldo, s.Longest)
	if c.err != nil {
		return
	}
	var p push
	p.addr(out)
	p.addr(work)
	p.addr(s.Table.mem.All())
	p.u32(s.Seq*s.KVHeads, ldo, blocks, s.Held)
	x := blocks
	if mode == modeMean {
		x = min(blocks, 1)
	}
	c.dispatch(op, "vectors", append(s.constants(), uint32(mode), s.lanes()), &p, x, s.KVHeads, 1)
}

const (
	modeUnrotatedSums = iota
	modeDistance
	modeLinear
)

// KeyDistances sets out, [KVHeads][ldo] f32, to the squared distance of each key, its rotation
// undone, from the mean of the head's. frequencies is what putFrequencies writes, work has
// cosineBytes. Bound: 1e-5 of the sum of both squared lengths.
func (c *commands) KeyDistances(s sequence, frequencies, work, out view, ldo int) {
	const op = "key distances"
	if !c.ready(op) {
		return
	}
	if work.Size() < cosineBytes(s.shape, s.Longest) || work.address()%32 != 0 {
		c.fail(op, "work: found %d bytes at %#x, expected %d at a multiple of 32", work.Size(), work.address(), cosineBytes(s.shape, s.Longest))
	}
	c.unrotated(op, s, modeUnrotatedSums, frequencies, work, out, ldo)
	c.vectors(op, s, modeMean, work, out, ldo)
	c.unrotated(op, s, modeDistance, frequencies, work, out, ldo)
}

// LinearForms sets out, [KVHeads][ldo] f32, to the product of each key, its rotation undone,
// with the first vector of its head, and of the value with the second: vectors is
// [KVHeads][2][padded(HeadDim)] f32. Bound: 1e-5·Σ|terms|.
func (c *commands) LinearForms(s sequence, frequencies, vectors, out view, ldo int) {
	const op = "linear forms"
	if !c.ready(op) {
		return
	}
	c.floats(op, "vectors", vectors, 2*s.KVHeads*padded(s.HeadDim), false)
	if vectors.address()%16 != 0 {
		c.fail(op, "vectors at %#x, expected a multiple of 16", vectors.address())
	}
	c.unrotated(op, s, modeLinear, frequencies, vectors, out, ldo)
}

func (c *commands) unrotated(op string, s sequence, mode int, frequencies, work, out view, ldo int) {
	blocks := c.sequence(op, s)
	c.floats(op, "frequencies", frequencies, s.HeadDim, false)
	c.table(op, "out", out, s.KVHeads, ldo, s.Longest)
	if frequencies.address()%8 != 0 {
		c.fail(op, "frequencies at %#x, expected a multiple of 8", frequencies.address())
	}
	if c.err != nil {
		return
	}
	var p push
	for _, a := range []view{out, work, s.Table.mem.All(), frequencies} {
		p.addr(a)
	}
	p.u32(s.Seq*s.KVHeads, ldo, blocks, s.Held)
	c.dispatch(op, "unrotated", append(s.constants(), uint32(mode)), &p, blocks, s.KVHeads, 1)
}

// putFrequencies writes frequencies, in radians, to dst as shaders/angle.glsl reads them: 8
// bytes each.
func putFrequencies(dst []byte, frequencies []float64) {
	for i, f := range frequencies {
		turns := f / (2 * math.Pi)
		turns = math.Ldexp(turns-math.Floor(turns), 32)
		high := math.Floor(turns)
		binary.LittleEndian.PutUint32(dst[8*i:], uint32(high))
		binary.LittleEndian.PutUint32(dst[8*i+4:], uint32(math.Ldexp(turns-high, 32)))
	}
}

// OutputNorms sets out, [Heads][ldo] f32, to the norm of every value after the
// part of the output projection wo, [M, Heads·HeadDim], that reads the query
// head: norm 1 is the sum of absolute values, 2 the length. Bound: relative error 1e-5, or 1e-6
// of the norm of the sums of absolute products.
func (c *commands) OutputNorms(s sequence, wo weights, norm int, out view, ldo int) {
	const op = "output norms"
	if !c.ready(op) {
		return
	}
	blocks := c.sequence(op, s)
	code := c.weights(op, wo)
	c.table(op, "out", out, s.Heads, ldo, s.Longest)
	if wo.Cols != s.Heads*s.HeadDim || wo.Rows < 1 || norm != 1 && norm != 2 {
		c.fail(op, "found weights %d×%d and norm %d, expected %d columns and norm 1 or 2", wo.Rows, wo.Cols, norm, s.Heads*s.HeadDim)
	}
	if c.err != nil {
		return
	}
	var p push
	p.addr(wo.Mem)
	p.addr(out)
	p.addr(s.Table.mem.All())
	p.u32(s.Seq*s.KVHeads, s.group(), wo.Rows, padded(wo.Cols), ldo, norm, s.Held)
	c.dispatch(op, "outnorm", append(s.constants(), code), &p, blocks, s.Heads, 1)
}

// momentBytes is the size of a layer's query statistics, which are zeros at first.
func momentBytes(heads, headDim int) int64 {
	return 4 * (momentHeader + int64(heads)*int64(momentFloats(headDim)))
}

// momentHeader is the number of words before the heads; the first is the number of rows.
const momentHeader = 8

func momentFloats(d int) int { return 3*d + 2*d*d }

// Moments adds rows row … row+n-1 of q, [N, heads·headDim] f32 before rotation, to
// the statistics in state: sums and, with products, sums of products, both relative
// to the first row ever added. Rows are added one at a time in compensated sums, so
// chunks do not matter. Read the result with readMoments. Bound: 1e-6 of the mean
// square.
func (c *commands) Moments(q rows2D, headDim, row, n int, state view, products bool) {
	const op = "query moments"
	if !c.ready(op) {
		return
	}
	c.rows(op, "q", q, q.Cols, tensor.F32)
	if headDim < 1 || q.Cols%headDim != 0 || row < 0 || n < 0 || row+n > q.N {
		c.fail(op, "rows [%d, %d) of %d, %d elements each in heads of %d", row, row+n, q.N, q.Cols, headDim)
		return
	}
	heads := q.Cols / headDim
	c.floats(op, "state", state, momentHeader+heads*momentFloats(headDim), false)
	if c.err != nil || n == 0 {
		return
	}
	var p push
	p.addr(q.Mem)
	p.addr(state)
	p.u32(q.Stride, row, n)
	threads := headDim
	if products {
		p.u32(1)
		threads += headDim * headDim
	} else {
		p.u32(0)
	}
	c.dispatch(op, "moments", []uint32{uint32(headDim)}, &p, (threads+255)/256, heads, 1)
	var o push
	o.addr(q.Mem)
	o.addr(state)
	o.u32(q.Stride, row, heads, n)
	c.dispatch(op, "origin", []uint32{uint32(headDim)}, &o, 1, 1, 1)
}

// readMoments computes the mean [headDim] and, unless cov is nil, the biased covariance
// [headDim][headDim] of query head q from a state that was read back as f32, and returns
// the number of rows.
func readMoments(state []float32, headDim, q int, mean, cov []float64) (int, error) {
	f, d := momentFloats(headDim), headDim
	if q < 0 || len(state) < momentHeader+(q+1)*f || len(mean) < d || cov != nil && len(cov) < d*d {
		return 0, fmt.Errorf("read query moments of head %d: found %d values, mean %d and covariance %d for dimension %d", q, len(state), len(mean), len(cov), d)
	}
	n := int(math.Float32bits(state[0]))
	s, N := state[momentHeader+q*f:][:f], float64(max(n, 1))
	shift := make([]float64, d)
	for a := range d {
		shift[a] = (float64(s[d+a]) - float64(s[2*d+a])) / N
		mean[a] = float64(s[a]) + shift[a]
	}
	if cov == nil {
		return n, nil
	}
	hi, lo := s[3*d:3*d+d*d], s[3*d+d*d:]
	for a := range d {
		for b := a; b < d; b++ {
			v := (float64(hi[a*d+b])-float64(lo[a*d+b]))/N - float64(shift[a]*shift[b])
			cov[a*d+b], cov[b*d+a] = v, v
		}
	}
	return n, nil
}

// QuadraticForm sets out, [Heads][ldo] f32, to k·linear + kᵀ·form·k for every query head
// and key k of its KV head. linear is [Heads][padded(HeadDim)] f32; form is
// [Heads][padded(HeadDim)][padded(HeadDim)] f32, upper triangles with zeros elsewhere, or
// none. Bound: 1e-5·Σ|terms|.
func (c *commands) QuadraticForm(s sequence, linear, form, out view, ldo int) {
	const op = "quadratic form"
	if !c.ready(op) {
		return
	}
	blocks := c.sequence(op, s)
	dim := padded(s.HeadDim)
	c.floats(op, "linear", linear, s.Heads*dim, false)
	c.floats(op, "form", form, s.Heads*dim*dim, true)
	c.table(op, "out", out, s.Heads, ldo, s.Longest)
	if linear.address()%16 != 0 || form.address()%16 != 0 {
		c.fail(op, "linear at %#x and form at %#x, expected multiples of 16", linear.address(), form.address())
	}
	if c.err != nil {
		return
	}
	var p push
	for _, a := range []view{linear, form, out, s.Table.mem.All()} {
		p.addr(a)
	}
	p.u32(s.Seq*s.KVHeads, s.group(), ldo, s.Held)
	c.dispatch(op, "quadratic", s.constants(), &p, blocks, s.Heads, 1)
}

// moveJob is the compaction of one head: entry Slots[i] becomes entry i for From ≤ i < N.
type moveJob struct {
	Src, Dst view // tables of page addresses; Dst is the same or has fresh pages in place of shared ones
	Slots    view // [N] uint32, ascending
	N, From  int  // the first From entries are already in place
}

// moveBytes is the size of a moveJob on the device.
const moveBytes = 32

// putMoves writes moves to dst, moveBytes each, as Compact reads them.
func putMoves(dst []byte, moves []moveJob) {
	for i, m := range moves {
		putMove(dst[i*moveBytes:], m.Src.address(), m.Dst.address(), m.Slots.address(), m.N, m.From)
	}
}

func putMove(dst []byte, src, to, slots uint64, n, from int) {
	var p push
	p.u64(src)
	p.u64(to)
	p.u64(slots)
	p.u32(n, from)
	copy(dst, p.data[:moveBytes])
}

// Compact runs n moves, stored in moves as putMoves writes them: eviction on the
// device, in place and without extra memory. Entries keep their bits.
func (c *commands) Compact(l layout, moves view, n int) {
	const op = "compact"
	if !c.ready(op) {
		return
	}
	if err := l.Check(); err != nil {
		c.fail(op, "%w", err)
	}
	if n < 0 || moves.Size() < int64(n)*moveBytes {
		c.fail(op, "found %d bytes, expected %d for %d moves", moves.Size(), int64(n)*moveBytes, n)
	}
	if c.err != nil {
		return
	}
	var p push
	p.addr(moves)
	c.dispatch(op, "compact", l.constants(), &p, padded(l.HeadDim)/4+l.scales()+1, n, 1)
}
